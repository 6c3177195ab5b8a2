/* coded: a file that is told by a delta, open for reading anywhere. Every block is held
 * against its digest as it is stored, and against that of the file it stands for once it
 * is decoded. Thread rule: any number of threads may read one file. */
#ifndef DCP_CORE_DELTA_CODED_H
#define DCP_CORE_DELTA_CODED_H

#include "block.h"
#include "folder.h"
#include <pthread.h>

/* Coders that nobody uses at the moment, for all files of a store. */
enum { DCP_DELTA_IDLE = 8 };
struct dcp_delta_coders {
    pthread_mutex_t lock;
    struct dcp_delta_coder *idle[DCP_DELTA_IDLE];
    int n;
};
void dcp_delta_coders_init(struct dcp_delta_coders *coders);
void dcp_delta_coders_fini(struct dcp_delta_coders *coders);

/* Where a coded file and its base come from. All is borrowed until the file is closed,
 * but for base_file, which the file closes. */
struct dcp_delta_origin {
    const struct dcp_store *store; /* that has NAME.delta, */
    const char *path;              /* by this name; copied */
    const struct dcp_delta_file *file;
    const struct dcp_store *base;
    struct dcp_store_file *base_file; /* NULL: the base has no such file */
    uint64_t base_bytes;
    struct dcp_delta_coders *coders;
};

struct dcp_delta_coded_file;
/* After a failure base_file is the caller's. Errors: CORRUPT, NOT_FOUND, IO, MEMORY. */
int dcp_delta_coded_open(const struct dcp_delta_origin *origin,
                         struct dcp_delta_coded_file **out, struct dcp_error *err);
/* As read_at of a store. */
int dcp_delta_coded_read(struct dcp_delta_coded_file *file, uint64_t offset, void *out,
                         size_t n, struct dcp_error *err);
void dcp_delta_coded_drop_cache(struct dcp_delta_coded_file *file);
int dcp_delta_coded_close(struct dcp_delta_coded_file *file, struct dcp_error *err);

#endif
