/* format_io: moves tensor bytes for formats in the plainest way there is, element by
 * element, so that tests of a format need nothing of libdcp's core but the catalog. */
#ifndef TESTS_LIB_FORMAT_IO_H
#define TESTS_LIB_FORMAT_IO_H

#include <dcp/format.h>

/* A file or folder on disk as a source. */
struct format_location {
    struct dcp_store store;
    struct dcp_source source;
    char *name;
};
int format_location_open(const char *path, struct format_location *out,
                         struct dcp_error *err);
void format_location_close(struct format_location *location);

/* A tensor's row-major bytes; caller frees. Also checks that its pieces cover it. */
int format_read_tensor(const struct dcp_source *source, const struct dcp_catalog *catalog,
                       int tensor, void **out, struct dcp_error *err);

/* Writes all tensors of a catalog (of the source) to a folder of a store, in a format:
 * headers, pieces, what depends on them. Returns through out_size_bytes the size of its
 * first file. */
int format_write(const struct dcp_source *source, const struct dcp_catalog *catalog,
                 const struct dcp_format *format,
                 const struct dcp_target_options *options, struct dcp_store *target,
                 struct dcp_error *err);

#endif
