/* part: which of n elements, one behind the other, are part r of w. In every rule the
 * parts are in order, without gaps, and end at n; the last ones may be shorter, or empty.
 * Two rules say how large a part is, and dcp_part_of where it lies; n >= 0, w >= 1. */
#ifndef DCP_BASE_PART_H
#define DCP_BASE_PART_H

#include <stdint.h>

struct dcp_part {
    int64_t begin, end;
};

/* n rounded up to a multiple of step. */
static inline int64_t dcp_part_align(int64_t n, int64_t step)
{
    return (n / step + (n % step != 0)) * step;
}

/* Elements of a part, ceil(n / w): rows of a tensor as torch.chunk cuts them (aten
 * native/TensorShape.cpp; FSDP2, DTensor Shard(0)), a parameter as ZeRO-3 does (DeepSpeed
 * runtime/zero/partition_parameters.py, _aligned_size). */
static inline int64_t dcp_part_ceil(int64_t n, int64_t w)
{
    return n / w + (n % w != 0);
}

/* Elements of a part of a flat array of ZeRO-1 and 2, which is padded to 2 x w, so that
 * every part is even (DeepSpeed runtime/zero/stage_1_and_2.py,
 * nccl_start_alignment_factor x world size). */
static inline int64_t dcp_part_zero(int64_t n, int64_t w)
{
    return 2 * dcp_part_ceil(n, 2 * w);
}

/* What part r, of `size` elements like every other, holds of the n elements that begin at
 * element `at` of what is cut, counted from there. */
static inline struct dcp_part dcp_part_of(int64_t size, int64_t r, int64_t at, int64_t n)
{
    int64_t from;
    if (__builtin_mul_overflow(r, size, &from))
        from = INT64_MAX; /* sizes of a file may be any */
    from -= at;
    return (struct dcp_part){
        .begin = from < 0   ? 0
                 : from < n ? from
                            : n,
        .end = from >= n - size  ? n
               : from + size < 0 ? 0
                                 : from + size,
    };
}

/* Parts as equal as can be: the first n % w have one element more. */
static inline struct dcp_part dcp_part_even(int64_t n, int64_t w, int64_t r)
{
    int64_t least = n / w, more = n % w, begin = r * least + (r < more ? r : more);
    return (struct dcp_part){ begin, begin + least + (r < more) };
}

#endif
