/* location: what a user means by a path. */
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/files/files.h"
#include "core/parity/reconstruction.h"
#include "pin.h"
#include "steps.h"
#include <dcp/delta.h>
#include <dcp/training.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define MAX_CONFIG_BYTES ((size_t)64 << 20)

/* "'model.bin'", escaped; returns its length. */
static size_t quote(char *out, size_t cap, const char *text)
{
    out[0] = '\'';
    dcp_str_escape(out + 1, cap - 2, text);
    size_t n = strlen(out);
    out[n++] = '\'';
    out[n] = '\0';
    return n;
}

static int find_steps(const struct dcp_store *store, bool *out_found,
                      struct dcp_error *err)
{
    struct dcp_store_entry *entries;
    size_t n;
    int rc = store->ops->list(store->self, "", &entries, &n, err);

    *out_found = false;
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++)
        *out_found |=
            entries[i].is_dir && (dcp_step_parse(entries[i].name) >= 0 ||
                                  dcp_str_starts(entries[i].name, DCP_TMP_PREFIX));
    dcp_store_list_free(entries, n);
    return DCP_OK;
}

static void on_warning(void *self, enum dcp_log_level level, const char *text)
{
    (void)level;
    (void)text;
    *(bool *)self = true;
}

/* The newest complete step of a run folder, or "" when it is none. */
static int choose_step(const char *path, struct dcp_location *location,
                       struct dcp_error *err)
{
    const struct dcp_store *store = location->store;
    const struct dcp_log log = { on_warning, &location->passed_over, DCP_LOG_WARN };
    struct dcp_source root = { store, "", true };
    const struct dcp_format *steps = dcp_format_of_steps();
    struct dcp_context ctx = { .store = store, .log = &log };
    struct dcp_step step = { .name = "" };
    struct dcp_error why = { 0 };
    bool has_steps = false, is_step = steps->probe(&root);
    int rc = is_step ? dcp_pin(store, "", &location->pin, &why)
                     : find_steps(store, &has_steps, &why);

    if (!rc && has_steps) {
        do { /* a step that went between being found and being pinned was an old one */
            why = (struct dcp_error){ 0 };
            rc = dcp_find(&ctx, -1, &step, &why);
        } while (!rc && dcp_pin(store, step.name, &location->pin, &why));
    }
    if (rc) {
        if (err && why.code)
            *err = why;
        if (has_steps)
            dcp_error_hint(err, "'dcp-inspect %s' lists what is there", path);
        return rc;
    }
    location->name = strdup(step.name);
    return location->name ? DCP_OK : dcp_error_memory(err, "a path");
}

static int open_store(const char *dir, const struct dcp_location_options *options,
                      struct dcp_location *location, struct dcp_error *err)
{
    struct dcp_store folder;

    DCP_TRY(dcp_store_dir(&folder, dir, false, err));
    folder.max_header_bytes = options->max_header_bytes;
    return dcp_store_delta(location->store, &folder, dir, options->base, err);
}

static int open_dir(const char *path, const struct dcp_location_options *options,
                    struct dcp_location *location, struct dcp_error *err)
{
    DCP_TRY(open_store(path, options, location, err));
    DCP_TRY(choose_step(path, location, err));
    location->path = *location->name ? dcp_fs_join(path, location->name) : strdup(path);
    return location->path ? DCP_OK : dcp_error_memory(err, "a path");
}

static int open_file(const char *path, const struct dcp_location_options *options,
                     struct dcp_location *location, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL;

    if (!dcp_fs_exists(path)) {
        bool absent = errno == ENOENT || errno == ENOTDIR;
        return absent ? dcp_error_set(err, DCP_E_NOT_FOUND, "there is no '%s'", path)
                      : dcp_error_sys(err, DCP_E_IO, errno, "cannot open '%s'", path);
    }
    if (!dcp_fs_split(path, &dir, &location->name) || !(location->path = strdup(path)))
        return dcp_error_memory(err, "a path");
    return open_store(dir, options, location, err);
}

/* A tar archive becomes a folder. */
static int enter_bundle(struct dcp_location *location, struct dcp_error *err)
{
    struct dcp_store bundle;

    DCP_TRY(dcp_store_bundle(&bundle, location->store, location->name, err));
    *location->store = bundle;
    free(location->name);
    location->name = NULL;
    int rc = choose_step(location->path, location, err);
    location->source = (struct dcp_source){ location->store, location->name, true };
    return rc ? rc : dcp_format_probe(&location->source, &location->format, err);
}

/* A file that no format knows may still be an archive with a checkpoint in it. */
static int choose_source(struct dcp_location *location, bool is_dir,
                         struct dcp_error *err)
{
    struct dcp_error why = { 0 };

    location->source = (struct dcp_source){ location->store, location->name, is_dir };
    int rc = is_dir ? dcp_delta_check_small(location->store, location->name, err) : 0;
    if (rc) {
        dcp_error_prefix(err, "cannot read '%s'", location->path);
        return rc;
    }
    rc = dcp_format_probe_links(location->store, &location->source, &location->format,
                                &why);
    if (rc == DCP_E_UNSUPPORTED && !is_dir &&
        dcp_bundle_probe(location->store, location->name))
        return enter_bundle(location, err);
    if (rc && err)
        *err = why;
    return rc;
}

int dcp_location_open(const char *path, struct dcp_location *out_location,
                      struct dcp_error *err)
{
    const struct dcp_location_options options = { 0 };

    return dcp_location_open_with(path, &options, out_location, err);
}

int dcp_location_open_with(const char *path, const struct dcp_location_options *options,
                           struct dcp_location *out_location, struct dcp_error *err)
{
    struct dcp_location *location = out_location;
    bool is_dir = dcp_fs_is_dir(path);

    *location = (struct dcp_location){ .store = calloc(1, sizeof *location->store) };
    int rc = !location->store ? dcp_error_memory(err, "a path")
             : is_dir         ? open_dir(path, options, location, err)
                              : open_file(path, options, location, err);
    if (!rc)
        rc = choose_source(location, is_dir, err);
    if (rc)
        dcp_location_close(location);
    return rc;
}

void dcp_location_close(struct dcp_location *location)
{
    if (!location)
        return;
    dcp_reconstruction_free(location->rebuilt);
    dcp_location_unpin(location);
    dcp_store_free(location->store);
    free(location->store);
    free(location->name);
    free(location->path);
    *location = (struct dcp_location){ 0 };
}

void dcp_location_unpin(struct dcp_location *location)
{
    if (location->store)
        dcp_unpin(location->store, &location->pin);
}

int dcp_location_failed(const struct dcp_location *location, int rc,
                        struct dcp_error *err)
{
    if (rc == DCP_E_MEMORY || rc == DCP_E_INTERRUPTED || dcp_fs_exists(location->path))
        return rc;
    if (err)
        *err = (struct dcp_error){ 0 };
    rc = dcp_error_set(err, DCP_E_NOT_FOUND, "'%s' was removed while it was read",
                       location->path);
    dcp_error_hint(err, "retention removes old steps: read a newer one, or keep this one "
                        "with 'dcp-reshard pin'");
    return rc;
}

/* Messages of formats begin with the file's name in its folder: the whole path takes its
 * place. Others have the path before them, unless they name it. */
void dcp_location_name_error(const struct dcp_location *location, struct dcp_error *err)
{
    char name[258], path[sizeof err->message];

    if (!err || !err->code)
        return;
    size_t n = quote(name, sizeof name, location->source.name);
    size_t path_n = quote(path, sizeof path, location->path);
    bool begins = !location->source.is_dir && !strncmp(err->message, name, n);
    if (!begins && strstr(err->message, path))
        return;
    if (!begins || path_n >= sizeof err->message / 2) {
        dcp_error_prefix(err, "cannot read '%s'", location->path);
        return;
    }
    size_t rest_n = strlen(err->message + n), room = sizeof err->message - 1 - path_n;
    rest_n = rest_n < room ? rest_n : room;
    memmove(err->message + path_n, err->message + n, rest_n);
    memcpy(err->message, path, path_n);
    err->message[path_n + rest_n] = '\0';
}

static int index_location(struct dcp_location *location, bool head,
                          struct dcp_catalog **out_catalog, struct dcp_error *err)
{
    struct dcp_catalog *catalog;
    struct dcp_reconstruction *rebuilt = NULL;
    int rc = dcp_reconstruction_index(&location->source, location->format, head, &catalog,
                                      &rebuilt, &location->corruption, err);

    *out_catalog = NULL;
    if (rc) {
        dcp_location_name_error(location, err);
        return dcp_location_failed(location, rc, err);
    }
    if (rebuilt) {
        location->rebuilt = rebuilt;
        location->source.store = dcp_reconstruction_store(rebuilt);
    }
    *out_catalog = catalog;
    return DCP_OK;
}

int dcp_location_index(struct dcp_location *location, struct dcp_catalog **out_catalog,
                       struct dcp_error *err)
{
    return index_location(location, false, out_catalog, err);
}

int dcp_location_head(struct dcp_location *location, struct dcp_catalog **out_catalog,
                      struct dcp_error *err)
{
    return index_location(location, true, out_catalog, err);
}

int dcp_location_config(const struct dcp_location *location,
                        const struct dcp_catalog *catalog, char **out,
                        struct dcp_error *err)
{
    int i = dcp_catalog_find_object(catalog, DCP_TRAINING_MODEL_CONFIG);
    void *text = NULL;
    size_t n;

    *out = NULL;
    if (i < 0 || catalog->objects[i].kind != DCP_OBJECT_JSON) {
        if (!dcp_store_read_file(location->source.store, "config.json", MAX_CONFIG_BYTES,
                                 &text, &n, NULL))
            *out = text;
        return DCP_OK;
    }
    *out = strndup(catalog->objects[i].data, catalog->objects[i].size_bytes);
    return *out ? DCP_OK : dcp_error_memory(err, "the model's description");
}

struct dcp_source dcp_location_plain(const struct dcp_location *location)
{
    struct dcp_source source = location->source;

    source.store = location->store;
    return source;
}

int dcp_location_descriptor(const struct dcp_location *location,
                            const struct dcp_file *file, int *out_fd,
                            struct dcp_error *err)
{
    const struct dcp_store *store = location->source.store;
    struct dcp_store_file *opened;

    *out_fd = -1;
    if (location->rebuilt || !store->ops->descriptor)
        return DCP_OK;
    DCP_CLEANUP_FREE char *name = dcp_source_file(&location->source, file->name);
    if (!name)
        return dcp_error_memory(err, "a file name");
    DCP_TRY(store->ops->open(store->self, name, &opened, err));
    int rc = DCP_OK, fd = store->ops->descriptor(store->self, opened);
    if (fd >= 0 && (*out_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0)
        rc = dcp_error_sys(err, DCP_E_IO, errno, "cannot keep '%s' open", name);
    store->ops->close(store->self, opened, NULL);
    return rc;
}
