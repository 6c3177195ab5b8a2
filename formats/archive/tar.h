/* tar: the members of an uncompressed tar archive, and where they lie.
 *
 * Regular files with plain names are members; folders and pax headers of the whole
 * archive are passed over, and everything else (links, devices, sparse files, names of
 * GNU's making) is refused. Source: POSIX.1-2017, pax, "ustar Interchange Format" and
 * "pax Extended Header". */
#ifndef DCP_FORMATS_ARCHIVE_TAR_H
#define DCP_FORMATS_ARCHIVE_TAR_H

#include "base/arena.h"
#include "formats/common/input.h"

#define DCP_TAR_MAX_MEMBERS 4096
#define DCP_TAR_MAX_PAX_BYTES (64u << 10)

struct dcp_tar_member {
    const char *name; /* in the arena */
    uint64_t offset, size_bytes;
};
struct dcp_tar {
    struct dcp_tar_member *members;
    size_t n_members;
};

/* Whether a file that begins so is a tar archive; n of its first bytes are there. */
bool dcp_tar_probe(const void *head, size_t n);
/* Reads all headers; tables and names go to the arena. Errors: CORRUPT (a checksum, a
 * name twice, a member that is not all there, bytes behind the end), UNSUPPORTED, IO,
 * MEMORY. */
int dcp_tar_open(const struct dcp_input *in, struct dcp_arena *arena, struct dcp_tar *out,
                 struct dcp_error *err);
/* The member of that name, or NULL. */
const struct dcp_tar_member *dcp_tar_find(const struct dcp_tar *tar, const char *name);

#endif
