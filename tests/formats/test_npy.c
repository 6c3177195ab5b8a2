/* npy, npz: headers by hand, archives over 4 GiB, and what is refused; without NumPy. */
#include "base/hash.h"
#include "base/mem.h"
#include "core/plan/target.h"
#include "formats/archive/zip.h"
#include "formats/numpy/npy.h"
#include "formats/numpy/npz.h"
#include "lib/sparse.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* -- headers ------------------------------------------------------------------------- */

#define DICT(descr, order, shape) \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }"

static int parse(const char *text, unsigned major, uint64_t data_bytes,
                 struct dcp_npy *out, struct dcp_error *err)
{
    unsigned char head[1024] = DCP_NPY_MAGIC;
    size_t n = strlen(text), at = major == 1 ? 10 : 12;

    head[6] = (unsigned char)major;
    head[8] = (unsigned char)n;
    head[9] = (unsigned char)(n >> 8);
    memcpy(head + at, text, n);
    return dcp_npy_parse(head, at + n, at + n + data_bytes, "'x'", out, err);
}

static void test_parse(void **state)
{
    static const struct {
        const char *text;
        unsigned major;
        uint64_t size_bytes;
        int ndim;
        int64_t first, stride; /* of the first dimension */
        bool dense;
    } cases[] = {
        { DICT("'<f4'", "False", "(2, 3)"), 1, 24, 2, 2, 3, true },
        { DICT("'<f4'", "True", "(2, 3)"), 1, 24, 2, 2, 1, false },
        { DICT("'<f4'", "True", "(1, 3)"), 1, 12, 2, 1, 1, true },
        { DICT("'<f4'", "True", "(5,)"), 1, 20, 1, 5, 1, true },
        { DICT("'|b1'", "False", "()"), 1, 1, 0, 0, 0, true },
        { DICT("'<c16'", "False", "(0, 9223372036854775807)"), 1, 0, 2, 0, 1, true },
        { DICT("'>i1'", "False", "(3,)"), 1, 3, 1, 3, 1, true },
        { DICT("\"<f8\"", "False", "(3L, 1L,)"), 2, 24, 2, 3, 1, true },
        { "{'shape':(3,),'fortran_order':False,'descr':u'<u2'}\n", 3, 6, 1, 3, 1, true },
        { " {\n'shape' : ( 3 , ) , 'descr':'=f4', 'fortran_order':False} \n", 1, 12, 1, 3,
          1, true },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct dcp_error err = { 0 };
        struct dcp_npy npy;
        if (parse(cases[i].text, cases[i].major, cases[i].size_bytes, &npy, &err))
            fail_msg("%s: %s", cases[i].text, err.message);
        assert_int_equal(npy.ndim, cases[i].ndim);
        assert_int_equal(npy.size_bytes, cases[i].size_bytes);
        assert_int_equal(npy.dense, cases[i].dense);
        if (npy.ndim) {
            assert_int_equal(npy.shape[0], cases[i].first);
            assert_int_equal(npy.stride[0], cases[i].stride);
        }
    }
}

/* Big-endian numbers: how many bytes are turned round. */
static void test_swapped(void **state)
{
    static const struct {
        const char *text;
        int swap_bytes;
    } cases[] = {
        { DICT("'>i1'", "False", "(0,)"), 0 },  { DICT("'<f4'", "False", "(0,)"), 0 },
        { DICT("'>f2'", "False", "(0,)"), 2 },  { DICT("'>f4'", "False", "(0,)"), 4 },
        { DICT("'>i8'", "False", "(0,)"), 8 },  { DICT("'>c8'", "False", "(0,)"), 4 },
        { DICT("'>c16'", "False", "(0,)"), 8 },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct dcp_npy npy;
        assert_int_equal(parse(cases[i].text, 1, 0, &npy, NULL), 0);
        assert_int_equal(npy.swap_bytes, cases[i].swap_bytes);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *text;
        int rc;
        const char *words;
    } cases[] = {
        { DICT("'<f4'", "False", "(3)"), DCP_E_CORRUPT, "no tuple" },
        { DICT("'<f4'", "False", "(,)"), DCP_E_CORRUPT, "no tuple" },
        { DICT("'<f4'", "False", "(1 2)"), DCP_E_CORRUPT, "no tuple" },
        { DICT("'<f4'", "False", "(-1,)"), DCP_E_CORRUPT, "no tuple" },
        { DICT("'<f4'", "False", "(1.0,)"), DCP_E_CORRUPT, "no tuple" },
        { DICT("'<f4'", "False", "[3]"), DCP_E_CORRUPT, "no tuple" },
        { DICT("'<f4'", "False", "(9223372036854775808,)"), DCP_E_CORRUPT, "no tuple" },
        { DICT("'<f4'", "False", "(1,1,1,1,1,1,1,1,1)"), DCP_E_UNSUPPORTED,
          "dimensions" },
        { DICT("'<f4'", "False", "(4611686018427387904,)"), DCP_E_CORRUPT, "larger" },
        { DICT("'<f4'", "False", "(4294967296,4294967296)"), DCP_E_CORRUPT, "larger" },
        { DICT("'<f4'", "0", "(3,)"), DCP_E_CORRUPT, "neither True" },
        { DICT("'<f4'", "Falsey", "(3,)"), DCP_E_CORRUPT, "no dict" },
        { DICT("'<\\x664'", "False", "(3,)"), DCP_E_CORRUPT, "no text" },
        { DICT("<f4", "False", "(3,)"), DCP_E_CORRUPT, "no text" },
        { DICT("'f'", "False", "(3,)"), DCP_E_CORRUPT, "no text" },
        { DICT("'<f3'", "False", "(3,)"), DCP_E_UNSUPPORTED, "dtype" },
        { DICT("'|O'", "False", "(3,)"), DCP_E_UNSUPPORTED, "Python objects" },
        { DICT("'|O8'", "False", "(3,)"), DCP_E_UNSUPPORTED, "Python objects" },
        { DICT("[('a', '<f4')]", "False", "(3,)"), DCP_E_UNSUPPORTED, "structures" },
        { "{'descr': '<f4', 'shape': (3,)}", DCP_E_CORRUPT, "too few" },
        { "{'descr': '<f4' 'shape': (3,)}", DCP_E_CORRUPT, "no dict" },
        { "{'descr': '<f4', 'shape': (3,)", DCP_E_CORRUPT, "no dict" },
        { DICT("'<f4'", "False", "(3,)") "x", DCP_E_CORRUPT, "follows" },
        { DICT("'<f4'", "False", "(3,)"), DCP_E_CORRUPT, "bytes follow its array" },
        { DICT("'<f4'", "False", "(5,)"), DCP_E_CORRUPT, "incomplete" },
        { "", DCP_E_CORRUPT, "no dict" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct dcp_error err = { 0 };
        struct dcp_npy npy;
        int rc = parse(cases[i].text, 1, 16, &npy, &err);
        if (rc != cases[i].rc || !strstr(err.message, cases[i].words))
            fail_msg("%s: %d %s", cases[i].text, rc, err.message);
    }
}

static void test_lengths(void **state)
{
    unsigned char head[DCP_NPY_MAX_HEAD_BYTES + 8] = DCP_NPY_MAGIC "\2";
    struct dcp_npy npy;

    (void)state;
    memset(head + 12, ' ', sizeof head - 12);
    head[8] = 0x11; /* 10001 */
    head[9] = 0x27;
    assert_int_equal(dcp_npy_parse(head, sizeof head, 1 << 20, "x", &npy, NULL),
                     DCP_E_CORRUPT);
    for (size_t n = 0; n < 12; n++)
        assert_int_equal(dcp_npy_parse(head, n, n, "x", &npy, NULL), DCP_E_CORRUPT);
    head[6] = 4;
    assert_int_equal(dcp_npy_parse(head, sizeof head, sizeof head, "x", &npy, NULL),
                     DCP_E_UNSUPPORTED);
}

static void test_write(void **state)
{
    static const int64_t shape[] = { 2, 3 };
    const struct dcp_tensor tensor = { .name = "w", .ndim = 2, .shape = shape };
    static const struct {
        enum dcp_dtype dtype;
        const char *text;
    } cases[] = {
        { DCP_BOOL, DICT("'|b1'", "False", "(2, 3)") },
        { DCP_U8, DICT("'|u1'", "False", "(2, 3)") },
        { DCP_F16, DICT("'<f2'", "False", "(2, 3)") },
        { DCP_C128, DICT("'<c16'", "False", "(2, 3)") },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
        struct dcp_tensor t = tensor;
        char want[128];
        t.dtype = cases[i].dtype;
        assert_int_equal(dcp_npy_write(&t, "x", &buf, NULL), 0);
        assert_int_equal(buf.size_bytes, 128);
        snprintf(want, sizeof want, "%-117s\n", cases[i].text);
        assert_memory_equal(buf.data, DCP_NPY_MAGIC "\1\0\x76\0", 10);
        assert_memory_equal(buf.data + 10, want, 118);
    }
    static const enum dcp_dtype none[] = { DCP_BF16, DCP_F8_E4M3, DCP_F8_E8M0 };
    for (size_t i = 0; i < DCP_ARRAY_LEN(none); i++) {
        DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
        struct dcp_error err = { 0 };
        struct dcp_tensor t = tensor;
        t.dtype = none[i];
        assert_int_equal(dcp_npy_write(&t, "x", &buf, &err), DCP_E_MISMATCH);
        assert_non_null(strstr(err.hint, "--dtype fp32"));
    }
}

/* -- archives ------------------------------------------------------------------------ */

/* Tensors of 5 GiB and of 3 elements, laid out and sealed, and read without the bytes. */
static void test_large_archive(void **state)
{
    static const int64_t shapes[] = { (5ll << 30) / 4, 3, (3ll << 30) / 4, 1 };
    static const char *const names[] = { "big", "far", "middle", "last" };
    const struct dcp_target_options options = { .name = "x.npz" };
    struct dcp_catalog *catalog, *again;
    struct sparse sparse = { 0 };
    struct dcp_error err = { 0 };

    (void)state;
    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    for (size_t i = 0; i < DCP_ARRAY_LEN(shapes); i++) {
        const struct dcp_tensor tensor = {
            .name = names[i], .dtype = DCP_F32, .ndim = 1, .shape = &shapes[i]
        };
        assert_int_equal(dcp_catalog_add_tensor(catalog, &tensor, NULL, NULL), 0);
    }
    sparse.target = (struct dcp_target){ .format = &dcp_format_npz,
                                         .catalog = catalog,
                                         .options = &options };
    assert_int_equal(dcp_target_open(&sparse.target, DCP_CODEC_NONE, &err), 0);
    for (size_t i = 0; i < catalog->n_pieces; i++)
        catalog->pieces[i].crc32 = (uint32_t)i + 1;
    assert_int_equal(dcp_target_finalize(&sparse.target, 0, &err), 0);
    sparse.size_bytes = catalog->files[0].size_bytes;
    struct dcp_store store = sparse_store(&sparse);
    const struct dcp_source source = { .store = &store, .name = "x.npz" };
    assert_int_equal(dcp_catalog_new(&again, NULL), 0);
    assert_true(dcp_format_npz.probe(&source) > 0);
    if (dcp_format_npz.index(&source, again, &err) || dcp_catalog_sort(again, &err))
        fail_msg("%s", err.message);
    for (size_t i = 0; i < DCP_ARRAY_LEN(shapes); i++) {
        assert_string_equal(again->tensors[i].name, names[i]);
        assert_int_equal(again->tensors[i].n_elems, shapes[i]);
        assert_int_equal(again->pieces[i].offset, catalog->pieces[i].offset);
        const struct dcp_record *record = &again->records[i];
        assert_int_equal(record->offset + record->size_bytes,
                         again->pieces[i].offset + again->pieces[i].stored_size);
        assert_true(record->crc32);
    }
    assert_int_equal(again->n_records, DCP_ARRAY_LEN(shapes));
    dcp_target_close(&sparse.target);
    dcp_catalog_free(catalog);
    dcp_catalog_free(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),   cmocka_unit_test(test_swapped),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_write),   cmocka_unit_test(test_large_archive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
