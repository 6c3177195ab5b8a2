/* foreign: what people have that this library does not read, told by well-known names and
 * first bytes, and what to do with it. */
#ifndef DCP_FORMATS_FOREIGN_FOREIGN_H
#define DCP_FORMATS_FOREIGN_FOREIGN_H

#include <dcp/format.h>

struct dcp_foreign {
    const char *kind; /* "is an HDF5 file", to follow the name; static */
    const char *hint; /* the next act; static */
    char *folder;     /* a folder in it that may be read, or NULL; caller frees */
};
/* Whether it is one of these. */
bool dcp_foreign_find(const struct dcp_source *source, struct dcp_foreign *out);

/* One sentence about a file that no format reads: "is a NumPy array file, …", or NULL
 * when its first bytes tell nothing. Static. */
const char *dcp_foreign_kind(const struct dcp_source *source);

#endif
