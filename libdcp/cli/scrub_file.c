#include "scrub_file.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/store.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define MAX_STATE_BYTES ((size_t)16 << 20)
#define STATE_NAME "scrub.json"

int dcp_scrub_file_find(const char *path, struct dcp_scrub_file *out,
                        struct dcp_error *err)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    *out = (struct dcp_scrub_file){ .makes_dir = !path };
    if (path)
        return dcp_fs_split(path, &out->dir, &out->name)
                   ? DCP_OK
                   : dcp_error_memory(err, "a path");
    bool given = state && state[0] == '/';
    if (!given && !(home && home[0] == '/'))
        return dcp_error_set(
            err, DCP_E_USAGE,
            "HOME is not set, so there is nowhere to keep the state: give --state");
    out->dir =
        dcp_fs_join(given ? state : home, given ? "libdcp" : ".local/state/libdcp");
    out->name = strdup(STATE_NAME);
    return out->dir && out->name ? DCP_OK : dcp_error_memory(err, "a path");
}

void dcp_scrub_file_fini(struct dcp_scrub_file *file)
{
    free(file->dir);
    free(file->name);
    *file = (struct dcp_scrub_file){ 0 };
}

int dcp_scrub_file_read(const struct dcp_scrub_file *file, json_t **out,
                        struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_fs_join(file->dir, file->name);
    DCP_CLEANUP_FREE void *text = NULL;
    struct dcp_error why = { 0 };
    size_t n = 0;
    *out = NULL;
    if (!path)
        return dcp_error_memory(err, "a path");
    int rc = dcp_fs_read_file(path, MAX_STATE_BYTES, &text, &n, &why);
    if (rc == DCP_E_NOT_FOUND) {
        *out = json_object();
        return *out ? DCP_OK : dcp_error_memory(err, "a state");
    }
    if (!rc)
        rc = dcp_json_parse(text, n, path, out, &why);
    if (!rc && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        rc = dcp_error_set(&why, DCP_E_CORRUPT, "'%s' is not a scrub state file", path);
    }
    if (rc && err)
        *err = why;
    return rc;
}

/* Beside the file, which is replaced. *out_fd -1: nothing can be locked here. */
static int lock(const struct dcp_scrub_file *file, int *out_fd, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *name = dcp_str_join(".", file->name, ".lock");
    DCP_CLEANUP_FREE char *path = name ? dcp_fs_join(file->dir, name) : NULL;
    *out_fd = -1;
    if (!path)
        return dcp_error_memory(err, "a path");
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0)
        return dcp_error_sys(err, DCP_E_IO, errno, "cannot open '%s'", path);
    int rc;
    do {
        rc = flock(fd, LOCK_EX);
    } while (rc && errno == EINTR);
    int why = rc ? errno : 0;
    if (why)
        close(fd);
    else
        *out_fd = fd;
    if (!why || why == ENOSYS || why == EOPNOTSUPP || why == ENOLCK)
        return DCP_OK;
    return dcp_error_sys(err, DCP_E_IO, why, "cannot lock '%s'", path);
}

static int replace(const struct dcp_store *store, const char *name, const json_t *states,
                   struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *text = dcp_json_text(states, 2);
    return text ? store->ops->replace(store->self, name, text, strlen(text), err)
                : dcp_error_memory(err, "a state");
}

int dcp_scrub_file_change(const struct dcp_scrub_file *file,
                          int (*change)(void *self, json_t *states,
                                        struct dcp_error *err),
                          void *self, json_t **out, struct dcp_error *err)
{
    struct dcp_store store;
    int fd = -1;
    *out = NULL;
    DCP_TRY(dcp_store_dir(&store, file->dir, file->makes_dir, err));
    int rc = lock(file, &fd, err);
    if (!rc)
        rc = dcp_scrub_file_read(file, out, err);
    if (!rc && change)
        rc = change(self, *out, err);
    if (!rc)
        rc = replace(&store, file->name, *out, err);
    if (fd >= 0)
        close(fd);
    dcp_store_free(&store);
    if (!rc)
        return DCP_OK;
    json_decref(*out);
    *out = NULL;
    return rc;
}

double dcp_scrub_position(const json_t *from)
{
    double place = json_number_value(from);
    return place > 0 && place < 1 ? place : 0;
}

const char *dcp_scrub_last(const json_t *states, const char *run, double *out_from)
{
    json_t *steps = json_object_get(json_object_get(states, run), "steps"), *step;
    const char *name, *last = NULL;
    json_int_t turn = -1;
    json_object_foreach(steps, name, step)
    {
        json_int_t its = json_integer_value(json_object_get(step, "turn"));
        if (!json_is_object(step) || its <= turn)
            continue;
        turn = its;
        last = name;
        *out_from = dcp_scrub_position(json_object_get(step, "from"));
    }
    return last;
}
