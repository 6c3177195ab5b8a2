/* sink: bytes, one behind the other, become one file of zstd frames with a seek table at
 * its end (see tape_frames.c). Several threads compress; the file is the same whatever
 * their number. Memory is bounded, whatever goes through. Thread rule: one thread. */
#ifndef DCP_PORT_STORE_SINK_H
#define DCP_PORT_STORE_SINK_H

#include <dcp/store.h>

#define SINK_FRAME_BYTES ((size_t)1 << 20) /* raw, of every frame but the last */

struct dcp_sink;

/* Creates the file in the store, which is borrowed until free. memory_bytes bounds the
 * frames that wait (at least two). Errors: EXISTS, NO_SPACE, IO, MEMORY. */
int dcp_sink_new(const struct dcp_store *store, const char *name, int threads,
                 uint64_t memory_bytes, struct dcp_sink **out_sink,
                 struct dcp_error *err);
int dcp_sink_write(struct dcp_sink *sink, const void *data, size_t n,
                   struct dcp_error *err);
/* The last frame, the table, sync, what was written read back, and close. The folder is
 * not synced. */
int dcp_sink_finish(struct dcp_sink *sink, uint64_t *out_size_bytes,
                    struct dcp_error *err);
/* Without finish the file is left as it is. */
void dcp_sink_free(struct dcp_sink *sink);

#endif
