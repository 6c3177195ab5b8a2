/* roles: what names tell of tensors, and which container is the model's. */
#include "base/mem.h"
#include "formats/common/roles.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct row {
    const char *name;
    enum dcp_role role;
    const char *param;
    enum dcp_dtype dtype;
};
struct table {
    const char *model, *optim; /* what must be found; optim NULL: none */
    const char *beside[4];     /* names of objects, up to NULL */
    struct row rows[12];       /* up to a name that is NULL */
};

static const struct table tables[] = {
    { "model",
      "optim",
      { "optim.param_groups.0.lr" },
      { { "model.a.weight", DCP_ROLE_MODEL, "a.weight", DCP_F32 },
        { "model.n", DCP_ROLE_BUFFER, "n", DCP_I64 },
        { "optim.state.a.weight.exp_avg", DCP_ROLE_EXP_AVG, "a.weight", DCP_F32 },
        { "optim.state.a.weight.exp_avg_sq", DCP_ROLE_EXP_AVG_SQ, "a.weight", DCP_F32 },
        { "optim.state.a.weight.step", DCP_ROLE_OPTIM, "a.weight", DCP_F32 },
        { "optim.state.a.weight.master", DCP_ROLE_MASTER, "a.weight", DCP_F32 },
        { "optim.param_groups.0.lr", DCP_ROLE_OPTIM, "optim.param_groups.0.lr", DCP_F32 },
        { "rng", DCP_ROLE_OTHER, "rng", DCP_U8 } } },
    /* An average of the weights has the same names; so has a discriminator. */
    { "net",
      "optim_g",
      { "optim_g.param_groups", "optim_d.param_groups" },
      { { "ema.net.w", DCP_ROLE_OTHER, "ema.net.w", DCP_F32 },
        { "net.w", DCP_ROLE_MODEL, "w", DCP_F32 },
        { "optim_g.state.w.exp_avg", DCP_ROLE_EXP_AVG, "w", DCP_F32 },
        { "optim_d.state.w.exp_avg", DCP_ROLE_OPTIM, "optim_d.state.w.exp_avg",
          DCP_F32 } } },
    /* Whatever an average is called, and wherever it stands. */
    { "model",
      "optim",
      { "optim.param_groups" },
      { { "ema.w", DCP_ROLE_OTHER, "ema.w", DCP_F32 },
        { "model.w", DCP_ROLE_MODEL, "w", DCP_F32 },
        { "optim.state.w.exp_avg", DCP_ROLE_EXP_AVG, "w", DCP_F32 } } },
    { "policy",
      "optim",
      { "optim.param_groups" },
      { { "ref_2.w", DCP_ROLE_OTHER, "ref_2.w", DCP_F32 },
        { "Avg.w", DCP_ROLE_OTHER, "Avg.w", DCP_F32 },
        { "policy.w", DCP_ROLE_MODEL, "w", DCP_F32 },
        { "optim.state.w.exp_avg", DCP_ROLE_EXP_AVG, "w", DCP_F32 } } },
    { "ema",
      "optim",
      { "optim.param_groups" },
      { { "ema.w", DCP_ROLE_MODEL, "w", DCP_F32 },
        { "optim.state.w.exp_avg", DCP_ROLE_EXP_AVG, "w", DCP_F32 } } },
    /* Of two that fit alike none is taken. */
    { "",
      "optim",
      { "optim.param_groups" },
      { { "red.w", DCP_ROLE_MODEL, "red.w", DCP_F32 },
        { "blue.w", DCP_ROLE_MODEL, "blue.w", DCP_F32 },
        { "optim.state.w.exp_avg", DCP_ROLE_EXP_AVG, "w", DCP_F32 } } },
    /* One within another. */
    { "net",
      "optim",
      { "optim.param_groups" },
      { { "net.last.w", DCP_ROLE_MODEL, "last.w", DCP_F32 },
        { "net.w", DCP_ROLE_MODEL, "w", DCP_F32 },
        { "optim.state.w.exp_avg", DCP_ROLE_EXP_AVG, "w", DCP_F32 } } },
    /* Without moments, any state tells. */
    { "net",
      "optim",
      { "optim.param_groups" },
      { { "rng", DCP_ROLE_OTHER, "rng", DCP_F32 },
        { "net.w", DCP_ROLE_MODEL, "w", DCP_F32 },
        { "optim.state.w.momentum_buffer", DCP_ROLE_OPTIM, "w", DCP_F32 } } },
    /* Numbers of a raw optimizer are not the names of lists. */
    { "model",
      "optim",
      { "optim.param_groups" },
      { { "model.0", DCP_ROLE_MODEL, "0", DCP_F32 },
        { "optim.state.0.exp_avg", DCP_ROLE_EXP_AVG, "0", DCP_F32 } } },
    { "",
      "optim",
      { "optim.param_groups" },
      { { "net.w", DCP_ROLE_MODEL, "net.w", DCP_F32 },
        { "shadow.0", DCP_ROLE_MODEL, "shadow.0", DCP_F32 },
        { "optim.state.0.exp_avg", DCP_ROLE_EXP_AVG, "0", DCP_F32 } } },
    /* Two raw optimizers, each with numbers of its own, and what two say of a name. */
    { "",
      "o1",
      { "o1.param_groups", "o2.param_groups", "o3.param_groups" },
      { { "o1.state.0.exp_avg", DCP_ROLE_EXP_AVG, "0", DCP_F32 },
        { "o1.state.0.step", DCP_ROLE_OPTIM, "0", DCP_F32 },
        { "o1.state.w.step", DCP_ROLE_OPTIM, "w", DCP_F32 },
        { "o2.state.0.step", DCP_ROLE_OPTIM, "o2.state.0.step", DCP_F32 },
        { "o2.state.1.exp_avg", DCP_ROLE_OPTIM, "o2.state.1.exp_avg", DCP_F32 },
        { "o3.state.v.exp_avg", DCP_ROLE_EXP_AVG, "v", DCP_F32 },
        { "o3.state.w.step", DCP_ROLE_OPTIM, "o3.state.w.step", DCP_F32 } } },
    /* At the top, and none beside it but the moments. */
    { "",
      "",
      { NULL },
      { { "h.0.w", DCP_ROLE_MODEL, "h.0.w", DCP_F32 },
        { "state.h.0.w.exp_avg", DCP_ROLE_EXP_AVG, "h.0.w", DCP_F32 } } },
    /* Megatron. */
    { "",
      "optimizer",
      { NULL },
      { { "decoder.w", DCP_ROLE_MODEL, "decoder.w", DCP_BF16 },
        { "optimizer.state.exp_avg.decoder.w", DCP_ROLE_EXP_AVG, "decoder.w", DCP_F32 },
        { "optimizer.state.fp32_param.decoder.w", DCP_ROLE_MASTER, "decoder.w",
          DCP_F32 } } },
    /* Without an optimizer: a usual container of all, or none. */
    { "model",
      NULL,
      { NULL },
      { { "model.a", DCP_ROLE_MODEL, "a", DCP_F32 },
        { "model.b.c", DCP_ROLE_BUFFER, "b.c", DCP_I64 } } },
    { "",
      NULL,
      { NULL },
      { { "model.a", DCP_ROLE_MODEL, "model.a", DCP_F32 },
        { "lm_head", DCP_ROLE_MODEL, "lm_head", DCP_F32 } } },
    /* Trainers beside weights at the top. */
    { "",
      NULL,
      { "train_state" },
      { { "fc.weight", DCP_ROLE_MODEL, "fc.weight", DCP_F32 },
        { "dataloader.n", DCP_ROLE_OTHER, "dataloader.n", DCP_F32 },
        { "lr_scheduler.n", DCP_ROLE_OTHER, "lr_scheduler.n", DCP_F32 } } },
    { "",
      NULL,
      { NULL },
      { { "fc.weight", DCP_ROLE_MODEL, "fc.weight", DCP_F32 },
        { "train_state.n", DCP_ROLE_OTHER, "train_state.n", DCP_F32 },
        { "callbacks.EMA{}.fc.weight", DCP_ROLE_OTHER, "callbacks.EMA{}.fc.weight",
          DCP_F32 },
        { "loops.fit_loop.n", DCP_ROLE_OTHER, "loops.fit_loop.n", DCP_F32 } } },
    /* Modules that are called as these. */
    { "",
      NULL,
      { NULL },
      { { "fc.weight", DCP_ROLE_MODEL, "fc.weight", DCP_F32 },
        { "loops.0.weight", DCP_ROLE_MODEL, "loops.0.weight", DCP_F32 },
        { "callbacks.net.weight", DCP_ROLE_MODEL, "callbacks.net.weight", DCP_F32 },
        { "dataloader.weight", DCP_ROLE_MODEL, "dataloader.weight", DCP_F32 },
        { "lr_scheduler.weight", DCP_ROLE_MODEL, "lr_scheduler.weight", DCP_F32 } } },
    /* A module that is called state. */
    { "",
      NULL,
      { NULL },
      { { "state.w", DCP_ROLE_MODEL, "state.w", DCP_F32 },
        { "x.state.w", DCP_ROLE_MODEL, "x.state.w", DCP_F32 } } },
};

static void check_table(const struct table *table)
{
    struct dcp_catalog *catalog;
    struct dcp_roles roles;
    struct dcp_roles_hints hints = { .beside = table->beside };

    while (table->beside[hints.n_beside])
        hints.n_beside++;
    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    for (const struct row *row = table->rows; row->name; row++) {
        const int64_t shape[] = { 2 };
        const struct dcp_tensor tensor = {
            .name = row->name, .dtype = row->dtype, .ndim = 1, .shape = shape
        };
        assert_int_equal(dcp_catalog_add_tensor(catalog, &tensor, NULL, NULL), 0);
    }
    assert_int_equal(dcp_roles_find(catalog, &hints, &roles, NULL), 0);
    assert_string_equal(roles.model, table->model);
    assert_int_equal(!roles.optim, !table->optim);
    if (table->optim)
        assert_string_equal(roles.optim, table->optim);
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (tensor->role != table->rows[t].role ||
            strcmp(tensor->param, table->rows[t].param) != 0)
            fail_msg("%s: %s of %s", tensor->name, dcp_role_name(tensor->role),
                     tensor->param);
    }
    dcp_catalog_free(catalog);
}

static void test_tables(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(tables); i++)
        check_table(&tables[i]);
}

/* Of two that fit by their names the one is taken that fits by its shapes, too. */
static void test_shapes(void **state)
{
    static const struct {
        const char *name;
        int64_t n;
    } tensors[] = { { "disc.w", 5 },
                    { "generator.w", 3 },
                    { "optim.state.w.exp_avg", 3 } };
    const char *const beside[] = { "optim.param_groups" };
    const struct dcp_roles_hints hints = { .beside = beside, .n_beside = 1 };
    struct dcp_catalog *catalog;
    struct dcp_roles roles;

    (void)state;
    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    for (size_t i = 0; i < DCP_ARRAY_LEN(tensors); i++) {
        const struct dcp_tensor tensor = {
            .name = tensors[i].name, .dtype = DCP_F32, .ndim = 1, .shape = &tensors[i].n
        };
        assert_int_equal(dcp_catalog_add_tensor(catalog, &tensor, NULL, NULL), 0);
    }
    assert_int_equal(dcp_roles_find(catalog, &hints, &roles, NULL), 0);
    assert_string_equal(roles.model, "generator");
    assert_int_equal(catalog->tensors[0].role, DCP_ROLE_OTHER);
    assert_int_equal(catalog->tensors[1].role, DCP_ROLE_MODEL);
    dcp_catalog_free(catalog);
}

/* -- buffers ------------------------------------------------------------------------- */

struct part {
    const char *name;
    enum dcp_dtype dtype;
    enum dcp_role role; /* that is found */
    int64_t shape[4];   /* up to a 0 */
    bool is_cut;
};

/* What is found of a model; `optimizer`: the one weight that it has moments of. */
static void check_buffers(const struct part *parts, size_t n, const char *optimizer,
                          const char *assumed)
{
    struct dcp_catalog *catalog;

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    for (size_t i = 0; i < n; i++) {
        struct dcp_tensor t = { .name = parts[i].name,
                                .dtype = parts[i].dtype,
                                .shape = parts[i].shape };
        struct dcp_piece piece = { .file = -1 };
        while (t.ndim < 4 && t.shape[t.ndim])
            t.ndim++;
        assert_int_equal(dcp_catalog_add_tensor(catalog, &t, &piece.tensor, NULL), 0);
        if (parts[i].is_cut)
            piece.region = (struct dcp_region){ .kind = DCP_FLAT, .end = 1 };
        assert_int_equal(dcp_catalog_add_piece(catalog, &piece, NULL), 0);
    }
    if (optimizer) {
        const struct dcp_tensor moment = {
            .name = "m", .param = optimizer, .role = DCP_ROLE_EXP_AVG, .dtype = DCP_F32
        };
        assert_int_equal(dcp_catalog_add_tensor(catalog, &moment, NULL, NULL), 0);
    }
    assert_int_equal(dcp_roles_find_buffers(catalog, NULL), 0);
    for (size_t i = 0; i < n; i++)
        if (catalog->tensors[i].role != parts[i].role)
            fail_msg("%s: %s", parts[i].name, dcp_role_name(catalog->tensors[i].role));
    if (assumed)
        assert_string_equal(catalog->assumed, assumed);
    else
        assert_null(catalog->assumed);
    dcp_catalog_free(catalog);
}

static void test_buffers(void **state)
{
    static const struct part known[] = {
        { "a.weight", DCP_F32, DCP_ROLE_MODEL, { 4, 4 }, false },
        { "bn.running_mean", DCP_F32, DCP_ROLE_BUFFER, { 4 }, false },
        { "bn.num_batches_tracked", DCP_I64, DCP_ROLE_BUFFER, { 0 }, false },
        { "rotary.inv_freq", DCP_F32, DCP_ROLE_BUFFER, { 4 }, false },
        { "h.0.attn.bias", DCP_F32, DCP_ROLE_BUFFER, { 1, 1, 8, 8 }, false },
        { "h.0.attn.c_attn.bias", DCP_F32, DCP_ROLE_MODEL, { 8 }, false },
        { "h.0.attn.masked_bias", DCP_F32, DCP_ROLE_BUFFER, { 0 }, false },
        { "quantized.weight", DCP_I8, DCP_ROLE_MODEL, { 4, 4 }, false },
        { "phase", DCP_C64, DCP_ROLE_MODEL, { 4 }, false },
        { "mask", DCP_BOOL, DCP_ROLE_BUFFER, { 4 }, false },
    };
    static const struct part guessed[] = {
        { "a.weight", DCP_F32, DCP_ROLE_MODEL, { 4, 4 }, false },
        { "factor", DCP_F32, DCP_ROLE_MODEL, { 4 }, false },
        { "other", DCP_F32, DCP_ROLE_MODEL, { 4 }, false },
    };
    static const struct part partly[] = {
        { "a.weight", DCP_F32, DCP_ROLE_MODEL, { 4, 4 }, false },
        { "b.weight", DCP_F32, DCP_ROLE_MODEL, { 4, 4 }, false },
        { "ema", DCP_F32, DCP_ROLE_BUFFER, { 4 }, false },
    };
    static const struct part trained[] = {
        { "bn.running_mean", DCP_F32, DCP_ROLE_MODEL, { 4 }, false },
        { "bn.weight", DCP_F32, DCP_ROLE_MODEL, { 4 }, true },
    };
    static const struct part cut[] = {
        { "a", DCP_F32, DCP_ROLE_MODEL, { 4, 4 }, true },
        { "whole", DCP_F32, DCP_ROLE_BUFFER, { 4 }, false },
        { "scalar", DCP_F32, DCP_ROLE_BUFFER, { 0 }, false },
        { "one", DCP_F32, DCP_ROLE_MODEL, { 1 }, false },
    };

    (void)state;
    check_buffers(known, DCP_ARRAY_LEN(known), NULL, NULL);
    check_buffers(guessed, DCP_ARRAY_LEN(guessed), NULL,
                  "2 tensors, of which no optimizer tells, are trained ('factor' and "
                  "others)");
    check_buffers(partly, DCP_ARRAY_LEN(partly), "a.weight",
                  "1 tensor that the optimizer does not know is frozen ('b.weight'); 1 "
                  "tensor that the optimizer does not know is a buffer ('ema')");
    check_buffers(trained, DCP_ARRAY_LEN(trained), "bn.running_mean",
                  "1 tensor that the optimizer does not know is frozen ('bn.weight')");
    check_buffers(cut, DCP_ARRAY_LEN(cut), NULL,
                  "2 tensors that no rank shares are buffers ('whole' and others); 1 "
                  "tensor, of which no optimizer tells, is trained ('one')");
}

/* Paths that are known: only there may a container end. */
static bool joint_at_five(void *self, int tensor, size_t at)
{
    (void)self;
    (void)tensor;
    return at == 5;
}

static void test_joints(void **state)
{
    static const char *const names[] = { "model.a.w", "other.w", "net.b" };
    const struct dcp_roles_hints hints = { .is_joint = joint_at_five };
    const int64_t shape[] = { 1 };
    struct dcp_catalog *catalog;
    struct dcp_roles roles;

    (void)state;
    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    for (size_t i = 0; i < DCP_ARRAY_LEN(names); i++) {
        const struct dcp_tensor tensor = { .name = names[i], .ndim = 1, .shape = shape };
        assert_int_equal(dcp_catalog_add_tensor(catalog, &tensor, NULL, NULL), 0);
    }
    assert_int_equal(dcp_roles_find(catalog, &hints, &roles, NULL), 0);
    assert_string_equal(roles.model, "model"); /* though not all stand in it */
    assert_string_equal(catalog->tensors[0].param, "a.w");
    assert_int_equal(catalog->tensors[1].role, DCP_ROLE_OTHER);
    dcp_catalog_free(catalog);
}

static void test_keys(void **state)
{
    static const struct {
        const char *name, *param, *key;
    } cases[] = {
        { "optim.state.a.w.step", "a.w", "step" },
        { "optimizer.optim.a.w", "a.w", "optim" },
        { "optimizer.state.max_exp_avg_sq.a.w", "a.w", "max_exp_avg_sq" },
        { "w.w.x", "w", "x" },
        { "alone", "alone", "" },
        { "b.state.a.x.y", "a", "x.y" },
        { "ba.x", "a", "" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        const struct dcp_tensor tensor = { .name = cases[i].name,
                                           .param = cases[i].param };
        const char *key;
        size_t n;
        dcp_roles_key(&tensor, &key, &n);
        if (n != strlen(cases[i].key) || memcmp(key, cases[i].key, n) != 0)
            fail_msg("%s: '%.*s'", cases[i].name, (int)n, key);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables),  cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_buffers), cmocka_unit_test(test_joints),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
