/* own: the inside of the writer: what it knows of files and pieces, and how a
 * file is finished. Included by write.c, pieces.c, files.c, shared.c
 * and against.c only. */
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

struct dcp_against; /* a file, and the base's of its name */

struct dcp_write_file {
    struct dcp_store_file *handle;
    size_t n_early; /* literals that were written when it was opened: the first so many
                     * of the target's */
    uint64_t packed_to; /* where the next piece that may shrink goes; 0: none did yet */
    bool done;
    bool direct;                 /* past the page cache */
    struct dcp_against *against; /* it is coded against a base's; NULL: it is not */
    struct dcp_coded coded;      /* once it was */
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
    struct dcp_write_base base;        /* without store: there is none */
    struct dcp_error unfit;            /* why a file is not coded against it */
    struct dcp_catalog *catalog;       /* of the target */
    struct dcp_write_digests *digests; /* by piece; n_pieces of them */
    size_t n_pieces; /* when it began: later ones are of files that others wrote */
    _Atomic uint64_t *parts; /* by tensor */
    size_t *order;           /* pieces by file, then by offset; */
    size_t *file_first; /* those of file f: order[file_first[f] .. file_first[f + 1]] */
    size_t n_laid;      /* files with extents; later ones hold literals only */
    struct dcp_write_file *files;
    size_t cap_files;
    size_t *ends; /* files that are to be settled; room for cap_files */
    struct dcp_write_worker *workers;
    pthread_mutex_t lock; /* of progress */
    uint64_t done_bytes;  /* under lock */
    _Atomic uint64_t shared_bytes;
};

/* What lies in a file: a piece, or a literal. */
struct dcp_segment {
    uint64_t offset, size_bytes, crc;
    const void *literal; /* NULL: a piece, or a literal that is written already */
    size_t piece;        /* SIZE_MAX: none */
};

/* The first place in write->order from i on whose piece lies in a file of the rank;
 * behind the last: the number of pieces. Files of others are passed over whole. */
size_t dcp_write_next_of(const struct dcp_write *write, int rank, size_t i);
/* Writes the pieces of n ranks, whose files are open, and digests their blocks. */
int dcp_write_pieces(struct dcp_write *write, const int *ranks, size_t n,
                     struct dcp_error *err);
/* Orders the pieces by file, once they have their extents. */
int dcp_write_index(struct dcp_write *write, struct dcp_error *err);
/* Bytes that are read or written at once, and then digested: out of the cache, where what
 * goes through the page cache is. */
size_t dcp_write_slice(const struct dcp_write *write, int file);
/* Puts the digests of a piece's blocks together, in the catalog. */
void dcp_write_digest(struct dcp_write *write, size_t piece);
/* Room for what is known of every file of the catalog. */
int dcp_write_reserve(struct dcp_write *write, struct dcp_error *err);
int dcp_write_open(struct dcp_write *write, int file, const char *suffix,
                   uint64_t size_bytes, struct dcp_error *err);
/* Raw bytes begin .. begin + n of a piece, n <= DCP_BLOCK_BYTES, for the caller's thread:
 * *out lives until the next. */
int dcp_write_raw(struct dcp_write *write, size_t piece, uint64_t begin, size_t n,
                  const unsigned char **out, struct dcp_error *err);
/* What is in a folder of the target is durable. */
int dcp_write_sync_folders(struct dcp_write *write, int file, struct dcp_error *err);
/* Writes the literals that are known already, before the pieces: where the header is one
 * of them the file can be written from front to back. */
int dcp_write_early(struct dcp_write *write, int file, struct dcp_error *err);
/* The kernel may begin to write bytes of an open file back. */
void dcp_write_flush(struct dcp_write *write, int file, uint64_t from, uint64_t n);
int dcp_write_at(struct dcp_write *write, int file, uint64_t offset, const void *data,
                 size_t n, struct dcp_error *err);
/* Whether a file shares blocks with the source; and shares them, once it is open. */
bool dcp_write_is_shared(const struct dcp_write *write, int file);
int dcp_write_share(struct dcp_write *write, int file, struct dcp_error *err);
/* Writes bytes of pieces that a worker was given, but for those that are shared. */
int dcp_write_unshared(struct dcp_write *write, int file, uint64_t offset,
                       const unsigned char *data, size_t n, struct dcp_error *err);
/* Of a file whose extents and first literals are known: its base is there, and has the
 * same pieces at the same places. Errors: MISMATCH (it has not), NOT_FOUND, CORRUPT, IO,
 * MEMORY. */
int dcp_against_open(struct dcp_write *write, int file, struct dcp_against **out,
                     struct dcp_error *err);
void dcp_against_close(struct dcp_against *against);
/* The bytes of the file go by, from front to back, while the digests of pieces are taken.
 */
void dcp_against_see(struct dcp_against *against, const void *data, size_t n);
/* Writes the open NAME.delta of a file of these segments once all of it was seen, and
 * makes it durable; the handle is closed. *out_unfit, after a failure: the base was to
 * blame, and nothing is left of the file. Errors: those of both. */
int dcp_against_write(struct dcp_write *write, int file,
                      const struct dcp_segment *segments, size_t n, uint64_t size_bytes,
                      bool *out_unfit, struct dcp_error *err);
/* What is not there yet of a file whose pieces are known; size and digest go to the
 * catalog. It stays open, but for one that is coded against a base's, which is finished.
 */
int dcp_write_fill(struct dcp_write *write, int file, struct dcp_error *err);
/* Sync, what is read back, close: of a file that was filled. worker: the one that does
 * it, or DCP_ALL_WORKERS, which the caller may tell to help. */
#define DCP_ALL_WORKERS (-1)
int dcp_write_settle(struct dcp_write *write, int worker, int file,
                     struct dcp_error *err);

#endif
