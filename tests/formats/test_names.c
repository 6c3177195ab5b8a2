/* names: every row in every scheme and back, names that are near one, presets; and the
 * pieces of tensors whose axes differ. */
#include "base/mem.h"
#include "formats/models/axes.h"
#include "formats/models/names.h"
#include "lib/format_pieces.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/rename.h>

static const char *const types[] = { "gpt2", "llama", "mistral", "qwen2" };

static void test_rows(void **state)
{
    (void)state;
    for (size_t f = 0; f < DCP_ARRAY_LEN(types); f++) {
        const struct dcp_names_family *family = dcp_names_family(types[f]);
        for (size_t r = 0; r < family->n_rows; r++)
            for (int scheme = 0; scheme < DCP_N_NAMES; scheme++) {
                struct dcp_names_match match = { family, &family->rows[r], 17, ".bias" };
                char name[DCP_NAMES_MAX_BYTES];
                if (!strchr(family->rows[r].name[0], '#'))
                    match.layer = -1;
                if (!dcp_names_spell(&match, (enum dcp_names_scheme)scheme, name))
                    continue;
                struct dcp_names_match again;
                assert_true(
                    dcp_names_match(family, (enum dcp_names_scheme)scheme, name, &again));
                assert_ptr_equal(again.row, match.row);
                assert_int_equal(again.layer, match.layer);
                assert_string_equal(again.suffix, ".bias");
            }
    }
    assert_null(dcp_names_family("bert"));
    assert_null(dcp_names_family(NULL));
    assert_ptr_equal(dcp_names_gguf_family("llama"), dcp_names_family("llama"));
    assert_null(dcp_names_gguf_family("mistral")); /* its files are called llama */
}

static void test_translations(void **state)
{
    static const struct {
        const char *type;
        enum dcp_names_scheme from, to;
        const char *name, *wanted; /* NULL: there is none */
    } cases[] = {
        { "gpt2", DCP_NAMES_HF, DCP_NAMES_GGUF, "transformer.h.11.attn.c_attn.weight",
          "blk.11.attn_qkv.weight" },
        { "gpt2", DCP_NAMES_HF, DCP_NAMES_GGUF, "h.0.mlp.c_proj.bias",
          "blk.0.ffn_down.bias" },
        { "gpt2", DCP_NAMES_HF, DCP_NAMES_GGUF, "wpe.weight", "position_embd.weight" },
        { "gpt2", DCP_NAMES_GGUF, DCP_NAMES_HF, "output.weight", "lm_head.weight" },
        { "gpt2", DCP_NAMES_HF, DCP_NAMES_GGUF, "transformer.lm_head.weight", NULL },
        { "gpt2", DCP_NAMES_HF, DCP_NAMES_META, "wte.weight", NULL },
        { "gpt2", DCP_NAMES_HF, DCP_NAMES_GGUF, "h.01.ln_1.weight", NULL },
        { "gpt2", DCP_NAMES_HF, DCP_NAMES_GGUF, "h..ln_1.weight", NULL },
        { "gpt2", DCP_NAMES_HF, DCP_NAMES_GGUF, "h.1000000.ln_1.weight", NULL },
        { "gpt2", DCP_NAMES_HF, DCP_NAMES_GGUF, "h.-1.ln_1.weight", NULL },
        { "gpt2", DCP_NAMES_HF, DCP_NAMES_GGUF, "h.0.ln_1.weight2", NULL },
        { "gpt2", DCP_NAMES_HF, DCP_NAMES_GGUF, "h.0.ln_1", NULL },
        { "gpt2", DCP_NAMES_HF, DCP_NAMES_GGUF, "", NULL },
        { "llama", DCP_NAMES_META, DCP_NAMES_HF, "layers.3.attention.wo.weight",
          "model.layers.3.self_attn.o_proj.weight" },
        { "llama", DCP_NAMES_META, DCP_NAMES_GGUF, "norm.weight", "output_norm.weight" },
        { "llama", DCP_NAMES_GGUF, DCP_NAMES_HF, "blk.7.ffn_up.weight",
          "model.layers.7.mlp.up_proj.weight" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        char name[DCP_NAMES_MAX_BYTES] = "";
        bool found = dcp_names_translate(dcp_names_family(cases[i].type), cases[i].from,
                                         cases[i].to, cases[i].name, name);
        if (found != (cases[i].wanted != NULL) ||
            (found && strcmp(name, cases[i].wanted) != 0))
            fail_msg("%s: %s", cases[i].name, name);
    }
    assert_true(dcp_names_dropped(dcp_names_family("gpt2"), "h.0.attn.masked_bias"));
    assert_true(dcp_names_dropped(dcp_names_family("llama"), "rope.freqs"));
    assert_false(dcp_names_dropped(dcp_names_family("gpt2"), "h.0.attn.c_attn.bias"));
}

static const char *preset(const char *name, const char *tensor)
{
    static char out[DCP_NAMES_MAX_BYTES];

    for (const struct dcp_name_preset *const *p = dcp_name_presets(); *p; p++)
        if (!strcmp((*p)->name, name))
            return (*p)->rename(tensor, out, sizeof out) ? out : NULL;
    fail_msg("no preset %s", name);
    return NULL;
}

static void test_presets(void **state)
{
    char small[8];

    (void)state;
    assert_string_equal(preset("hf", "wte.weight"), "transformer.wte.weight");
    assert_string_equal(preset("hf", "layers.0.feed_forward.w3.weight"),
                        "model.layers.0.mlp.up_proj.weight");
    assert_string_equal(preset("hf", "model.norm.weight"), "model.norm.weight");
    assert_string_equal(preset("llmc", "h.0.ln_1.bias"), "transformer.h.0.ln_1.bias");
    assert_string_equal(preset("gguf", "lm_head.weight"), "output.weight");
    assert_string_equal(preset("gguf", "tok_embeddings.weight"), "token_embd.weight");
    assert_string_equal(preset("meta", "model.layers.5.self_attn.k_proj.weight"),
                        "layers.5.attention.wk.weight");
    assert_string_equal(preset("deepspeed", "module.module.h.0._orig_mod.mlp.weight"),
                        "h.0.mlp.weight");
    assert_string_equal(preset("deepspeed", "_forward_module._fsdp_wrapped_module.w"),
                        "w");
    assert_string_equal(preset("deepspeed", "my_module.module.w"), "my_module.module.w");
    assert_null(preset("hf", "blk.0.attn_norm.weight")); /* of which family? */
    assert_null(preset("meta", "wte.weight"));
    assert_false(dcp_name_presets()[0]->rename("wte.weight", small, sizeof small));
}

/* -- axes ---------------------------------------------------------------------------- */

/* A tensor of consecutive numbers whose pieces are those of an extent, gathered from a
 * file of consecutive numbers: out[e] is where element e lies in the file. */
static void gather(int ndim, const int64_t *shape, enum dcp_names_axes axes,
                   int64_t heads, bool is_target, uint8_t *out, size_t *out_n_pieces)
{
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };
    uint8_t file[256];
    int index, file_index;

    for (size_t i = 0; i < sizeof file; i++)
        file[i] = (uint8_t)i;
    assert_int_equal(dcp_catalog_new(&catalog, &err), 0);
    assert_int_equal(
        dcp_catalog_add_file(catalog,
                             &(struct dcp_file){ .name = "x", .size_bytes = sizeof file },
                             &file_index, &err),
        0);
    const struct dcp_tensor tensor = {
        .name = "w", .dtype = DCP_U8, .ndim = ndim, .shape = shape
    };
    assert_int_equal(dcp_catalog_add_tensor(catalog, &tensor, &index, &err), 0);
    assert_int_equal(
        dcp_axes_add_whole(catalog, index, file_index, 0, axes, heads, is_target, &err),
        0);
    assert_int_equal(dcp_catalog_sort(catalog, &err), 0);
    if (dcp_catalog_check(catalog, &err))
        fail_msg("%s", err.message);
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        assert_true(!is_target || axes == DCP_AXES_TRANSPOSED || !piece->stride);
        assert_true(piece->offset + piece->stored_size <=
                    dcp_tensor_bytes(&catalog->tensors[0]));
        format_move_elements(&catalog->tensors[0], piece, file + piece->offset, out,
                             false);
    }
    *out_n_pieces = catalog->n_pieces;
    dcp_catalog_free(catalog);
}

static void test_axes(void **state)
{
    const int64_t matrix[] = { 8, 3 }, vector[] = { 8 };
    uint8_t out[24];
    size_t n;

    (void)state;
    gather(2, matrix, DCP_AXES_TRANSPOSED, 1, false, out, &n);
    assert_int_equal(n, 1);
    for (int r = 0; r < 8; r++)
        for (int c = 0; c < 3; c++)
            assert_int_equal(out[3 * r + c], 8 * c + r);
    for (int is_target = 0; is_target < 2; is_target++) {
        gather(2, matrix, DCP_AXES_Q_ROWS, 2, is_target, out, &n);
        assert_int_equal(n, is_target ? 8 : 4);
        for (int h = 0; h < 2; h++) /* view(2, 2, 2, 3).swapaxes(1, 2) of the file */
            for (int a = 0; a < 2; a++)
                for (int j = 0; j < 2; j++)
                    for (int c = 0; c < 3; c++)
                        assert_int_equal(out[3 * (4 * h + 2 * a + j) + c],
                                         3 * (4 * h + 2 * j + a) + c);
        gather(1, vector, DCP_AXES_K_ROWS, 1, is_target, out, &n);
        for (int a = 0; a < 2; a++)
            for (int j = 0; j < 4; j++)
                assert_int_equal(out[4 * a + j], 2 * j + a);
    }
    assert_true(dcp_axes_heads_ok(DCP_AXES_Q_ROWS, 8, 2));
    assert_false(dcp_axes_heads_ok(DCP_AXES_Q_ROWS, 8, 3));
    assert_false(dcp_axes_heads_ok(DCP_AXES_Q_ROWS, 6, 2)); /* heads of three rows */
    assert_false(dcp_axes_heads_ok(DCP_AXES_K_ROWS, 8, 0));
    assert_true(dcp_axes_heads_ok(DCP_AXES_TRANSPOSED, 7, 0));
}

/* A transposed matrix cut anywhere in its file gives pieces that make it whole again. */
static void test_ranges(void **state)
{
    const int64_t shape[] = { 3, 5 }; /* (out, in) in the file is 5 × 3 */
    const struct dcp_tensor tensor = {
        .name = "w", .dtype = DCP_U8, .ndim = 2, .shape = shape
    };

    (void)state;
    for (int64_t a = 0; a <= 15; a++)
        for (int64_t b = a; b <= 15; b++) {
            const int64_t cuts[] = { 0, a, b, 15 };
            struct dcp_catalog *catalog;
            struct dcp_error err = { 0 };
            uint8_t file[15], out[15];
            int index, f;
            assert_int_equal(dcp_catalog_new(&catalog, &err), 0);
            dcp_catalog_add_file(
                catalog, &(struct dcp_file){ .name = "x", .size_bytes = 15 }, &f, &err);
            dcp_catalog_add_tensor(catalog, &tensor, &index, &err);
            for (int i = 0; i < 3; i++)
                assert_int_equal(dcp_axes_add_range(catalog, index, f, i,
                                                    (uint64_t)cuts[i],
                                                    DCP_AXES_TRANSPOSED, cuts[i],
                                                    cuts[i + 1], true, &err),
                                 0);
            dcp_catalog_sort(catalog, &err);
            if (dcp_catalog_check(catalog, &err))
                fail_msg("%s", err.message);
            for (size_t i = 0; i < sizeof file; i++)
                file[i] = (uint8_t)i;
            for (size_t p = 0; p < catalog->n_pieces; p++)
                format_move_elements(&catalog->tensors[0], &catalog->pieces[p],
                                     file + catalog->pieces[p].offset, out, false);
            for (int r = 0; r < 3; r++)
                for (int c = 0; c < 5; c++)
                    assert_int_equal(out[5 * r + c], 3 * c + r);
            dcp_catalog_free(catalog);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),    cmocka_unit_test(test_translations),
        cmocka_unit_test(test_presets), cmocka_unit_test(test_axes),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
