/* index: what a source has, read by its format. */
#ifndef DCP_CORE_CATALOG_INDEX_H
#define DCP_CORE_CATALOG_INDEX_H

#include <dcp/format.h>

/* The sorted catalog of a checkpoint; caller owns. `partial`: also of one of which files
 * are lost. Errors: those of the format's index; *out_catalog is NULL then. */
int dcp_index(const struct dcp_source *source, const struct dcp_format *format,
              bool partial, struct dcp_catalog **out_catalog, struct dcp_error *err);

/* The same without its pieces where the format can tell of them without making them: all
 * that is read of them has its digests. */
int dcp_index_head(const struct dcp_source *source, const struct dcp_format *format,
                   struct dcp_catalog **out_catalog, struct dcp_error *err);

/* Whether an error says that what was to be read is lost or corrupt. */
bool dcp_is_broken(int rc);

#endif
