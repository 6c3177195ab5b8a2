/* diff: two checkpoints, tensor by tensor and bit by bit. */
#include "checkpoint.h"

#include "base/mem.h"
#include <string.h>

#define CHUNK_BYTES ((int64_t)8 << 20)

struct diff {
    struct dcp_flat_diff_options options;
    struct dcp_flat_diff_result result;
    struct dcp_progress progress;
    struct dcp_flat_readers a, b;
    struct dcp_identity *in_a, *in_b;
    unsigned char *buffer_a, *buffer_b; /* CHUNK_BYTES each */
    uint64_t done, total;
};

/* The tensor with its name, else the one that is the same to training; -1: none. */
static int find_twin(const struct dcp_tensor *tensor, const struct dcp_catalog *other,
                     const struct dcp_identity *of_other)
{
    int i = dcp_catalog_find(other, tensor->name);

    if (i < 0 && tensor->role != DCP_ROLE_OPTIM && tensor->role != DCP_ROLE_OTHER)
        i = dcp_identity_find(of_other, tensor->role, tensor->param);
    if (i < 0 && tensor->role == DCP_ROLE_BUFFER) /* of which less may be known there */
        i = dcp_identity_find(of_other, DCP_ROLE_MODEL, tensor->param);
    if (i < 0 && tensor->role == DCP_ROLE_MODEL)
        i = dcp_identity_find(of_other, DCP_ROLE_BUFFER, tensor->param);
    return i;
}

static void tell(struct diff *diff, enum dcp_flat_difference how, int64_t a, int64_t b,
                 int64_t first)
{
    diff->result.n_differ++;
    if (diff->options.differs)
        diff->options.differs(diff->options.self, (int32_t)how, a, b, first);
}

static bool same_shape(const struct dcp_tensor *a, const struct dcp_tensor *b)
{
    return a->ndim == b->ndim &&
           (!a->ndim || !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape));
}

/* The first element whose bits differ; -1: none. */
static int compare_bits(struct diff *diff, int a, int b, int64_t *out_first,
                        struct dcp_error *err)
{
    const struct dcp_tensor *of = &diff->a.checkpoint->catalog->tensors[a];
    int64_t elem = (int64_t)dcp_dtype_size(of->dtype), step = CHUNK_BYTES / elem, n;

    *out_first = -1;
    for (int64_t at = 0; at < of->n_elems && *out_first < 0; at += n) {
        n = of->n_elems - at < step ? of->n_elems - at : step;
        DCP_TRY(dcp_reader_read(diff->a.items[0], a, at, at + n, diff->buffer_a, err));
        DCP_TRY(dcp_reader_read(diff->b.items[0], b, at, at + n, diff->buffer_b, err));
        size_t bytes = (size_t)(n * elem), i = 0;
        if (memcmp(diff->buffer_a, diff->buffer_b, bytes)) {
            while (diff->buffer_a[i] == diff->buffer_b[i])
                i++;
            *out_first = at + (int64_t)i / elem;
        }
        diff->done += bytes;
        if (diff->progress.report(diff->progress.self, diff->done, diff->total))
            return dcp_flat_interrupted(err);
    }
    return DCP_OK;
}

static int compare(struct diff *diff, int i, int k, struct dcp_error *err)
{
    const struct dcp_tensor *a = &diff->a.checkpoint->catalog->tensors[i];
    const struct dcp_tensor *b = &diff->b.checkpoint->catalog->tensors[k];
    bool known = a->has_fingerprint && b->has_fingerprint;
    int64_t first = -1;

    if (!same_shape(a, b)) {
        tell(diff, DCP_FLAT_OTHER_SHAPE, i, k, -1);
    } else if (a->dtype != b->dtype || a->is_meta || b->is_meta) {
        if (a->dtype == b->dtype && a->is_meta && b->is_meta && !a->quantized)
            diff->result.n_same++;
        else
            tell(diff, DCP_FLAT_OTHER_DTYPE, i, k, -1);
    } else if (known && a->fingerprint == b->fingerprint) {
        diff->result.n_same++;
        diff->result.n_by_fingerprint++;
    } else {
        DCP_TRY(compare_bits(diff, i, k, &first, err));
        if (first >= 0)
            tell(diff, DCP_FLAT_OTHER_BITS, i, k, first);
        else
            diff->result.n_same++;
    }
    return DCP_OK;
}

static int compare_all(struct diff *diff, struct dcp_error *err)
{
    const struct dcp_catalog *a = diff->a.checkpoint->catalog;
    const struct dcp_catalog *b = diff->b.checkpoint->catalog;

    for (size_t i = 0; i < a->n_tensors; i++) {
        int twin = find_twin(&a->tensors[i], b, diff->in_b);
        if (twin >= 0)
            DCP_TRY(compare(diff, (int)i, twin, err));
        else
            tell(diff, DCP_FLAT_ONLY_A, (int64_t)i, -1, -1);
    }
    for (size_t k = 0; k < b->n_tensors; k++)
        if (find_twin(&b->tensors[k], a, diff->in_a) < 0)
            tell(diff, DCP_FLAT_ONLY_B, -1, (int64_t)k, -1);
    return DCP_OK;
}

static int prepare(struct diff *diff, struct dcp_error *err)
{
    DCP_TRY(dcp_identity_new(diff->a.checkpoint->catalog, &diff->in_a, err));
    DCP_TRY(dcp_identity_new(diff->b.checkpoint->catalog, &diff->in_b, err));
    diff->buffer_a = malloc((size_t)CHUNK_BYTES);
    diff->buffer_b = malloc((size_t)CHUNK_BYTES);
    return diff->buffer_a && diff->buffer_b ? DCP_OK : dcp_error_memory(err, "a diff");
}

/* Two diffs of the same checkpoints, one the other way round, take them in one order. */
static int run(struct diff *diff, struct dcp_flat_checkpoint *a,
               struct dcp_flat_checkpoint *b, struct dcp_error *err)
{
    bool swapped = a > b;
    struct dcp_flat_readers *first = swapped ? &diff->b : &diff->a;
    struct dcp_flat_readers *second = swapped ? &diff->a : &diff->b;

    if (a == b)
        return dcp_error_set(err, DCP_E_USAGE,
                             "a checkpoint is compared with another one: open it twice");
    DCP_TRY(dcp_flat_readers_take(swapped ? b : a, 1, first, err));
    int rc = dcp_flat_readers_take(swapped ? a : b, 1, second, err);
    if (rc)
        return dcp_flat_readers_give(first, rc, NULL);
    rc = prepare(diff, err);
    rc = rc ? rc : compare_all(diff, err);
    struct dcp_error why = { 0 };
    int of_second = dcp_flat_readers_give(second, rc, rc ? err : &why);
    int of_first = dcp_flat_readers_give(first, rc, rc ? NULL : err);
    if (!rc && !of_first && of_second && err)
        *err = why;
    rc = rc ? of_second : of_first ? of_first : of_second;
    rc = dcp_flat_check_replaced(a, NULL, rc, err);
    return dcp_flat_check_replaced(b, NULL, rc, err);
}

int32_t dcp_flat_checkpoint_diff(struct dcp_flat_checkpoint *a,
                                 struct dcp_flat_checkpoint *b,
                                 const struct dcp_flat_diff_options *options,
                                 const struct dcp_flat_hooks *hooks,
                                 struct dcp_flat_diff_result *out_result,
                                 struct dcp_flat_error *err)
{
    struct diff diff = { .total = a->size_bytes };
    struct dcp_flat_watch watch;
    struct dcp_error why = { 0 };

    dcp_flat_take(&diff.options, sizeof diff.options, options);
    diff.progress = dcp_flat_watch(&watch, hooks);
    int rc = run(&diff, a, b, &why);
    dcp_identity_free(diff.in_a);
    dcp_identity_free(diff.in_b);
    free(diff.buffer_a);
    free(diff.buffer_b);
    dcp_flat_give(out_result, &diff.result, sizeof diff.result);
    return dcp_flat_fail(err, rc, &why);
}
