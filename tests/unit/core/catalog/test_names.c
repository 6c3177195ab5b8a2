/* The names of a catalog's tensors: each leads to its tensor, and stands there once. */
#include "base/mem.h"
#include "core/catalog/names.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N = 20000, NAME_BYTES = 16 };

static struct dcp_tensor *tensors_of(char (*names)[NAME_BYTES])
{
    struct dcp_tensor *tensors = dcp_mem_calloc(N, sizeof *tensors);

    assert_non_null(tensors);
    for (int t = 0; t < N; t++) {
        snprintf(names[t], NAME_BYTES, "h.%d", t);
        tensors[t].name = names[t];
    }
    return tensors;
}

static void names_lead_to_their_tensors(void **state)
{
    static char names[N][NAME_BYTES];
    struct dcp_tensor *tensors = tensors_of(names);
    int found;

    for (int reserved = 0; reserved < 2; reserved++) {
        struct dcp_names all = { 0 };
        (void)state;
        assert_int_equal(dcp_names_find(&all, tensors, "h.0"), -1);
        assert_true(dcp_names_reserve(&all, reserved ? N : 0));
        size_t cap = all.cap;
        for (int t = 0; t < N; t++) {
            assert_int_equal(dcp_names_find(&all, tensors, names[t]), -1);
            assert_true(dcp_names_add(&all, tensors, t, &found));
            assert_int_equal(found, t);
        }
        assert_true(!reserved || all.cap == cap);
        for (int t = 0; t < N; t++)
            assert_int_equal(dcp_names_find(&all, tensors, names[t]), t);
        assert_int_equal(dcp_names_find(&all, tensors, ""), -1);
        assert_int_equal(dcp_names_find(&all, tensors, "h.20000"), -1);
        dcp_names_fini(&all);
    }
    free(tensors);
}

static void a_name_stands_once(void **state)
{
    struct dcp_tensor tensors[] = { { .name = "a" }, { .name = "b" }, { .name = "a" } };
    struct dcp_names all = { 0 };
    int found;

    (void)state;
    for (int t = 0; t < 3; t++) {
        assert_true(dcp_names_add(&all, tensors, t, &found));
        assert_int_equal(found, t % 2);
    }
    assert_int_equal(all.n, 2);
    assert_false(dcp_names_reserve(&all, SIZE_MAX / 2));
    assert_int_equal(dcp_names_find(&all, tensors, "a"), 0);
    dcp_names_fini(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_lead_to_their_tensors),
        cmocka_unit_test(a_name_stands_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
