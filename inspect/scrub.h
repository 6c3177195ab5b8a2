/* scrub: verifying a checkpoint in the background: slowly, and a part at a time. */
#ifndef INSPECT_SCRUB_H
#define INSPECT_SCRUB_H

#include <dcp/store.h>
#include <pthread.h>

/* A store that reads no faster than a rate. */
struct inspect_slow {
    const struct dcp_store *inner;
    struct dcp_store_ops ops;
    struct dcp_store store; /* borrows this */
    pthread_mutex_t lock;
    uint64_t bytes_per_s;
    double free_at; /* when the next read may begin */
};
void inspect_slow_init(struct inspect_slow *slow, const struct dcp_store *inner,
                       uint64_t bytes_per_s);
void inspect_slow_fini(struct inspect_slow *slow);

/* Where the verification of a checkpoint goes on: a fraction of its bytes, 0 when nothing
 * is known of it. `file` is where that is kept; NULL: scrub.json below XDG_STATE_HOME, or
 * ~/.local/state. Checkpoints are known by their real path. Errors: IO, CORRUPT (the file
 * is none of ours), MEMORY. */
int inspect_scrub_load(const char *file, const char *path, double *out_from,
                       struct dcp_error *err);
int inspect_scrub_store(const char *file, const char *path, double from,
                        struct dcp_error *err);

/* "5%" or "5": a part of 1, more than 0. */
int inspect_scrub_parse(const char *text, double *out_part, struct dcp_error *err);

#endif
