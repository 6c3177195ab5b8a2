/* native: the format of libdcp. docs/FORMAT.md is the specification.
 *
 * A step is a folder: manifest.json, and for each rank a shard (a valid safetensors file)
 * and a shard manifest, which is a table. native.c has what both directions share,
 * table.c the tables; index.c reads manifest.json, shard.c what it says of a shard,
 * entry.c entries, files.c files; write.c writes, check.c holds the headers of shards
 * against the manifests.
 */
#ifndef DCP_FORMATS_NATIVE_NATIVE_H
#define DCP_FORMATS_NATIVE_NATIVE_H

#include "base/buf.h"
#include "base/json.h"
#include "base/json_walk.h"
#include <dcp/format.h>
#include <dcp/grid.h>

extern const struct dcp_format dcp_format_native;
extern const struct dcp_format dcp_format_bundle;

/* manifest.json begins with it: see dcp_native_probe. */
#define NATIVE_FORMAT "libdcp"
/* Of shard manifests before there were tables. */
#define NATIVE_SHARD_FORMAT "libdcp-shard"
#define NATIVE_VERSION 1
#define NATIVE_MANIFEST "manifest.json"
#define NATIVE_MAX_MANIFEST_BYTES ((size_t)1 << 30)
/* More is read when asked for. */
#define NATIVE_USUAL_MANIFEST_BYTES ((size_t)256 << 20)
#define NATIVE_MAX_WORLD_SIZE (1 << 20)
/* Of a shard: no reader of safetensors takes more. */
#define NATIVE_MAX_HEADER_BYTES ((size_t)100 * 1000 * 1000)
#define NATIVE_EXTRA \
    "manifest.extra" /* object: members of a manifest this version does not know */
/* In "requires": a tensor is of that dtype; shard manifests are tables. */
#define NATIVE_COMPLEX128 "complex128"
#define NATIVE_TABLES "piece-tables"
#define NATIVE_HEADER_ALIGN 4096 /* tensors of a shard begin at a multiple of it */

/* The last member of manifest.json and what it covers: ,\n"digest":"<16 hex>"}\n closes
 * the file and is the CRC-64/XZ of all bytes before it. */
#define NATIVE_DIGEST_BYTES 31
#define NATIVE_DIGEST_FORMAT ",\n\"digest\":\"%016" PRIx64 "\"}\n"

/* The files of a rank: "shard-00003-of-00008" and one of these. */
#define NATIVE_SHARD_SUFFIX ".safetensors"
#define NATIVE_TABLE_SUFFIX ".pieces"
#define NATIVE_JSON_SUFFIX ".json" /* in place of the table, in steps without tables */
void dcp_native_shard_name(char out[64], int rank, int world_size, const char *suffix);

/* Sorts the n pieces of a rank, by their indices, in the order of its shard. */
void dcp_native_order(const struct dcp_catalog *catalog, size_t *pieces, size_t n);
/* The key of piece order[i] in its shard: the tensor's name, and "#k" for the k-th
 * further piece of it. Two pieces never get the same one. */
void dcp_native_key(struct dcp_buf *buf, const struct dcp_catalog *catalog,
                    const size_t *order, size_t i);

/* Whether a piece stands in its shard as bytes, U8: it is coded, or of a dtype that
 * safetensors has no name for. */
bool dcp_native_is_bytes(const struct dcp_catalog *catalog,
                         const struct dcp_piece *piece);

int dcp_native_probe(const struct dcp_source *source);
int dcp_native_index(const struct dcp_source *source, struct dcp_catalog *catalog,
                     struct dcp_error *err);
/* dcp_format.index_head, index_ranks and index_counts. */
int dcp_native_index_head(const struct dcp_source *source, struct dcp_catalog *catalog,
                          struct dcp_error *err);
int dcp_native_index_ranks(const struct dcp_source *source, const bool *ranks,
                           struct dcp_catalog *catalog, struct dcp_error *err);
int dcp_native_index_counts(const struct dcp_source *source, struct dcp_catalog *catalog,
                            struct dcp_error *err);
/* What an entry of the manifest's tensors says; texts are borrowed. */
struct dcp_native_told {
    const char *name, *param, *dtype, *role; /* param NULL: the name */
    int64_t shape[DCP_MAX_NDIM], group;
    int ndim;
    uint64_t crc;
    /* Where its pieces are: on one rank, grid.first, or in a grid; neither: unknown. */
    bool has_rank, has_grid;
    struct dcp_grid grid;
    int ranks[DCP_GRID_MOST_RANKS]; /* of the grid, where it lists them: n_ranks */
    size_t n_ranks;
};
/* Reads the one that a text begins with, in the spelling of dcp_native_finish, without
 * the cost of a parser; its texts go to `texts`. Where it ends; NULL: it is spelled
 * otherwise, or wrong. */
const char *dcp_native_scan_tensor(struct dcp_json_span entry, struct dcp_buf *texts,
                                   struct dcp_native_told *out);
/* Reads any. Errors: CORRUPT. */
int dcp_native_parse_tensor(const json_t *entry, struct dcp_native_told *out,
                            struct dcp_error *err);
/* Errors: CORRUPT, MEMORY. */
int dcp_native_add_told(const struct dcp_native_told *told, struct dcp_catalog *catalog,
                        struct dcp_error *err);
/* "[1,2,3]". */
void dcp_native_add_numbers(struct dcp_buf *buf, const int64_t *numbers, int n);
/* Where the pieces of a tensor are, in its entry: written, read, and added to the tensor.
 * Errors: CORRUPT, MEMORY. */
void dcp_native_add_grid(struct dcp_buf *buf, const struct dcp_tensor *tensor,
                         const struct dcp_grid *grid);
int dcp_native_parse_grid(const json_t *entry, struct dcp_native_told *out,
                          struct dcp_error *err);
int dcp_native_add_told_grid(const struct dcp_native_told *told,
                             struct dcp_catalog *catalog, struct dcp_tensor *tensor,
                             struct dcp_error *err);
/* The files of a rank, of which an entry of the manifest's shards tells, and its pieces;
 * or the files alone, which are there and as long as it says. */
int dcp_native_index_shard(const struct dcp_source *source, const json_t *entry, int rank,
                           bool tables, struct dcp_catalog *catalog,
                           struct dcp_error *err);
int dcp_native_index_pair(const struct dcp_source *source, const json_t *entry, int rank,
                          bool tables, struct dcp_catalog *catalog,
                          struct dcp_error *err);
/* An entry of the pieces of a shard manifest that is no table; `file` is the shard. */
int dcp_native_index_piece(const json_t *entry, struct dcp_catalog *catalog, int rank,
                           int file, struct dcp_error *err);
/* An entry of the manifest's objects. */
int dcp_native_index_object(const json_t *entry, struct dcp_catalog *catalog,
                            struct dcp_error *err);
/* The bytes of a region that is not checked yet; false: more than there can be. */
bool dcp_native_raw_bytes(const struct dcp_tensor *tensor,
                          const struct dcp_region *region, uint64_t *out);

/* Files of a step: their text whole, and whether they are as the manifest says. */
int dcp_native_read(const struct dcp_source *source, const char *file, char **out,
                    size_t *out_n, struct dcp_error *err);
int dcp_native_check_file(const struct dcp_source *source, const char *name,
                          uint64_t size, struct dcp_error *err);
/* Adds a file of which that was asked with the answer rc and why. In a partial catalog it
 * may be lost: it is marked then. */
int dcp_native_add_file(struct dcp_catalog *catalog, struct dcp_file file, int rc,
                        const struct dcp_error *why, int *out, struct dcp_error *err);

/* The functions of dcp_format of these names. */
int dcp_native_open(struct dcp_target *target, struct dcp_error *err);
int dcp_native_assign(struct dcp_target *target, struct dcp_error *err);
int dcp_native_finalize(struct dcp_target *target, int rank, struct dcp_error *err);
int dcp_native_finish(struct dcp_target *target, struct dcp_error *err);
void dcp_native_close(struct dcp_target *target);
/* dcp_format.check. */
int dcp_native_check(const struct dcp_source *source, const struct dcp_catalog *catalog,
                     size_t file, const size_t *pieces, size_t n,
                     const struct dcp_difference_listener *differs,
                     struct dcp_error *err);

#endif
