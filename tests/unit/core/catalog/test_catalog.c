/* Catalogs: what may be added, how it is found, and that every hole and every overlap is
 * seen and named by its first element. */
#include "lib/acts.h"
#include "lib/naive.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST 300

static struct dcp_catalog *new_catalog(void)
{
    struct dcp_catalog *catalog;

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    return catalog;
}

/* --- adding --- */

static void tensors(void **state)
{
    (void)state;
    const int64_t shape[] = { 2, 3 }, huge[] = { INT64_MAX / 16, 2 };
    const int64_t zero[] = { INT64_MAX, INT64_MAX, 0 }, negative[] = { 2, -3 };
    const int64_t nine[9] = { 0 };
    const struct {
        struct dcp_tensor tensor;
        int code;
    } cases[] = {
        { { .name = "a", .ndim = 2, .shape = shape }, DCP_OK },
        { { .name = "a", .ndim = 0 }, DCP_E_CORRUPT },
        { { .name = "scalar" }, DCP_OK },
        { { .name = "zero", .ndim = 3, .shape = zero }, DCP_OK },
        { { .name = "huge", .ndim = 2, .shape = huge }, DCP_E_CORRUPT },
        { { .name = "most", .ndim = 1, .shape = huge }, DCP_OK },
        { { .name = "negative", .ndim = 2, .shape = negative }, DCP_E_CORRUPT },
        { { .name = "nine", .ndim = 9, .shape = nine }, DCP_E_UNSUPPORTED },
        { { .name = "minus", .ndim = -1, .shape = shape }, DCP_E_UNSUPPORTED },
        { { .name = "" }, DCP_E_CORRUPT },
        { { .name = NULL }, DCP_E_CORRUPT },
        { { .name = "\xff" }, DCP_E_CORRUPT },
        { { .name = "param", .param = "\xc3" }, DCP_E_CORRUPT },
        { { .name = "dtype", .dtype = DCP_N_DTYPES }, DCP_E_CORRUPT },
        { { .name = "role", .role = DCP_N_ROLES }, DCP_E_CORRUPT },
        { { .name = "group", .group = -1 }, DCP_E_CORRUPT },
    };
    struct dcp_catalog *catalog = new_catalog();
    size_t n = 0;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dcp_error err = { 0 };
        int index = -1;
        int rc = dcp_catalog_add_tensor(catalog, &cases[i].tensor, &index, &err);
        assert_int_equal(rc, cases[i].code);
        assert_int_equal(err.message[0] != '\0', rc != 0);
        n += rc == 0;
        assert_int_equal(catalog->n_tensors, n);
        if (!rc)
            assert_int_equal(dcp_catalog_find(catalog, cases[i].tensor.name), index);
    }
    assert_int_equal(catalog->tensors[0].n_elems, 6);
    assert_int_equal(catalog->tensors[1].n_elems, 1);
    assert_int_equal(catalog->tensors[2].n_elems, 0);
    assert_string_equal(catalog->tensors[0].param, "a");
    assert_true(catalog->tensors[0].name != cases[0].tensor.name);
    assert_true(catalog->tensors[0].shape != shape);
    dcp_catalog_free(catalog);
}

static void names_are_found(void **state)
{
    (void)state;
    struct dcp_catalog *catalog = new_catalog();
    char name[32];

    assert_int_equal(dcp_catalog_find(catalog, "x"), -1);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(naive_tensor(catalog, DCP_F32, 0, NULL), i);
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "tensor.%d", i);
        assert_int_equal(dcp_catalog_find(catalog, name), i);
    }
    assert_int_equal(dcp_catalog_find(catalog, "tensor.5000"), -1);
    dcp_catalog_free(catalog);
}

static void pieces(void **state)
{
    (void)state;
    const int64_t shape[] = { 4, 6 }, offset[] = { 0, 0 }, rows[] = { 2, 6 };
    struct dcp_catalog *catalog = new_catalog();
    struct dcp_piece good = {
        .region = { .kind = DCP_BOX, .offset = offset, .size = rows }, .file = -1
    };
    struct dcp_piece bad;

    naive_tensor(catalog, DCP_F32, 2, shape);
    naive_tensor(catalog, DCP_F32, 0, NULL);
    assert_int_equal(dcp_catalog_add_piece(catalog, &good, NULL), 0);
    bad = good, bad.tensor = 2;
    assert_int_equal(dcp_catalog_add_piece(catalog, &bad, NULL), DCP_E_CORRUPT);
    bad = good, bad.tensor = -1;
    assert_int_equal(dcp_catalog_add_piece(catalog, &bad, NULL), DCP_E_CORRUPT);
    bad = good, bad.file = 0;
    assert_int_equal(dcp_catalog_add_piece(catalog, &bad, NULL), DCP_E_CORRUPT);
    bad = good, bad.rank = -1;
    assert_int_equal(dcp_catalog_add_piece(catalog, &bad, NULL), DCP_E_CORRUPT);
    bad = good, bad.codec = (enum dcp_codec)(DCP_CODEC_DEFLATE_STREAM + 1);
    assert_int_equal(dcp_catalog_add_piece(catalog, &bad, NULL), DCP_E_CORRUPT);
    bad = good, bad.region.size = shape, bad.region.offset = rows;
    assert_int_equal(dcp_catalog_add_piece(catalog, &bad, NULL), DCP_E_CORRUPT);
    assert_int_equal(catalog->n_pieces, 1);
    assert_true(catalog->pieces[0].region.offset != offset);
    assert_int_equal(dcp_piece_elems(catalog, &catalog->pieces[0]), 12);
    assert_int_equal(dcp_piece_bytes(catalog, &catalog->pieces[0]), 48);
    assert_int_equal(dcp_tensor_bytes(&catalog->tensors[0]), 96);

    /* What covers its tensor has one spelling. */
    good.region.size = shape;
    assert_int_equal(dcp_catalog_add_piece(catalog, &good, NULL), 0);
    good.region = (struct dcp_region){ .kind = DCP_FLAT, .begin = 0, .end = 24 };
    assert_int_equal(dcp_catalog_add_piece(catalog, &good, NULL), 0);
    good.tensor = 1;
    good.region.end = 1;
    assert_int_equal(dcp_catalog_add_piece(catalog, &good, NULL), 0);
    for (size_t p = 1; p < 4; p++)
        assert_int_equal(catalog->pieces[p].region.kind, DCP_WHOLE);
    dcp_catalog_free(catalog);
}

static void objects_and_files(void **state)
{
    (void)state;
    struct dcp_catalog *catalog = new_catalog();
    struct dcp_object object = { .name = "rng", .data = "{}", .size_bytes = 2 };
    int index = -1;

    assert_int_equal(dcp_catalog_add_object(catalog, &object, NULL), 0);
    assert_int_equal(dcp_catalog_add_object(catalog, &object, NULL), DCP_E_CORRUPT);
    object = (struct dcp_object){ .name = "\xff" };
    assert_int_equal(dcp_catalog_add_object(catalog, &object, NULL), DCP_E_CORRUPT);
    object = (struct dcp_object){ .name = "none", .kind = DCP_OBJECT_BYTES };
    assert_int_equal(dcp_catalog_add_object(catalog, &object, NULL), 0);
    assert_int_equal(dcp_catalog_find_object(catalog, "rng"), 0);
    assert_int_equal(dcp_catalog_find_object(catalog, "none"), 1);
    assert_int_equal(dcp_catalog_find_object(catalog, "nothing"), -1);
    assert_string_equal(catalog->objects[0].data, "{}");
    assert_int_equal(
        dcp_catalog_add_file(catalog, &(struct dcp_file){ .name = "f" }, &index, NULL),
        0);
    assert_int_equal(index, 0);
    assert_string_equal(
        dcp_tensor_default_name(catalog, DCP_ROLE_EXP_AVG_SQ, "wte.weight"),
        "optimizer.exp_avg_sq.wte.weight");
    assert_string_equal(dcp_tensor_default_name(catalog, DCP_ROLE_BUFFER, "mask"),
                        "mask");
    dcp_catalog_free(catalog);
    dcp_catalog_free(NULL);
}

/* --- sorting and checking --- */

static void sorting(void **state)
{
    (void)state;
    uint64_t seed = 11;
    int64_t elems[MOST];

    for (int i = 0; i < 500; i++) {
        struct dcp_catalog *catalog = new_catalog();
        for (int t = 0; t < 3; t++) {
            int64_t shape[DCP_MAX_NDIM];
            int ndim = naive_shape(&seed, MOST, shape);
            naive_tensor(catalog, DCP_F32, ndim, shape);
        }
        for (int t = 2; t >= 0; t--)
            naive_cut(&seed, catalog, t, (enum naive_cut)acts_pick(&seed, NAIVE_N_CUTS),
                      3, true);
        assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
        size_t next = 0;
        for (size_t t = 0; t < 3; t++) {
            const struct dcp_tensor *tensor = &catalog->tensors[t];
            int64_t last = -1;
            if (tensor->n_pieces)
                assert_int_equal(tensor->first_piece, next);
            for (size_t p = 0; p < tensor->n_pieces; p++) {
                const struct dcp_piece *piece = &catalog->pieces[next + p];
                assert_int_equal(piece->tensor, t);
                int64_t n = naive_elems(tensor, &piece->region, elems);
                assert_true(!n || elems[0] >= last);
                last = n ? elems[0] : last;
            }
            next += tensor->n_pieces;
        }
        assert_int_equal(next, catalog->n_pieces);
        assert_int_equal(dcp_catalog_check(catalog, NULL), 0);
        dcp_catalog_free(catalog);
    }
}

/* How often each element is held, replicas apart, by brute force. */
static void count(const struct dcp_catalog *catalog, int held[MOST])
{
    const struct dcp_tensor *tensor = &catalog->tensors[0];
    int64_t elems[MOST], earlier[MOST];

    memset(held, 0, MOST * sizeof *held);
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        int64_t n = naive_elems(tensor, &catalog->pieces[p].region, elems);
        bool replica = false;
        for (size_t q = 0; q < p && !replica; q++)
            replica = naive_elems(tensor, &catalog->pieces[q].region, earlier) == n &&
                      !memcmp(elems, earlier, (size_t)n * sizeof *elems);
        for (int64_t k = 0; k < n && !replica; k++)
            held[elems[k]]++;
    }
}

/* Random regions beside and instead of those of a partition: what the check says is what
 * counting says. When there are both holes and overlaps it may name either. */
static void holes_and_overlaps(void **state)
{
    (void)state;
    uint64_t seed = 12;
    int n_holes = 0, n_overlaps = 0;

    for (int i = 0; i < 3000; i++) {
        struct dcp_catalog *catalog = new_catalog();
        int64_t shape[DCP_MAX_NDIM], dims[2][DCP_MAX_NDIM];
        int64_t hole = -1, overlap = -1, begin = -1, end = -1;
        int held[MOST], ndim = naive_shape(&seed, MOST, shape);
        struct dcp_error err = { 0 };
        char what[32] = "";
        naive_tensor(catalog, DCP_F32, ndim, shape);
        naive_cut(&seed, catalog, 0, (enum naive_cut)acts_pick(&seed, NAIVE_N_CUTS), 3,
                  true);
        if (i % 3 == 0) { /* one gone */
            size_t gone = (size_t)acts_pick(&seed, (int64_t)catalog->n_pieces);
            catalog->pieces[gone] = catalog->pieces[--catalog->n_pieces];
        } else if (i % 3 == 1) { /* one too many */
            struct dcp_region region = naive_region(&seed, &catalog->tensors[0], dims);
            struct dcp_piece more = { .region = region, .file = -1 };
            assert_int_equal(dcp_catalog_add_piece(catalog, &more, NULL), 0);
        }
        assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
        count(catalog, held);
        for (int64_t e = catalog->tensors[0].n_elems - 1; e >= 0; e--) {
            hole = held[e] == 0 ? e : hole;
            overlap = held[e] > 1 ? e : overlap;
        }
        int rc = dcp_catalog_check(catalog, &err);
        assert_int_equal(rc, hole < 0 && overlap < 0 ? 0 : DCP_E_CORRUPT);
        if (rc) {
            assert_int_equal(sscanf(err.message,
                                    "tensor 'tensor.0': elements %" SCNd64 "..%" SCNd64
                                    " are in %31[a-z ]",
                                    &begin, &end, what),
                             3);
            bool is_hole = !strcmp(what, "no piece");
            assert_true(is_hole || !strcmp(what, "two pieces"));
            assert_int_equal(begin, is_hole ? hole : overlap);
            for (int64_t e = begin; e <= end; e++)
                assert_true(is_hole ? !held[e] : held[e] > 1);
            assert_string_equal(err.tensor, "tensor.0");
            n_holes += is_hole;
            n_overlaps += !is_hole;
        }
        dcp_catalog_free(catalog);
    }
    assert_true(n_holes > 500 && n_overlaps > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors), cmocka_unit_test(names_are_found),
        cmocka_unit_test(pieces),  cmocka_unit_test(objects_and_files),
        cmocka_unit_test(sorting), cmocka_unit_test(holes_and_overlaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
