/* bundle: the folder of a native step as one compressed tar archive. Only its name and
 * what it takes stand here: archives are written and read below the formats, by
 * dcp_store_bundle_new and dcp_store_bundle, and what is read in one is native. */
#include "native.h"

const struct dcp_format dcp_format_bundle = {
    .name = "bundle",
    .help = "native step in one tar archive, compressed with zstd",
    .suffixes = ".tar.zst",
    .flags = DCP_FORMAT_WRITES | DCP_FORMAT_SHARDED | DCP_FORMAT_OPTIM |
             DCP_FORMAT_OBJECTS | DCP_FORMAT_ARCHIVES | DCP_FORMAT_ROLES,
    .packs = &dcp_format_native,
};
