#include "check_coll.h"

#include "arrays.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int n_failed(const struct coll *coll, bool ok, const char *what)
{
    if (!ok)
        fprintf(stderr, "rank %d of %d: %s\n", coll->rank, coll->world_size, what);
    return ok ? 0 : 1;
}

/* A value whose sums depend on their order. */
static float value(int rank, int64_t i)
{
    uint32_t x = (uint32_t)(i + 1) * 2654435761u + (uint32_t)rank * 40503u;
    x ^= x >> 13;
    return ((float)(x % 20011) - 10005.0f) * (rank % 2 ? 1e-3f : 1.0f) / 3.0f;
}

/* The tree, written down as its definition says. */
static float tree(int first, int n, int64_t i)
{
    if (n == 1)
        return value(first, i);
    int half = 1;
    while (half * 2 < n)
        half *= 2;
    return tree(first, half, i) + tree(first + half, n - half, i);
}

/* Uneven parts, some of them empty. */
static int64_t part(int rank, int64_t n)
{
    return rank % 3 == 1 ? 0 : n / (rank + 1);
}

static int check_reduce_scatter(struct coll *coll, int64_t n, bool in_place)
{
    int64_t counts[64] = { 0 }, total = 0, begin = 0;
    for (int r = 0; r < coll->world_size; r++) {
        counts[r] = part(r, n);
        begin += r < coll->rank ? counts[r] : 0;
        total += counts[r];
    }
    float *in = array_bytes(total, sizeof *in);
    float *apart = array_bytes(counts[coll->rank], sizeof *apart);
    for (int64_t i = 0; i < total; i++)
        in[i] = value(coll->rank, i);
    float *out = in_place ? in + begin : apart;
    struct dcp_error err = { 0 };
    int failed =
        n_failed(coll, !coll_reduce_scatter(coll, in, counts, out, &err), err.message);
    int64_t wrong = 0;
    array_sync();
    for (int64_t i = 0; i < counts[coll->rank]; i++)
        wrong += out[i] != tree(0, coll->world_size, begin + i);
    failed += n_failed(coll, !wrong, "a reduced part is not the tree's sum");
    array_free(in);
    array_free(apart);
    return failed;
}

static int check_all_gather(struct coll *coll, int64_t n, bool in_place)
{
    int64_t counts[64] = { 0 }, total = 0, begin = 0;
    for (int r = 0; r < coll->world_size; r++) {
        counts[r] = part(r, n);
        begin += r < coll->rank ? counts[r] : 0;
        total += counts[r];
    }
    uint16_t *out = array_bytes(total, sizeof *out);
    uint16_t *apart = array_bytes(counts[coll->rank], sizeof *apart);
    uint16_t *in = in_place ? out + begin : apart;
    for (int64_t i = 0; i < counts[coll->rank]; i++)
        in[i] = (uint16_t)(coll->rank * 7919 + i);
    struct dcp_error err = { 0 };
    int failed = n_failed(coll, !coll_all_gather(coll, in, counts, sizeof *in, out, &err),
                          err.message);
    int64_t at = 0, wrong = 0;
    array_sync();
    for (int r = 0; r < coll->world_size; r++)
        for (int64_t i = 0; i < counts[r]; i++)
            wrong += out[at++] != (uint16_t)(r * 7919 + i);
    failed += n_failed(coll, !wrong, "a gathered item is not its rank's");
    array_free(out);
    array_free(apart);
    return failed;
}

static int check_values(struct coll *coll)
{
    double values[3] = { 1.0, coll->rank, 1.0 / (1 + coll->rank) };
    double third = 0;
    struct dcp_error err = { 0 };
    int failed = n_failed(coll, !coll_all_reduce(coll, values, 3, &err), err.message);
    double parts[64];
    for (int r = 0; r < coll->world_size; r++)
        parts[r] = 1.0 / (1 + r);
    coll_tree_sum_f64(parts, coll->world_size, 1);
    third = parts[0];
    int w = coll->world_size;
    failed += n_failed(coll, values[0] == w && values[1] == w * (w - 1) / 2,
                       "all-reduce does not sum");
    failed += n_failed(coll, values[2] == third, "all-reduce is not in the tree's order");
    return failed;
}

static int check_split(struct coll *coll)
{
    struct coll odd;
    struct dcp_error err = { 0 };
    int color = coll->rank % 2, rank = coll->rank, w = coll->world_size;
    int failed = 0;
    for (int turn = 0; turn < 2; turn++) { /* the second time in reverse order */
        int key = turn ? -rank : 0;
        failed += n_failed(coll, !coll_split(coll, color, key, &odd, &err), err.message);
        int n = color ? w / 2 : (w + 1) / 2, place = turn ? n - 1 - rank / 2 : rank / 2;
        failed += n_failed(coll, odd.world_size == n && odd.rank == place,
                           "split gives a wrong place");
        double sum = rank, want = 0;
        for (int r = color; r < w; r += 2)
            want += r;
        failed += n_failed(coll, !coll_all_reduce(&odd, &sum, 1, &err), err.message);
        failed += n_failed(coll, sum == want, "a group sums over strangers");
        coll_free(&odd);
    }
    return failed;
}

int check_coll(struct coll *coll, int64_t n_elems)
{
    int failed = 0;
    for (int in_place = 0; in_place < 2; in_place++) {
        failed += check_reduce_scatter(coll, 5, in_place);
        failed += check_reduce_scatter(coll, n_elems, in_place);
        failed += check_all_gather(coll, 3, in_place);
        failed += check_all_gather(coll, n_elems, in_place);
    }
    failed += check_values(coll);
    return failed + check_split(coll);
}
