/* tape_own: the inside of a tape, for tape*.c only. */
#ifndef DCP_PORT_STORE_TAPE_OWN_H
#define DCP_PORT_STORE_TAPE_OWN_H

#include "tape.h"
#include <pthread.h>
#include <zstd.h>

#define TAPE_STREAMS 4

/* Where a frame begins, in the file and on the tape. */
struct tape_frame {
    uint64_t at, raw;
};

/* A frame that was decoded whole. */
struct tape_slot {
    struct tape_frame frame; /* the one it holds */
    bool full, loading;
    int pins; /* readers that copy from it */
    uint64_t used;
    unsigned char *data; /* TAPE_FRAME_BYTES */
};

/* What decodes a whole frame. */
struct tape_decoder {
    struct tape_decoder *next; /* free ones are a list */
    ZSTD_DCtx *zstd;
    unsigned char *stored;
};

/* A place in a frame that is decoded from front to back. */
struct tape_stream {
    bool set, busy; /* set: it stands somewhere */
    uint64_t used;
    uint64_t raw;      /* the tape's byte that comes next */
    size_t frame;      /* that it stands in */
    bool begun;        /* some of the frame was taken already */
    uint64_t at;       /* the file's byte behind the input */
    size_t in_at, n;   /* of the input, taken and there */
    unsigned char *in; /* STREAM_IN bytes, and as many to throw away */
    ZSTD_DCtx *zstd;
};

struct dcp_tape {
    const struct dcp_store *store;
    struct dcp_store_file *file;
    char *shown;
    uint64_t file_bytes;
    bool is_zstd;

    pthread_mutex_t lock;  /* of all that follows; never held while decoding */
    pthread_cond_t change; /* a frame is there, a slot or a stream is free */
    uint64_t clock;

    /* Frame i reaches to the begin of frame i + 1; the last one's end is not known yet,
     * or it is the end of the tape. */
    struct tape_frame *frames;
    size_t n_frames, cap_frames;
    bool complete;

    struct tape_slot *slots;
    int n_slots;
    struct tape_decoder *decoders;
    struct tape_stream streams[TAPE_STREAMS];
    int n_streams, window_log;
};

/* Reads the seek table when there is one; *out_found. */
int dcp_tape_read_table(struct dcp_tape *tape, bool *out_found, struct dcp_error *err);
/* The last frame that begins at offset or before. Lock held. */
size_t dcp_tape_find_frame(const struct dcp_tape *tape, uint64_t offset);
/* What was decoded of the frame before says where frame i begins. Lock held. */
int dcp_tape_note_frame(struct dcp_tape *tape, size_t i, struct tape_frame frame,
                        struct dcp_error *err);
/* One sentence for what zstd said of the frame at a byte of the file. */
int dcp_tape_complain(const struct dcp_tape *tape, uint64_t at, size_t zstd_code,
                      struct dcp_error *err);

/* True when frame i is small enough to be decoded whole, and its end known. */
bool dcp_tape_is_small(const struct dcp_tape *tape, size_t i);
/* n bytes from offset on, which lie in the small frame i. Lock held, given up meanwhile.
 */
int dcp_tape_read_kept(struct dcp_tape *tape, size_t i, uint64_t offset, void *out,
                       size_t n, struct dcp_error *err);
void dcp_tape_kept_fini(struct dcp_tape *tape);

/* Up to n bytes from offset on; fewer at the end of the tape. Lock held, given up
 * meanwhile. */
int dcp_tape_read_stream(struct dcp_tape *tape, uint64_t offset, void *out, size_t n,
                         size_t *out_n, struct dcp_error *err);
void dcp_tape_streams_fini(struct dcp_tape *tape);

#endif
