/* tape: the bytes of a tar archive at any offset, whether its file holds them plain or
 * compressed with zstd.
 *
 * zstd frames of at most TAPE_FRAME_BYTES are decoded whole, and the last few are kept.
 * They are found by the seek table at the end of the file, or else as they are met.
 * Larger frames can only be decoded from their beginning: a few streams do that, each
 * going forward; to read before all of them one begins its frame anew. Reading from front
 * to back is one pass in either case.
 *
 * Memory: the kept frames (TAPE_FRAME_BYTES for each two processors, 8 to 32 of them),
 * and for large frames at most TAPE_WINDOW_BYTES. Thread rule: read on any thread. */
#ifndef DCP_PORT_STORE_TAPE_H
#define DCP_PORT_STORE_TAPE_H

#include <dcp/store.h>

#define TAPE_FRAME_BYTES ((size_t)2 << 20)    /* of a frame that is decoded whole */
#define TAPE_WINDOW_BYTES ((size_t)128 << 20) /* what a frame may need to be decoded */
#define TAPE_MAX_FRAMES ((size_t)1 << 24)

struct dcp_tape;

/* True when a file begins as zstd does. Errors of reading are a no. */
bool dcp_tape_is_zstd(const struct dcp_store *store, const char *name);

/* Opens a file of the store, which is borrowed until free. Errors: NOT_FOUND, CORRUPT
 * (the seek table), IO, MEMORY. */
int dcp_tape_new(const struct dcp_store *store, const char *name,
                 struct dcp_tape **out_tape, struct dcp_error *err);
void dcp_tape_free(struct dcp_tape *tape);
/* "folder/file" as it is shown in messages. */
const char *dcp_tape_shown(const struct dcp_tape *tape);
/* Bytes of the tape; UINT64_MAX while its end was not met yet. */
uint64_t dcp_tape_bytes(struct dcp_tape *tape);
/* Reads up to n bytes; fewer only at the end of the tape. Errors: CORRUPT (a frame does
 * not decode, or is incomplete), UNSUPPORTED (it needs too much memory), IO, MEMORY. */
int dcp_tape_read(struct dcp_tape *tape, uint64_t offset, void *out, size_t n,
                  size_t *out_n, struct dcp_error *err);

#endif
