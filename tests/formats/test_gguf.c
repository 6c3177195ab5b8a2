/* gguf: files built here value by value, what a rewrite keeps, which files are refused
 * and in which words, and configurations in and out of keys. */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/json.h"
#include "core/plan/target.h"
#include "formats/gguf/gguf.h"
#include "lib/format_io.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { F32 = 0, F16 = 1, Q4_K = 12, BF16 = 30 };
enum { V_U32 = 4, V_F32 = 6, V_BOOL = 7, V_STRING = 8, V_ARRAY = 9 };

/* -- building ------------------------------------------------------------------------ */

struct file {
    struct dcp_buf keys, infos, data;
    uint64_t n_keys, n_tensors;
};

static void add_text(struct dcp_buf *buf, const char *text)
{
    dcp_buf_add_le64(buf, strlen(text));
    dcp_buf_add_text(buf, text);
}

static void key(struct file *f, const char *name, uint32_t type)
{
    add_text(&f->keys, name);
    dcp_buf_add_le32(&f->keys, type);
    f->n_keys++;
}

static void key_u32(struct file *f, const char *name, uint32_t value)
{
    key(f, name, V_U32);
    dcp_buf_add_le32(&f->keys, value);
}

static void key_f32(struct file *f, const char *name, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    key(f, name, V_F32);
    dcp_buf_add_le32(&f->keys, bits);
}

static void key_text(struct file *f, const char *name, const char *value)
{
    key(f, name, V_STRING);
    add_text(&f->keys, value);
}

/* Dimensions slowest first; columns 0: a vector. */
static void tensor(struct file *f, const char *name, uint32_t type, uint64_t rows,
                   uint64_t columns)
{
    add_text(&f->infos, name);
    dcp_buf_add_le32(&f->infos, columns ? 2 : 1);
    if (columns)
        dcp_buf_add_le64(&f->infos, columns);
    dcp_buf_add_le64(&f->infos, rows);
    dcp_buf_add_le32(&f->infos, type);
    dcp_buf_add_le64(&f->infos, f->data.size_bytes);
    uint64_t size = rows * (columns ? columns : 1) * (type == F32 ? 4 : 2);
    for (uint64_t i = 0; i < size; i++) /* each byte another */
        dcp_buf_add_u8(&f->data, (uint8_t)(f->data.size_bytes * 7 + 1));
    dcp_buf_add_fill(&f->data, 0, (32 - f->data.size_bytes % 32) % 32);
    f->n_tensors++;
}

/* The whole file. */
static void finish(struct file *f, uint32_t version, struct dcp_buf *out)
{
    dcp_buf_add_text(out, "GGUF");
    dcp_buf_add_le32(out, version);
    dcp_buf_add_le64(out, f->n_tensors);
    dcp_buf_add_le64(out, f->n_keys);
    dcp_buf_add(out, f->keys.data, f->keys.size_bytes);
    dcp_buf_add(out, f->infos.data, f->infos.size_bytes);
    dcp_buf_add_fill(out, 0, (32 - out->size_bytes % 32) % 32);
    dcp_buf_add(out, f->data.data, f->data.size_bytes);
    dcp_buf_fini(&f->data);
    dcp_buf_fini(&f->keys);
    dcp_buf_fini(&f->infos);
}

/* -- reading ------------------------------------------------------------------------- */

struct reading {
    struct dcp_store store;
    struct dcp_source source;
    struct dcp_catalog *catalog;
    struct dcp_error err;
    int rc;
};

static void read_bytes(struct reading *r, const void *data, size_t n)
{
    *r = (struct reading){ 0 };
    assert_int_equal(dcp_store_mem(&r->store, &r->err), 0);
    assert_int_equal(dcp_store_write_file(&r->store, "x.gguf", data, n, &r->err), 0);
    r->source = (struct dcp_source){ .store = &r->store, .name = "x.gguf" };
    assert_int_equal(dcp_catalog_new(&r->catalog, &r->err), 0);
    r->rc = dcp_format_gguf.index(&r->source, r->catalog, &r->err);
    if (!r->rc)
        r->rc = dcp_catalog_sort(r->catalog, &r->err);
}

static void read_file(struct reading *r, struct file *f)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };

    finish(f, 3, &buf);
    read_bytes(r, buf.data, buf.size_bytes);
}

static void done(struct reading *r)
{
    dcp_catalog_free(r->catalog);
    dcp_store_free(&r->store);
}

/* Writes the catalog again and gives the bytes. */
static int rewrite(struct reading *r, void **out, size_t *out_n)
{
    const struct dcp_target_options options = { .name = "y.gguf" };
    struct dcp_store store;

    assert_int_equal(dcp_store_mem(&store, &r->err), 0);
    int rc =
        format_write(&r->source, r->catalog, &dcp_format_gguf, &options, &store, &r->err);
    if (!rc)
        rc = dcp_store_read_file(&store, "y.gguf", 1 << 20, out, out_n, &r->err);
    dcp_store_free(&store);
    return rc;
}

static const char *object(const struct reading *r, const char *name)
{
    int at = dcp_catalog_find_object(r->catalog, name);

    return at < 0 ? NULL : r->catalog->objects[at].data;
}

/* -- values -------------------------------------------------------------------------- */

static void array(struct file *f, const char *name, uint32_t type, uint64_t n)
{
    key(f, name, V_ARRAY);
    dcp_buf_add_le32(&f->keys, type);
    dcp_buf_add_le64(&f->keys, n);
}

/* Every type, at its ends; a rewrite gives the same bytes. */
static void test_values(void **state)
{
    static const size_t sizes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    struct file f = { 0 };
    struct reading r;
    void *again = NULL;
    size_t n = 0;

    (void)state;
    key_text(&f, "general.architecture", "of its own");
    for (uint32_t type = 0; type < 13; type++) {
        char name[16];
        if (!sizes[type])
            continue;
        for (int end = 0; end < 2; end++) {
            snprintf(name, sizeof name, "t%u.%d", (unsigned)type, end);
            key(&f, name, type);
            dcp_buf_add_fill(&f.keys,
                             type == V_BOOL ? (uint8_t)end
                             : end          ? 0xfe
                                            : 0x80,
                             sizes[type]);
            snprintf(name, sizeof name, "a%u.%d", (unsigned)type, end);
            array(&f, name, type, 2);
            dcp_buf_add_fill(&f.keys,
                             type == V_BOOL ? 1
                             : end          ? 0x7f
                                            : 0x12,
                             sizes[type]);
            dcp_buf_add_fill(&f.keys, 0, sizes[type]);
        }
    }
    key_f32(&f, "inf", INFINITY);
    key_f32(&f, "minus inf", -INFINITY);
    key_f32(&f, "nan", NAN);
    key_f32(&f, "minus zero", -0.0f);
    key_text(&f, "empty", "");
    key_text(&f, "text", "caf\xc3\xa9\n\"\\");
    key(&f, "bytes", V_STRING);
    dcp_buf_add_le64(&f.keys, 4);
    dcp_buf_add(&f.keys, "a\0\xff\x80", 4);
    array(&f, "words", V_STRING, 3);
    add_text(&f.keys, "one");
    add_text(&f.keys, "");
    dcp_buf_add_le64(&f.keys, 1);
    dcp_buf_add(&f.keys, "\0", 1);
    array(&f, "none", V_STRING, 0);
    tensor(&f, "any name", BF16, 3, 5);
    tensor(&f, "scalar-like", F32, 1, 0);
    tensor(&f, "empty one", F16, 0, 0);
    tensor(&f, "last", F16, 7, 0);
    finish(&f, 3, &buf);
    read_bytes(&r, buf.data, buf.size_bytes);
    if (r.rc || rewrite(&r, &again, &n))
        fail_msg("%s", r.err.message);
    assert_null(object(&r, "model_config"));
    assert_non_null(strstr(object(&r, "gguf.metadata"),
                           "\"general.architecture\":\"of its own\",\"t0.0\":{\"u8\":"
                           "128},\"a0.0\":{\"[u8]\":[18,0]}"));
    assert_non_null(strstr(object(&r, "gguf.metadata"),
                           "\"bytes\":{\"$bytes\":\"6100ff80\"},\"words\":{\"[string]\":"
                           "[\"one\",\"\",{\"$bytes\":\"00\"}]},\"none\":{\"[string]\":"
                           "[]}"));
    assert_int_equal(n, buf.size_bytes);
    assert_memory_equal(again, buf.data, n);
    free(again);
    done(&r);
}

/* A header longer than what is read at once, in a file of version 2. */
static void test_long_header(void **state)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    struct file f = { 0 };
    struct reading r;
    void *data = NULL;

    (void)state;
    char *text = malloc(200001);
    memset(text, 'x', 200000);
    text[200000] = '\0';
    array(&f, "words", V_STRING, 30000);
    for (int i = 0; i < 30000; i++)
        add_text(&f.keys, i % 2 ? "a word" : "");
    key_text(&f, "long", text);
    tensor(&f, "w", F32, 3, 2);
    finish(&f, 2, &buf);
    read_bytes(&r, buf.data, buf.size_bytes);
    if (r.rc || format_read_tensor(&r.source, r.catalog, 0, &data, &r.err))
        fail_msg("%s", r.err.message);
    assert_memory_equal(data, buf.data + buf.size_bytes - 32, 24);
    assert_string_equal(r.catalog->version, "v2");
    assert_non_null(strstr(object(&r, "gguf.metadata"), text));
    free(data);
    free(text);
    done(&r);
}

/* -- models -------------------------------------------------------------------------- */

static void llama_keys(struct file *f, uint32_t heads)
{
    key_text(f, "general.architecture", "llama");
    key_u32(f, "llama.block_count", 1);
    key_u32(f, "llama.context_length", 64);
    key_u32(f, "llama.embedding_length", 8);
    key_u32(f, "llama.feed_forward_length", 12);
    key_u32(f, "llama.attention.head_count", heads);
    key_f32(f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

/* A llama of one layer, not all of it. */
static void test_llama(void **state)
{
    struct file f = { 0 };
    struct reading r;
    void *data = NULL;

    (void)state;
    llama_keys(&f, 2);
    tensor(&f, "token_embd.weight", F32, 5, 8);
    tensor(&f, "blk.0.attn_q.weight", F16, 8, 8);
    tensor(&f, "blk.0.attn_norm.weight", F32, 8, 0);
    read_file(&r, &f);
    if (r.rc)
        fail_msg("%s", r.err.message);
    assert_int_equal(dcp_catalog_check(r.catalog, &r.err), 0);
    int q = dcp_catalog_find(r.catalog, "model.layers.0.self_attn.q_proj.weight");
    assert_true(q >= 0);
    assert_int_equal(r.catalog->tensors[q].n_pieces, 4);
    assert_int_equal(format_read_tensor(&r.source, r.catalog, q, &data, &r.err), 0);
    /* Row 1 here is row 2 in the file, of 16 bytes each, behind 160 of the embedding. */
    assert_int_equal(((uint8_t *)data)[16], (uint8_t)((160 + 32) * 7 + 1));
    free(data);
    json_t *config = NULL;
    const char *text = object(&r, "model_config");
    assert_int_equal(dcp_json_parse(text, strlen(text), "config", &config, &r.err), 0);
    json_t *wanted = json_pack(
        "{s:[s],s:s,s:i,s:i,s:i,s:i,s:i,s:f,s:i,s:b,s:i,s:f,s:s,s:b,s:b}",
        "architectures", "LlamaForCausalLM", "model_type", "llama", "num_hidden_layers",
        1, "max_position_embeddings", 64, "hidden_size", 8, "intermediate_size", 12,
        "num_attention_heads", 2, "rms_norm_eps", 1e-5, "vocab_size", 5,
        "tie_word_embeddings", 1, "num_key_value_heads", 2, "rope_theta", 10000.0,
        "hidden_act", "silu", "attention_bias", 0, "mlp_bias", 0);
    if (!json_equal(config, wanted))
        fail_msg("%s", text);
    json_decref(config);
    json_decref(wanted);
    done(&r);
}

/* What is no model that names.h knows keeps its names. */
static void test_raw(void **state)
{
    static const char *const keys[] = { "general.architecture", "llama.block_count" };

    (void)state;
    for (int way = 0; way < 6; way++) {
        struct file f = { 0 };
        struct reading r;
        if (way == 0)
            key_text(&f, keys[0], "bert");
        else if (way == 1)
            key_u32(&f, keys[1], 1); /* nothing says llama */
        else
            llama_keys(&f, way == 2 ? 3 : 2); /* three heads of 8 rows */
        if (way == 3)
            key_text(&f, "llama.rope.scaling.type", "longrope");
        if (way == 4)
            tensor(&f, "blk.0.ffn_gate_exps.weight", F32, 2, 2);
        if (way == 5) /* factors that are not those of Llama 3 */
            tensor(&f, "rope_freqs.weight", F32, 2, 0);
        tensor(&f, "token_embd.weight", F32, 5, 8);
        tensor(&f, "blk.0.attn_q.weight", F16, 8, 8);
        read_file(&r, &f);
        if (r.rc)
            fail_msg("%s", r.err.message);
        int q = dcp_catalog_find(r.catalog, "blk.0.attn_q.weight");
        if (q < 0)
            fail_msg("way %d has other names", way);
        assert_int_equal(r.catalog->tensors[q].n_pieces, 1);
        assert_null(object(&r, "model_config"));
        done(&r);
    }
}

/* Factors of a rotation come from four numbers and go back to them. */
static void test_rope(void **state)
{
    static const char text[] =
        "{\"hidden_size\":64,\"num_attention_heads\":2,\"rope_theta\":500000.0,"
        "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32.0,\"low_freq_factor\":"
        "1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}";
    struct dcp_error err = { 0 };
    json_t *config, *scaling;
    float *factors;
    size_t n;

    (void)state;
    assert_int_equal(dcp_json_parse(text, strlen(text), "config", &config, &err), 0);
    assert_int_equal(dcp_gguf_rope_factors(config, &factors, &n, &err), 0);
    assert_int_equal(n, 16);
    assert_true(factors[0] == 1.0f && factors[15] == 32.0f);
    assert_int_equal(dcp_gguf_rope_scaling(factors, n, 500000, &scaling, &err), 0);
    assert_true(json_equal(scaling, json_object_get(config, "rope_scaling")));
    json_decref(scaling);
    factors[7] *= 1.5f;
    assert_int_equal(dcp_gguf_rope_scaling(factors, n, 500000, &scaling, &err), 0);
    assert_null(scaling);
    free(factors);
    json_object_del(json_object_get(config, "rope_scaling"), "factor");
    assert_int_equal(dcp_gguf_rope_factors(config, &factors, &n, &err), DCP_E_MISMATCH);
    json_decref(config);
}

/* -- what is refused ----------------------------------------------------------------- */

static void refused(struct file *f, uint32_t version, int rc, const char *words)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    struct reading r;

    finish(f, version, &buf);
    read_bytes(&r, buf.data, buf.size_bytes);
    if (r.rc != rc || !strstr(r.err.message, words))
        fail_msg("'%s' is not '%s' (%d)", r.err.message, words, r.rc);
    done(&r);
}

static void test_refused(void **state)
{
    struct file f = { 0 };

    (void)state;
    refused(&f, 1, DCP_E_UNSUPPORTED, "of version 1");
    f = (struct file){ 0 };
    refused(&f, 0x03000000, DCP_E_UNSUPPORTED, "big-endian");
    f = (struct file){ 0 };
    tensor(&f, "w", Q4_K, 255, 0);
    refused(&f, 3, DCP_E_CORRUPT, "block size (Q4_K)");
    f = (struct file){ 0 };
    key_u32(&f, "split.count", 3);
    refused(&f, 3, DCP_E_UNSUPPORTED, "one of 3 parts");
    f = (struct file){ 0 };
    key_u32(&f, "a", 1);
    key_u32(&f, "a", 1);
    refused(&f, 3, DCP_E_CORRUPT, "the key 'a' twice");
    f = (struct file){ 0 };
    array(&f, "a", V_ARRAY, 1);
    refused(&f, 3, DCP_E_UNSUPPORTED, "an array of arrays");
    f = (struct file){ 0 };
    array(&f, "a", V_U32, UINT64_MAX / 2);
    refused(&f, 3, DCP_E_CORRUPT, "longer than the file");
    f = (struct file){ 0 };
    key(&f, "a", V_BOOL);
    dcp_buf_add_u8(&f.keys, 2);
    refused(&f, 3, DCP_E_CORRUPT, "is neither true nor false");
    f = (struct file){ 0 };
    key_text(&f, "general.alignment", "32");
    refused(&f, 3, DCP_E_CORRUPT, "is no u32");
    f = (struct file){ 0 };
    tensor(&f, "", F32, 1, 0);
    refused(&f, 3, DCP_E_CORRUPT, "is empty");
    f = (struct file){ 0 };
    tensor(&f, "w", F32, UINT64_C(1) << 40, UINT64_C(1) << 40);
    dcp_buf_add_fill(&f.data, 0, 32);
    refused(&f, 3, DCP_E_CORRUPT, "the dimensions of tensor 'w' overflow");
    f = (struct file){ 0 };
    tensor(&f, "w", F32, 100, 0);
    f.data.size_bytes = 384; /* 16 bytes fewer than the tensor has */
    refused(&f, 3, DCP_E_CORRUPT, "ends before tensor 'w'");
    f = (struct file){ 0 };
    tensor(&f, "w", F32, 8, 0);
    dcp_buf_add_u8(&f.data, 0);
    refused(&f, 3, DCP_E_CORRUPT, "1 bytes behind its tensors");
}

/* A file cut anywhere in its header is refused, and never read behind its end. */
static void test_cut(void **state)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    struct file f = { 0 };

    (void)state;
    llama_keys(&f, 2);
    array(&f, "words", V_STRING, 2);
    add_text(&f.keys, "one");
    add_text(&f.keys, "two");
    tensor(&f, "token_embd.weight", F32, 5, 8);
    finish(&f, 3, &buf);
    for (size_t n = 0; n < buf.size_bytes; n++) {
        struct reading r;
        read_bytes(&r, buf.data, n);
        assert_int_equal(r.rc, DCP_E_CORRUPT);
        done(&r);
    }
}

/* -- what cannot be written ---------------------------------------------------------- */

static void unwritable(const char *config, const char *name, enum dcp_dtype dtype,
                       const char *words)
{
    const struct dcp_target_options options = { .config_json = config };
    const int64_t shape[] = { 6, 4 };
    const struct dcp_tensor t = {
        .name = name, .dtype = dtype, .ndim = 2, .shape = shape
    };
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };

    assert_int_equal(dcp_catalog_new(&catalog, &err), 0);
    dcp_catalog_add_tensor(catalog, &t, NULL, &err);
    struct dcp_target target = { .format = &dcp_format_gguf,
                                 .catalog = catalog,
                                 .options = &options };
    int rc = dcp_target_open(&target, DCP_CODEC_NONE, &err);
    if (rc != DCP_E_MISMATCH || !strstr(err.message, words))
        fail_msg("'%s' is not '%s' (%d)", err.message, words, rc);
    dcp_target_close(&target);
    dcp_catalog_free(catalog);
}

#define GPT2                                                                            \
    "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_positions\":6,\"n_embd\":4,\"n_head\":" \
    "2,\"layer_norm_epsilon\":1e-5"
#define LLAMA                                                                          \
    "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"max_position_embeddings\":6," \
    "\"hidden_size\":4,\"intermediate_size\":6,\"num_attention_heads\":4,\"rms_norm_"  \
    "eps\":1e-5"

static void test_unwritable(void **state)
{
    (void)state;
    unwritable(NULL, "wte.weight", DCP_F32, "needs a model configuration");
    unwritable("{\"model_type\":\"bert\"}", "wte.weight", DCP_F32, "type 'bert'");
    unwritable(GPT2 "}", "other", DCP_F32, "'other' whose name is unknown");
    unwritable(GPT2 "}", "wte.weight", DCP_F8_E4M3, "'wte.weight' of its dtype");
    unwritable(GPT2 ",\"activation_function\":\"relu\"}", "wte.weight", DCP_F32,
               "activation_function 'relu'");
    unwritable("{\"model_type\":\"gpt2\"}", "wte.weight", DCP_F32, "with 'n_layer'");
    unwritable(LLAMA "}", "model.layers.0.self_attn.q_proj.weight", DCP_F32,
               "does not divide into the configured");
    unwritable(LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}}",
               "model.embed_tokens.weight", DCP_F32, "rope scaling 'dynamic'");
    unwritable(LLAMA ",\"hidden_act\":\"gelu\"}", "model.embed_tokens.weight", DCP_F32,
               "hidden_act 'gelu'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values), cmocka_unit_test(test_long_header),
        cmocka_unit_test(test_llama),  cmocka_unit_test(test_raw),
        cmocka_unit_test(test_rope),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cut),    cmocka_unit_test(test_unwritable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
