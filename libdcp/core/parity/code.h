/* code: writing the parity files of a step that is not published yet.
 *
 * Everything is read back from the store, and digested on the way: what the digests of
 * the files say must be what parity is made of. The stripes of a group are shared by the
 * ranks that wrote its columns. */
#ifndef DCP_CORE_PARITY_CODE_H
#define DCP_CORE_PARITY_CODE_H

#include "base/pool.h"
#include "parity.h"

#define DCP_PARITY_MAX_TAIL ((size_t)1 << 30) /* of a manifest */

struct dcp_parity_code {
    const struct dcp_parity *parity;
    const struct dcp_store *store;
    const char *prefix;  /* of the step's unfinished folder, with its slash */
    int share, n_shares; /* this one of as many as there are columns, or of 1 */
    struct dcp_pool *pool;
    uint64_t memory_bytes; /* for the buffers of all workers */
};

/* Creates the parity files, with room for their records. One caller, before the others
 * go on. Errors: NO_SPACE, IO, MEMORY. */
int dcp_parity_create(const struct dcp_parity_code *code, struct dcp_error *err);
/* Reads, codes, writes and syncs this share. *out_sums (caller frees) has, of every file
 * of the description, what this share read of it contributes to its CRC-64: the exclusive
 * or of all shares' is that digest. Errors: IO, CORRUPT, MEMORY. */
int dcp_parity_run(const struct dcp_parity_code *code, uint64_t **out_sums,
                   struct dcp_error *err);
/* Holds the sums of all shares, folded, against the digests of the files. Errors:
 * CORRUPT, naming the file. */
int dcp_parity_prove(const struct dcp_parity *parity, const uint64_t *sums,
                     struct dcp_error *err);
/* Gives each parity file its head and, behind the records, a copy of the manifest, which
 * is written and in the catalog; and syncs it. Errors: CORRUPT (what is read back is not
 * what was written), IO, NO_SPACE, MEMORY. */
int dcp_parity_end(const struct dcp_parity_code *code, const struct dcp_catalog *catalog,
                   struct dcp_error *err);
/* That of one open parity file, without the sync; *out_size: where it ends. */
int dcp_parity_write_ends(const struct dcp_parity *parity, const struct dcp_store *store,
                          struct dcp_store_file *file, int group, const void *data,
                          size_t n, uint64_t *out_size, struct dcp_error *err);
/* Head and tail of a parity file, read back, are what was to be written. Errors: CORRUPT,
 * IO, MEMORY. */
int dcp_parity_check_written(const struct dcp_parity *parity,
                             const struct dcp_store *store, const char *path,
                             const void *data, size_t n, struct dcp_error *err);
/* The copy in a parity file, found from the file's end, and where it begins; caller
 * frees. Errors: CORRUPT, NOT_FOUND, IO, MEMORY. */
int dcp_parity_read_tail(const struct dcp_store *store, const char *name, void **out,
                         size_t *out_n, uint64_t *out_at, struct dcp_error *err);

#endif
