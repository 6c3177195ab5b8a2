/* file: an open file of a store of deltas. All but what is opened for reading in a delta
 * is a file of the store below, passed on. */
#ifndef DCP_CORE_DELTA_FILE_H
#define DCP_CORE_DELTA_FILE_H

#include "coded.h"
#include "view.h"

struct dcp_store_file {
    struct dcp_store_file *inner;       /* as it lies, or */
    struct dcp_delta_coded_file *coded; /* by a delta, */
    struct dcp_delta_view *view; /* of this folder: the store's, in use till then */
};

/* Opens what a delta stands for; `name` is of the store, `inner` the store below. A file
 * that is not coded is read to its end, for its digest. Errors: NOT_FOUND, CORRUPT, IO,
 * MEMORY. */
int dcp_delta_file_open(const struct dcp_store *inner, struct dcp_delta_coders *coders,
                        const struct dcp_delta_view *view, const char *name,
                        struct dcp_store_file *out, struct dcp_error *err);
/* Closes and frees. */
int dcp_delta_file_close(const struct dcp_store *inner, struct dcp_store_file *file,
                         struct dcp_error *err);

/* Calls of a store; self begins with a struct dcp_store_forward. */
int dcp_delta_file_read_at(void *self, struct dcp_store_file *file, uint64_t offset,
                           void *out, size_t size_bytes, struct dcp_error *err);
bool dcp_delta_file_direct(void *self, struct dcp_store_file *file);
int dcp_delta_file_descriptor(void *self, struct dcp_store_file *file);
void dcp_delta_file_drop_cache(void *self, struct dcp_store_file *file);
int dcp_delta_file_create(void *self, const char *name, uint64_t size_bytes,
                          struct dcp_store_file **out, struct dcp_error *err);
int dcp_delta_file_reopen(void *self, const char *name, struct dcp_store_file **out,
                          struct dcp_error *err);
int dcp_delta_file_hold(void *self, const char *name, bool exclusive,
                        struct dcp_store_file **out, struct dcp_error *err);
int dcp_delta_file_write_at(void *self, struct dcp_store_file *file, uint64_t offset,
                            const void *data, size_t size_bytes, struct dcp_error *err);
void dcp_delta_file_flush_hint(void *self, struct dcp_store_file *file, uint64_t offset,
                               uint64_t size_bytes);
int dcp_delta_file_sync(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                        struct dcp_error *err);

#endif
