/* A load says which weights of the step the model has not, and which tensors of an
 * optimizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

struct heard {
    int n;
    char last[400];
};

static void hear(void *self, enum dcp_log_level level, const char *message)
{
    struct heard *heard = self;

    assert_int_equal(level, DCP_LOG_WARN);
    heard->n++;
    snprintf(heard->last, sizeof heard->last, "%s", message);
}

static const int64_t shape[] = { 2 };
static float numbers[4][2] = { { 1, 2 }, { 3, 4 }, { 5, 6 }, { 1, 2 } };

/* "d" has the numbers of "a": it is tied, for all that a step says. */
static struct dcp_local_tensor tensor(const char *name, enum dcp_role role)
{
    return (struct dcp_local_tensor){ .name = name,
                                      .role = role,
                                      .dtype = DCP_F32,
                                      .ndim = 1,
                                      .shape = shape,
                                      .data = numbers[name[0] - 'a'] };
}

/* A step of these in a store that is made. */
static void save(struct dcp_store *store, const struct dcp_local_tensor *locals, size_t n)
{
    const struct dcp_context ctx = { .store = store, .threads = 1 };
    const struct dcp_save_options options = { .step = 1 };
    const struct dcp_state whole = { .locals = locals, .n_locals = n };

    assert_int_equal(dcp_store_mem(store, NULL), DCP_OK);
    assert_int_equal(dcp_save(&ctx, &options, &whole, NULL, NULL), DCP_OK);
}

static void check(const struct dcp_store *store, const struct dcp_local_tensor *locals,
                  size_t n, bool with_optimizer, const char *wanted)
{
    struct heard heard = { 0 };
    const struct dcp_log log = { hear, &heard, DCP_LOG_WARN };
    const struct dcp_context ctx = { .store = store, .threads = 1, .log = &log };
    const struct dcp_load_options options = { .step = -1,
                                              .with_optimizer = with_optimizer };
    const struct dcp_state into = { .locals = locals, .n_locals = n };

    assert_int_equal(dcp_load(&ctx, &options, &into, NULL, NULL), DCP_OK);
    assert_string_equal(heard.last, wanted);
    assert_int_equal(heard.n, *wanted ? 1 : 0);
}

static void weights_that_are_left(void **state)
{
    (void)state;
    struct dcp_store store;
    struct dcp_local_tensor all[] = { tensor("a", DCP_ROLE_MODEL),
                                      tensor("b", DCP_ROLE_MODEL),
                                      tensor("c", DCP_ROLE_MODEL),
                                      tensor("d", DCP_ROLE_MODEL) };

    save(&store, all, 4);
    check(&store, all, 4, false, "");
    check(&store, all, 3, false, ""); /* "d" is another name of "a" */
    check(&store, all, 2, false, "the step has 1 weight that the model has not, 'c'");
    check(&store, all, 1, false,
          "the step has 2 weights that the model has not, 'b' the first of them");
    all[0].role = DCP_ROLE_OTHER; /* asked for by its name, and not as a model */
    check(&store, all, 1, false, "");
    dcp_store_free(&store);
}

/* A model may ask for a master as its weight, and has the weight then, and what is tied
 * to that. */
static void masters_that_are_weights(void **state)
{
    (void)state;
    struct dcp_store store;
    struct dcp_local_tensor all[] = { tensor("a", DCP_ROLE_MODEL),
                                      tensor("b", DCP_ROLE_MASTER),
                                      tensor("c", DCP_ROLE_MODEL),
                                      tensor("d", DCP_ROLE_MODEL) };
    all[1].param = "a";

    save(&store, all, 4);
    all[1].role = DCP_ROLE_MODEL;
    check(&store, all + 1, 1, false, "the step has 1 weight that the model has not, 'c'");
    check(&store, all + 1, 2, false, "");
    dcp_store_free(&store);
}

static void what_an_optimizer_lacks(void **state)
{
    (void)state;
    struct dcp_store store;
    struct dcp_local_tensor all[] = { tensor("a", DCP_ROLE_MODEL),
                                      tensor("b", DCP_ROLE_OPTIM),
                                      tensor("c", DCP_ROLE_MASTER),
                                      tensor("d", DCP_ROLE_EXP_AVG) };
    struct dcp_local_tensor count = {
        .name = "count", .role = DCP_ROLE_OPTIM, .dtype = DCP_F32, .data = numbers[1]
    };
    struct dcp_local_tensor saved[] = { all[0], all[1], all[2], all[3], count };

    save(&store, saved, 5);
    check(&store, all, 1, false, ""); /* weights alone are wanted */
    check(&store, all, 4, true, "");  /* a count is no loss: settings have it */
    /* The numbers of a weight do not make "d" another name of it. */
    check(&store, all, 3, true, "the step has 1 tensor that the optimizer has not, 'd'");
    check(&store, all, 1, true,
          "the step has 3 tensors that the optimizer has not, 'b' the first of them");
    dcp_store_free(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_that_are_left),
        cmocka_unit_test(masters_that_are_weights),
        cmocka_unit_test(what_an_optimizer_lacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
