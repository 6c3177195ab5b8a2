/* sample: a small training state with every awkward shape, whose bytes are a pure
 * function of tensor and element, so that any part of it can be made and checked
 * anywhere. */
#ifndef TESTS_LIB_SAMPLE_H
#define TESTS_LIB_SAMPLE_H

#include <dcp/checkpoint.h>

/* Byte b of element e of tensor t. `salt` makes another state of the same shape. */
unsigned char sample_byte(int tensor, int64_t elem, size_t byte, unsigned salt);

/* This rank's part of the state under a layout, cut by dcp_layout_apply. Free with
 * sample_free. With fill, the memory holds the sample's bytes, else a poison. */
struct sample {
    struct dcp_state state;
    struct dcp_local_tensor *locals;
    struct dcp_object objects[2];
    struct dcp_catalog *catalog; /* owns names and shapes */
};
void sample_make(struct sample *out, const char *layout, int world_size, int rank,
                 bool fill, unsigned salt);
/* The same with the first n tensors only; the last one is most of the bytes. */
void sample_make_first(struct sample *out, int n, const char *layout, int world_size,
                       int rank, bool fill, unsigned salt);
void sample_free(struct sample *sample);
/* The number of elements whose bytes are not the sample's. */
int64_t sample_wrong(const struct sample *sample, unsigned salt);
/* Naive fingerprint of a tensor: the CRC-64 of its bytes in one go. */
uint64_t sample_fingerprint(const struct sample *sample, int tensor, unsigned salt);
/* How many tensors the state has. */
int sample_n_tensors(void);

#endif
