/* metadata: the catalog that a rank loads from. What is small rank 0 reads, and all hear
 * it; of the tables of pieces each rank reads those of the shards that it needs. */
#ifndef DCP_CORE_READ_METADATA_H
#define DCP_CORE_READ_METADATA_H

#include <dcp/comm.h>
#include <dcp/format.h>

/* Collective. The catalog of a checkpoint, sorted, with the pieces that can fill those of
 * `wanted`, and others. `format` is a name, "auto", or NULL: native. *head, where there
 * is one, is what rank 0 read of it before; it is taken. Where all pieces are there, they
 * were checked to be whole. Caller owns. Errors: those of the format's index, COMM. */
int dcp_metadata_read(struct dcp_comm *comm, const struct dcp_source *source,
                      const char *format, const struct dcp_catalog *wanted,
                      struct dcp_catalog **head, struct dcp_catalog **out,
                      struct dcp_error *err);

#endif
