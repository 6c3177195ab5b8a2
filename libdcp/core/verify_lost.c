#include "verify_lost.h"
#include "base/mem.h"
#include "region.h"

struct interval {
    int64_t begin, end;
};

static int by_begin(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* The runs of all pieces of a tensor, in order. */
static int collect(const struct dcp_catalog *catalog, const struct dcp_tensor *tensor,
                   struct interval **out, size_t *out_n, struct dcp_error *err)
{
    size_t cap = 0;

    for (size_t i = 0; i < tensor->n_pieces; i++) {
        const struct dcp_piece *piece = &catalog->pieces[tensor->first_piece + i];
        struct dcp_region_walk walk;
        int64_t flat, at, n;
        dcp_region_walk_init(&walk, tensor, &piece->region, 0);
        while (dcp_region_walk_next(&walk, INT64_MAX, &flat, &at, &n)) {
            struct interval *grown = dcp_mem_grow(*out, &cap, *out_n + 1, sizeof **out);
            if (!grown)
                return dcp_error_memory(err, "a verification");
            *out = grown;
            grown[(*out_n)++] = (struct interval){ flat, flat + n };
        }
    }
    if (*out_n)
        qsort(*out, *out_n, sizeof **out, by_begin);
    return DCP_OK;
}

/* From the first element that is in no interval to the last; begin == end: none. */
static struct interval gap(const struct interval *intervals, size_t n, int64_t n_elems)
{
    struct interval found = { n_elems, n_elems };
    int64_t at = 0;

    for (size_t i = 0; i <= n; i++) {
        int64_t begin = i < n ? intervals[i].begin : n_elems;
        if (begin > at) {
            found.begin = found.begin < at ? found.begin : at;
            found.end = begin;
        }
        if (i < n && intervals[i].end > at)
            at = intervals[i].end;
    }
    return found;
}

int dcp_verify_lost(const struct dcp_catalog *catalog, _Atomic bool *broken,
                    int (*add)(void *self, const struct dcp_damage *damage,
                               struct dcp_error *err),
                    void *self, struct dcp_error *err)
{
    int rc = DCP_OK;

    for (size_t t = 0; t < catalog->n_tensors && !rc; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        DCP_CLEANUP_FREE struct interval *intervals = NULL;
        struct dcp_damage damage = { .code = DCP_E_CORRUPT,
                                     .tensor = tensor->name,
                                     .what = "nothing says where it lies" };
        size_t n = 0;
        rc = collect(catalog, tensor, &intervals, &n, err);
        struct interval lost = gap(intervals, n, tensor->n_elems);
        if (rc || lost.begin >= lost.end)
            continue;
        damage.begin = lost.begin;
        damage.end = lost.end;
        broken[t] = true;
        rc = add(self, &damage, err);
    }
    return rc;
}
