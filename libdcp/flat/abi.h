/* abi: what crosses to other languages, whatever each side knows of it. */
#ifndef DCP_FLAT_ABI_H
#define DCP_FLAT_ABI_H

#include <dcp/flat.h>
#include <dcp/log.h>
#include <dcp/tensor.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Every struct that crosses begins with its size. Copies one of the caller's to one of
 * ours, of `size` bytes: what the caller does not know is zero. NULL: all is zero. */
void dcp_flat_take(void *ours, size_t size, const void *theirs);

/* As many threads as are asked for, up to what makes sense; 0 stays 0. */
#define DCP_FLAT_MAX_THREADS 64
static inline int dcp_flat_threads(int32_t asked)
{
    return asked < DCP_FLAT_MAX_THREADS ? asked : DCP_FLAT_MAX_THREADS;
}
/* The other way: what the caller does not know is left out. */
void dcp_flat_give(void *theirs, const void *ours, size_t size);

/* Tells what failed, and returns rc. */
int32_t dcp_flat_fail(struct dcp_flat_error *out, int rc, const struct dcp_error *err);

/* Tells object i of a catalog. Returns NOT_FOUND behind the last. */
int32_t dcp_flat_tell_object(const struct dcp_catalog *catalog, uint64_t i,
                             struct dcp_flat_object *out);

/* The hooks of one act, as the library has progress. */
struct dcp_flat_watch {
    struct dcp_flat_hooks hooks;
};
struct dcp_progress dcp_flat_watch(struct dcp_flat_watch *watch,
                                   const struct dcp_flat_hooks *hooks);
/* Whether somebody asked to stop. */
bool dcp_flat_cancelled(const struct dcp_flat_watch *watch);
/* Returns INTERRUPTED. */
int dcp_flat_interrupted(struct dcp_error *err);

#endif
