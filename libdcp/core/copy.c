#include "copy.h"
#include "base/hash.h"
#include "base/mem.h"
#include "fingerprint.h"
#include <stdatomic.h>
#include <string.h>

/* Adds n elements of a source piece to the fingerprint of what was read, by the source's
 * own geometry: a plan that puts them in the wrong place is found out. Strided pieces are
 * whole tensors whose order only the plan knows, so they are placed by the target's. */
static void account(struct dcp_copier *copier, const struct dcp_copy *copy,
                    int64_t src_at, int64_t dst_at, int64_t n, const void *data)
{
    const struct dcp_piece *src = &copier->src->pieces[copy->src];
    const struct dcp_piece *dst = &copier->dst->pieces[copy->dst];
    const struct dcp_tensor *tensor = &copier->src->tensors[src->tensor];
    uint64_t crc = dcp_hash_crc64(0, data, (size_t)n * dcp_dtype_size(tensor->dtype));
    uint64_t part =
        dcp_fingerprint_part(tensor, src->stride ? &dst->region : &src->region,
                             src->stride ? dst_at : src_at, n, data, crc);

    atomic_fetch_xor(&copier->src_parts[src->tensor], part);
}

/* Elements begin .. end in the source's dtype. */
static int gather(struct dcp_copier *copier, size_t p, int64_t begin, int64_t end,
                  unsigned char *out, struct dcp_error *err)
{
    const struct dcp_plan *plan = copier->plan;
    int rc = DCP_OK;

    for (size_t c = plan->first[p]; c < plan->first[p + 1] && !rc; c++) {
        const struct dcp_copy *copy = &plan->copies[c];
        size_t elem = dcp_dtype_size(
            copier->src->tensors[copier->src->pieces[copy->src].tensor].dtype);
        if (copy->dst_at >= end)
            break; /* copies are in the order of their place */
        int64_t n_runs = dcp_copy_runs(copy);
        for (int64_t r = dcp_copy_seek(copy, begin); r < n_runs && !rc; r++) {
            int64_t src, dst, skip, n = copy->n;
            dcp_copy_run(copy, r, &src, &dst);
            if (dst >= end)
                break;
            skip = dst < begin ? begin - dst : 0;
            n = (dst + n < end ? n : end - dst) - skip;
            unsigned char *to = out + (size_t)(dst + skip - begin) * elem;
            rc = dcp_blocks_read(copier->blocks, copy->src, (uint64_t)(src + skip) * elem,
                                 (size_t)n * elem, to, err);
            if (!rc && copier->src_parts)
                account(copier, copy, src + skip, dst + skip, n, to);
        }
    }
    return rc;
}

int dcp_copy_piece(struct dcp_copier *copier, size_t p, int64_t begin, int64_t end,
                   void *out, struct dcp_error *err)
{
    const struct dcp_plan *plan = copier->plan;
    const struct dcp_tensor *to = &copier->dst->tensors[copier->dst->pieces[p].tensor];
    unsigned char *at = out;

    if (begin >= end || plan->first[p] == plan->first[p + 1])
        return DCP_OK;
    size_t src_piece = plan->copies[plan->first[p]].src;
    enum dcp_dtype from =
        copier->src->tensors[copier->src->pieces[src_piece].tensor].dtype;
    if (from == to->dtype)
        return gather(copier, p, begin, end, out, err);
    int64_t step = (int64_t)(DCP_COPY_SCRATCH / dcp_dtype_size(from));
    for (int rc; begin < end; begin += step) {
        int64_t n = end - begin < step ? end - begin : step;
        rc = gather(copier, p, begin, begin + n, copier->scratch, err);
        if (!rc)
            rc = dcp_cast(from, to->dtype, copier->scratch, at, (size_t)n, err);
        if (rc)
            return rc;
        at += (size_t)n * dcp_dtype_size(to->dtype);
    }
    return DCP_OK;
}
