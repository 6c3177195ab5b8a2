/* arrays: random inputs and poisoned outputs of kernels, in each dtype of the trainer.
 */
#ifndef TESTS_LIB_ARRAYS_H
#define TESTS_LIB_ARRAYS_H

#include <dcp/tensor.h>

/* From DCP_TEST_SEED, else the clock; tests print it. */
uint64_t array_seed(void);

/* Its values in fp32, and in the dtype; one array when that is F32. Begins at a multiple
 * of 64 bytes. */
struct array {
    int64_t n;
    enum dcp_dtype dtype;
    float *f32;
    void *t;
};

/* Where arrays lie from now on, instead of in the host's memory: the host can read it,
 * once `sync` has waited for the kernels. */
struct array_memory {
    void *(*alloc)(size_t size_bytes);
    void (*free)(void *memory);
    void (*sync)(void);
};
void array_use(const struct array_memory *memory);
/* Before a test looks at what kernels wrote, and not through the functions below. */
void array_sync(void);

/* All bytes 0xff: NaN. array_free frees it. */
void *array_bytes(int64_t n, size_t size);
void array_free(void *bytes);
struct array array_poisoned(enum dcp_dtype dtype, int64_t n);
/* Normal values that the dtype holds exactly, different at each call. */
struct array array_normal(enum dcp_dtype dtype, int64_t n, double std);
struct array array_constant(enum dcp_dtype dtype, int64_t n, float value);
struct array array_copy(const struct array *a);
void array_set(struct array *a, int64_t i, float value);
void array_fini(struct array *a);
/* After a kernel wrote the dtype's side. */
void array_widen(struct array *a);
/* Ids below vocab_size; array_free frees them. */
int32_t *array_tokens(int64_t n, int32_t vocab_size);

/* Every element within bound × (its size + the root mean square of all). */
void assert_array(const char *what, struct array *got, struct array *want, double bound);
/* The same + the size of the terms that an element is the sum of: they may cancel. */
void assert_array_sum(const char *what, struct array *got, struct array *want,
                      double bound, double terms);
/* The norm of the difference within bound × the norm. */
void assert_array_near(const char *what, struct array *got, struct array *want,
                       double bound);

/* Runs what follows for F32, BF16 and F16; for BF16 and F16. */
#define EACH_DTYPE(dtype)                                       \
    for (enum dcp_dtype dtype = DCP_F32; dtype != DCP_N_DTYPES; \
         dtype = dtype == DCP_F32    ? DCP_BF16                 \
                 : dtype == DCP_BF16 ? DCP_F16                  \
                                     : DCP_N_DTYPES)
#define EACH_16BIT_DTYPE(dtype)                                  \
    for (enum dcp_dtype dtype = DCP_BF16; dtype != DCP_N_DTYPES; \
         dtype = dtype == DCP_BF16 ? DCP_F16 : DCP_N_DTYPES)

#endif
