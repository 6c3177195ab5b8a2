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

static int64_t value(int rank, int64_t i)
{
    uint64_t x = ((uint64_t)i + 1) * 11400714819323198485u + (uint64_t)rank * 40503;
    return (int64_t)(x ^ x >> 29);
}

/* Wraps around. */
static int64_t sum_of(int world_size, int64_t i)
{
    uint64_t sum = 0;
    for (int r = 0; r < world_size; r++)
        sum += (uint64_t)value(r, i);
    return (int64_t)sum;
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
    int64_t *in = array_bytes(total, sizeof *in);
    int64_t *apart = array_bytes(counts[coll->rank], sizeof *apart);
    for (int64_t i = 0; i < total; i++)
        in[i] = value(coll->rank, i);
    int64_t *out = in_place ? in + begin : apart;
    struct dcp_error err = { 0 };
    int failed =
        n_failed(coll, !coll_reduce_scatter(coll, in, counts, out, &err), err.message);
    int64_t wrong = 0;
    array_sync();
    for (int64_t i = 0; i < counts[coll->rank]; i++)
        wrong += out[i] != sum_of(coll->world_size, begin + i);
    failed += n_failed(coll, !wrong, "a reduced part is not the sum");
    array_free(in);
    array_free(apart);
    return failed;
}

/* What rank `from` has for rank `to`. */
static uint16_t item(int from, int to, int64_t i)
{
    return (uint16_t)(from * 7919 + to * 104729 + i);
}

/* In rounds of `most` items, the last of which is short. */
static int check_all_to_all(struct coll *coll, int64_t n, int64_t most)
{
    int64_t counts[64] = { 0 }, total = 0, at = 0, wrong = 0;
    for (int r = 0; r < coll->world_size; r++) {
        counts[r] = part(r, n);
        total += counts[r];
    }
    uint16_t *in = array_bytes(total, sizeof *in);
    uint16_t *out = array_bytes(coll->world_size * most, sizeof *out);
    for (int r = 0; r < coll->world_size; r++)
        for (int64_t i = 0; i < counts[r]; i++)
            in[at++] = item(coll->rank, r, i);
    struct dcp_error err = { 0 };
    int failed = 0;
    for (int64_t begin = 0; begin < n; begin += most) {
        int64_t mine = coll_in_round(counts[coll->rank], begin, most);
        failed += n_failed(
            coll, !coll_all_to_all(coll, in, counts, begin, most, sizeof *in, out, &err),
            err.message);
        array_sync();
        for (int r = 0; r < coll->world_size; r++)
            for (int64_t i = 0; i < mine; i++)
                wrong += out[r * mine + i] != item(r, coll->rank, begin + i);
    }
    failed += n_failed(coll, !wrong, "an item is not what its rank gave");
    array_free(in);
    array_free(out);
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
    failed += check_all_to_all(coll, 5, 5);
    failed += check_all_to_all(coll, n_elems, n_elems / 3 + 1);
    failed += check_values(coll);
    return failed + check_split(coll);
}
