#include "copy.h"
#include "base/hash.h"
#include "base/mem.h"
#include "core/catalog/region.h"
#include "core/catalog/scales.h"
#include "core/catalog/scatter.h"
#include "core/integrity/fingerprint.h"
#include <stdatomic.h>
#include <string.h>

/* A transposed run of a source is read into this much. */
#define RUN_BYTES 65536

/* Adds n elements of a source piece to the fingerprint of what was read, by the source's
 * own geometry: a plan that puts them in the wrong place is found out. Where the source
 * is strided only the plan knows its order, so they are placed by the target's. What is
 * read for a replica was read before. */
static void account(struct dcp_copier *copier, const struct dcp_copy *copy,
                    int64_t src_at, int64_t dst_at, int64_t n, const void *data)
{
    const struct dcp_piece *src = &copier->src->pieces[copy->src];
    const struct dcp_piece *dst = &copier->dst->pieces[copy->dst];
    const struct dcp_tensor *tensor = &copier->src->tensors[src->tensor];

    if (dcp_region_is_replica(copier->dst, copy->dst))
        return;
    uint64_t crc = dcp_hash_crc64(0, data, (size_t)n * dcp_dtype_size(tensor->dtype));
    uint64_t part = dcp_fingerprint_piece(tensor, src->stride ? dst : src,
                                          src->stride ? dst_at : src_at, n, data, crc);

    atomic_fetch_xor(&copier->src_parts[dst->tensor], part);
}

/* A copy whose elements lie side by side in the source along one loop and in the target
 * along the next. */
static bool is_transposed(const struct dcp_copy *copy)
{
    int n = copy->n_dims;

    return copy->n == 1 && n >= 2 && copy->dims[n - 1].dst_stride == 1 &&
           copy->dims[n - 2].src_stride == 1;
}

/* Target elements begin .. end of one transposed plane of a copy: `rows` runs of the
 * target, each of `columns` elements; a column is a run of the source. */
static int gather_plane(struct dcp_copier *copier, const struct dcp_copy *copy,
                        int64_t src, int64_t dst, int64_t begin, int64_t end, size_t elem,
                        unsigned char *out, struct dcp_error *err)
{
    const struct dcp_copy_dim *rows = &copy->dims[copy->n_dims - 2];
    const struct dcp_copy_dim *columns = &copy->dims[copy->n_dims - 1];
    bool by_target = copier->src->pieces[copy->src].stride != NULL;
    unsigned char held[RUN_BYTES]; /* columns, each with room for `most` elements */
    const int64_t most = (RUN_BYTES / DCP_TURN_COLUMNS - 64) / (int64_t)elem;

    for (int64_t c = 0, step; c < columns->n; c += step) {
        int64_t from, to, last_from, last_to;
        dcp_scatter_clip(dst + c, rows->dst_stride, rows->n, begin, end, &from, &to);
        step = DCP_TURN_COLUMNS * 2;
        do { /* fewer where a row of the target begins or ends among them */
            step = columns->n - c < step / 2 ? columns->n - c : step / 2;
            dcp_scatter_clip(dst + c + step - 1, rows->dst_stride, rows->n, begin, end,
                             &last_from, &last_to);
        } while (from != last_from || to != last_to);
        for (int64_t n; from < to; from += n) {
            int64_t dst_at = dst + c + from * rows->dst_stride;
            n = to - from < most ? to - from : most;
            for (int64_t k = 0; k < step; k++) {
                unsigned char *run = held + (size_t)(k * most) * elem;
                int64_t src_at = src + (c + k) * columns->src_stride + from;
                DCP_TRY(dcp_blocks_read(copier->blocks, copy->src,
                                        (uint64_t)src_at * elem, (size_t)n * elem, run,
                                        err));
                if (copier->src_parts && !by_target)
                    account(copier, copy, src_at, dst_at + k, n, run);
            }
            dcp_turn(out + (size_t)(dst_at - begin) * elem, rows->dst_stride, held, most,
                     n, step, elem);
        }
    }
    for (int64_t r = 0; r < rows->n && by_target && copier->src_parts; r++) {
        int64_t from, to, at = dst + r * rows->dst_stride;
        dcp_scatter_clip(at, 1, columns->n, begin, end, &from, &to);
        if (from < to)
            account(copier, copy, 0, at + from, to - from,
                    out + (size_t)(at + from - begin) * elem);
    }
    return DCP_OK;
}

/* The planes of a transposed copy that reach into target elements begin .. end. */
static int gather_transposed(struct dcp_copier *copier, const struct dcp_copy *copy,
                             int64_t begin, int64_t end, size_t elem, unsigned char *out,
                             struct dcp_error *err)
{
    int64_t plane = copy->dims[copy->n_dims - 2].n * copy->dims[copy->n_dims - 1].n;
    int64_t n_runs = dcp_copy_runs(copy), r = dcp_copy_seek(copy, begin);

    for (r -= r % plane; r < n_runs; r += plane) {
        int64_t src, dst;
        dcp_copy_run(copy, r, &src, &dst);
        if (dst >= end)
            break;
        DCP_TRY(gather_plane(copier, copy, src, dst, begin, end, elem, out, err));
    }
    return DCP_OK;
}

static int gather_runs(struct dcp_copier *copier, const struct dcp_copy *copy,
                       int64_t begin, int64_t end, size_t elem, unsigned char *out,
                       struct dcp_error *err)
{
    int64_t n_runs = dcp_copy_runs(copy);
    int (*read)(struct dcp_blocks *, size_t, uint64_t, size_t, void *,
                struct dcp_error *) = copier->raw ? dcp_blocks_read_run : dcp_blocks_read;

    for (int64_t r = dcp_copy_seek(copy, begin); r < n_runs; r++) {
        int64_t src, dst, skip, n = copy->n;
        dcp_copy_run(copy, r, &src, &dst);
        if (dst >= end)
            break;
        skip = dst < begin ? begin - dst : 0;
        n = (dst + n < end ? n : end - dst) - skip;
        unsigned char *to = out + (size_t)(dst + skip - begin) * elem;
        DCP_TRY(read(copier->blocks, copy->src, (uint64_t)(src + skip) * elem,
                     (size_t)n * elem, to, err));
        if (copier->src_parts)
            account(copier, copy, src + skip, dst + skip, n, to);
    }
    return DCP_OK;
}

/* Elements begin .. end in the source's dtype. */
static int gather_all(struct dcp_copier *copier, size_t p, int64_t begin, int64_t end,
                      unsigned char *out, struct dcp_error *err)
{
    const struct dcp_plan *plan = copier->plan;

    for (size_t c = plan->first[p]; c < plan->first[p + 1]; c++) {
        const struct dcp_copy *copy = &plan->copies[c];
        size_t elem = dcp_dtype_size(
            copier->src->tensors[copier->src->pieces[copy->src].tensor].dtype);
        if (copy->dst_at >= end)
            break; /* copies are in the order of their place */
        DCP_TRY(is_transposed(copy)
                    ? gather_transposed(copier, copy, begin, end, elem, out, err)
                    : gather_runs(copier, copy, begin, end, elem, out, err));
    }
    return DCP_OK;
}

static int gather(struct dcp_copier *copier, const struct dcp_tensor *from, size_t p,
                  int64_t begin, int64_t end, unsigned char *out, struct dcp_error *err)
{
    DCP_TRY(gather_all(copier, p, begin, end, out, err));
    if (copier->part)
        *copier->part ^= dcp_fingerprint_read(from, &copier->dst->pieces[p].region, begin,
                                              end - begin, out);
    return DCP_OK;
}

/* From `in` to `out`, in the dtype of a target's tensor. */
static int cast(struct dcp_copier *copier, const struct dcp_tensor *to,
                enum dcp_dtype from, const void *in, void *out, size_t n,
                struct dcp_error *err)
{
    DCP_TRY(dcp_cast(from, to->dtype, in, out, n, err));
    if (copier->overflows) {
        size_t found = dcp_cast_overflows(from, to->dtype, in, out, n);
        if (found)
            atomic_fetch_add(&copier->overflows[to - copier->dst->tensors], found);
    }
    return DCP_OK;
}

/* Elements begin .. begin + n of a target piece from the scratch, which has 8-bit floats
 * that are scaled. */
static int cast_scaled(struct dcp_copier *copier, size_t p, int64_t begin,
                       unsigned char *out, size_t n, struct dcp_error *err)
{
    const struct dcp_piece *piece = &copier->dst->pieces[p];
    const struct dcp_tensor *to = &copier->dst->tensors[piece->tensor];
    float run[RUN_BYTES / sizeof(float)];

    for (size_t at = 0, m; at < n; at += m) {
        m = n - at < DCP_ARRAY_LEN(run) ? n - at : DCP_ARRAY_LEN(run);
        dcp_scale_apply(&copier->scale, piece, begin + (int64_t)at, m,
                        copier->scratch + at, run);
        DCP_TRY(
            cast(copier, to, DCP_F32, run, out + at * dcp_dtype_size(to->dtype), m, err));
    }
    return DCP_OK;
}

/* All of a tensor, in 32 bits: a copy onto one piece. */
static int read_values(const struct dcp_catalog *src, int tensor,
                       struct dcp_blocks *blocks, float **out, struct dcp_error *err)
{
    struct dcp_tensor factors = src->tensors[tensor];
    size_t n = (size_t)factors.n_elems;
    DCP_CLEANUP_FREE unsigned char *raw =
        dcp_mem_calloc(n, dcp_dtype_size(factors.dtype));
    struct dcp_catalog *one = NULL;
    struct dcp_plan *plan = NULL;

    *out = dcp_mem_calloc(n, sizeof **out);
    if (!raw || !*out)
        return dcp_error_memory(err, "the scales of a weight");
    factors.tied_to = NULL;
    int rc = dcp_catalog_new(&one, err);
    if (!rc)
        rc = dcp_catalog_add_tensor(one, &factors, NULL, err);
    if (!rc)
        rc = dcp_catalog_add_piece(one, &(struct dcp_piece){ .file = -1 }, err);
    if (!rc)
        rc = dcp_catalog_sort(one, err);
    if (!rc)
        rc = dcp_plan_new(src, one, &tensor, &plan, err);
    struct dcp_copier copier = { .plan = plan, .src = src, .dst = one, .blocks = blocks };
    if (!rc)
        rc = dcp_copy_piece(&copier, 0, 0, factors.n_elems, raw, err);
    if (!rc)
        rc = dcp_cast(factors.dtype, DCP_F32, raw, *out, n, err);
    dcp_plan_free(plan);
    dcp_catalog_free(one);
    return rc;
}

/* The factors of a weight, unless they are those that there are. */
static int load_scale(struct dcp_copier *copier, const struct dcp_tensor *weight,
                      struct dcp_error *err)
{
    struct dcp_scale *scale = &copier->scale;
    int at;

    if (scale->weight == weight)
        return DCP_OK;
    dcp_scale_fini(scale);
    int rc = dcp_scale_find(copier->src, weight, &at, err);
    if (!rc && at < 0) {
        scale->weight = weight;
        return DCP_OK;
    }
    if (!rc)
        rc = dcp_scale_init(scale, weight, &copier->src->tensors[at], err);
    if (!rc)
        rc = read_values(copier->src, at, copier->blocks, &scale->values, err);
    if (rc)
        dcp_scale_fini(scale);
    return rc;
}

/* Finds out whether what is cast is scaled. */
static int find_scale(struct dcp_copier *copier, const struct dcp_tensor *from,
                      const struct dcp_tensor *to, bool *out_scaled,
                      struct dcp_error *err)
{
    bool widens = dcp_scale_is_f8(from->dtype) && !dcp_scale_is_f8(to->dtype);
    int rc = widens ? load_scale(copier, from, err) : DCP_OK;

    *out_scaled = !rc && widens && copier->scale.values;
    return rc;
}

bool dcp_copy_is_plain(const struct dcp_plan *plan, const struct dcp_catalog *src,
                       const struct dcp_catalog *dst, size_t p)
{
    bool plain = !dst->pieces[p].stride;

    for (size_t c = plan->first[p]; c < plan->first[p + 1] && plain; c++) {
        const struct dcp_piece *piece = &src->pieces[plan->copies[c].src];
        plain = piece->file >= 0 && piece->codec == DCP_CODEC_NONE && !piece->stride &&
                !piece->swap_bytes;
    }
    return plain;
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
    const struct dcp_tensor *from =
        &copier->src->tensors[copier->src->pieces[src_piece].tensor];
    bool scaled;
    if (from->dtype == to->dtype)
        return gather(copier, from, p, begin, end, out, err);
    int rc = find_scale(copier, from, to, &scaled, err);
    int64_t step = (int64_t)(DCP_COPY_SCRATCH / dcp_dtype_size(from->dtype));
    for (; begin < end && !rc; begin += step) {
        size_t n = (size_t)(end - begin < step ? end - begin : step);
        rc = gather(copier, from, p, begin, begin + (int64_t)n, copier->scratch, err);
        if (!rc)
            rc = scaled ? cast_scaled(copier, p, begin, at, n, err)
                        : cast(copier, to, from->dtype, copier->scratch, at, n, err);
        at += n * dcp_dtype_size(to->dtype);
    }
    return rc;
}
