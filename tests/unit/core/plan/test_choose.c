/* Which tensors a target gets: what fits, what is made of another, what is a tie. */
#include "core/plan/contents.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int64_t shape[] = { 6, 4 };

static void add(struct dcp_catalog *catalog, const char *name, enum dcp_role role,
                const char *param, enum dcp_dtype dtype)
{
    const struct dcp_tensor tensor = { .name = name,
                                       .param = param,
                                       .role = role,
                                       .dtype = dtype,
                                       .ndim = 2,
                                       .shape = shape };
    struct dcp_piece piece = { .file = -1 };

    assert_int_equal(dcp_catalog_add_tensor(catalog, &tensor, &piece.tensor, NULL), 0);
    assert_int_equal(dcp_catalog_add_piece(catalog, &piece, NULL), 0);
}

static struct dcp_catalog *new_catalog(void)
{
    struct dcp_catalog *catalog;

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    return catalog;
}

/* Two weights with moments, saved in a container. */
static struct dcp_catalog *training(bool masters, bool weights)
{
    struct dcp_catalog *catalog = new_catalog();

    if (weights) {
        add(catalog, "model.a", DCP_ROLE_MODEL, "a", DCP_F32);
        add(catalog, "model.b", DCP_ROLE_MODEL, "b", DCP_F32);
        add(catalog, "model.frozen", DCP_ROLE_MODEL, "frozen", DCP_F32);
    }
    if (masters) {
        add(catalog, "optimizer.master.a", DCP_ROLE_MASTER, "a", DCP_F32);
        add(catalog, "optimizer.master.b", DCP_ROLE_MASTER, "b", DCP_F32);
    }
    add(catalog, "optim.state.a.exp_avg", DCP_ROLE_EXP_AVG, "a", DCP_F32);
    add(catalog, "optim.state.b.exp_avg", DCP_ROLE_EXP_AVG, "b", DCP_F32);
    assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
    return catalog;
}

struct made {
    struct dcp_catalog *src, *target;
    int *src_tensor;
    int rc;
    struct dcp_error err;
};

static struct made make(struct dcp_catalog *src, const struct dcp_format *format,
                        struct dcp_reshard_options options)
{
    struct made made = { .src = src };
    struct dcp_reshard_plan facts = { 0 };

    if (!options.dtype)
        options.dtype = -1;
    made.rc = dcp_contents_new(src, format, &options, &facts, &made.target,
                               &made.src_tensor, &made.err);
    struct dcp_target target = { .format = format, .catalog = made.target };
    if (!made.rc)
        made.rc = format->flags & DCP_FORMAT_SHARDED
                      ? dcp_partition_by_layout(&target, &made.err)
                      : dcp_partition_whole(&target, &made.err);
    return made;
}

static void unmake(struct made *made)
{
    dcp_catalog_free(made->src);
    dcp_catalog_free(made->target);
    free(made->src_tensor);
}

/* The tensor of the target with that name is made of that one. */
static void is_made_of(const struct made *made, const char *name, const char *from,
                       enum dcp_dtype dtype)
{
    int at = dcp_catalog_find(made->target, name);

    assert_true(at >= 0);
    assert_string_equal(made->src->tensors[made->src_tensor[at]].name, from);
    assert_int_equal(made->target->tensors[at].dtype, dtype);
}

static enum dcp_disposition refuses_moments(const struct dcp_catalog *src,
                                            const struct dcp_identity *of_src,
                                            const struct dcp_catalog *target,
                                            const struct dcp_tensor *tensor)
{
    (void)src, (void)of_src, (void)target;
    return tensor->role == DCP_ROLE_EXP_AVG ? DCP_DISPOSITION_UNSUPPORTED
                                            : DCP_DISPOSITION_STORED;
}

static const struct dcp_format plain = { .name = "plain", .flags = DCP_FORMAT_OPTIM };
static const struct dcp_format weights = { .name = "weights" };
static const struct dcp_format ties = { .name = "ties",
                                        .flags = DCP_FORMAT_OPTIM | DCP_FORMAT_TIES };
static const struct dcp_format masters = { .name = "masters",
                                           .flags =
                                               DCP_FORMAT_OPTIM | DCP_FORMAT_MASTERS };
static const struct dcp_format picky = { .name = "picky",
                                         .flags = DCP_FORMAT_OPTIM,
                                         .disposition = refuses_moments };
static const struct dcp_format sharded = { .name = "sharded",
                                           .flags = DCP_FORMAT_OPTIM | DCP_FORMAT_SHARDED,
                                           .layouts = "dim0 replicated" };

static void what_does_not_fit(void **state)
{
    (void)state;
    struct made made =
        make(training(false, true), &picky, (struct dcp_reshard_options){ 0 });

    assert_int_equal(made.rc, DCP_E_MISMATCH);
    assert_non_null(strstr(made.err.message, "picky cannot hold"));
    assert_non_null(strstr(made.err.hint, "--lossy"));
    unmake(&made);
    made = make(training(false, true), &picky,
                (struct dcp_reshard_options){ .lossy = true });
    assert_int_equal(made.rc, 0);
    assert_int_equal(made.target->n_tensors, 3);
    unmake(&made);
}

static void weights_of_masters(void **state)
{
    (void)state;
    struct dcp_catalog *src = training(true, false);
    src->weights_dtype = DCP_BF16;
    struct made made = make(src, &plain, (struct dcp_reshard_options){ 0 });

    assert_int_equal(made.rc, 0);
    assert_int_equal(made.target->n_tensors, 6);
    is_made_of(&made, "a", "optimizer.master.a", DCP_BF16);
    is_made_of(&made, "optimizer.master.a", "optimizer.master.a", DCP_F32);
    unmake(&made);

    /* Alone they are as exact as they can be. */
    src = training(true, false);
    src->weights_dtype = DCP_BF16;
    made = make(src, &plain, (struct dcp_reshard_options){ .only = DCP_ONLY_MODEL });
    assert_int_equal(made.target->n_tensors, 2);
    is_made_of(&made, "b", "optimizer.master.b", DCP_F32);
    unmake(&made);
}

static void masters_of_weights(void **state)
{
    (void)state;
    struct made made =
        make(training(false, true), &masters, (struct dcp_reshard_options){ 0 });

    assert_int_equal(made.rc, 0);
    is_made_of(&made, "optimizer.master.a", "model.a", DCP_F32);
    assert_int_equal(dcp_catalog_find(made.target, "optimizer.master.frozen"), -1);
    assert_int_equal(made.target->n_tensors, 7);
    unmake(&made);
    made = make(training(true, true), &masters, (struct dcp_reshard_options){ 0 });
    is_made_of(&made, "optimizer.master.a", "optimizer.master.a", DCP_F32);
    assert_int_equal(made.target->n_tensors, 7);
    unmake(&made);
}

/* An optimizer without moments keeps something else of what it trains, or masters. */
static void what_is_frozen_gets_no_master(void **state)
{
    (void)state;
    static const enum dcp_role kept[] = { DCP_ROLE_OPTIM, DCP_ROLE_MASTER };

    for (size_t i = 0; i < 2; i++) {
        struct dcp_catalog *src = new_catalog();
        add(src, "a", DCP_ROLE_MODEL, "a", DCP_BF16);
        add(src, "frozen", DCP_ROLE_MODEL, "frozen", DCP_BF16);
        add(src, "optimizer.kept.a", kept[i], "a", DCP_F32);
        assert_int_equal(dcp_catalog_sort(src, NULL), 0);
        struct made made = make(src, &masters, (struct dcp_reshard_options){ 0 });
        assert_int_equal(made.rc, 0);
        assert_int_equal(dcp_catalog_find(made.target, "optimizer.master.frozen"), -1);
        assert_int_equal(made.target->n_tensors, kept[i] == DCP_ROLE_OPTIM ? 4 : 3);
        unmake(&made);
    }
}

static void the_model_alone_has_its_own_names(void **state)
{
    (void)state;
    struct made made = make(training(false, true), &plain,
                            (struct dcp_reshard_options){ .only = DCP_ONLY_MODEL });

    assert_int_equal(made.target->n_tensors, 3);
    is_made_of(&made, "a", "model.a", DCP_F32);
    unmake(&made);
    made = make(training(false, true), &plain, (struct dcp_reshard_options){ 0 });
    is_made_of(&made, "model.a", "model.a", DCP_F32);
    unmake(&made);
    made = make(training(false, true), &weights,
                (struct dcp_reshard_options){ .lossy = true });
    assert_int_equal(made.target->n_tensors, 3);
    is_made_of(&made, "a", "model.a", DCP_F32);
    unmake(&made);
}

static void without_data(void **state)
{
    (void)state;
    struct dcp_catalog *catalog = training(false, true);
    catalog->tensors[2].is_meta = true;
    struct made made = make(catalog, &plain, (struct dcp_reshard_options){ 0 });
    assert_int_equal(made.rc, DCP_E_UNSUPPORTED);
    assert_non_null(strstr(made.err.message, "'model.frozen' was saved on the meta"));
    assert_int_equal(dcp_catalog_check(catalog, &made.err), DCP_E_UNSUPPORTED);
    unmake(&made);
    catalog = training(false, true);
    catalog->tensors[2].is_meta = true;
    made = make(catalog, &plain, (struct dcp_reshard_options){ .lossy = true });
    assert_int_equal(made.rc, 0);
    assert_int_equal(dcp_catalog_find(made.target, "model.frozen"), -1);
    unmake(&made);
}

static struct dcp_catalog *tied(void)
{
    struct dcp_catalog *catalog = new_catalog();

    add(catalog, "wte", DCP_ROLE_MODEL, NULL, DCP_F32);
    assert_int_equal(dcp_catalog_add_alias(catalog, "head", 0, NULL), 0);
    add(catalog, "norm", DCP_ROLE_MODEL, NULL, DCP_F32);
    assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
    return catalog;
}

static void second_names(void **state)
{
    (void)state;
    struct made made = make(tied(), &ties, (struct dcp_reshard_options){ 0 });
    int head = dcp_catalog_find(made.target, "head");

    assert_int_equal(head, 2); /* last */
    assert_string_equal(made.target->tensors[head].tied_to, "wte");
    assert_int_equal(made.target->tensors[head].n_pieces, 0);
    unmake(&made);

    /* In full: where the format cannot say it, where it is asked for, and where the first
     * name is not there. */
    const char *const only_head[] = { "head", NULL };
    made = make(tied(), &plain, (struct dcp_reshard_options){ 0 });
    assert_null(made.target->tensors[2].tied_to);
    assert_int_equal(made.target->tensors[2].n_pieces, 1);
    unmake(&made);
    made =
        make(tied(), &ties, (struct dcp_reshard_options){ .target = { .untie = true } });
    assert_null(made.target->tensors[2].tied_to);
    unmake(&made);
    made = make(tied(), &ties, (struct dcp_reshard_options){ .select = only_head });
    assert_int_equal(made.target->n_tensors, 1);
    assert_null(made.target->tensors[0].tied_to);
    unmake(&made);
}

static void layouts_of_a_format(void **state)
{
    (void)state;
    struct dcp_catalog *src = training(false, true);
    src->layout = "zero3";
    struct made made =
        make(src, &sharded, (struct dcp_reshard_options){ .world_size = 3 });

    assert_string_equal(made.target->layout, "dim0");
    unmake(&made);
    src = training(false, true);
    src->layout = "replicated";
    made = make(src, &sharded, (struct dcp_reshard_options){ .world_size = 3 });
    assert_string_equal(made.target->layout, "replicated");
    unmake(&made);
    made = make(training(false, true), &sharded,
                (struct dcp_reshard_options){ .layout = "zero3" });
    assert_int_equal(made.rc, DCP_E_MISMATCH);
    assert_non_null(strstr(made.err.hint, "dim0 replicated"));
    unmake(&made);
}

/* A weight of 16 bits, its second name, and its master. */
static struct dcp_catalog *mixed(const char *format)
{
    struct dcp_catalog *catalog = new_catalog();

    catalog->format = format;
    add(catalog, "a", DCP_ROLE_MODEL, "a", DCP_BF16);
    add(catalog, "frozen", DCP_ROLE_MODEL, "frozen", DCP_BF16);
    assert_int_equal(dcp_catalog_add_alias(catalog, "again", 0, NULL), 0);
    add(catalog, "optimizer.master.a", DCP_ROLE_MASTER, "a", DCP_F32);
    assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
    return catalog;
}

/* Where a weight is there twice, the dtype that is asked for tells which is meant, and
 * DeepSpeed's users mean the master. */
static void which_weights(void **state)
{
    static const struct {
        const char *format;
        struct dcp_reshard_options options;
        const char *from; /* what a is made of */
        enum dcp_dtype dtype;
    } rows[] = {
        { "native", { .only = DCP_ONLY_MODEL }, "a", DCP_BF16 },
        { "native",
          { .only = DCP_ONLY_MODEL, .dtype = DCP_F32 },
          "optimizer.master.a",
          DCP_F32 },
        { "native", { .dtype = DCP_F32 }, "optimizer.master.a", DCP_F32 },
        { "native",
          { .only = DCP_ONLY_MODEL, .dtype = DCP_F16 },
          "optimizer.master.a",
          DCP_F16 },
        { "native", { .only = DCP_ONLY_MODEL, .dtype = DCP_BF16 }, "a", DCP_BF16 },
        { "native",
          { .only = DCP_ONLY_MODEL, .weights = DCP_WEIGHTS_MASTER },
          "optimizer.master.a",
          DCP_F32 },
        { "native",
          { .only = DCP_ONLY_MODEL, .dtype = DCP_F32, .weights = DCP_WEIGHTS_MODEL },
          "a",
          DCP_F32 },
        { "deepspeed", { .only = DCP_ONLY_MODEL }, "optimizer.master.a", DCP_F32 },
        { "deepspeed",
          { .only = DCP_ONLY_MODEL, .weights = DCP_WEIGHTS_MODEL },
          "a",
          DCP_BF16 },
        { "deepspeed", { .only = DCP_ONLY_ALL }, "a", DCP_BF16 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct made made = make(mixed(rows[i].format), &plain, rows[i].options);
        assert_int_equal(made.rc, 0);
        is_made_of(&made, "a", rows[i].from, rows[i].dtype);
        is_made_of(&made, "again", strcmp(rows[i].from, "a") ? rows[i].from : "again",
                   rows[i].dtype);
        is_made_of(&made, "frozen", "frozen",
                   rows[i].options.dtype ? rows[i].dtype : DCP_BF16);
        unmake(&made);
    }
    struct made made =
        make(training(false, true), &plain,
             (struct dcp_reshard_options){ .weights = DCP_WEIGHTS_MASTER });
    assert_int_equal(made.rc, DCP_E_MISMATCH);
    assert_string_equal(made.err.message, "the source holds no master weights");
    unmake(&made);
    made = make(new_catalog(), &plain, (struct dcp_reshard_options){ 0 });
    assert_int_equal(made.rc, DCP_E_MISMATCH);
    assert_string_equal(made.err.message, "the source holds no tensors");
    unmake(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_fit),
        cmocka_unit_test(weights_of_masters),
        cmocka_unit_test(masters_of_weights),
        cmocka_unit_test(what_is_frozen_gets_no_master),
        cmocka_unit_test(the_model_alone_has_its_own_names),
        cmocka_unit_test(without_data),
        cmocka_unit_test(second_names),
        cmocka_unit_test(layouts_of_a_format),
        cmocka_unit_test(which_weights),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
