/* streams: extents that are one coded stream, which can only be read from its beginning:
 * a few decoders that go on where they stopped. Thread rule: one of these, one thread. */
#ifndef DCP_CORE_FILES_STREAMS_H
#define DCP_CORE_FILES_STREAMS_H

#include "files.h"

/* Where bytes are stored in a file. */
struct dcp_extent {
    int file; /* in the catalog */
    enum dcp_codec codec;
    uint64_t offset, stored_size;
    uint64_t skip; /* streams: decoded bytes before the first */
};

#define DCP_MAX_STREAMS 4
struct dcp_streams {
    struct dcp_files *files; /* borrowed */
    uint64_t clock;
    struct dcp_stream_slot {
        struct dcp_streams *streams;
        int file;
        uint64_t offset, used;
        struct dcp_decoder *decoder; /* NULL: none */
    } slots[DCP_MAX_STREAMS];
};
void dcp_streams_init(struct dcp_streams *streams, struct dcp_files *files);
void dcp_streams_fini(struct dcp_streams *streams);

/* n decoded bytes of an extent, from byte `at` behind its skipped ones on. Errors:
 * CORRUPT (corrupt, or it ends before), those of dcp_files_read, MEMORY. */
int dcp_streams_read(struct dcp_streams *streams, const struct dcp_extent *extent,
                     uint64_t at, size_t n, void *out, struct dcp_error *err);

#endif
