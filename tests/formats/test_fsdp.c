/* fsdp: pieces from pickles written by hand, names of files, how dimensions are cut, and
 * what is refused; numbers of optimizers. */
#include "base/json.h"
#include "base/mem.h"
#include "formats/fsdp/fsdp.h"
#include "formats/torch_save/torch_save.h"
#include "lib/format_io.h"
#include "lib/torch_zip.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* -- pickles ------------------------------------------------------------------------- */

#define FLOATS(key, numel)                                                      \
    "(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0" key "X\x03\0\0\0cpu" \
    "K" numel "tQ"
/* Two dimensions of storage 0. */
#define LOCAL(rows, columns)                                                           \
    "ctorch._utils\n_rebuild_tensor_v2\n(" FLOATS("0", "\x10") "K\0K" rows "K" columns \
                                                               "\x86K" columns         \
                                                               "K\1\x86\x89N"          \
                                                               "tR"
#define PLACE(name) "ctorch.distributed.tensor.placement_types\n" name "\n)\x81"
#define SHARD(dim) PLACE("Shard") "}X\3\0\0\0dimK" dim "sb"
#define MESH(shape, at, more)                                                    \
    "ctorch.distributed.device_mesh\nDeviceMesh\n)\x81}(X\x07\0\0\0_layoutcm\nL" \
    "\n)\x81}X\5\0\0\0shape" shape "sbX\x12\0\0\0_coordinate_on_dim" at more "ub"
#define DTENSOR_OF(class, dtype, size, local, mesh, places)                             \
    "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_sub"       \
    "class\n" class "(" class "ctorch\n" dtype "\n" size                                \
                              "tN}(X\x0d\0\0\0_local_tensor" local "X\5\0\0\0_spec"     \
                              "ctorch.distributed.tensor._dtensor_spec\nDTensorSpec\n)" \
                              "\x81}(X\4\0\0\0mesh"                                     \
                              "" mesh "X\x0a\0\0\0placements" places "ubu\x86tR"
#define DTENSOR(size, local, mesh, places)                                           \
    DTENSOR_OF("ctorch.distributed.tensor\nDTensor\n", "float32", size, local, mesh, \
               places)
#define W(value) "\x80\2}X\1\0\0\0w" value "s."
#define LINE(at) MESH("K\2\x85", "K" at "\x85", "")
#define BYTES(text) text, sizeof(text) - 1
#define SIZE5X2 "K\5K\2\x86"

struct folder {
    struct dcp_store store;
    struct dcp_source source;
    struct dcp_catalog *catalog;
    struct dcp_error err;
};

static void put(struct folder *f, const char *name, const char *pickle, size_t n)
{
    size_t size_bytes;
    unsigned char *data = torch_zip_make(pickle, n, "3\n", NULL, &size_bytes);

    assert_int_equal(dcp_store_write_file(&f->store, name, data, size_bytes, NULL), 0);
    free(data);
}

static void folder_init(struct folder *f)
{
    *f = (struct folder){ 0 };
    assert_int_equal(dcp_store_mem(&f->store, &f->err), 0);
    f->source = (struct dcp_source){ .store = &f->store, .name = "", .is_dir = true };
}

static int folder_index(struct folder *f)
{
    dcp_catalog_free(f->catalog);
    f->err = (struct dcp_error){ 0 };
    assert_int_equal(dcp_catalog_new(&f->catalog, &f->err), 0);
    int rc = dcp_format_fsdp_ranks.index(&f->source, f->catalog, &f->err);
    return rc ? rc : dcp_catalog_sort(f->catalog, &f->err);
}

static void folder_fini(struct folder *f)
{
    dcp_catalog_free(f->catalog);
    dcp_store_free(&f->store);
}

#define GOOD0 DTENSOR(SIZE5X2, LOCAL("\3", "\2"), LINE("\0"), SHARD("\0") "\x85")
#define GOOD1 DTENSOR(SIZE5X2, LOCAL("\2", "\2"), LINE("\1"), SHARD("\0") "\x85")

static void test_values(void **state)
{
    struct folder f;
    void *data;

    (void)state;
    folder_init(&f);
    put(&f, "model_world_size_2_rank_0.pt", BYTES(W(GOOD0)));
    put(&f, "model_world_size_2_rank_1.pt", BYTES(W(GOOD1)));
    if (folder_index(&f))
        fail_msg("%s", f.err.message);
    assert_int_equal(f.catalog->n_tensors, 1);
    assert_int_equal(f.catalog->n_pieces, 2);
    assert_int_equal(f.catalog->world_size, 2);
    assert_int_equal(f.catalog->pieces[1].rank, 1);
    assert_int_equal(dcp_catalog_check(f.catalog, NULL), 0);
    assert_int_equal(format_read_tensor(&f.source, f.catalog, 0, &data, &f.err), 0);
    const unsigned char *bytes = data;
    assert_int_equal(bytes[0], 0);
    assert_int_equal(bytes[23], 23); /* rows 0 to 2, and again from 0 */
    assert_int_equal(bytes[24], 0);
    assert_int_equal(bytes[39], 15);
    free(data);
    folder_fini(&f);
}

/* A dimension that two dimensions of the mesh cut: 5 rows in 3 and 2, these in 2 and 1,
 * and in 1 and 1. */
#define TWICE(rows, at)                                               \
    W(DTENSOR(SIZE5X2, LOCAL(rows, "\2"), MESH("K\2K\2\x86", at, ""), \
              SHARD("\0") SHARD("\0") "\x86"))

static void test_cut_twice(void **state)
{
    static const int64_t begins[] = { 0, 2, 3, 4 };
    struct folder f;

    (void)state;
    folder_init(&f);
    put(&f, "model_world_size_4_rank_0.pt", BYTES(TWICE("\2", "K\0K\0\x86")));
    put(&f, "model_world_size_4_rank_1.pt", BYTES(TWICE("\1", "K\0K\1\x86")));
    put(&f, "model_world_size_4_rank_2.pt", BYTES(TWICE("\1", "K\1K\0\x86")));
    put(&f, "model_world_size_4_rank_3.pt", BYTES(TWICE("\1", "K\1K\1\x86")));
    if (folder_index(&f))
        fail_msg("%s", f.err.message);
    assert_int_equal(f.catalog->n_pieces, 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(f.catalog->pieces[i].region.offset[0], begins[i]);
    assert_int_equal(dcp_catalog_check(f.catalog, NULL), 0);
    folder_fini(&f);
}

static const struct {
    const char *pickle; /* of rank 0 */
    size_t n;
    int rc;
    const char *words;
} cases[] = {
    { BYTES(W(GOOD0)), 0, "" },
    { BYTES(W(GOOD1)), 0,
      "" }, /* the rank is what its mesh says; then a part is missing */
    { BYTES(W(DTENSOR(SIZE5X2, LOCAL("\2", "\2"), LINE("\0"), SHARD("\0") "\x85"))),
      DCP_E_CORRUPT, "another size" },
    { BYTES(W(DTENSOR(SIZE5X2, LOCAL("\3", "\2"), LINE("\2"), SHARD("\0") "\x85"))),
      DCP_E_CORRUPT, "outside its mesh" },
    { BYTES(W(DTENSOR(SIZE5X2, LOCAL("\3", "\2"), LINE("\0"), SHARD("\2") "\x85"))),
      DCP_E_CORRUPT, "does not have" },
    { BYTES(W(DTENSOR(SIZE5X2, LOCAL("\3", "\2"), LINE("\0"), ")"))), DCP_E_CORRUPT,
      "other placements" },
    { BYTES(W(DTENSOR(SIZE5X2, LOCAL("\3", "\2"), LINE("\0"), "K\1\x85"))), DCP_E_CORRUPT,
      "malformed placement" },
    { BYTES(W(DTENSOR(SIZE5X2, LOCAL("\3", "\2"), LINE("\0"),
                      PLACE("_StridedShard") "\x85"))),
      DCP_E_UNSUPPORTED, "_StridedShard" },
    { BYTES(W(DTENSOR(SIZE5X2, LOCAL("\3", "\2"), LINE("\0"), PLACE("Partial") "\x85"))),
      DCP_E_UNSUPPORTED, "Partial" },
    { BYTES(W(DTENSOR(SIZE5X2, "N", LINE("\0"), SHARD("\0") "\x85"))), DCP_E_CORRUPT,
      "no piece" },
    { BYTES(W(DTENSOR(SIZE5X2, LOCAL("\3", "\2"), "N", SHARD("\0") "\x85"))),
      DCP_E_CORRUPT, "malformed mesh" },
    { BYTES(W(DTENSOR(SIZE5X2, LOCAL("\3", "\2"), MESH("K\0\x85", "K\0\x85", ""),
                      SHARD("\0") "\x85"))),
      DCP_E_CORRUPT, "malformed mesh" },
    { BYTES(W(DTENSOR(SIZE5X2, LOCAL("\3", "\2"), MESH("N", "K\0\x85", ""),
                      SHARD("\0") "\x85"))),
      DCP_E_CORRUPT, "malformed mesh" },
    { BYTES(W(DTENSOR(SIZE5X2, LOCAL("\3", "\2"),
                      MESH("K\2\x85", "K\0\x85", "X\5\0\0\0_rankK\1"),
                      SHARD("\0") "\x85"))),
      DCP_E_CORRUPT, "another rank" },
    { BYTES(W(DTENSOR("N", LOCAL("\3", "\2"), LINE("\0"), SHARD("\0") "\x85"))),
      DCP_E_CORRUPT, "malformed size" },
    { BYTES(W(DTENSOR("(K\1K\1K\1K\1K\1K\1K\1K\1K\1t", LOCAL("\3", "\2"), LINE("\0"),
                      SHARD("\0") "\x85"))),
      DCP_E_UNSUPPORTED, "more dimensions" },
    { BYTES(W(DTENSOR_OF("ctorch.distributed.tensor\nDTensor\n", "int32", SIZE5X2,
                         LOCAL("\3", "\2"), LINE("\0"), SHARD("\0") "\x85"))),
      DCP_E_CORRUPT, "another dtype" },
    { BYTES(W(DTENSOR_OF("ctorch.distributed.tensor\nDTensor\n", "float3", SIZE5X2,
                         LOCAL("\3", "\2"), LINE("\0"), SHARD("\0") "\x85"))),
      DCP_E_UNSUPPORTED, "dtype" },
    { BYTES(W(DTENSOR_OF("cother\nTensor\n", "float32", SIZE5X2, LOCAL("\3", "\2"),
                         LINE("\0"), SHARD("\0") "\x85"))),
      DCP_E_UNSUPPORTED, "class" },
    { BYTES(W(DTENSOR("K\6K\2\x86", LOCAL("\3", "\2"), LINE("\0"), SHARD("\0") "\x85"))),
      DCP_E_CORRUPT, "do not agree" },
    { BYTES(W(LOCAL("\3", "\2"))), DCP_E_CORRUPT, "do not agree" },
    { BYTES("\x80\2}X\x0a\0\0\0flat_param" GOOD0 "s."), DCP_E_UNSUPPORTED,
      "LOCAL_STATE_DICT" },
    { BYTES("\x80\2]."), DCP_E_CORRUPT, "no state dict" },
    { BYTES("\x80\2}N" GOOD0 "s."), DCP_E_UNSUPPORTED, "no name" },
};

static void test_pieces(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct folder f;
        folder_init(&f);
        put(&f, "model_world_size_2_rank_0.pt", cases[i].pickle, cases[i].n);
        put(&f, "model_world_size_2_rank_1.pt", BYTES(W(GOOD1)));
        int rc = folder_index(&f);
        if (rc != cases[i].rc || !strstr(f.err.message, cases[i].words))
            fail_msg("%zu, '%s': %d %s", i, cases[i].words, rc, f.err.message);
        if (i == 1)
            assert_int_equal(dcp_catalog_check(f.catalog, NULL), DCP_E_CORRUPT);
        folder_fini(&f);
    }
}

/* -- files --------------------------------------------------------------------------- */

static void test_names(void **state)
{
    static const struct {
        const char *names[4];
        int rc;
        const char *words;
    } folders[] = {
        { { "model_world_size_1_rank_0.pt" }, 0, "" },
        { { "model_world_size_1_rank_0.pt", "x.pt", "model_world_size_2_rank_3.pt" },
          0,
          "" },
        { { "model_world_size_2_rank_0.pt" }, DCP_E_NOT_FOUND, "rank_1.pt" },
        { { "model_world_size_2_rank_1.pt" }, DCP_E_NOT_FOUND, "rank_0.pt" },
        { { "model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt",
            "optim_world_size_2_rank_1.pt" },
          DCP_E_NOT_FOUND,
          "'optim_world_size_2_rank_0.pt'" },
        { { "model_world_size_1_rank_0.pt", "model_world_size_2_rank_0.pt" },
          DCP_E_UNSUPPORTED,
          "of 1 and of 2 ranks" },
        { { "model_world_size_01_rank_0.pt" }, DCP_E_UNSUPPORTED, "no files" },
        { { "model_world_size_0_rank_0.pt" }, DCP_E_UNSUPPORTED, "no files" },
        { { "model_world_size_99999_rank_0.pt" }, DCP_E_UNSUPPORTED, "no files" },
        { { "model_world_size_99999999999999999999_rank_0.pt" },
          DCP_E_UNSUPPORTED,
          "no files" },
        { { "model_world_size_1_rank_0.pth" }, DCP_E_UNSUPPORTED, "no files" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(folders); i++) {
        struct folder f;
        folder_init(&f);
        for (size_t k = 0; folders[i].names[k]; k++)
            put(&f, folders[i].names[k], BYTES("\x80\2}."));
        int rc = folder_index(&f);
        if (rc != folders[i].rc || !strstr(f.err.message, folders[i].words))
            fail_msg("%zu, '%s': %d %s", i, folders[i].words, rc, f.err.message);
        folder_fini(&f);
    }
}

/* One file stands for its folder, and for its world size where there are several. */
static void test_one_file(void **state)
{
    struct folder f;

    (void)state;
    folder_init(&f);
    assert_int_equal(f.store.ops->make_dir(f.store.self, "run", NULL), 0);
    put(&f, "run/model_world_size_1_rank_0.pt", BYTES("\x80\2}."));
    put(&f, "run/model_world_size_2_rank_0.pt", BYTES(W(GOOD0)));
    put(&f, "run/model_world_size_2_rank_1.pt", BYTES(W(GOOD1)));
    f.source = (struct dcp_source){ .store = &f.store,
                                    .name = "run/model_world_size_2_rank_1.pt" };
    assert_true(dcp_format_fsdp_ranks.probe(&f.source) >
                dcp_format_torch.probe(&f.source));
    if (folder_index(&f))
        fail_msg("%s", f.err.message);
    assert_int_equal(f.catalog->n_pieces, 2);
    assert_string_equal(f.catalog->files[0].name, "model_world_size_2_rank_0.pt");
    f.source = (struct dcp_source){ .store = &f.store, .name = "run", .is_dir = true };
    assert_int_equal(folder_index(&f), DCP_E_UNSUPPORTED);
    folder_fini(&f);
}

/* Names that two keys give would lose a tensor, or a value. */
static void test_one_name(void **state)
{
    static const struct {
        const char *pickle;
        size_t n;
        int rc;
    } files[] = {
        { BYTES("\x80\2}X\3\0\0\0a.b" GOOD0 "sX\1\0\0\0a}X\1\0\0\0b" GOOD0 "ss."),
          DCP_E_UNSUPPORTED },
        { BYTES("\x80\2}X\3\0\0\0a.b" GOOD0 "sX\1\0\0\0a}X\1\0\0\0c" GOOD0 "ss."), 0 },
        { BYTES("\x80\2}X\3\0\0\0a.bK\1sX\1\0\0\0a}X\1\0\0\0bK\2ss."),
          DCP_E_UNSUPPORTED },
        { BYTES("\x80\2}K\1K\1sX\1\0\0\0"
                "1K\2s."),
          DCP_E_UNSUPPORTED },
        { BYTES("\x80\2}K\1K\1sX\1\0\0\0"
                "2K\2s."),
          0 },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(files); i++) {
        struct folder f;
        folder_init(&f);
        put(&f, "model_world_size_1_rank_0.pt", files[i].pickle, files[i].n);
        int rc = folder_index(&f);
        if (rc != files[i].rc)
            fail_msg("%zu: %d %s", i, rc, f.err.message);
        assert_int_equal(strstr(f.err.message, "two keys give one name") != NULL, !!rc);
        folder_fini(&f);
    }
}

/* As a file of its own, under another name, a piece is not taken for the whole. */
static void test_alone(void **state)
{
    struct folder f;

    (void)state;
    folder_init(&f);
    put(&f, "x.pt", BYTES(W(GOOD0)));
    f.source = (struct dcp_source){ .store = &f.store, .name = "x.pt" };
    assert_int_equal(dcp_format_fsdp_ranks.probe(&f.source), 0);
    assert_int_equal(dcp_catalog_new(&f.catalog, NULL), 0);
    assert_int_equal(dcp_format_torch.index(&f.source, f.catalog, &f.err),
                     DCP_E_UNSUPPORTED);
    assert_non_null(strstr(f.err.message, "rank's piece of a tensor"));
    folder_fini(&f);
}

/* -- numbers of optimizers ----------------------------------------------------------- */

/* A model of these shapes; the numbers' shapes by letters; the groups. */
static void check_ids(const char *model, const char *moments, const char *groups_text,
                      const char *want)
{
    struct dcp_optim_shape shapes[16] = { 0 };
    size_t weights[16], n = strlen(model);
    struct dcp_optim_ids ids;
    struct dcp_catalog *catalog;
    json_t *groups = NULL;

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    for (size_t i = 0; i < n; i++) {
        const int64_t shape[] = { model[i], 2 };
        char name[] = { 'w', (char)('0' + i), '\0' };
        const struct dcp_tensor tensor = {
            .name = name, .dtype = DCP_F32, .ndim = 1 + (model[i] < 'a'), .shape = shape
        };
        assert_int_equal(dcp_catalog_add_tensor(catalog, &tensor, NULL, NULL), 0);
        weights[i] = i;
    }
    for (size_t i = 0; moments[i]; i++) {
        shapes[i].known = moments[i] != '?';
        shapes[i].ndim = 1 + (moments[i] < 'a');
        shapes[i].shape[0] = moments[i];
        shapes[i].shape[1] = 2;
    }
    assert_int_equal(
        dcp_json_parse(groups_text, strlen(groups_text), "groups", &groups, NULL), 0);
    assert_int_equal(dcp_optim_ids_find(catalog, weights, n, groups, shapes, &ids, NULL),
                     0);
    assert_int_equal(ids.found, want != NULL);
    for (size_t i = 0; i < ids.n; i++)
        if (ids.weight[i] != (want ? want[i] - '0' : -1))
            fail_msg("%s %s %s: %zu is %d", model, moments, groups_text, i,
                     ids.weight[i]);
    dcp_optim_ids_fini(&ids);
    json_decref(groups);
    dcp_catalog_free(catalog);
}

static void test_optim_ids(void **state)
{
    (void)state;
    check_ids("AaBb", "AaBb", "[{\"params\":[0,1,2,3]}]", "0123");
    check_ids("AaAa", "AaAa", "[{\"params\":[0,1,2,3]}]", "0123");
    /* matrices first, and then the rest, as those do who decay matrices only */
    check_ids("AaBb", "ABab", "[{\"params\":[0,1]},{\"params\":[2,3]}]", "0213");
    check_ids("AaAa", "AAaa", "[{\"params\":[0,1]},{\"params\":[2,3]}]", "0213");
    /* either group could have the first */
    check_ids("AA", "AA", "[{\"params\":[0]},{\"params\":[1]}]", NULL);
    check_ids("Aa", "A?", "[{\"params\":[0]},{\"params\":[1]}]", NULL);
    check_ids("Aa", "A?", "[{\"params\":[0,1]}]", "01");
    check_ids("Aa", "aA", "[{\"params\":[0,1]}]", NULL);
    /* fewer than weights: of frozen ones and of buffers there is none */
    check_ids("Aab", "Aa", "[{\"params\":[0,1]}]", "01");
    check_ids("AaA", "Aa", "[{\"params\":[0,1]}]", "01");
    check_ids("aAabB", "AbB", "[{\"params\":[0,1,2]}]", "134");
    check_ids("AaBbC", "ABab", "[{\"params\":[0,1]},{\"params\":[2,3]}]", "0213");
    check_ids("AAa", "Aa", "[{\"params\":[0,1]}]", NULL);
    check_ids("Aaa", "Aa", "[{\"params\":[0,1]}]", NULL);
    check_ids("AB", "AA", "[{\"params\":[0]},{\"params\":[1]}]", NULL);
    check_ids("Aab", "A?", "[{\"params\":[0,1]}]", NULL);
    check_ids("Aa", "Aa", "[{\"params\":[0,0]}]", NULL);
    check_ids("Aa", "Aa", "[{\"params\":[0,2]}]", NULL);
    check_ids("Aa", "Aa", "[{\"params\":[0,\"w1\"]}]", NULL);
    check_ids("Aa", "Aa", "[]", NULL);
    check_ids("AAA", "AA",
              "[{\"params\":[0],\"param_names\":[\"w2\"]},"
              "{\"params\":[1],\"param_names\":[\"w0\"]}]",
              "20");
    check_ids("AAB", "AA", "[{\"params\":[0,1],\"param_names\":[\"w2\",\"w1\"]}]", NULL);
    /* names that are there count alone, whatever they all begin with, and once each */
    check_ids("AAB", "AA", "[{\"params\":[0,1],\"param_names\":[\"m.w1\",\"m.w0\"]}]",
              "10");
    check_ids("AAB", "AA", "[{\"params\":[0,1],\"param_names\":[\"m.w1\",\"w0\"]}]",
              NULL);
    check_ids("AAB", "AA", "[{\"params\":[0,1],\"param_names\":[\"w1\",\"w1\"]}]", NULL);
    check_ids("AB", "AB", "[{\"params\":[0,1],\"param_names\":[\"x\",\"y\"]}]", NULL);
}

static void test_params(void **state)
{
    static const struct {
        const char *name, *param;
    } names[] = {
        { "a.weight", "a.weight" },
        { "_orig_mod.a.weight", "a.weight" },
        { "_fsdp_wrapped_module.a._fsdp_wrapped_module._orig_mod.b", "a.b" },
        { "a._checkpoint_wrapped_module.b", "a.b" },
        { "a_orig_mod.b", "a_orig_mod.b" },
        { "_orig_mod.", "_orig_mod." },
    };
    struct dcp_catalog *catalog;

    (void)state;
    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    for (size_t i = 0; i < DCP_ARRAY_LEN(names); i++)
        assert_string_equal(dcp_fsdp_param(catalog, names[i].name), names[i].param);
    dcp_catalog_free(catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),    cmocka_unit_test(test_cut_twice),
        cmocka_unit_test(test_pieces),    cmocka_unit_test(test_names),
        cmocka_unit_test(test_one_file),  cmocka_unit_test(test_alone),
        cmocka_unit_test(test_optim_ids), cmocka_unit_test(test_params),
        cmocka_unit_test(test_one_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
