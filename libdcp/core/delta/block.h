/* block: how a part of a file is coded against the same part of another file.
 *
 * What is coded is the mask: base xor target. Where they agree it is zero, so a block
 * that did not change takes no bytes, a few changed elements take what their places and
 * masks take, and of others the byte planes compress. docs/FORMAT.md, chapter 14, has the
 * methods. Thread rule: one coder, one thread. */
#ifndef DCP_CORE_DELTA_BLOCK_H
#define DCP_CORE_DELTA_BLOCK_H

#include <dcp/error.h>
#include <stddef.h>
#include <stdint.h>

#define DCP_DELTA_BLOCK_BYTES ((size_t)1 << 20) /* of the target file, in a block */

/* The numbers stand in files. */
enum dcp_delta_method {
    DCP_DELTA_UNCHANGED, /* nothing is stored */
    DCP_DELTA_SPARSE,    /* places and masks of the elements that changed */
    DCP_DELTA_PLANES,    /* the mask in byte planes */
    DCP_DELTA_RAW,       /* the mask */
    DCP_DELTA_N_METHODS
};

/* What became of a block. */
struct dcp_delta_coded {
    const void *data; /* the stored bytes: of the coder, until its next call */
    size_t size_bytes;
    enum dcp_delta_method method;
    int width;           /* bytes of an element: 1, 2, 4 or 8; 0 where it means nothing */
    uint64_t n_changed;  /* elements of that width (raw: bytes) whose mask is not zero, */
    uint64_t n_elements; /* of so many */
};

struct dcp_delta_coder;
/* Caller owns. Errors: MEMORY. */
int dcp_delta_coder_new(struct dcp_delta_coder **out_coder, struct dcp_error *err);
void dcp_delta_coder_free(struct dcp_delta_coder *coder);
/* Where a stored block can be put before it is decoded: DCP_DELTA_BLOCK_BYTES. */
unsigned char *dcp_delta_coder_room(struct dcp_delta_coder *coder);

/* Codes n bytes, 1 .. DCP_DELTA_BLOCK_BYTES, by the method that takes least; width 0
 * tries all, else only that one where it divides n. Errors: MEMORY. */
int dcp_delta_encode(struct dcp_delta_coder *coder, const void *base, const void *target,
                     size_t n, int width, struct dcp_delta_coded *out,
                     struct dcp_error *err);
/* Whether a method can have stored so many bytes of a block of n. */
int dcp_delta_check(unsigned method, unsigned width, size_t stored, size_t n,
                    struct dcp_error *err);
/* Applies what is stored to the base's n bytes, which become the target's; after a
 * failure they are neither. Errors: CORRUPT, MEMORY. */
int dcp_delta_decode(struct dcp_delta_coder *coder, unsigned method, unsigned width,
                     const void *stored, size_t stored_n, unsigned char *bytes, size_t n,
                     struct dcp_error *err);

#endif
