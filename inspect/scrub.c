#include "scrub.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/doc.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STATE_BYTES ((size_t)16 << 20)
#define STATE_NAME "scrub.json"

/* -- slow reading -------------------------------------------------------------------- */

static int slow_read_at(void *self, struct dcp_store_file *file, uint64_t offset,
                        void *out, size_t size_bytes, struct dcp_error *err)
{
    struct inspect_slow *slow = self;
    pthread_mutex_lock(&slow->lock);
    double now = dcp_clock_s();
    double begin = slow->free_at > now ? slow->free_at : now;
    slow->free_at = begin + (double)size_bytes / (double)slow->bytes_per_s;
    pthread_mutex_unlock(&slow->lock);
    if (begin > now)
        dcp_clock_sleep_us((uint64_t)((begin - now) * 1e6));
    return slow->inner->ops->read_at(slow->inner->self, file, offset, out, size_bytes,
                                     err);
}

static int slow_list(void *self, const char *dir, struct dcp_store_entry **out,
                     size_t *out_n, struct dcp_error *err)
{
    const struct inspect_slow *slow = self;
    return slow->inner->ops->list(slow->inner->self, dir, out, out_n, err);
}

static int slow_stat(void *self, const char *name, bool *out_is_dir,
                     uint64_t *out_size_bytes, struct dcp_error *err)
{
    const struct inspect_slow *slow = self;
    return slow->inner->ops->stat(slow->inner->self, name, out_is_dir, out_size_bytes,
                                  err);
}

static int slow_open(void *self, const char *name, struct dcp_store_file **out,
                     struct dcp_error *err)
{
    const struct inspect_slow *slow = self;
    return slow->inner->ops->open(slow->inner->self, name, out, err);
}

static int slow_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    const struct inspect_slow *slow = self;
    return slow->inner->ops->close(slow->inner->self, file, err);
}

static const struct dcp_store_ops slow_ops = {
    .list = slow_list,
    .stat = slow_stat,
    .open = slow_open,
    .read_at = slow_read_at,
    .close = slow_close,
};

void inspect_slow_init(struct inspect_slow *slow, const struct dcp_store *inner,
                       uint64_t bytes_per_s)
{
    *slow = (struct inspect_slow){ .inner = inner, .bytes_per_s = bytes_per_s };
    pthread_mutex_init(&slow->lock, NULL);
    slow->store = *inner;
    slow->store.ops = &slow_ops;
    slow->store.self = slow;
}

void inspect_slow_fini(struct inspect_slow *slow)
{
    pthread_mutex_destroy(&slow->lock);
}

/* -- where it goes on ---------------------------------------------------------------- */

/* Folder and name of the file of states; the folder is made when `create`. */
static int find_state(const char *file, bool create, char **out_dir, char **out_name,
                      struct dcp_error *err)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (file)
        return dcp_fs_split(file, out_dir, out_name) ? DCP_OK
                                                     : dcp_error_memory(err, "a path");
    bool given = state && state[0] == '/';
    if (!given && !(home && home[0] == '/'))
        return dcp_error_set(err, DCP_E_USAGE,
                             "there is no HOME to remember the place in: give --state");
    *out_dir =
        dcp_fs_join(given ? state : home, given ? "libdcp" : ".local/state/libdcp");
    *out_name = strdup(STATE_NAME);
    if (!*out_dir || !*out_name)
        return dcp_error_memory(err, "a path");
    return create ? dcp_fs_make_dirs(*out_dir, err) : DCP_OK;
}

/* The states of all checkpoints; an empty object when there is no file. */
static int read_states(const char *dir, const char *name, json_t **out,
                       struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_fs_join(dir, name);
    DCP_CLEANUP_FREE void *text = NULL;
    size_t n = 0;
    *out = NULL;
    if (!path)
        return dcp_error_memory(err, "a path");
    if (!dcp_fs_exists(path)) {
        *out = json_object();
        return *out ? DCP_OK : dcp_error_memory(err, "a state");
    }
    int rc = dcp_fs_read_file(path, MAX_STATE_BYTES, &text, &n, err);
    if (!rc)
        rc = dcp_json_parse(text, n, path, out, err);
    if (!rc && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        rc = dcp_error_set(err, DCP_E_CORRUPT, "'%s' is no file of states", path);
    }
    return rc;
}

static char *real_path(const char *path, struct dcp_error *err)
{
    char *real = realpath(path, NULL);
    if (!real)
        dcp_error_sys(err, DCP_E_IO, 0, "cannot resolve '%s'", path);
    return real;
}

int inspect_scrub_load(const char *file, const char *path, double *out_from,
                       struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL, *name = NULL, *real = real_path(path, err);
    DCP_CLEANUP_JSON json_t *states = NULL;
    *out_from = 0;
    int rc = real ? find_state(file, false, &dir, &name, err) : DCP_E_IO;
    if (!rc)
        rc = read_states(dir, name, &states, err);
    if (rc)
        return rc;
    double from = json_number_value(json_object_get(states, real));
    *out_from = from > 0 && from < 1 ? from : 0;
    return DCP_OK;
}

int inspect_scrub_store(const char *file, const char *path, double from,
                        struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL, *name = NULL, *real = real_path(path, err);
    DCP_CLEANUP_JSON json_t *states = NULL;
    struct dcp_store store = { 0 };
    int rc = real ? find_state(file, true, &dir, &name, err) : DCP_E_IO;
    if (!rc)
        rc = read_states(dir, name, &states, err);
    if (!rc)
        rc = dcp_doc_set(states, real, json_real(from)) ? dcp_error_memory(err, "a state")
                                                        : DCP_OK;
    DCP_CLEANUP_FREE char *text = rc ? NULL : dcp_json_text(states, 2);
    if (!rc && !text)
        rc = dcp_error_memory(err, "a state");
    if (!rc)
        rc = dcp_store_dir(&store, dir, false, err);
    if (!rc)
        rc = store.ops->replace(store.self, name, text, strlen(text), err);
    if (store.ops)
        dcp_store_free(&store);
    return rc;
}

int inspect_scrub_parse(const char *text, double *out_part, struct dcp_error *err)
{
    char *end;
    double percent = strtod(text, &end);
    bool whole = end != text && (!*end || !strcmp(end, "%"));
    if (!whole || !(percent > 0) || percent > 100)
        return dcp_error_set(err, DCP_E_USAGE,
                             "--subset '%s' is no percentage, such as 5%%", text);
    *out_part = percent / 100;
    return DCP_OK;
}
