/* Which blocks are shared: exactly those all of whose bytes lie alike on both sides. */
#include "core/plan/clones.h"
#include "lib/must.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCK = 16, N_TENSORS = 6, MOST_ELEMS = 150, N_FILES = 3, FILE_CAP = 4096 };

static struct dcp_catalog *new_catalog(void)
{
    struct dcp_catalog *catalog;

    must(dcp_catalog_new(&catalog, NULL) == 0);
    for (int f = 0; f < N_FILES; f++) {
        char name[16];
        snprintf(name, sizeof name, "%d", f);
        must(dcp_catalog_add_file(catalog, &(struct dcp_file){ .name = name }, NULL,
                                  NULL) == 0);
    }
    return catalog;
}

static int add_tensor(struct dcp_catalog *catalog, enum dcp_dtype dtype, int ndim,
                      const int64_t *shape)
{
    char name[16];
    int t;

    snprintf(name, sizeof name, "t%zu", catalog->n_tensors);
    must(dcp_catalog_add_tensor(
             catalog,
             &(struct dcp_tensor){
                 .name = name, .dtype = dtype, .ndim = ndim, .shape = shape },
             &t, NULL) == 0);
    return t;
}

static void add_piece(struct dcp_catalog *catalog, struct dcp_piece piece)
{
    must(dcp_catalog_add_piece(catalog, &piece, NULL) == 0);
}

/* The clones of a plan between the two, which are sorted and freed. */
static struct dcp_clones clones_of(struct dcp_catalog *src, struct dcp_catalog *dst,
                                   struct dcp_plan **out_plan)
{
    struct dcp_clones clones;
    struct dcp_plan *plan;

    must(dcp_catalog_sort(src, NULL) == 0 && dcp_catalog_sort(dst, NULL) == 0);
    must(dcp_plan_new(src, dst, NULL, &plan, NULL) == 0);
    must(dcp_clones_init(&clones, plan, src, dst, BLOCK, NULL) == 0);
    if (out_plan) {
        *out_plan = plan;
        return clones;
    }
    dcp_plan_free(plan);
    dcp_catalog_free(src);
    dcp_catalog_free(dst);
    return clones;
}

/* -- against bytes that are looked at one by one ------------------------------------- */

static int below(int n)
{
    return rand() % n;
}

/* Cuts tensors of bytes into pieces that lie behind one another in some files, with a gap
 * now and then; neighbours stay neighbours. */
static struct dcp_catalog *random_catalog(const int64_t *elems, bool whole)
{
    struct dcp_catalog *catalog = new_catalog();
    uint64_t ends[N_FILES] = { 0 };

    for (int f = 0; f < N_FILES; f++)
        ends[f] = (uint64_t)below(3) * BLOCK;
    for (int i = 0; i < N_TENSORS; i++) {
        int t = add_tensor(catalog, DCP_U8, 1, &elems[i]);
        for (int64_t at = 0, n; at < elems[i]; at += n) {
            n = whole || below(2) ? elems[i] - at : 1 + below((int)(elems[i] - at));
            int file = below(8) ? 0 : below(N_FILES);
            ends[file] += below(6) ? 0 : (uint64_t)below(BLOCK);
            add_piece(catalog,
                      (struct dcp_piece){
                          .tensor = t,
                          .region = { .kind = DCP_FLAT, .begin = at, .end = at + n },
                          .file = file,
                          .offset = ends[file],
                          .stored_size = (uint64_t)n });
            ends[file] += (uint64_t)n;
        }
    }
    return catalog;
}

/* Of each byte of a file of the target: where it comes from. */
struct origin {
    int file; /* -1: from nowhere */
    uint64_t at;
};

static void trace(const struct dcp_plan *plan, const struct dcp_catalog *src,
                  const struct dcp_catalog *dst, struct origin out[N_FILES][FILE_CAP])
{
    for (int f = 0; f < N_FILES; f++)
        for (int i = 0; i < FILE_CAP; i++)
            out[f][i].file = -1;
    for (size_t c = 0; c < plan->n_copies; c++) {
        const struct dcp_copy *copy = &plan->copies[c];
        const struct dcp_piece *from = &src->pieces[copy->src];
        const struct dcp_piece *to = &dst->pieces[copy->dst];
        for (int64_t i = 0; i < copy->n; i++)
            out[to->file][to->offset + (uint64_t)(copy->dst_at + i)] =
                (struct origin){ from->file,
                                 from->offset + (uint64_t)(copy->src_at + i) };
    }
}

/* Whether a block comes whole from one file, from the same place of blocks. */
static bool lies_alike(const struct origin *block)
{
    for (int i = 0; i < BLOCK; i++)
        if (block[i].file < 0 || block[i].file != block[0].file ||
            block[i].at != block[0].at + (uint64_t)i)
            return false;
    return block[0].at % BLOCK == 0;
}

static void all_that_lie_alike(void **state)
{
    static struct origin origins[N_FILES][FILE_CAP];
    size_t n_shared = 0;

    (void)state;
    srand(1);
    for (int round = 0; round < 400; round++) {
        int64_t elems[N_TENSORS];
        struct dcp_plan *plan;
        for (int i = 0; i < N_TENSORS; i++)
            elems[i] = below(3) ? BLOCK * (1 + below(6)) : 1 + below(MOST_ELEMS);
        struct dcp_catalog *src = random_catalog(elems, round % 2);
        struct dcp_catalog *dst = random_catalog(elems, round % 4 < 2);
        struct dcp_clones clones = clones_of(src, dst, &plan);
        trace(plan, src, dst, origins);
        for (size_t f = 0; f < N_FILES; f++) {
            const struct dcp_clone *c = clones.items;
            size_t i = clones.first[f], end = clones.first[f + 1];
            uint64_t bytes = 0;
            for (uint64_t at = 0; at < FILE_CAP; at += BLOCK) {
                while (i < end && c[i].to + c[i].n <= at)
                    i++;
                bool shared = i < end && c[i].to <= at;
                assert_int_equal(shared, lies_alike(&origins[f][at]));
                if (!shared)
                    continue;
                assert_int_equal(c[i].src_file, origins[f][at].file);
                assert_int_equal(c[i].from + (at - c[i].to), origins[f][at].at);
                bytes += BLOCK;
                n_shared++;
            }
            assert_int_equal(bytes, dcp_clones_bytes(&clones, f));
        }
        dcp_clones_fini(&clones);
        dcp_plan_free(plan);
        dcp_catalog_free(src);
        dcp_catalog_free(dst);
    }
    assert_true(n_shared > 1000); /* and they were no few */
}

/* -- what is never shared ------------------------------------------------------------ */

static uint64_t shared_of_one(struct dcp_piece from, struct dcp_piece to,
                              enum dcp_dtype dtype)
{
    static const int64_t n = 4 * BLOCK;
    struct dcp_catalog *src = new_catalog(), *dst = new_catalog();

    add_tensor(src, DCP_I16, 1, &n);
    add_tensor(dst, dtype, 1, &n);
    add_piece(src, from);
    add_piece(dst, to);
    struct dcp_clones clones = clones_of(src, dst, NULL);
    uint64_t bytes = dcp_clones_bytes(&clones, 0);
    dcp_clones_fini(&clones);
    return bytes;
}

static void nothing_that_is_other(void **state)
{
    const struct dcp_piece plain = { .offset = BLOCK };
    struct dcp_piece other = plain;

    (void)state;
    assert_int_equal(shared_of_one(plain, plain, DCP_I16), 8 * BLOCK);
    assert_int_equal(shared_of_one(plain, plain, DCP_BF16), 0); /* cast */
    other.codec = DCP_CODEC_ZSTD;
    assert_int_equal(shared_of_one(other, plain, DCP_I16), 0);
    assert_int_equal(shared_of_one(plain, other, DCP_I16), 0);
    other = plain;
    other.swap_bytes = 2;
    assert_int_equal(shared_of_one(other, plain, DCP_I16), 0);
    other = plain;
    other.file = -1; /* in memory */
    assert_int_equal(shared_of_one(other, plain, DCP_I16), 0);
    other = plain;
    other.offset = BLOCK + 2; /* out of step */
    assert_int_equal(shared_of_one(other, plain, DCP_I16), 0);
}

/* Rows of n bytes each half of which comes from another file: their runs take turns. */
static struct dcp_clones clones_of_halves(int64_t n)
{
    const int64_t shape[] = { 4, n }, half[] = { 4, n / 2 };
    const int64_t offsets[][2] = { { 0, 0 }, { 0, n / 2 } };
    struct dcp_catalog *src = new_catalog(), *dst = new_catalog();

    add_tensor(src, DCP_U8, 2, shape);
    add_tensor(dst, DCP_U8, 2, shape);
    for (int i = 0; i < 2; i++)
        add_piece(src,
                  (struct dcp_piece){
                      .region = { .kind = DCP_BOX, .offset = offsets[i], .size = half },
                      .file = i });
    add_piece(dst, (struct dcp_piece){ .file = 1 });
    return clones_of(src, dst, NULL);
}

static void in_the_order_of_places(void **state)
{
    struct dcp_clones clones = clones_of_halves((int64_t)32 * BLOCK);

    (void)state;
    assert_int_equal(clones.n, 8);
    assert_int_equal(dcp_clones_bytes(&clones, 0), 0);
    assert_int_equal(dcp_clones_bytes(&clones, 1), 4 * 32 * BLOCK);
    assert_int_equal(dcp_clones_bytes(&clones, 99), 0);
    for (size_t c = 0; c < clones.n; c++) {
        assert_int_equal(clones.items[c].src_file, c % 2);
        assert_int_equal(clones.items[c].to, c * 16 * BLOCK);
    }
    dcp_clones_fini(&clones);
}

static void no_short_runs_of_columns(void **state)
{
    struct dcp_clones clones = clones_of_halves((int64_t)30 * BLOCK);

    (void)state;
    assert_int_equal(clones.n, 0);
    dcp_clones_fini(&clones);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_that_lie_alike),
        cmocka_unit_test(nothing_that_is_other),
        cmocka_unit_test(in_the_order_of_places),
        cmocka_unit_test(no_short_runs_of_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
