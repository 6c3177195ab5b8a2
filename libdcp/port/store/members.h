/* members: what a tar archive holds, and where on its tape the bytes of each file lie. */
#ifndef DCP_PORT_STORE_MEMBERS_H
#define DCP_PORT_STORE_MEMBERS_H

#include "tape.h"

#define MEMBERS_MAX ((size_t)1 << 22)
#define MEMBERS_MAX_NAME 1024                     /* bytes of a name */
#define MEMBERS_MAX_NAMES_BYTES ((size_t)1 << 28) /* of all names together */

/* Where a tape cannot be read at any offset, files up to this size are kept when they go
 * by: headers and manifests, which are read first and in any order. */
#define MEMBERS_KEPT_BYTES ((uint64_t)4 << 20)
#define MEMBERS_MAX_KEPT_BYTES ((uint64_t)32 << 20) /* of all of them together */

struct dcp_member {
    char *name; /* plain parts joined by '/' */
    bool is_dir;
    uint64_t offset, size_bytes; /* on the tape */
    unsigned char *data;         /* all of it, or NULL */
};

/* Sorted by name in byte order; no name twice, no file that is also a folder. */
struct dcp_members {
    struct dcp_member *items;
    size_t n, cap, names_bytes;
    uint64_t kept_bytes;
};

/* Walks through the archive. When one folder holds everything its name is taken away, so
 * that its contents stand at the root. Errors: CORRUPT (incomplete; a header that does
 * not hold; a name twice, or one that leads outside), UNSUPPORTED (no tar archive; a
 * link, a device, a file with holes; too many members), IO, MEMORY. */
int dcp_members_read(struct dcp_tape *tape, struct dcp_members *out,
                     struct dcp_error *err);
void dcp_members_fini(struct dcp_members *members);

/* A file or a folder that has an entry of its own, or NULL. */
const struct dcp_member *dcp_members_find(const struct dcp_members *members,
                                          const char *name);
/* The members below a folder ("" is the root): the first, and how many. */
size_t dcp_members_below(const struct dcp_members *members, const char *dir,
                         size_t *out_n);

#endif
