/* own: the inside of the writer: what it knows of files and pieces, and how a
 * file is finished. Included by write.c and files.c only. */
#ifndef DCP_CORE_WRITE_OWN_H
#define DCP_CORE_WRITE_OWN_H

#include "core/files/codec.h"
#include "write.h"
#include <pthread.h>
#include <stdatomic.h>

struct dcp_write_worker {
    struct dcp_coder *coder;
    unsigned char *scratch;
};

struct dcp_write_file {
    struct dcp_store_file *handle;
    size_t n_early; /* literals that were written when it was opened: the first so many
                     * of the target's */
    bool done;
};

/* What is known of a piece once its bytes went by. */
struct dcp_write_digests {
    struct dcp_block *blocks; /* belongs to the catalog */
    uint64_t *crc, *stored_crc;
    uint32_t *crc32;
    size_t n;
    uint64_t file_crc; /* of the whole piece as it lies in the file */
};

struct dcp_write {
    struct dcp_write_setup setup;
    struct dcp_catalog *catalog;       /* of the target */
    struct dcp_write_digests *digests; /* by piece; n_pieces of them */
    size_t n_pieces; /* when it began: later ones are of files that others wrote */
    _Atomic uint64_t *parts; /* by tensor */
    size_t *order;           /* pieces by file, then by offset; */
    size_t *file_first; /* those of file f: order[file_first[f] .. file_first[f + 1]] */
    size_t n_laid;      /* files with extents; later ones hold literals only */
    struct dcp_write_file *files;
    size_t cap_files;
    struct dcp_write_worker *workers;
    pthread_mutex_t lock; /* of progress */
    _Atomic uint64_t done_bytes;
};

/* Orders the pieces by file, once they have their extents. */
int dcp_write_index(struct dcp_write *write, struct dcp_error *err);
/* Puts the digests of a piece's blocks together, in the catalog. */
void dcp_write_digest(struct dcp_write *write, size_t piece);
/* Room for what is known of every file of the catalog. */
int dcp_write_reserve(struct dcp_write *write, struct dcp_error *err);
int dcp_write_open(struct dcp_write *write, int file, uint64_t size_bytes,
                   struct dcp_error *err);
/* Writes the literals that are known already, before the pieces: where the header is one
 * of them the file can be written from front to back. */
int dcp_write_early(struct dcp_write *write, int file, struct dcp_error *err);
int dcp_write_at(struct dcp_write *write, int file, uint64_t offset, const void *data,
                 size_t n, struct dcp_error *err);
/* Literals, size, digest, sync, close. */
int dcp_write_finish(struct dcp_write *write, int file, struct dcp_error *err);

#endif
