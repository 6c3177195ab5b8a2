/* parity: what protects the files of a step, and where it lies. docs/FORMAT.md §11 is the
 * specification.
 *
 * A column is what one rank wrote: its files, each begun at a multiple of the unit. Up to
 * DCP_PARITY_GROUP columns in a row are a group, which has `rows` parity files. A stripe
 * is a unit of every column of a group, and of every parity file, at the same place; any
 * `rows` of them can be lost. A parity file:
 *
 *   head      the description of it all, see dcp_parity_head
 *   records   of each stripe a parity unit, and behind it a trailer: the XXH3 of every
 *             unit of the stripe, columns first, and of the trailer itself
 *   tail      a copy of manifest.json, le64 its length, le64 its CRC-64
 *
 * So any record of a stripe says which of its units are good, and when none is left no
 * other unit of the stripe may be lost. */
#ifndef DCP_CORE_PARITY_PARITY_H
#define DCP_CORE_PARITY_PARITY_H

#include "base/buf.h"
#include "base/erasure.h"
#include <dcp/checkpoint.h>

#define DCP_PARITY_UNIT 65536u
#define DCP_PARITY_ALIGN 4096u
#define DCP_PARITY_MANIFEST "manifest.json" /* what the tails are copies of */

struct dcp_parity_file {
    const char *name;
    uint64_t size_bytes, crc;
    int column;
    uint64_t first_unit; /* of the column */
};

struct dcp_parity_group {
    int first, n;       /* columns */
    uint64_t n_stripes; /* units of the longest */
    size_t record_bytes, trailer_bytes;
    const struct dcp_erasure *code;
};

struct dcp_parity {
    struct dcp_arena *arena;
    char *text; /* the description, JSON */
    size_t text_bytes;
    uint64_t identity; /* CRC-64 of the text: what trailers are bound to */
    int64_t step;
    int rows, n_groups, n_columns;
    struct dcp_parity_group *groups;
    struct dcp_erasure *codes[2];  /* groups differ by one column at most */
    struct dcp_parity_file *files; /* by column, then first_unit */
    size_t n_files;
    size_t *column_first; /* files of column c: column_first[c] .. column_first[c + 1] */
    size_t head_bytes;
};

/* What a step whose files of ranks are all written (size and digest known) is protected
 * by. Errors: USAGE (rows), MISMATCH (a file without digest), MEMORY. */
int dcp_parity_describe(const struct dcp_catalog *catalog, int rows,
                        struct dcp_parity **out_parity, struct dcp_error *err);
/* The same from the text of a description. Errors: CORRUPT, UNSUPPORTED, MEMORY. */
int dcp_parity_parse(const char *text, size_t n, struct dcp_parity **out_parity,
                     struct dcp_error *err);
void dcp_parity_free(struct dcp_parity *parity);
/* Puts the description into the catalog, so that the manifest has it too. Errors: MEMORY.
 */
int dcp_parity_tell(const struct dcp_parity *parity, struct dcp_catalog *catalog,
                    struct dcp_error *err);

/* "parity-00001-of-00002.bin": file `row` of a group. */
void dcp_parity_name(const struct dcp_parity *parity, int group, int row, char out[64]);
/* Parity files of all groups. */
size_t dcp_parity_n_rows(const struct dcp_parity *parity);
/* Head and records of a parity file: where its tail begins. */
uint64_t dcp_parity_bytes(const struct dcp_parity *parity, int group);
uint64_t dcp_parity_record_at(const struct dcp_parity *parity, int group,
                              uint64_t stripe);
/* About what all parity files take, from the longest shard that a layout gives. */
uint64_t dcp_parity_expect(int world_size, uint64_t longest_bytes, int rows);

/* The head: le64 its length behind these 16 bytes, le64 their CRC-64, the description,
 * blanks up to a multiple of DCP_PARITY_ALIGN. */
void dcp_parity_head(const struct dcp_parity *parity, struct dcp_buf *buf);
/* Opens a parity file, and tells its size. Errors: NOT_FOUND, IO, MEMORY. */
int dcp_parity_open(const struct dcp_store *store, const char *name,
                    struct dcp_store_file **out_file, uint64_t *out_size_bytes,
                    struct dcp_error *err);
/* A head at the beginning of a file, if there is a good one. Errors: CORRUPT,
 * UNSUPPORTED, NOT_FOUND, IO, MEMORY. */
int dcp_parity_read_head(const struct dcp_store *store, const char *name,
                         struct dcp_parity **out_parity, struct dcp_error *err);

/* The file of a column that unit holds, and the unit of the file; NULL: beyond its end.
 */
const struct dcp_parity_file *dcp_parity_unit(const struct dcp_parity *parity, int column,
                                              uint64_t unit, uint64_t *out_file_unit);

/* Writes a trailer: digests of all units of the stripe, then its own. */
void dcp_parity_seal(const struct dcp_parity *parity, int group, int row, uint64_t stripe,
                     const uint64_t *digests, unsigned char *out_trailer);
/* Reads one: false when it is not that of this place. */
bool dcp_parity_unseal(const struct dcp_parity *parity, int group, int row,
                       uint64_t stripe, const unsigned char *trailer,
                       uint64_t *out_digests);

#endif
