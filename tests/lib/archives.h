/* archives: tar archives of every form, made of the same files, for tests. */
#ifndef TESTS_LIB_ARCHIVES_H
#define TESTS_LIB_ARCHIVES_H

#include "base/buf.h"
#include <dcp/store.h>

struct archive_file {
    const char *name;
    size_t size_bytes;
};

/* Byte `at` of a file: the same in every archive, and hard to compress here and there. */
unsigned char archive_byte(const struct archive_file *file, uint64_t at);

/* Bytes from `from` on are those of the file at `at`. */
bool archive_is(const struct archive_file *file, uint64_t at, const void *from, size_t n);

/* Writes "archive" into a store, with dcp_store_bundle_new: all of it in "top/", the
 * files in the order given and cut into writes of odd sizes. */
int archive_pack(const struct dcp_store *store, const struct archive_file *files,
                 size_t n, int threads, struct dcp_error *err);

/* The content of a file of a store; aborts when it cannot be read. */
void archive_take(const struct dcp_store *store, const char *name, struct dcp_buf *out);
/* Puts a file in the place of one that may be there. */
void archive_put(const struct dcp_store *store, const char *name, const void *data,
                 size_t n);
/* What zstd -d makes of it. */
void archive_decode(const struct dcp_buf *in, struct dcp_buf *out);
/* zstd frames of so many raw bytes each; 0: one frame, without its size in its head, as
 * of `tar --zstd`. */
void archive_encode(const struct dcp_buf *in, size_t frame_bytes, struct dcp_buf *out);

/* A header record and padded content appended by hand. What is not 0 or NULL stands in
 * the place of the right value. */
struct archive_part {
    const char *name, *link;
    char kind;        /* '0' file, '1' hard link, '2' link, '3' device, '5' folder */
    const char *size; /* the 12 bytes of the field */
    const char *data; /* a text */
    bool no_data;     /* the header alone */
};
void archive_add(struct dcp_buf *tar, const struct archive_part *entry);
void archive_end(struct dcp_buf *tar);

#endif
