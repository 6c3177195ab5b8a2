/* place: what a user means by a path. */
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/parity/mend.h"
#include "pin.h"
#include "steps.h"
#include <dcp/reshard.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

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

static bool has_steps(const struct dcp_store *store)
{
    struct dcp_store_entry *entries;
    size_t n;
    bool found = false;

    if (store->ops->list(store->self, "", &entries, &n, NULL))
        return false;
    for (size_t i = 0; i < n; i++)
        found |= entries[i].is_dir && (dcp_step_parse(entries[i].name) >= 0 ||
                                       dcp_str_starts(entries[i].name, DCP_TMP_PREFIX));
    dcp_store_list_free(entries, n);
    return found;
}

static void on_warning(void *self, enum dcp_log_level level, const char *text)
{
    (void)level;
    (void)text;
    *(bool *)self = true;
}

/* The newest whole step of a run folder, or "" when it is none. */
static int choose_step(const char *path, struct dcp_place *place, struct dcp_error *err)
{
    const struct dcp_store *store = place->store;
    const struct dcp_log log = { on_warning, &place->passed_over, DCP_LOG_WARN };
    struct dcp_source root = { store, "", true };
    const struct dcp_format *steps = dcp_format_of_steps();
    struct dcp_context ctx = { .store = store, .log = &log };
    struct dcp_step step = { .name = "" };
    struct dcp_error why = { 0 };
    int rc = DCP_OK;

    if (steps->probe(&root)) {
        rc = dcp_pin(store, "", &place->pin, err);
    } else if (has_steps(store)) {
        do { /* a step that went between being found and being pinned was an old one */
            why = (struct dcp_error){ 0 };
            rc = dcp_find(&ctx, -1, &step, &why);
        } while (!rc && dcp_pin(store, step.name, &place->pin, &why));
    }
    if (rc) {
        if (err && why.code)
            *err = why;
        dcp_error_hint(err, "'dcp-inspect %s' lists what is there", path);
        return rc;
    }
    place->name = strdup(step.name);
    return place->name ? DCP_OK : dcp_error_memory(err, "a path");
}

static int open_store(const char *dir, const struct dcp_place_options *options,
                      struct dcp_place *place, struct dcp_error *err)
{
    DCP_TRY(dcp_store_dir(place->store, dir, false, err));
    place->store->max_header_bytes = options->max_header_bytes;
    return DCP_OK;
}

static int open_dir(const char *path, const struct dcp_place_options *options,
                    struct dcp_place *place, struct dcp_error *err)
{
    DCP_TRY(open_store(path, options, place, err));
    DCP_TRY(choose_step(path, place, err));
    place->path = *place->name ? dcp_fs_join(path, place->name) : strdup(path);
    return place->path ? DCP_OK : dcp_error_memory(err, "a path");
}

static int open_file(const char *path, const struct dcp_place_options *options,
                     struct dcp_place *place, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL;

    if (!dcp_fs_exists(path)) {
        bool absent = errno == ENOENT || errno == ENOTDIR;
        return absent ? dcp_error_set(err, DCP_E_NOT_FOUND, "there is no '%s'", path)
                      : dcp_error_sys(err, DCP_E_IO, errno, "cannot open '%s'", path);
    }
    if (!dcp_fs_split(path, &dir, &place->name) || !(place->path = strdup(path)))
        return dcp_error_memory(err, "a path");
    return open_store(dir, options, place, err);
}

/* A tar archive becomes a folder. */
static int enter_bundle(struct dcp_place *place, struct dcp_error *err)
{
    struct dcp_store bundle;

    DCP_TRY(dcp_store_bundle(&bundle, place->store, place->name, err));
    *place->store = bundle;
    free(place->name);
    place->name = NULL;
    int rc = choose_step(place->path, place, err);
    place->source = (struct dcp_source){ place->store, place->name, true };
    return rc ? rc : dcp_format_probe(&place->source, &place->format, err);
}

/* A file that no format knows may still be an archive with a checkpoint in it. */
static int choose_source(struct dcp_place *place, bool is_dir, struct dcp_error *err)
{
    struct dcp_error why = { 0 };

    place->source = (struct dcp_source){ place->store, place->name, is_dir };
    int rc = dcp_format_probe_links(place->store, &place->source, &place->format, &why);
    if (rc == DCP_E_UNSUPPORTED && !is_dir && dcp_bundle_probe(place->store, place->name))
        return enter_bundle(place, err);
    if (rc && err)
        *err = why;
    return rc;
}

int dcp_place_open(const char *path, struct dcp_place *out_place, struct dcp_error *err)
{
    const struct dcp_place_options options = { 0 };

    return dcp_place_open_with(path, &options, out_place, err);
}

int dcp_place_open_with(const char *path, const struct dcp_place_options *options,
                        struct dcp_place *out_place, struct dcp_error *err)
{
    struct dcp_place *place = out_place;
    bool is_dir = dcp_fs_is_dir(path);

    *place = (struct dcp_place){ .store = calloc(1, sizeof *place->store) };
    int rc = !place->store ? dcp_error_memory(err, "a path")
             : is_dir      ? open_dir(path, options, place, err)
                           : open_file(path, options, place, err);
    if (!rc)
        rc = choose_source(place, is_dir, err);
    if (rc)
        dcp_place_close(place);
    return rc;
}

void dcp_place_close(struct dcp_place *place)
{
    if (!place)
        return;
    dcp_mend_free(place->mend);
    dcp_place_unpin(place);
    dcp_store_free(place->store);
    free(place->store);
    free(place->name);
    free(place->path);
    *place = (struct dcp_place){ 0 };
}

void dcp_place_unpin(struct dcp_place *place)
{
    if (place->store)
        dcp_unpin(place->store, &place->pin);
}

int dcp_place_failed(const struct dcp_place *place, int rc, struct dcp_error *err)
{
    if (rc == DCP_E_MEMORY || rc == DCP_E_INTERRUPTED || dcp_fs_exists(place->path))
        return rc;
    if (err)
        *err = (struct dcp_error){ 0 };
    rc = dcp_error_set(err, DCP_E_NOT_FOUND, "'%s' was removed while it was read",
                       place->path);
    dcp_error_hint(err, "retention removes old steps: read a newer one, or keep this one "
                        "with 'dcp-reshard pin'");
    return rc;
}

/* Messages of formats begin with the file's name in its folder: the whole path takes its
 * place. Others have the path before them, unless they name it. */
void dcp_place_name_error(const struct dcp_place *place, struct dcp_error *err)
{
    char name[258], path[sizeof err->message];

    if (!err || !err->code)
        return;
    size_t n = quote(name, sizeof name, place->source.name);
    size_t path_n = quote(path, sizeof path, place->path);
    bool begins = !place->source.is_dir && !strncmp(err->message, name, n);
    if (!begins && strstr(err->message, path))
        return;
    if (!begins || path_n >= sizeof err->message / 2) {
        dcp_error_prefix(err, "cannot read '%s'", place->path);
        return;
    }
    size_t rest_n = strlen(err->message + n), room = sizeof err->message - 1 - path_n;
    rest_n = rest_n < room ? rest_n : room;
    memmove(err->message + path_n, err->message + n, rest_n);
    memcpy(err->message, path, path_n);
    err->message[path_n + rest_n] = '\0';
}

int dcp_place_index(struct dcp_place *place, struct dcp_catalog **out_catalog,
                    struct dcp_error *err)
{
    struct dcp_catalog *catalog;
    struct dcp_mend *mend = NULL;
    int rc = dcp_mend_index(&place->source, place->format, &catalog, &mend,
                            &place->damage, err);

    *out_catalog = NULL;
    if (rc) {
        dcp_place_name_error(place, err);
        return dcp_place_failed(place, rc, err);
    }
    if (mend) {
        place->mend = mend;
        place->source.store = dcp_mend_store(mend);
    }
    *out_catalog = catalog;
    return DCP_OK;
}

struct dcp_source dcp_place_plain(const struct dcp_place *place)
{
    struct dcp_source source = place->source;

    source.store = place->store;
    return source;
}
