/* A step without its optimizer state has all else that it had. */
#include "lib/acts.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { N = 600 };

static void save(const struct dcp_store *store, int64_t step)
{
    static const int64_t shape[] = { N };
    static float data[5][N];
    struct dcp_local_tensor locals[] = {
        { .name = "w", .role = DCP_ROLE_MODEL },
        { .name = "w.average", .param = "w", .role = DCP_ROLE_OTHER },
        { .name = "mask", .role = DCP_ROLE_BUFFER },
        { .name = "w.exp_avg", .param = "w", .role = DCP_ROLE_EXP_AVG },
        { .name = "w.master", .param = "w", .role = DCP_ROLE_MASTER },
    };
    const struct dcp_object objects[] = {
        { .name = "note", .kind = DCP_OBJECT_BYTES, .data = "\0x", .size_bytes = 2 },
        { .name = DCP_TRAINING_OPTIMIZER,
          .kind = DCP_OBJECT_JSON,
          .data = "{}",
          .size_bytes = 2 },
    };
    const struct dcp_state state = { .locals = locals,
                                     .n_locals = 5,
                                     .objects = objects,
                                     .n_objects = 2,
                                     .layout = "of mine",
                                     .mesh = { 1, 1, 1 } };
    const struct dcp_context ctx = { .store = store };
    const struct dcp_export made = { "made.bin", "torch", DCP_BF16 };

    for (int t = 0; t < 5; t++) {
        locals[t].dtype = DCP_F32;
        locals[t].ndim = 1;
        locals[t].shape = shape;
        locals[t].data = data[t];
        for (int i = 0; i < N; i++)
            data[t][i] = (float)(i + t) + (float)step / 8;
    }
    assert_int_equal(
        dcp_save(&ctx, &(struct dcp_save_options){ .step = step, .consolidated = &made },
                 &state, NULL, NULL),
        0);
}

static struct dcp_catalog *index_of(const struct dcp_store *store, const char *step)
{
    const struct dcp_source source = { store, step, true };
    struct dcp_catalog *catalog;

    assert_int_equal(
        dcp_verify(&source, &(struct dcp_verify_options){ .threads = 1 }, NULL, NULL), 0);
    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    assert_int_equal(dcp_format_find("native")->index(&source, catalog, NULL), 0);
    return catalog;
}

static const struct dcp_retention one = { .keep_optimizer = 1 };

static void all_but_the_optimizer_is_the_same(void **state)
{
    const struct dcp_store *store = *state;
    static const char *const stay[] = { "w", "w.average", "mask" };
    char made[2][8192];

    save(store, 1);
    save(store, 2);
    struct dcp_catalog *before = index_of(store, "step-00000001");
    void *text;
    size_t n;
    assert_int_equal(dcp_store_read_file(store, "step-00000001/made.bin", sizeof made[0],
                                         &text, &n, NULL),
                     0);
    memcpy(made[0], text, n);
    free(text);
    assert_int_equal(dcp_prune(store, &one, NULL, NULL), 0);
    struct dcp_catalog *after = index_of(store, "step-00000001");
    assert_true(dcp_holds_weights_only(after));
    assert_false(dcp_holds_weights_only(before));
    assert_int_equal(after->n_tensors, 3);
    for (int i = 0; i < 3; i++) {
        int a = dcp_catalog_find(before, stay[i]), b = dcp_catalog_find(after, stay[i]);
        assert_true(a >= 0 && b >= 0);
        assert_int_equal(before->tensors[a].fingerprint, after->tensors[b].fingerprint);
        assert_int_equal(before->tensors[a].role, after->tensors[b].role);
    }
    assert_int_equal(after->n_objects, 1);
    assert_string_equal(after->objects[0].name, "note");
    assert_int_equal(after->mesh.tp, 1);
    assert_int_equal(dcp_store_read_file(store, "step-00000001/made.bin", sizeof made[1],
                                         &text, &n, NULL),
                     0);
    assert_memory_equal(made[0], text, n);
    free(text);
    dcp_catalog_free(before);
    dcp_catalog_free(after);
}

static void damage_of_what_is_copied_is_found(void **state)
{
    const struct dcp_store *store = *state;
    struct dcp_store_file *file;
    struct dcp_error err = { 0 };
    struct dcp_step *steps;
    size_t n;

    save(store, 1);
    save(store, 2);
    assert_int_equal(
        store->ops->reopen(store->self, "step-00000001/made.bin", &file, NULL), 0);
    assert_int_equal(store->ops->write_at(store->self, file, 700, "?!", 2, NULL), 0);
    assert_int_equal(store->ops->close(store->self, file, NULL), 0);
    assert_int_equal(dcp_prune(store, &one, NULL, &err), DCP_E_CORRUPT);
    assert_non_null(strstr(err.message, "'made.bin' is corrupt"));
    assert_int_equal(dcp_steps(store, &steps, &n, NULL, NULL), 0);
    assert_int_equal(n, 2);
    assert_false(steps[1].weights_only);
    free(steps);
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, acts_setup, acts_teardown)
    const struct CMUnitTest tests[] = {
        EACH(all_but_the_optimizer_is_the_same),
        EACH(damage_of_what_is_copied_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
