/* ties: tensors that share their bytes. In a file they are views of one storage
 * that have the same place, shape and strides; in a catalog the later one is tied to the
 * first. */
#include "base/mem.h"
#include "torch.h"
#include <string.h>

/* The first piece of a tensor, and where its bytes lie. */
struct entry {
    size_t tensor;
    const struct dcp_piece *piece;
};

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_dims(const int64_t *a, const int64_t *b, int n)
{
    if (!a || !b)
        return (a != NULL) - (b != NULL);
    for (int d = 0; d < n; d++)
        if (a[d] != b[d])
            return a[d] < b[d] ? -1 : 1;
    return 0;
}

/* 0: the same bytes as the same array. */
static int compare(const struct dcp_catalog *catalog, const struct entry *a,
                   const struct entry *b)
{
    const struct dcp_piece *p = a->piece, *q = b->piece;
    const struct dcp_tensor *t = &catalog->tensors[a->tensor],
                            *u = &catalog->tensors[b->tensor];
    int order = compare_u64((uint64_t)p->file, (uint64_t)q->file);

    if (!order)
        order = compare_u64(p->offset, q->offset);
    if (!order)
        order = compare_u64(p->skip, q->skip);
    if (!order)
        order = compare_u64(p->stored_size, q->stored_size);
    if (!order)
        order = compare_u64(p->codec, q->codec);
    if (!order)
        order = compare_u64(t->dtype, u->dtype);
    if (!order)
        order = compare_u64((uint64_t)t->ndim, (uint64_t)u->ndim);
    if (!order)
        order = compare_dims(t->shape, u->shape, t->ndim);
    if (!order)
        order = compare_dims(p->stride, q->stride, t->ndim);
    if (!order)
        order = compare_dims(p->region.offset, q->region.offset, t->ndim);
    if (!order)
        order = compare_dims(p->region.size, q->region.size, t->ndim);
    return order;
}

static int by_place(const void *p, const void *q, void *catalog)
{
    const struct entry *a = p, *b = q;
    int order = compare(catalog, a, b);

    return order ? order : compare_u64(a->tensor, b->tensor);
}

int dcp_torch_tie_views(struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct entry *entries =
        dcp_mem_calloc(catalog->n_tensors, sizeof *entries);
    DCP_CLEANUP_FREE bool *seen = dcp_mem_calloc(catalog->n_tensors, sizeof *seen);
    size_t n = 0, first = 0;

    if (!entries || !seen)
        return dcp_error_memory(err, "a PyTorch file");
    for (size_t i = 0; i < catalog->n_pieces; i++) {
        const struct dcp_piece *piece = &catalog->pieces[i];
        if (piece->file >= 0 && piece->region.kind != DCP_FLAT && !seen[piece->tensor])
            entries[n++] = (struct entry){ (size_t)piece->tensor, piece };
        seen[piece->tensor] = true;
    }
    qsort_r(entries, n, sizeof *entries, by_place, catalog);
    for (size_t i = 1; i < n; i++) {
        struct dcp_tensor *tensor = &catalog->tensors[entries[i].tensor];
        if (compare(catalog, &entries[first], &entries[i]) != 0)
            first = i;
        else if (entries[i].tensor != entries[first].tensor)
            tensor->tied_to = catalog->tensors[entries[first].tensor].name;
    }
    return DCP_OK;
}

size_t dcp_torch_tie(const struct dcp_catalog *catalog, size_t tensor)
{
    const struct dcp_tensor *t = &catalog->tensors[tensor];
    int at = t->tied_to ? dcp_catalog_find(catalog, t->tied_to) : -1;

    if (at < 0 || catalog->tensors[at].tied_to)
        return tensor;
    const struct dcp_tensor *root = &catalog->tensors[at];
    return root->dtype == t->dtype && root->ndim == t->ndim &&
                   !compare_dims(root->shape, t->shape, t->ndim)
               ? (size_t)at
               : tensor;
}
