/* folders: Hugging Face and sharded folders, the table of formats, and what targets
 * refuse; all in memory, without the real peers. */
#include "base/json.h"
#include "base/mem.h"
#include "core/plan/target.h"
#include "formats/common/roles.h"
#include "lib/format_io.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void put(struct dcp_store *store, const char *name, const void *data, size_t n)
{
    struct dcp_error err = { 0 };

    if (dcp_store_write_file(store, name, data, n, &err))
        fail_msg("%s", err.message);
}

static void put_text(struct dcp_store *store, const char *name, const char *text)
{
    put(store, name, text, strlen(text));
}

/* A safetensors file of U8 tensors with one element each. */
static void put_weights(struct dcp_store *store, const char *name,
                        const char *const *tensors)
{
    json_t *header = json_object();
    int n = 0;

    for (; tensors[n]; n++)
        json_object_set_new(header, tensors[n],
                            json_pack("{s:s,s:[i],s:[i,i]}", "dtype", "U8", "shape", 1,
                                      "data_offsets", n, n + 1));
    char *text = dcp_json_text(header, 0);
    size_t len = strlen(text), size_bytes = 8 + len + (size_t)n;
    unsigned char *file = calloc(1, size_bytes);
    file[0] = (unsigned char)len;
    file[1] = (unsigned char)(len >> 8);
    memcpy(file + 8, text, len);
    put(store, name, file, size_bytes);
    free(file);
    free(text);
    json_decref(header);
}

struct folder {
    struct dcp_store store;
    struct dcp_source source;
    struct dcp_catalog *catalog;
    struct dcp_error err;
};

static void folder_init(struct folder *f)
{
    *f = (struct folder){ 0 };
    assert_int_equal(dcp_store_mem(&f->store, &f->err), 0);
    f->source = (struct dcp_source){ .store = &f->store, .name = "", .is_dir = true };
}

static int folder_index(struct folder *f, const char *format)
{
    const struct dcp_format *found = NULL;

    f->err = (struct dcp_error){ 0 };
    dcp_catalog_free(f->catalog);
    assert_int_equal(dcp_catalog_new(&f->catalog, &f->err), 0);
    int rc = dcp_format_probe(&f->source, &found, &f->err);
    if (!rc && format)
        assert_string_equal(found->name, format);
    return rc ? rc : found->index(&f->source, f->catalog, &f->err);
}

static void folder_fini(struct folder *f)
{
    dcp_catalog_free(f->catalog);
    dcp_store_free(&f->store);
}

static void assert_names(const struct dcp_catalog *catalog, const char *const *names)
{
    size_t n = 0;

    for (; names[n]; n++)
        if (dcp_catalog_find(catalog, names[n]) < 0)
            fail_msg("no tensor '%s'", names[n]);
    assert_int_equal(catalog->n_tensors, n);
}

#define NAMES(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void check_gpt2(const char *config, const char *const *stored,
                       const char *const *wanted)
{
    struct folder f;

    folder_init(&f);
    put_text(&f.store, "config.json", config);
    put_weights(&f.store, "model.safetensors", stored);
    if (folder_index(&f, "hf"))
        fail_msg("%s", f.err.message);
    assert_names(f.catalog, wanted);
    int at = dcp_catalog_find_object(f.catalog, "model_config");
    assert_true(at >= 0);
    assert_string_equal(f.catalog->objects[at].data, config);
    folder_fini(&f);
}

static void test_hf_names(void **state)
{
    const char *const tied = "{\"model_type\": \"gpt2\"}";
    const char *const untied = "{\"model_type\": \"gpt2\", \"tie_word_embeddings\": "
                               "false}";
    const char *const other = "{\"model_type\": \"other\"}";

    (void)state;
    check_gpt2(tied, NAMES("wte.weight", "h.0.attn.c_attn.bias"),
               NAMES("transformer.wte.weight", "transformer.h.0.attn.c_attn.bias"));
    check_gpt2(tied,
               NAMES("transformer.wte.weight", "lm_head.weight",
                     "transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"),
               NAMES("transformer.wte.weight"));
    check_gpt2(untied, NAMES("wte.weight", "lm_head.weight"),
               NAMES("transformer.wte.weight", "lm_head.weight"));
    check_gpt2(other, NAMES("wte.weight", "h.0.attn.bias"),
               NAMES("wte.weight", "h.0.attn.bias"));
}

static void test_hf_needs_both(void **state)
{
    struct folder f;

    (void)state;
    folder_init(&f);
    assert_int_equal(folder_index(&f, NULL), DCP_E_UNSUPPORTED);
    put_text(&f.store, "config.json", "{\"model_type\": \"gpt2\"}");
    assert_int_equal(folder_index(&f, "hf"), DCP_E_CORRUPT); /* its weights are missing */
    put_weights(&f.store, "model.safetensors", NAMES("wte.weight"));
    assert_int_equal(folder_index(&f, "hf"), 0);
    folder_fini(&f);
}

static void test_safetensors_folder(void **state)
{
    struct folder f;

    (void)state;
    folder_init(&f);
    put_weights(&f.store, "model.safetensors", NAMES("a", "b"));
    assert_int_equal(folder_index(&f, "safetensors-sharded"), 0);
    assert_names(f.catalog, NAMES("a", "b"));
    folder_fini(&f);
}

static void test_shards(void **state)
{
    static const struct {
        const char *map;
        int rc;
        const char *words;
    } cases[] = {
        { "{\"a\":\"s1\",\"b\":\"s2\"}", 0, "" },
        { "{\"a\":\"s1\"}", 0, "" },
        { "{\"a\":\"s1\",\"b\":\"s1\"}", DCP_E_CORRUPT, "lists a tensor 'b'" },
        { "{\"a\":\"s1\",\"b\":\"s3\"}", DCP_E_NOT_FOUND, "s3" },
        { "{\"a\":\"s1\",\"b\":\"../s2\"}", DCP_E_CORRUPT, "plain file name" },
        { "{\"a\":\"s1\",\"b\":\"x/s2\"}", DCP_E_CORRUPT, "plain file name" },
        { "{\"a\":\"s1\",\"b\":3}", DCP_E_CORRUPT, "plain file name" },
        { "[]", DCP_E_CORRUPT, "weight_map" },
        { "{\"a\":\"s1\",\"a2\":\"s1\"}", DCP_E_CORRUPT, "lists a tensor 'a2'" },
        { "{\"a\":\"s3\",\"a2\":\"s2\"}", DCP_E_NOT_FOUND, "s3" },
        { "{\"a\":\"s2\",\"extra\":\"s1\"}", DCP_E_CORRUPT, "lists a tensor 'a'" },
        { "{\"both\":\"s1\",\"b\":\"s2\"}", DCP_E_CORRUPT,
          "'s1' and 's2' both hold a tensor 'both'" },
        { "{\"both\":\"s2\",\"a\":\"s1\"}", DCP_E_CORRUPT,
          "'s2' and 's1' both hold a tensor 'both'" },

        { "{\"a2\":\"s1\",\"b\":\"s2\"}", DCP_E_CORRUPT, "lists a tensor 'a2'" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct folder f;
        char text[256];
        folder_init(&f);
        bool both = strstr(cases[i].map, "both");
        put_weights(&f.store, "s1", NAMES("a", both ? "both" : "extra"));
        put_weights(&f.store, "s2", NAMES("b", both ? "both" : "a2"));
        snprintf(text, sizeof text, "{\"weight_map\":%s}", cases[i].map);
        put_text(&f.store, "model.safetensors.index.json", text);
        int rc = folder_index(&f, "safetensors-sharded");
        if (rc != cases[i].rc || !strstr(f.err.message, cases[i].words))
            fail_msg("%s: %d %s", cases[i].map, rc, f.err.message);
        if (i == 0)
            assert_names(f.catalog, NAMES("a", "extra", "b", "a2"));
        folder_fini(&f);
    }
}

/* A shard of the set that the index does not name is no other save's: it is refused. */
static void test_shards_left_out(void **state)
{
    static const struct {
        const char *file;
        int rc;
    } cases[] = {
        { "m-00003-of-00003.x", DCP_E_CORRUPT },
        { "m-00001-of-00002.x", 0 },
        { "n-00003-of-00003.x", 0 },
        { "m-00003-of-00003.y", 0 },
        { "m-a-of-00003.x", 0 },
        { "m.x", 0 },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct folder f;
        folder_init(&f);
        put_weights(&f.store, "m-00001-of-00003.x", NAMES("a", "b"));
        put_weights(&f.store, "m-00002-of-00003.x", NAMES("c", "d"));
        put_weights(&f.store, cases[i].file, NAMES("e", "f"));
        put_text(&f.store, "model.safetensors.index.json",
                 "{\"weight_map\":{\"a\":\"m-00001-of-00003.x\","
                 "\"c\":\"m-00002-of-00003.x\"}}");
        assert_int_equal(folder_index(&f, "safetensors-sharded"), cases[i].rc);
        if (cases[i].rc)
            assert_non_null(strstr(f.err.message, cases[i].file));
        else
            assert_names(f.catalog, NAMES("a", "b", "c", "d"));
        folder_fini(&f);
    }
}

static void test_metadata(void **state)
{
    static const struct {
        const char *header, *object;
    } cases[] = {
        { "{}", NULL },
        { "{\"__metadata__\":{}}", NULL },
        { "{\"__metadata__\":{\"format\":\"pt\"}}", NULL },
        { "{\"__metadata__\":{\"format\":\"tf\"}}", "{\"format\":\"tf\"}" },
        { "{\"__metadata__\":{\"format\":\"pt\",\"a\":\"b\"}}", "{\"a\":\"b\"}" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        size_t n = strlen(cases[i].header);
        unsigned char file[128] = { (unsigned char)n };
        struct folder f;
        folder_init(&f);
        memcpy(file + 8, cases[i].header, n);
        put(&f.store, "model.safetensors", file, 8 + n);
        assert_int_equal(folder_index(&f, "safetensors-sharded"), 0);
        assert_int_equal(f.catalog->n_objects, cases[i].object != NULL);
        if (cases[i].object)
            assert_string_equal(f.catalog->objects[0].data, cases[i].object);
        folder_fini(&f);
    }
}

/* -- the table ----------------------------------------------------------------------- */

static void test_table(void **state)
{
    size_t n = 0;

    (void)state;
    for (const struct dcp_format *const *f = dcp_formats(); *f; f++, n++) {
        assert_ptr_equal(dcp_format_find((*f)->name), *f);
        assert_true(!(*f)->alias || dcp_format_find((*f)->alias) == *f);
        assert_true((*f)->help[0]);
        assert_true((*f)->flags & (DCP_FORMAT_READS | DCP_FORMAT_WRITES));
        assert_true(!((*f)->flags & DCP_FORMAT_READS) || ((*f)->probe && (*f)->index));
        assert_true(!((*f)->flags & DCP_FORMAT_WRITES) || (*f)->assign || (*f)->packs);
        /* who has files of ranks does not cut as one without */
        assert_true((*f)->partition != dcp_partition_whole ||
                    !((*f)->flags & DCP_FORMAT_SHARDED));
    }
    assert_true(n >= 5);
    assert_null(dcp_format_find("none"));
    assert_string_equal(dcp_format_find("dcp")->name, "torch-dist");
    assert_string_equal(dcp_format_for_suffix("run/model.bin")->name, "torch");
    assert_string_equal(dcp_format_for_suffix("x.ckpt")->name, "torch");
    assert_string_equal(dcp_format_for_suffix("a.safetensors")->name, "safetensors");
    assert_string_equal(dcp_format_for_suffix("model.gguf")->name, "gguf");
    assert_null(dcp_format_for_suffix("model.onnx"));
    assert_null(dcp_format_for_suffix(".bin"));
    assert_null(dcp_format_for_suffix("bin"));
}

static void test_roles(void **state)
{
    static const struct {
        const char *name;
        enum dcp_role role;
        const char *param;
    } cases[] = {
        { "wte.weight", DCP_ROLE_MODEL, "wte.weight" },
        { "optimizer.exp_avg.wte.weight", DCP_ROLE_EXP_AVG, "wte.weight" },
        { "optimizer.exp_avg_sq.a", DCP_ROLE_EXP_AVG_SQ, "a" },
        { "optimizer.master.a.b", DCP_ROLE_MASTER, "a.b" },
        { "optimizer.optim.a", DCP_ROLE_OPTIM, "a" },
        { "optimizer.exp_avg.", DCP_ROLE_MODEL, "optimizer.exp_avg." },
        { "optimizer.model.a", DCP_ROLE_MODEL, "optimizer.model.a" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        const char *param;
        assert_int_equal(dcp_role_of_name(cases[i].name, &param), cases[i].role);
        assert_string_equal(param, cases[i].param);
    }
}

/* -- targets ------------------------------------------------------------------------- */

/* A catalog with one tensor, for a target. */
static struct dcp_catalog *make_target(enum dcp_role role)
{
    const int64_t shape[] = { 4, 2 };
    struct dcp_catalog *catalog;
    const struct dcp_tensor tensor = {
        .name = "w", .role = role, .dtype = DCP_F32, .ndim = 2, .shape = shape
    };

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    assert_int_equal(dcp_catalog_add_tensor(catalog, &tensor, NULL, NULL), 0);
    return catalog;
}

static void check_mismatch(const char *format, const struct dcp_target_options *options,
                           const char *words)
{
    struct dcp_catalog *catalog = make_target(DCP_ROLE_MODEL);
    struct dcp_target target = { .format = dcp_format_find(format),
                                 .catalog = catalog,
                                 .options = options };
    struct dcp_error err = { 0 };

    int rc = dcp_target_open(&target, DCP_CODEC_NONE, &err);
    if (rc != DCP_E_MISMATCH || !strstr(err.message, words))
        fail_msg("%s: %d %s", format, rc, err.message);
    dcp_target_close(&target);
    dcp_catalog_free(catalog);
}

static void test_mismatch(void **state)
{
    const struct dcp_target_options none = { 0 }, small = { .max_shard_size_bytes = 8 },
                                    bad = { .config_json = "[]" };

    (void)state;
    check_mismatch("safetensors", &small, "in shards of 8");
    check_mismatch("hf", &none, "model configuration");
    check_mismatch("hf", &bad, "no JSON object");
}

/* A target without ranks has one piece a tensor. */
static void test_cut_whole(void **state)
{
    static const char *const formats[] = { "torch", "safetensors", "safetensors-sharded",
                                           "npy", "npz" };
    const struct dcp_target_options none = { 0 };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(formats); i++) {
        struct dcp_catalog *catalog = make_target(DCP_ROLE_MODEL);
        struct dcp_target target = { .format = dcp_format_find(formats[i]),
                                     .catalog = catalog,
                                     .options = &none };
        assert_int_equal(dcp_target_open(&target, DCP_CODEC_NONE, NULL), 0);
        assert_int_equal(catalog->n_pieces, 1);
        assert_int_equal(catalog->pieces[0].region.kind, DCP_WHOLE);
        assert_true(catalog->pieces[0].file >= 0);
        dcp_target_close(&target);
        dcp_catalog_free(catalog);
    }
}

/* Objects ride along in a PyTorch file only beside an optimizer. */
static void test_torch_objects(void **state)
{
    const struct dcp_object object = {
        .name = "scheduler", .kind = DCP_OBJECT_JSON, .data = "{\"k\":1}", .size_bytes = 7
    };

    (void)state;
    for (int role = 0; role < DCP_N_ROLES; role++) {
        struct dcp_catalog *catalog = make_target((enum dcp_role)role);
        const struct dcp_target_options options = { .name = "x.pt" };
        struct dcp_target target = { .format = dcp_format_find("torch"),
                                     .catalog = catalog,
                                     .options = &options };
        bool found = false;
        assert_int_equal(dcp_catalog_add_object(catalog, &object, NULL), 0);
        assert_int_equal(dcp_target_open(&target, DCP_CODEC_NONE, NULL), 0);
        for (size_t i = 0; i < target.literals.n; i++)
            found |= memmem(target.literals.items[i].data,
                            target.literals.items[i].size_bytes, "scheduler", 9) != NULL;
        assert_int_equal(found, dcp_role_is_optim((enum dcp_role)role));
        dcp_target_close(&target);
        dcp_catalog_free(catalog);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hf_names),
        cmocka_unit_test(test_hf_needs_both),
        cmocka_unit_test(test_safetensors_folder),
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_shards_left_out),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_cut_whole),
        cmocka_unit_test(test_torch_objects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
