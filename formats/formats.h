/* formats: the table of formats. Each is a table of functions (see <dcp/format.h>) that
 * reads headers and writes headers, nothing else, and has a folder of its own. */
#ifndef DCP_FORMATS_FORMATS_H
#define DCP_FORMATS_FORMATS_H

#include <dcp/format.h>

/* Why no format knows a source; never DCP_OK. Errors: those of dcp_format_probe. */
int dcp_format_unknown(const struct dcp_source *source, struct dcp_error *err);

#endif
