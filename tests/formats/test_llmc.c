/* llmc: model files and states of llm.c with numbers that lie, in memory; what a model of
 * llm.c cannot be. Files of the program's own layout are exchanged in tests/interop. */
#include "base/bytes.h"
#include "base/mem.h"
#include "core/plan/target.h"
#include "formats/llmc/llmc.h"
#include "formats/llmc/run.h"
#include "lib/format_io.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct dcp_llmc_model tiny = { .dtype = DCP_F32,
                                            .context = 3,
                                            .vocab = 5,
                                            .layers = 2,
                                            .heads = 2,
                                            .channels = 4,
                                            .padded_vocab = 8 };

enum { VERSION = 1, CONTEXT, VOCAB, LAYERS, HEADS, CHANNELS, PADDED };

static size_t tiny_bytes(void)
{
    uint64_t n;

    assert_true(dcp_llmc_elems(&tiny, &n));
    return DCP_LLMC_HEADER_BYTES + 4 * (size_t)n;
}

/* A model of consecutive numbers. */
static unsigned char *make_model(void)
{
    static const uint32_t header[] = { DCP_LLMC_MODEL_MAGIC, 3, 3, 5, 2, 2, 4, 8 };
    size_t n = tiny_bytes();
    unsigned char *data = calloc(n, 1);

    for (size_t i = 0; i < DCP_ARRAY_LEN(header); i++)
        dcp_put_le32(data + 4 * i, header[i]);
    for (size_t i = DCP_LLMC_HEADER_BYTES; i < n; i += 4)
        dcp_put_le32(data + i, (uint32_t)(i / 4));
    return data;
}

/* A state of one rank, or of one of several shards. */
static unsigned char *make_state(uint32_t world_size, uint32_t rank, size_t *out_n)
{
    const uint32_t header[] = { DCP_LLMC_STATE_MAGIC, 1, world_size, rank, 1, 0 };
    size_t n =
        (tiny_bytes() - DCP_LLMC_HEADER_BYTES) / world_size * 3 + DCP_LLMC_HEADER_BYTES;
    unsigned char *data = calloc(n, 1);

    for (size_t i = 0; i < DCP_ARRAY_LEN(header); i++)
        dcp_put_le32(data + 4 * i, header[i]);
    dcp_put_le32(data + 4 * DCP_LLMC_AT_STEP, 7);
    *out_n = n;
    return data;
}

struct run {
    struct dcp_store store;
    struct dcp_source source;
    struct dcp_catalog *catalog;
    struct dcp_error err;
};

static void put(struct run *run, const char *name, const void *data, size_t n)
{
    if (dcp_store_write_file(&run->store, name, data, n, &run->err))
        fail_msg("%s", run->err.message);
}

static void begin(struct run *run)
{
    *run = (struct run){ 0 };
    assert_int_equal(dcp_store_mem(&run->store, &run->err), 0);
    run->source = (struct dcp_source){ .store = &run->store, .name = "", .is_dir = true };
}

static int index_as(struct run *run, const struct dcp_format *format)
{
    const struct dcp_format *found = NULL;

    assert_int_equal(dcp_catalog_new(&run->catalog, &run->err), 0);
    int rc = dcp_format_probe(&run->source, &found, &run->err);
    if (!rc)
        assert_ptr_equal(found, format);
    rc = format->index(&run->source, run->catalog, &run->err);
    return rc ? rc : dcp_catalog_sort(run->catalog, &run->err);
}

static void end(struct run *run)
{
    dcp_catalog_free(run->catalog);
    dcp_store_free(&run->store);
}

/* -- models -------------------------------------------------------------------------- */

static int index_model(struct run *run, const void *data, size_t n)
{
    begin(run);
    put(run, "m.bin", data, n);
    run->source = (struct dcp_source){ .store = &run->store, .name = "m.bin" };
    return index_as(run, &dcp_format_llmc);
}

static void test_model(void **state)
{
    DCP_CLEANUP_FREE unsigned char *data = make_model();
    DCP_CLEANUP_FREE void *w = NULL;
    struct dcp_llmc_array array;
    struct run run;

    (void)state;
    if (index_model(&run, data, tiny_bytes()))
        fail_msg("%s", run.err.message);
    assert_int_equal(run.catalog->n_tensors, 2 + 12 * 2 + 2);
    assert_int_equal(dcp_catalog_check(run.catalog, &run.err), 0);
    int wte = dcp_catalog_find(run.catalog, "transformer.wte.weight");
    assert_int_equal(run.catalog->tensors[wte].shape[0], 5); /* without the padding */
    int fc = dcp_catalog_find(run.catalog, "transformer.h.1.mlp.c_fc.weight");
    assert_int_equal(run.catalog->tensors[fc].shape[0], 4);
    assert_int_equal(run.catalog->tensors[fc].shape[1], 16);
    assert_int_equal(format_read_tensor(&run.source, run.catalog, fc, &w, &run.err), 0);
    dcp_llmc_array(&tiny, 10, &array);
    uint32_t first = DCP_LLMC_HEADER_BYTES / 4 + (uint32_t)array.offset + 64;
    for (uint32_t i = 0; i < 4; i++) /* (in, out) of what is (out, in) in the file */
        for (uint32_t o = 0; o < 16; o++)
            assert_int_equal(dcp_le32((char *)w + 4 * (16 * i + o)), first + 4 * o + i);
    end(&run);
}

static void test_lying_models(void **state)
{
    static const struct {
        int at;
        uint32_t value;
        int rc;
        const char *words;
    } cases[] = {
        { 0, 20240327, DCP_E_CORRUPT, "no model of llm.c" },
        { VERSION, 1, DCP_E_UNSUPPORTED, "of version 1" },
        { VERSION, 5, DCP_E_CORRUPT, "a model of its numbers" },
        { CONTEXT, 4, DCP_E_CORRUPT, "a model of its numbers" },
        { CONTEXT, 0, DCP_E_CORRUPT, "do not describe a model" },
        { VOCAB, 9, DCP_E_CORRUPT, "do not describe a model" },
        { VOCAB, 0x80000000, DCP_E_CORRUPT, "do not describe a model" },
        { LAYERS, 100001, DCP_E_CORRUPT, "do not describe a model" },
        { HEADS, 3, DCP_E_CORRUPT, "do not describe a model" },
        { HEADS, 0, DCP_E_CORRUPT, "do not describe a model" },
        { CHANNELS, 0x7ffffffe, DCP_E_CORRUPT, "do not describe a model" },
        { PADDED, 0x7fffffff, DCP_E_CORRUPT, "a model of its numbers" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        DCP_CLEANUP_FREE unsigned char *data = make_model();
        struct run run;
        dcp_put_le32(data + 4 * cases[i].at, cases[i].value);
        begin(&run);
        put(&run, "m.bin", data, tiny_bytes());
        run.source = (struct dcp_source){ .store = &run.store, .name = "m.bin" };
        assert_int_equal(dcp_catalog_new(&run.catalog, &run.err), 0);
        int rc = dcp_format_llmc.index(&run.source, run.catalog, &run.err);
        if (rc != cases[i].rc || !strstr(run.err.message, cases[i].words))
            fail_msg("%zu: %d %s", i, rc, run.err.message);
        end(&run);
    }
    DCP_CLEANUP_FREE unsigned char *data = make_model();
    struct run run;
    assert_int_equal(index_model(&run, data, tiny_bytes() - 1), DCP_E_CORRUPT);
    end(&run);
    assert_int_equal(index_model(&run, data, 1000), DCP_E_CORRUPT);
    end(&run);
}

/* -- runs ---------------------------------------------------------------------------- */

static void make_run(struct run *run, uint32_t world_size)
{
    DCP_CLEANUP_FREE unsigned char *data = make_model();
    char name[40];

    begin(run);
    put(run, "model_00000007.bin", data, tiny_bytes());
    put(run, "model_00000009.bin", data, tiny_bytes()); /* is not done */
    put(run, "DONE_00000005", "", 0);                   /* was removed */
    put(run, "DONE_00000007", "", 0);
    put(run, "main.log", "x", 1);
    for (uint32_t rank = 0; rank < world_size; rank++) {
        size_t n;
        DCP_CLEANUP_FREE unsigned char *shard = make_state(world_size, rank, &n);
        dcp_llmc_run_name(name, "state", 7, (int)rank);
        put(run, name, shard, n);
    }
}

static void test_runs(void **state)
{
    static const uint32_t world_sizes[] = { 1, 2, 4 };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(world_sizes); i++) {
        struct run run;
        make_run(&run, world_sizes[i]);
        if (index_as(&run, &dcp_format_llmc_run))
            fail_msg("%s", run.err.message);
        assert_int_equal(run.catalog->n_tensors, 4 * 28);
        assert_int_equal(run.catalog->step, 7);
        assert_int_equal(run.catalog->world_size, world_sizes[i]);
        if (dcp_catalog_check(run.catalog, &run.err))
            fail_msg("%s", run.err.message);
        int m = dcp_catalog_find(run.catalog,
                                 "optimizer.exp_avg.transformer.h.0.ln_1.weight");
        assert_int_equal(run.catalog->tensors[m].role, DCP_ROLE_EXP_AVG);
        assert_string_equal(run.catalog->tensors[m].param, "transformer.h.0.ln_1.weight");
        end(&run);
    }
}

static void check_state(uint32_t rank, int at, uint32_t value, int cut, int rc,
                        const char *words)
{
    struct run run;
    char name[40];
    size_t n;

    make_run(&run, 2);
    DCP_CLEANUP_FREE unsigned char *data = make_state(2, rank, &n);
    if (at >= 0)
        dcp_put_le32(data + 4 * at, value);
    dcp_llmc_run_name(name, "state", 7, (int)rank);
    assert_int_equal(run.store.ops->remove(run.store.self, name, NULL), 0);
    if (cut >= 0)
        put(&run, name, data, n - (size_t)cut);
    int got = index_as(&run, &dcp_format_llmc_run);
    if (got != rc || !strstr(run.err.message, words))
        fail_msg("%d %s", got, run.err.message);
    end(&run);
}

static void test_lying_states(void **state)
{
    (void)state;
    check_state(0, -1, 0, 0, 0, "");
    check_state(0, 0, 1, 0, DCP_E_CORRUPT, "no state of llm.c");
    check_state(0, 1, 2, 0, DCP_E_UNSUPPORTED, "of version 2");
    check_state(0, 2, 0, 0, DCP_E_CORRUPT, "impossible number");
    check_state(0, 2, 0xffffffff, 0, DCP_E_CORRUPT, "impossible number");
    check_state(0, 2, 3, 0, DCP_E_CORRUPT, "does not fit its model");
    check_state(0, 3, 1, 0, DCP_E_CORRUPT, "another rank");
    check_state(0, 4, 2, 0, DCP_E_CORRUPT, "neither 0 nor 1");
    check_state(0, 4, 0, 0, DCP_E_CORRUPT, "does not fit its model");
    check_state(0, 5, 1, 0, DCP_E_CORRUPT, "does not fit its model");
    check_state(0, 10, 8, 0, DCP_E_CORRUPT, "another rank or step");
    check_state(1, 2, 1, 0, DCP_E_CORRUPT, "belong to the state of rank 0");
    check_state(1, 4, 0, 0, DCP_E_CORRUPT, "belong to the state of rank 0");
    check_state(1, -1, 0, 4, DCP_E_CORRUPT, "does not fit its model");
    check_state(1, -1, 0, -1, DCP_E_NOT_FOUND, "state_00000007_00001.bin");
}

/* -- what cannot be written ---------------------------------------------------------- */

#define CONFIG                                                                          \
    "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":4,\"n_positions\":" \
    "3,\""                                                                              \
    "vocab_size\":5"

/* The model, changed: a name, a dtype, one tensor fewer. */
static void unwritable(const struct dcp_format *format, const char *config,
                       const char *renamed, int dtype, const char *words)
{
    const struct dcp_target_options options = { .config_json = config };
    DCP_CLEANUP_FREE unsigned char *data = make_model();
    struct dcp_catalog *catalog;
    struct run run;

    assert_int_equal(index_model(&run, data, tiny_bytes()), 0);
    assert_int_equal(dcp_catalog_new(&catalog, &run.err), 0);
    for (size_t t = 0; t < run.catalog->n_tensors; t++) {
        struct dcp_tensor tensor = run.catalog->tensors[t];
        if (t + 1 == run.catalog->n_tensors) {
            if (renamed && !renamed[0])
                break;
            tensor.name = tensor.param = renamed ? renamed : tensor.name;
            tensor.dtype = dtype < 0 ? tensor.dtype : (enum dcp_dtype)dtype;
        }
        dcp_catalog_add_tensor(catalog, &tensor, NULL, &run.err);
    }
    struct dcp_target target = { .format = format,
                                 .catalog = catalog,
                                 .options = &options };
    int rc = dcp_target_open(&target, DCP_CODEC_NONE, &run.err);
    if (rc != (words ? DCP_E_MISMATCH : 0) || (words && !strstr(run.err.message, words)))
        fail_msg("%d %s", rc, run.err.message);
    dcp_target_close(&target);
    dcp_catalog_free(catalog);
    end(&run);
}

static void test_unwritable(void **state)
{
    const struct dcp_format *llmc = &dcp_format_llmc;

    (void)state;
    unwritable(llmc, CONFIG "}", NULL, -1, NULL);
    unwritable(llmc, "{\"model_type\":\"llama\"}", NULL, -1, "model_type 'llama'");
    unwritable(llmc, "{\"model_type\":\"gpt2\"}", NULL, -1, "with n_layer, n_head");
    unwritable(llmc, CONFIG ",\"n_inner\":8}", NULL, -1, "n_inner is not 4");
    unwritable(llmc, CONFIG ",\"layer_norm_epsilon\":1e-6}", NULL, -1,
               "layer_norm_epsilon");
    unwritable(llmc, CONFIG ",\"activation_function\":\"relu\"}", NULL, -1, "'relu'");
    unwritable(llmc, CONFIG "}", "", -1, "needs the tensor 'transformer.ln_f.bias'");
    unwritable(llmc, CONFIG "}", "other", -1, "'other' which its models do not have");
    unwritable(llmc, CONFIG "}", "ln_f.weight", -1, "twice");
    unwritable(llmc, CONFIG "}", NULL, DCP_BF16, "of another dtype");
    unwritable(&dcp_format_llmc_run, CONFIG "}", NULL, -1,
               "28 weights with 0 tensors 'master'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),      cmocka_unit_test(test_lying_models),
        cmocka_unit_test(test_runs),       cmocka_unit_test(test_lying_states),
        cmocka_unit_test(test_unwritable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
