/* ops_cuda: the sum over ranks, in the order of coll_tree_sum. */
#include "kernel.cuh"

#define LEVELS 32

struct tree {
    const float *parts, *own;
    int64_t stride;
    int rank, n_parts;
};

/* Adding in the tree is counting in binary: what stands at a level is the sum of that
 * many parts, and is taken in by the next sum of as many. */
static __global__ void tree_kernel(struct tree tree, int64_t n, float *out)
{
    EACH_ELEMENT(i, n)
    {
        float sums[LEVELS] = {}, sum;
        for (int part = 0, slot = 0; part < tree.n_parts; part++) {
            sum = part == tree.rank ? tree.own[i] : tree.parts[slot++ * tree.stride + i];
            int level = 0;
            for (; part >> level & 1; level++)
                sum = sums[level] + sum;
            sums[level] = sum;
        }
        int level = 0;
        while (!(tree.n_parts >> level & 1))
            level++;
        sum = sums[level];
        for (level++; tree.n_parts >> level; level++)
            if (tree.n_parts >> level & 1)
                sum = sums[level] + sum;
        out[i] = sum;
    }
}

int ops_cuda_tree_sum(struct ops_cuda *cuda, cudaStream_t stream, const float *parts,
                      int64_t stride, const float *own, int rank, int n_parts, int64_t n,
                      float *out, struct dcp_error *err)
{
    struct ops_cuda here = *cuda; /* another stream, and failures told at once */
    struct tree tree = { parts, own, stride, rank, n_parts };
    here.stream = stream;
    here.failed.code = 0;
    if (n)
        LAUNCH(&here, blocks_for(n, BLOCK), BLOCK, tree_kernel, tree, n, out);
    return ops_cuda_report(&here, err);
}
