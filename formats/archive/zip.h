/* zip: the records of a zip archive, by its central directory, and the archive that torch
 * writes, byte for byte.
 *
 * Reading has one truth, the central directory; local headers must agree with it. What
 * two readers could understand differently is refused: names twice, names that climb,
 * ranges that overlap, bytes before the archive or behind its end, more than one end
 * record, encryption, several disks. Source of the layout: PKWARE's APPNOTE 6.3.3,
 * sections 4.3 and 4.5.3. */
#ifndef DCP_FORMATS_ARCHIVE_ZIP_H
#define DCP_FORMATS_ARCHIVE_ZIP_H

#include "base/arena.h"
#include "base/buf.h"
#include "formats/common/input.h"
#include <dcp/format.h>

#define DCP_ZIP_MAX_RECORDS (1u << 22)
#define DCP_ZIP_MAX_DIRECTORY_BYTES (512u << 20)
#define DCP_ZIP_MAX_NAME_BYTES 1024

struct dcp_zip_record {
    const char *name;    /* with its folders; belongs to the arena */
    uint64_t offset;     /* of the data, in the file */
    uint64_t size_bytes; /* of the content */
    uint64_t stored_size;
    uint32_t crc32; /* of the content; 0 with size_bytes > 0: was not computed */
    bool deflated;
    bool checked;           /* the content was read, and has that crc */
    uint64_t header_offset; /* of the local header, in the file */
};

struct dcp_zip {
    struct dcp_zip_record *records; /* in the order of the directory; in the arena */
    size_t n_records;
    size_t *by_name;   /* indices sorted by name */
    size_t *by_offset; /* and by place */
    bool folded_twice; /* two names are equal but for case */
};

/* Reads the directory of the archive in bytes begin .. end of a file; names and tables go
 * to the arena. Errors: CORRUPT, UNSUPPORTED (encryption, a method other than stored and
 * deflated), IO, MEMORY. */
int dcp_zip_open(const struct dcp_input *in, uint64_t begin, uint64_t end,
                 struct dcp_arena *arena, struct dcp_zip *out, struct dcp_error *err);
/* The record of that name, or NULL. */
const struct dcp_zip_record *dcp_zip_find(const struct dcp_zip *zip, const char *name);
/* The content of a record of at most max_bytes, inflated, its crc checked when there is
 * one; a NUL behind its end; caller frees. Errors: CORRUPT, IO, MEMORY. */
int dcp_zip_read(const struct dcp_input *in, const struct dcp_zip_record *record,
                 size_t max_bytes, void **out, size_t *out_size_bytes,
                 struct dcp_error *err);

/* The record in whose stored bytes n at an offset of the file lie, or NULL. */
struct dcp_zip_record *dcp_zip_at(const struct dcp_zip *zip, uint64_t offset, uint64_t n);
/* n bytes at an offset of the file, which lie in a stored record; it is read whole the
 * first time, for its crc. Errors: CORRUPT, IO, MEMORY. */
int dcp_zip_read_at(const struct dcp_input *in, struct dcp_zip *zip, uint64_t offset,
                    void *out, size_t n, struct dcp_error *err);
/* Every record has its crc. Errors: CORRUPT, IO, MEMORY. */
int dcp_zip_check(const struct dcp_input *in, struct dcp_zip *zip, struct dcp_error *err);
/* Tells a catalog of the records of an archive in one of its files. Errors: MEMORY. */
int dcp_zip_add_records(const struct dcp_zip *zip, struct dcp_catalog *catalog, int file,
                        struct dcp_error *err);

/* The first bytes of a record's content, at most cap; *out_n: how many there are.
 * Errors: CORRUPT, IO, MEMORY. */
int dcp_zip_read_head(const struct dcp_input *in, const struct dcp_zip_record *record,
                      size_t cap, void *out, size_t *out_n, struct dcp_error *err);
/* Whether a record may have that name of n bytes: plain parts joined by '/'. */
bool dcp_zip_name_ok(const char *name, size_t n);

/* A record of an archive to be written. */
struct dcp_zip_out {
    const char *name; /* with its folders; belongs to the catalog */
    const void *data; /* NULL: somebody else writes the content */
    uint64_t size_bytes;
    uint32_t crc32;
    uint64_t header_offset, offset; /* set by dcp_zip_plan */
};
/* Where everything lies: local headers padded so that each content begins on a multiple
 * of `align`, a data descriptor behind each that is not empty. Gives the offset of the
 * directory, and the size of the file. */
void dcp_zip_plan(struct dcp_zip_out *records, size_t n, uint64_t align,
                  uint64_t *out_directory, uint64_t *out_size_bytes);
/* The parts of a planned archive, appended to a buffer: a local header, the descriptor
 * behind a content (nothing when that is empty), and directory with end records. */
void dcp_zip_put_header(struct dcp_buf *out, const struct dcp_zip_out *record);
void dcp_zip_put_descriptor(struct dcp_buf *out, const struct dcp_zip_out *record);
void dcp_zip_put_directory(struct dcp_buf *out, const struct dcp_zip_out *records,
                           size_t n, uint64_t directory);
/* Appends the local headers, and the contents that have data. Errors: MEMORY. */
int dcp_zip_write_headers(const struct dcp_zip_out *records, size_t n, int file,
                          struct dcp_target *target, struct dcp_error *err);
/* Appends what needs the crcs: data descriptors, directory, end records. */
int dcp_zip_write_tail(const struct dcp_zip_out *records, size_t n, uint64_t directory,
                       int file, struct dcp_target *target, struct dcp_error *err);

#endif
