/* Fingerprints: the parts of any cut of a tensor, in any order and in any smaller runs,
 * give the CRC-64 of its bytes in one pass. */
#include "base/hash.h"
#include "core/catalog/region.h"
#include "core/integrity/fingerprint.h"
#include "lib/acts.h"
#include "lib/naive.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST 300

static void any_cut(void **state)
{
    (void)state;
    uint64_t seed = 61;

    for (int i = 0; i < 2000; i++) {
        struct dcp_catalog *catalog;
        int64_t shape[DCP_MAX_NDIM], elems[MOST];
        unsigned char bytes[16 * MOST], piece_bytes[16 * MOST];
        int ndim = naive_shape(&seed, MOST, shape);
        enum dcp_dtype dtype = (enum dcp_dtype)acts_pick(&seed, DCP_N_DTYPES);
        size_t elem = dcp_dtype_size(dtype);
        uint64_t parts = 0;
        assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
        naive_tensor(catalog, dtype, ndim, shape);
        naive_cut(&seed, catalog, 0, (enum naive_cut)acts_pick(&seed, NAIVE_N_CUTS), 4,
                  false);
        const struct dcp_tensor *tensor = &catalog->tensors[0];
        size_t size = (size_t)dcp_tensor_bytes(tensor);
        for (size_t b = 0; b < size; b++)
            bytes[b] = (unsigned char)acts_random(&seed);
        for (size_t p = catalog->n_pieces; p-- > 0;) { /* not in the order of places */
            const struct dcp_region *region = &catalog->pieces[p].region;
            int64_t n = naive_elems(tensor, region, elems), at = 0;
            for (int64_t k = 0; k < n; k++)
                memcpy(piece_bytes + (size_t)k * elem, bytes + (size_t)elems[k] * elem,
                       elem);
            while (at < n) {
                int64_t run = 1 + acts_pick(&seed, n - at);
                const unsigned char *data = piece_bytes + (size_t)at * elem;
                uint64_t crc = dcp_hash_crc64(0, data, (size_t)run * elem);
                parts ^= dcp_fingerprint_part(tensor, region, at, run, data, crc);
                at += run;
            }
        }
        assert_int_equal(dcp_fingerprint_whole(tensor, parts),
                         dcp_hash_crc64(0, bytes, size));
        dcp_catalog_free(catalog);
    }
}

/* Of three pieces of one region the second repeats the first, the third does not. */
static void replicas_that_differ(void **state)
{
    struct dcp_catalog *catalog;
    int64_t shape[] = { 4 };

    (void)state;
    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    naive_tensor(catalog, DCP_F32, 1, shape);
    for (int rank = 0; rank < 3; rank++) {
        struct dcp_piece piece = {
            .rank = rank, .file = -1, .has_crc = true, .crc = rank == 2 ? 8 : 7
        };
        assert_int_equal(dcp_catalog_add_piece(catalog, &piece, NULL), 0);
    }
    assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
    for (size_t p = 0; p < 3; p++)
        assert_int_equal(dcp_replica_differs(catalog, p), p == 2);
    catalog->pieces[1].has_crc = false; /* nothing is known of it */
    assert_false(dcp_replica_differs(catalog, 2));
    dcp_catalog_free(catalog);
}

/* A number that stands in the paper, and what is nothing. */
static void known_numbers(void **state)
{
    (void)state;
    static const int64_t nine[] = { 9 }, none[] = { 3, 0 };
    const struct dcp_tensor text = {
        .dtype = DCP_U8, .ndim = 1, .shape = nine, .n_elems = 9
    };
    const struct dcp_tensor empty = { .dtype = DCP_F32, .ndim = 2, .shape = none };
    const struct dcp_region whole = { .kind = DCP_WHOLE };
    const char *digits = "123456789";
    uint64_t crc = dcp_hash_crc64(0, digits, 9);

    assert_int_equal(dcp_fingerprint_whole(
                         &text, dcp_fingerprint_part(&text, &whole, 0, 9, digits, crc)),
                     UINT64_C(0x995dc9bbdf1939fa));
    assert_int_equal(dcp_fingerprint_part(&empty, &whole, 0, 0, NULL, 0), 0);
    assert_int_equal(dcp_fingerprint_whole(&empty, 0), 0);
}

/* One bit anywhere is another fingerprint. */
static void every_bit_counts(void **state)
{
    (void)state;
    static const int64_t shape[] = { 5, 7 };
    const struct dcp_tensor tensor = {
        .dtype = DCP_F32, .ndim = 2, .shape = shape, .n_elems = 35
    };
    const struct dcp_region whole = { .kind = DCP_WHOLE };
    unsigned char bytes[140] = { 0 };
    uint64_t seen[141 * 8];
    size_t n = 0;

    for (int bit = -1; bit < 140 * 8; bit++) {
        if (bit >= 0)
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        uint64_t crc = dcp_hash_crc64(0, bytes, sizeof bytes);
        seen[n] = dcp_fingerprint_whole(
            &tensor, dcp_fingerprint_part(&tensor, &whole, 0, 35, bytes, crc));
        for (size_t k = 0; k < n; k++)
            assert_int_not_equal(seen[k], seen[n]);
        n++;
        if (bit >= 0)
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut),
        cmocka_unit_test(replicas_that_differ),
        cmocka_unit_test(known_numbers),
        cmocka_unit_test(every_bit_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
