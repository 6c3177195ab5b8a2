/* plan: the copies that fill the pieces of one catalog from the pieces of another. Pure:
 * it reads nothing and writes nothing, and the same catalogs give the same plan on every
 * rank. */
#ifndef DCP_CORE_PLAN_PLAN_H
#define DCP_CORE_PLAN_PLAN_H

#include <dcp/tensor.h>

struct dcp_copy_dim {
    int64_t n, src_stride, dst_stride; /* in elements */
};

/* Runs of `n` elements, contiguous on both sides, in the outer loops of dims (outermost
 * first). Runs come in the order of their place in the target piece. */
struct dcp_copy {
    size_t src, dst;        /* pieces of the two catalogs */
    int64_t src_at, dst_at; /* first element in the memory of each piece */
    int64_t n;
    int n_dims;
    const struct dcp_copy_dim *dims;
};

struct dcp_plan {
    struct dcp_copy *copies; /* by target piece, then by place in it */
    size_t n_copies, cap;
    size_t *first; /* copies of target piece p: first[p] .. first[p + 1] */
    uint64_t n_runs;
    struct dcp_arena *arena;
};

/* Both catalogs are sorted. src_tensor[t] is the tensor of src that fills tensor t of
 * dst, -1: none, its pieces get no copies; NULL: by name. Of replicas in src the first is
 * read. Errors: MISMATCH (no such tensor, another shape), CORRUPT (a hole: names tensor
 * and first element), MEMORY. */
int dcp_plan_new(const struct dcp_catalog *src, const struct dcp_catalog *dst,
                 const int *src_tensor, struct dcp_plan **out_plan,
                 struct dcp_error *err);
void dcp_plan_free(struct dcp_plan *plan);

int64_t dcp_copy_runs(const struct dcp_copy *copy);
/* First elements of run number r on both sides. */
void dcp_copy_run(const struct dcp_copy *copy, int64_t r, int64_t *out_src,
                  int64_t *out_dst);
/* The first run that ends behind target element `at`. */
int64_t dcp_copy_seek(const struct dcp_copy *copy, int64_t at);

#endif
