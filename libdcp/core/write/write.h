/* write: makes the files of a target catalog. Pieces go block by block through digest,
 * codec and write; literals follow; then each file is synced, closed, and gets its size
 * and digest.
 *
 * Save and reshard differ only in the read callback that gives a piece's bytes. */
#ifndef DCP_CORE_WRITE_WRITE_H
#define DCP_CORE_WRITE_WRITE_H

#include "base/pool.h"
#include "core/plan/clones.h"
#include <dcp/format.h>
#include <dcp/log.h>

/* Where the raw bytes of target pieces come from. */
struct dcp_read_callback {
    void *self;
    /* Bytes begin .. begin + n of a piece, n <= DCP_BLOCK_BYTES: fills scratch, or gives
     * memory of its own. worker is 0 .. dcp_pool_workers - 1; no two calls run with the
     * same one at once. */
    int (*read)(void *self, int worker, size_t piece, uint64_t begin, size_t n,
                unsigned char *scratch, const unsigned char **out, struct dcp_error *err);
    /* Optional: looks at bytes of a piece while they are in the cache for their digest.
     */
    void (*look)(void *self, size_t piece, const unsigned char *data, size_t n);
    /* Optional: what `read` gives by now may not be what lies in the file of
     * the source, because it was reconstructed. */
    bool (*rebuilds)(void *self);
};

/* Blocks that the files of a target share with those of a source, in place of being
 * written: they are there as soon as a file is created. All their bytes are read of the
 * source still, and of the target where it is read back. */
struct dcp_write_sharing {
    const struct dcp_clones *clones; /* NULL: none */
    const struct dcp_source *source; /* whose store has descriptors */
    const struct dcp_catalog *src;   /* names the files */
};

/* Whether files are read back once they are durable: what comes must have the digests of
 * what was to be written. */
enum dcp_read_back {
    DCP_READ_BACK_NOT,   /* the store cannot, or nobody wants it */
    DCP_READ_BACK_CACHE, /* from wherever it comes: finds what went wrong on the way to
                          * the kernel */
    DCP_READ_BACK_DISK   /* with the page cache dropped before */
};

struct dcp_write_setup {
    const struct dcp_store *store;
    const char *prefix;        /* before every file name: the temporary folder and '/' */
    struct dcp_target *target; /* open, with its extents */
    struct dcp_read_callback read_callback;
    struct dcp_pool *pool; /* NULL: all on the caller */
    enum dcp_read_back read_back;
    bool direct; /* past the page cache, where memory and store allow it */
    bool parity; /* is made of the files of ranks afterwards, and proved: that reads them
                  * back, so that they are not from the cache besides */
    struct dcp_progress progress;
    uint64_t total_bytes; /* for progress */
    bool in_order;        /* one file after the other: each is closed before the next */
    bool again; /* a dead process may have left some of the files, which go first */
    struct dcp_write_sharing sharing;
};

struct dcp_write; /* one target being written */

/* Writes nothing. The setup is copied, what it points to is borrowed. */
int dcp_write_new(const struct dcp_write_setup *setup, struct dcp_write **out_write,
                  struct dcp_error *err);
void dcp_write_free(struct dcp_write *write);

/* -- against a base ------------------------------------------------------------------ */

/* A file with pieces can be written as what differs from that of another step, the base:
 * docs/FORMAT.md, chapter 14. The rank that has the bytes codes them, and what is the
 * base's is never written.
 *
 * A piece whose CRC-64 is the base's, and each of whose blocks has the base's XXH3, is
 * the base's: its bytes there are not read. Everything else is compared with the bytes of
 * the base, each block of which must have its digest. */
struct dcp_write_base {
    const struct dcp_store *store;     /* borrowed; one of deltas */
    const char *name;                  /* of the base's folder, a full step; borrowed */
    const struct dcp_catalog *catalog; /* has the base's pieces of the files that are
                                        * written, with their digests; borrowed */
    bool by_digest; /* digests are believed: else all of the base's bytes are read */
};
/* What it takes of memory: a coder, and three blocks. */
#define DCP_AGAINST_MEMORY ((uint64_t)16 << 20)

/* What became of a file. */
struct dcp_coded {
    uint64_t size_bytes; /* of NAME.delta, */
    uint64_t table_crc;  /* whose table has this digest; */
    uint64_t base_bytes; /* so many of the file are those of the base */
};

/* One for which that cannot be is written as it is. Before dcp_write_create; without
 * codecs or a pool. */
void dcp_write_against(struct dcp_write *write, const struct dcp_write_base *base);
/* What became of a file: NULL, it stands as it is. *out_why (borrowed, may have no code):
 * why not all are deltas. */
const struct dcp_coded *dcp_write_coded(const struct dcp_write *write, size_t file,
                                        const struct dcp_error **out_why);

/* -- the acts ------------------------------------------------------------------------ */

/* Creates the files of one rank, with the room that their extents say; dcp_write_ranks
 * does it where that was not done before. */
int dcp_write_create(struct dcp_write *write, int rank, struct dcp_error *err);
/* Writes all files of n ranks and makes them durable. So many ranks are written side by
 * side, and at least as many as the pool has workers, which write to different files as
 * far as that goes. */
int dcp_write_ranks(struct dcp_write *write, const int *ranks, size_t n, size_t at_once,
                    struct dcp_error *err);
/* What the coordinator writes last, when size and crc of all other files are in the
 * catalog. */
int dcp_write_global(struct dcp_write *write, struct dcp_error *err);

/* Bytes that files written so far share with the source. */
uint64_t dcp_write_shared(const struct dcp_write *write);
/* The fingerprint parts of a tensor that were written here, combined by exclusive or. */
uint64_t dcp_write_parts(const struct dcp_write *write, size_t tensor);

#endif
