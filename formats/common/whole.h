/* whole: for formats that hold every tensor in one piece. */
#ifndef DCP_FORMATS_COMMON_WHOLE_H
#define DCP_FORMATS_COMMON_WHOLE_H

#include <dcp/tensor.h>

/* Every tensor has one piece, DCP_WHOLE and without
 * a codec. `what` names the target in the message. The catalog is sorted. Errors:
 * MISMATCH. */
int dcp_check_whole(const struct dcp_catalog *catalog, const char *what,
                    struct dcp_error *err);

#endif
