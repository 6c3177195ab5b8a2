/* torch: tensors from pickles written by hand: where views end, what they share, and what
 * is refused; roles; NumPy arrays of the other byte order. */
#include "base/buf.h"
#include "base/mem.h"
#include "formats/torch_save/torch_save.h"
#include "lib/format_io.h"
#include "lib/torch_zip.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PICKLE(text) text, sizeof(text) - 1

/* Pieces of pickles. A storage of 16 float32 or 8 int64 is a whole record. */
#define STORAGE(cls, key, numel)                                        \
    "(X\x07\0\0\0storagectorch\n" cls "\nX\x01\0\0\0" key "X\x03\0\0\0" \
    "cpuK" numel "tQ"
#define FLOATS(key) STORAGE("FloatStorage", key, "\x10")
#define V2 "ctorch._utils\n_rebuild_tensor_v2\n("
#define V3 "ctorch._utils\n_rebuild_tensor_v3\n("
#define HOOKS \
    "\x89"    \
    "ccollections\nOrderedDict\n)R"
/* One dimension. */
#define VIEW(offset, size, stride) "K" offset "K" size "\x85K" stride "\x85" HOOKS
#define TENSOR(key, offset, size, stride) V2 FLOATS(key) VIEW(offset, size, stride) "tR"

struct file {
    struct dcp_store store;
    struct dcp_source source;
    struct dcp_catalog *catalog;
    struct dcp_error err;
};

static int file_index_as(struct file *f, const char *pickle, size_t size_bytes,
                         const char *version, const char *byteorder)
{
    size_t n;
    unsigned char *data = torch_zip_make(pickle, size_bytes, version, byteorder, &n);

    *f = (struct file){ 0 };
    assert_int_equal(dcp_store_mem(&f->store, &f->err), 0);
    assert_int_equal(dcp_store_write_file(&f->store, "x.pt", data, n, &f->err), 0);
    free(data);
    f->source = (struct dcp_source){ .store = &f->store, .name = "x.pt" };
    assert_int_equal(dcp_catalog_new(&f->catalog, &f->err), 0);
    int rc = dcp_format_torch.index(&f->source, f->catalog, &f->err);
    return rc ? rc : dcp_catalog_sort(f->catalog, &f->err);
}

static int file_index(struct file *f, const char *pickle, size_t size_bytes)
{
    return file_index_as(f, pickle, size_bytes, "3\n", NULL);
}

static void file_fini(struct file *f)
{
    dcp_catalog_free(f->catalog);
    dcp_store_free(&f->store);
}

/* -- views --------------------------------------------------------------------------- */

static const struct {
    const char *pickle;
    size_t size_bytes;
    int64_t n_elems;
    int first, last; /* bytes: that of the first element, and of the last; -1: none */
    bool dense;
} views[] = {
    { PICKLE(TENSOR("0", "\x00", "\x10", "\x01") "."), 16, 0, 60, true },
    { PICKLE(TENSOR("0", "\x01", "\x0f", "\x01") "."), 15, 4, 60, true },
    { PICKLE(TENSOR("0", "\x00", "\x06", "\x03") "."), 6, 0, 60, false },
    { PICKLE(TENSOR("0", "\x02", "\x04", "\x00") "."), 4, 8, 8, false },
    { PICKLE(TENSOR("0", "\x10", "\x00", "\x01") "."), 0, -1, -1, true },
    { PICKLE(TENSOR("0", "\x0f", "\x01", "\x63") "."), 1, 60, 60, true },
    { PICKLE(V2 STORAGE("FloatStorage", "3", "\x00") VIEW("\x00", "\x00", "\x01") "tR."),
      0, -1, -1, true },
    /* two dimensions, transposed: (2, 3) with strides (1, 2) from element 4 */
    { PICKLE(V2 FLOATS("1") "K\x04K\x02K\x03\x86K\x01K\x02\x86" HOOKS "tR."), 6, 16, 36,
      false },
    /* float8 on a storage without a type */
    { PICKLE(V3 "(X\x07\0\0\0storagectorch.storage\nUntypedStorage\nX\x01\0\0\0"
                "2X\x03\0\0\0cpuK\x40tQ" VIEW("\x01", "\x3f",
                                              "\x01") "ctorch\nfloat8_e5m2\ntR."),
      63, 1, 63, true },
    /* dressed as a parameter, and as a subclass */
    { PICKLE("ctorch._utils\n_rebuild_parameter\n" TENSOR(
          "0", "\x00", "\x10", "\x01") "\x88"
                                       "ccollections\nOrderedDict\n)R\x87R."),
      16, 0, 60, true },
    { PICKLE("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n"
             "_rebuild_tensor_v2\ncm\nSub\n(" FLOATS("0")
                 VIEW("\x00", "\x10", "\x01") "t}tR."),
      16, 0, 60, true },
    /* a storage alone */
    { PICKLE(FLOATS("0") "."), 16, 0, 60, true },
};

static void test_views(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(views); i++) {
        struct file f;
        void *data;
        if (file_index(&f, views[i].pickle, views[i].size_bytes))
            fail_msg("view %zu: %s", i, f.err.message);
        assert_int_equal(f.catalog->n_tensors, 1);
        const struct dcp_tensor *tensor = &f.catalog->tensors[0];
        assert_string_equal(tensor->name, "tensor");
        assert_int_equal(tensor->n_elems, views[i].n_elems);
        assert_int_equal(f.catalog->pieces[0].stride == NULL, views[i].dense);
        if (format_read_tensor(&f.source, f.catalog, 0, &data, &f.err))
            fail_msg("view %zu: %s", i, f.err.message);
        const unsigned char *bytes = data;
        size_t item = dcp_dtype_size(tensor->dtype);
        if (views[i].first >= 0) {
            assert_int_equal(bytes[0], views[i].first);
            assert_int_equal(bytes[((size_t)tensor->n_elems - 1) * item], views[i].last);
        }
        free(data);
        file_fini(&f);
    }
}

/* -- refusals ------------------------------------------------------------------------ */

#define TWO(a, b) "(" a b "t."

static const struct {
    const char *pickle;
    size_t size_bytes;
    int rc;
    const char *words;
} refused[] = {
    { PICKLE("}X\0\0\0\0" TENSOR("0", "\x00", "\x10", "\x01") "s."), DCP_E_UNSUPPORTED,
      "empty or holds NUL" },
    { PICKLE("}X\x03\0\0\0a\0b" TENSOR("0", "\x00", "\x10", "\x01") "s."),
      DCP_E_UNSUPPORTED, "empty or holds NUL" },
    { PICKLE(TENSOR("0", "\x00", "\x11", "\x01") "."), DCP_E_CORRUPT, "past the end" },
    { PICKLE(TENSOR("0", "\x01", "\x10", "\x01") "."), DCP_E_CORRUPT, "past the end" },
    { PICKLE(TENSOR("0", "\x11", "\x00", "\x01") "."), DCP_E_CORRUPT, "past the end" },
    { PICKLE(TENSOR("0", "\x00", "\x06", "\x04") "."), DCP_E_CORRUPT, "past the end" },
    { PICKLE(TENSOR("9", "\x00", "\x01", "\x01") "."), DCP_E_CORRUPT, "no record" },
    { PICKLE(V2 STORAGE("FloatStorage", "0", "\x11") VIEW("\x00", "\x01", "\x01") "tR."),
      DCP_E_CORRUPT, "more bytes" },
    { PICKLE(V2 STORAGE("QInt8Storage", "0", "\x10") VIEW("\x00", "\x01", "\x01") "tR."),
      DCP_E_UNSUPPORTED, "class" },
    { PICKLE(TWO(TENSOR("0", "\x00", "\x01", "\x01"),
                 V2 STORAGE("LongStorage", "0", "\x08")
                     VIEW("\x00", "\x01", "\x01") "tR")),
      DCP_E_CORRUPT, "another dtype" },
    { PICKLE(V2 FLOATS("0") VIEW("\x00", "\x01", "\x01") "}X\x04\0\0\0conj\x88stR."),
      DCP_E_UNSUPPORTED, "conjugate" },
    { PICKLE(V2 FLOATS("0") VIEW("\x00", "\x01", "\x01") "}X\x03\0\0\0neg\x88stR."),
      DCP_E_UNSUPPORTED, "conjugate" },
    { PICKLE(TENSOR("0", "\x00", "\x01", "\x01") "K\x01K\x02s."), DCP_E_CORRUPT,
      "has items" },
    { PICKLE("ctorch._utils\n_rebuild_qtensor\n(" FLOATS("0") "tR."), DCP_E_UNSUPPORTED,
      "quantized" },
    { PICKLE(V2 FLOATS("0") "K\x00NK\x01\x85" HOOKS "tR."), DCP_E_CORRUPT, "size" },
    { PICKLE(V2 FLOATS("0") "K\x00K\x01\x85)" HOOKS "tR."), DCP_E_CORRUPT, "size" },
    { PICKLE(V2 FLOATS("0") "K\x00K\x01\x85J\xff\xff\xff\xff\x85" HOOKS "tR."),
      DCP_E_CORRUPT, "size" },
    { PICKLE(V3 FLOATS("0") VIEW("\x00", "\x01", "\x01") "ctorch\nfloat3\ntR."),
      DCP_E_UNSUPPORTED, "dtype" },
    { PICKLE(")R."), DCP_E_CORRUPT, "x.pt" },
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(refused); i++) {
        struct file f;
        int rc = file_index(&f, refused[i].pickle, refused[i].size_bytes);
        if (rc != refused[i].rc || !strstr(f.err.message, refused[i].words))
            fail_msg("%zu, '%s': %d %s", i, refused[i].words, rc, f.err.message);
        file_fini(&f);
    }
}

/* Two keys may lead to one name: the second is spelled differently. */
static void test_names_twice(void **state)
{
    static const char pickle[] = "}(X\x03\0\0\0a.b" TENSOR(
        "0", "\x00", "\x01", "\x01") "X\x01\0\0\0a}"
                                     "X\x01\0\0\0b" TENSOR("0", "\x00", "\x01",
                                                           "\x01") "su.";
    struct file f;

    (void)state;
    assert_int_equal(file_index(&f, pickle, sizeof pickle - 1), 0);
    assert_int_equal(f.catalog->n_tensors, 2);
    assert_string_equal(f.catalog->tensors[0].name, "a.b");
    assert_string_equal(f.catalog->tensors[1].name, "a.b#2");
    file_fini(&f);
}

static void test_records(void **state)
{
    static const struct {
        const char *version, *byteorder;
        int rc;
    } cases[] = {
        { "3\n", "little", 0 },
        { "1", NULL, 0 },
        { "10\n", NULL, 0 },
        { "3\n", "big", DCP_E_UNSUPPORTED },
        { "11\n", NULL, DCP_E_UNSUPPORTED },
        { "0\n", NULL, DCP_E_UNSUPPORTED },
        { "", NULL, DCP_E_CORRUPT },
        { "three", NULL, DCP_E_CORRUPT },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct file f;
        int rc = file_index_as(&f, PICKLE("}."), cases[i].version, cases[i].byteorder);
        if (rc != cases[i].rc)
            fail_msg("version '%s': %d %s", cases[i].version, rc, f.err.message);
        file_fini(&f);
    }
}

/* -- names, roles, objects ----------------------------------------------------------- */

/* {"state": {KEY: {"exp_avg": …, "step": …, "exp_avg_sq": …}}, "param_groups": []} */
#define FOUR_FROM(offset) TENSOR("0", offset, "\x04", "\x01")
#define OPTIMIZER(key)                                                          \
    "}(X\x05\0\0\0state}" key                                                   \
    "}(X\x07\0\0\0exp_avg" FOUR_FROM("\x00") "X\x0a\0\0\0exp_avg_sq" FOUR_FROM( \
        "\x04") "X\x04\0\0\0step" FOUR_FROM("\x08") "usX\x0c\0\0\0param_groups]u"

static void check_optimizer(const char *pickle, size_t size_bytes, const char *prefix,
                            const char *param)
{
    static const struct {
        const char *leaf;
        enum dcp_role role;
    } leaves[] = {
        { "exp_avg", DCP_ROLE_EXP_AVG },
        { "exp_avg_sq", DCP_ROLE_EXP_AVG_SQ },
        { "step", DCP_ROLE_OPTIM },
    };
    struct file f;
    char name[64];

    if (file_index(&f, pickle, size_bytes))
        fail_msg("%s", f.err.message);
    for (size_t i = 0; i < DCP_ARRAY_LEN(leaves); i++) {
        snprintf(name, sizeof name, "%s.%s", prefix, leaves[i].leaf);
        int at = dcp_catalog_find(f.catalog, name);
        if (at < 0)
            fail_msg("no tensor '%s'", name);
        assert_int_equal(f.catalog->tensors[at].role, leaves[i].role);
        assert_string_equal(f.catalog->tensors[at].param, param ? param : name);
    }
    file_fini(&f);
}

static void test_optimizer_roles(void **state)
{
    (void)state;
    check_optimizer(PICKLE(OPTIMIZER("K\x07") "."), "state.7", NULL);
    check_optimizer(PICKLE(OPTIMIZER("X\x03\0\0\0w.b") "."), "state.w.b", "w.b");
    check_optimizer(PICKLE("}X\x03\0\0\0opt" OPTIMIZER("K\x07") "s."), "opt.state.7",
                    NULL);
}

/* {"net": {"w": 6 elements, "b": 4}, "opt": an optimizer with numbers}: the container
 * means nothing, and the numbers are the weights in their order when the shapes agree. */
#define ONE(offset) TENSOR("2", offset, "\x01", "\x01")
#define STATE(offset, size)                          \
    "}(X\x07\0\0\0exp_avg" TENSOR("0", offset, size, \
                                  "\x01") "X\x04\0\0\0step" ONE("\x03") "u"
#define NET                                                                     \
    "}(X\x01\0\0\0w" TENSOR("1", "\x00", "\x06", "\x01") "X\x01\0\0\0b" TENSOR( \
        "1", "\x06", "\x04", "\x01") "u"
#define GROUPS                        \
    "]}X\x06\0\0\0params](K\x00K\x01" \
    "esa"
#define STATES(first, second) \
    "}(K\x00" STATE("\x00", first) "K\x01" STATE("\x08", second) "u"
#define TRAINING(first, second)                                       \
    "}(X\x03\0\0\0net" NET "X\x03\0\0\0opt}(X\x05\0\0\0state" STATES( \
        first, second) "X\x0c\0\0\0param_groups" GROUPS "uu."

static void check_param(const struct file *f, const char *name, enum dcp_role role,
                        const char *param)
{
    int at = dcp_catalog_find(f->catalog, name);

    if (at < 0)
        fail_msg("no tensor '%s'", name);
    assert_int_equal(f->catalog->tensors[at].role, role);
    assert_string_equal(f->catalog->tensors[at].param, param);
}

static void test_numbers(void **state)
{
    struct file f;

    (void)state;
    if (file_index(&f, PICKLE(TRAINING("\x06", "\x04"))))
        fail_msg("%s", f.err.message);
    check_param(&f, "opt.state.0.exp_avg", DCP_ROLE_EXP_AVG, "net.w");
    check_param(&f, "opt.state.1.step", DCP_ROLE_OPTIM, "net.b");
    int at = dcp_catalog_find_object(f.catalog, "optimizer");
    assert_true(at >= 0);
    assert_non_null(strstr(f.catalog->objects[at].data, "\"params\":[\"net.w\""));
    file_fini(&f);
    if (file_index(&f, PICKLE(TRAINING("\x04", "\x06"))))
        fail_msg("%s", f.err.message);
    check_param(&f, "opt.state.0.exp_avg", DCP_ROLE_EXP_AVG, "opt.state.0.exp_avg");
    assert_int_equal(dcp_catalog_find_object(f.catalog, "optimizer"), -1);
    file_fini(&f);
}

/* Values beside tensors are objects by their path; the tree says where they stood. */
static void test_objects(void **state)
{
    struct file f;

    (void)state;
    assert_int_equal(
        file_index(
            &f,
            PICKLE("}(X\x01\0\0\0w" TENSOR(
                "0", "\x00", "\x01",
                "\x01") "X\x01\0\0\0nK\x05X\x01\0\0\0l]" TENSOR("0", "\x01", "\x01",
                                                                "\x01") "\x61X\x0a\0\0\0t"
                                                                        "orch.treeNu.")),
        0);
    assert_true(dcp_catalog_find(f.catalog, "w") >= 0);
    assert_true(dcp_catalog_find(f.catalog, "l.0") >= 0);
    assert_int_equal(f.catalog->n_objects, 2);
    int at = dcp_catalog_find_object(f.catalog, "n");
    assert_true(at >= 0);
    assert_string_equal(f.catalog->objects[at].data, "5");
    at = dcp_catalog_find_object(f.catalog, "torch.tree");
    assert_true(at >= 0);
    assert_string_equal(f.catalog->objects[at].data,
                        "{\"w\":{\"$tensor\":\"w\"},\"n\":{\"$value\":\"n\"},\"l\":[{"
                        "\"$tensor\":\"l.0\"}],\"torch.tree\":null}");
    file_fini(&f);
}

/* A tree that names tensors where the writer writes none, or puts two things into one
 * place: every tensor has its bytes in the file all the same. */
static void test_trees_of_strangers(void **state)
{
    static const char *const trees[] = {
        "{'w':{'$tensor':'w','foo':{'$tensor':'v'}}}",
        "{'w':{'$tensor':'w','attributes':{'x':{'$tensor':'v'}}}}",
        "{'w':{'$tensor':'w','parameter':true,'attributes':{'x':{'$tensor':'v'}}}}",
        "{'w':{'$tensor':'w','parameter':true,'state':{'x':{'$tensor':'v'}}}}",
        "{'w':{'$tensor':'w','type':'torch.Tensor','state':{'x':{'$tensor':'v'}}}}",
        "{'w':{'$tensor':'w','array':'x','parameter':true,'attributes':[{'$tensor':'v'}]}"
        "}",
        "[{'$tensor':'w','array':'numpy.core.multiarray'},{'$tensor':'w'},{'$tensor':'v'}"
        "]",
        "{'w':{'$tensor':'none','foo':{'$tensor':'v'}}}",
        "{'w':{'x':{'$tensor':'v'}}}",
        "{'x':{'$object':'a.B','foo':{'$tensor':'v'}}}",
        "{'$object':'a.B','foo':[{'$tensor':'v'},{'$tensor':'w'}]}",
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(trees); i++) {
        const struct dcp_target_options options = { .name = "x.pt" };
        char tree[120];
        struct file f, out = { 0 };
        assert_int_equal(
            file_index(
                &f, PICKLE("}(X\x01\0\0\0w" TENSOR(
                        "0", "\x00", "\x04",
                        "\x01") "X\x01\0\0\0v" TENSOR("1", "\x01", "\x02", "\x01") "u.")),
            0);
        size_t n = strlen(trees[i]);
        for (size_t c = 0; c <= n; c++)
            tree[c] = trees[i][c] == '\'' ? '"' : trees[i][c];
        const struct dcp_object object = {
            .name = "torch.tree", .kind = DCP_OBJECT_JSON, .data = tree, .size_bytes = n
        };
        assert_int_equal(dcp_catalog_add_object(f.catalog, &object, &f.err), 0);
        assert_int_equal(dcp_store_mem(&out.store, &out.err), 0);
        if (format_write(&f.source, f.catalog, &dcp_format_torch, &options, &out.store,
                         &f.err))
            fail_msg("tree %zu: %s", i, f.err.message);
        out.source = (struct dcp_source){ .store = &out.store, .name = "x.pt" };
        assert_int_equal(dcp_catalog_new(&out.catalog, &out.err), 0);
        if (dcp_format_torch.index(&out.source, out.catalog, &out.err) ||
            dcp_catalog_sort(out.catalog, &out.err))
            fail_msg("tree %zu: %s", i, out.err.message);
        bool found[2] = { false, false };
        for (size_t t = 0; t < out.catalog->n_tensors; t++) {
            void *data, *want = NULL;
            int which = out.catalog->tensors[t].n_elems == 2;
            if (format_read_tensor(&out.source, out.catalog, (int)t, &data, &out.err) ||
                format_read_tensor(&f.source, f.catalog,
                                   dcp_catalog_find(f.catalog, which ? "v" : "w"), &want,
                                   &f.err))
                fail_msg("tree %zu: %s %s", i, out.err.message, f.err.message);
            assert_memory_equal(data, want, which ? 8 : 16);
            found[which] = true;
            free(data);
            free(want);
        }
        if (!found[0] || !found[1])
            fail_msg("tree %zu lacks a tensor", i);
        file_fini(&out);
        file_fini(&f);
    }
}

/* -- NumPy --------------------------------------------------------------------------- */

#define NUMPY_ARRAY(shape, code, order, fortran, bytes)                 \
    "cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" \
    "C\x01"                                                             \
    "btR"                                                               \
    "(K\x01" shape "cnumpy\ndtype\n(X\x02\0\0\0" code                   \
    "\x89\x88tR(K\x03X\x01\0\0\0" order                                 \
    "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb" fortran bytes "tb."

static void test_numpy(void **state)
{
    static const struct {
        const char *pickle;
        size_t size_bytes;
        const char *want; /* NULL: refused */
        size_t n;
    } cases[] = {
        { PICKLE(NUMPY_ARRAY("K\x02\x85", "i2", "<", "\x89", "C\x04\1\2\3\4")),
          "\1\2\3\4", 4 },
        { PICKLE(NUMPY_ARRAY("K\x02\x85", "i2", ">", "\x89", "C\x04\1\2\3\4")),
          "\2\1\4\3", 4 },
        { PICKLE(NUMPY_ARRAY("K\x01\x85", "c8", ">", "\x89", "C\x08\1\2\3\4\5\6\7\x08")),
          "\4\3\2\1\x08\7\6\5", 8 },
        { PICKLE(NUMPY_ARRAY("K\x02K\x02\x86", "u1", "|", "\x88", "C\x04\1\2\3\4")),
          "\1\3\2\4", 4 },
        { PICKLE(NUMPY_ARRAY(")", "u1", "|", "\x89", "C\x01\7")), "\7", 1 },
        { PICKLE(NUMPY_ARRAY("K\x03\x85", "u1", "|", "\x89", "C\x04\1\2\3\4")), NULL, 0 },
        { PICKLE(NUMPY_ARRAY("K\x04\x85", "i4", "<", "\x89", "C\x04\1\2\3\4")), NULL, 0 },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct file f;
        void *data;
        int rc = file_index(&f, cases[i].pickle, cases[i].size_bytes);
        if (rc != (cases[i].want ? 0 : DCP_E_CORRUPT))
            fail_msg("array %zu: %d %s", i, rc, f.err.message);
        if (!rc) {
            assert_int_equal(f.catalog->n_tensors, 1);
            assert_int_equal(format_read_tensor(&f.source, f.catalog, 0, &data, &f.err),
                             0);
            assert_memory_equal(data, cases[i].want, cases[i].n);
            free(data);
        }
        file_fini(&f);
    }
}

/* -- what stands in a pickle again and again --------------------------------------- */

#define PARAMETER "ctorch._utils\n_rebuild_parameter_with_state\n(h"
#define SET(text) dcp_buf_add(buf, PICKLE(text))

/* A parameter of memo 0, kept under `number` and popped. Its state has memo `of` twice.
 */
static void put_parameter(struct dcp_buf *buf, unsigned char number, unsigned char of)
{
    SET(PARAMETER "\0" HOOKS "}(X\1\0\0\0ah");
    dcp_buf_add_u8(buf, of);
    SET("X\1\0\0\0bh");
    dcp_buf_add_u8(buf, of);
    SET("utRq");
    dcp_buf_add_u8(buf, number);
    SET("0");
}

/* Each parameter has the one before in two attributes: as many tensors as stand in the
 * pickle, not 2^levels; and no deeper than objects nest. */
static void test_attributes_shared(void **state)
{
    (void)state;
    for (unsigned char levels = 1; levels <= 40; levels++) {
        DCP_CLEANUP_BUF struct dcp_buf all = { 0 };
        struct dcp_buf *buf = &all;
        struct file f;
        SET("\x80\2" TENSOR("0", "\0", "\x10", "\1") "q\0000");
        for (unsigned char i = 0; i < levels; i++)
            put_parameter(buf, (unsigned char)(i + 1), i);
        SET("}X\1\0\0\0wh");
        dcp_buf_add_u8(buf, levels);
        SET("s.");
        int rc = file_index(&f, (const char *)buf->data, buf->size_bytes);
        if (levels <= 20 ? rc || f.catalog->n_tensors != 2u * levels + 1
                         : rc && !strstr(f.err.message, "nested over"))
            fail_msg("%d levels: %d %s", levels, rc, f.err.message);
        if (levels == 40)
            assert_int_equal(rc, DCP_E_UNSUPPORTED);
        file_fini(&f);
    }
}

/* 255 parameters, and a state of 2^16 values that all of them have. */
static void test_attributes_counted(void **state)
{
    DCP_CLEANUP_BUF struct dcp_buf all = { 0 };
    struct dcp_buf *buf = &all;
    struct file f;

    (void)state;
    SET("\x80\2" TENSOR("0", "\0", "\x10", "\1") "q\0000Nq\1\060");
    for (int depth = 0; depth < 2; depth++) {
        SET("(");
        for (int i = 0; i < 256; i++)
            SET("h\1");
        SET("tq\1\060");
    }
    SET("](");
    for (int i = 0; i < 255; i++)
        SET(PARAMETER "\0" HOOKS "}X\1\0\0\0ah\1stR");
    SET("e.");
    int rc = file_index(&f, (const char *)buf->data, buf->size_bytes);
    if (rc != DCP_E_UNSUPPORTED || !strstr(f.err.message, "stands for over"))
        fail_msg("%d %s", rc, f.err.message);
    file_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_names_twice),
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_optimizer_roles),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_numpy),
        cmocka_unit_test(test_attributes_shared),
        cmocka_unit_test(test_attributes_counted),
        cmocka_unit_test(test_trees_of_strangers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
