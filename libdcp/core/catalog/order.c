#include "order.h"
#include "base/mem.h"
#include <string.h>

static int by_file(const void *a, const void *b, void *arg)
{
    const struct dcp_catalog *target = arg;
    const struct dcp_piece *x = &target->pieces[*(const size_t *)a];
    const struct dcp_piece *y = &target->pieces[*(const size_t *)b];

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->stored_size < y->stored_size ? -1 : x->stored_size > y->stored_size;
}

size_t *dcp_file_order(const struct dcp_catalog *catalog)
{
    size_t *order = dcp_mem_calloc(catalog->n_pieces, sizeof *order);

    for (size_t p = 0; order && p < catalog->n_pieces; p++)
        order[p] = p;
    if (order)
        qsort_r(order, catalog->n_pieces, sizeof *order, by_file, (void *)catalog);
    return order;
}

int dcp_catalog_find_after(const struct dcp_catalog *catalog, const char *name,
                           int before)
{
    size_t next = (size_t)(before + 1);

    return next < catalog->n_tensors && !strcmp(catalog->tensors[next].name, name)
               ? (int)next
               : dcp_catalog_find(catalog, name);
}

int *dcp_catalog_same(const struct dcp_catalog *src, const struct dcp_catalog *dst)
{
    int *same = dcp_mem_calloc(dst->n_tensors, sizeof *same), found = -1;

    for (size_t t = 0; same && t < dst->n_tensors; t++)
        same[t] = found = dcp_catalog_find_after(src, dst->tensors[t].name, found);
    return same;
}
