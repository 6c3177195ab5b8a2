/* groups: what is set of parameters, as other programs have it. */
#include "formats/common/training.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void add(struct dcp_catalog *catalog, const char *name, const char *text)
{
    const struct dcp_object object = {
        .name = name, .kind = DCP_OBJECT_JSON, .data = text, .size_bytes = strlen(text)
    };
    assert_int_equal(dcp_catalog_add_object(catalog, &object, NULL), DCP_OK);
}

static void check(const struct dcp_catalog *catalog, const char *wanted)
{
    json_t *groups = NULL;
    assert_int_equal(dcp_training_groups(catalog, &groups, NULL), DCP_OK);
    char *text = json_dumps(groups, JSON_COMPACT);
    assert_string_equal(text, wanted);
    free(text);
    json_decref(groups);
}

static void several_optimizers(void **state)
{
    (void)state;
    struct dcp_catalog *catalog = NULL;

    assert_int_equal(dcp_catalog_new(&catalog, NULL), DCP_OK);
    check(catalog, "[]");
    add(catalog, "optimizer.scale.w", "2");
    add(catalog, "optimizer.muon", "{\"param_groups\":[{\"lr\":1,\"params\":[\"a\"]}]}");
    add(catalog, "optimizer.adam",
        "{\"param_groups\":[{\"lr\":2,\"params\":[\"b\"]},{\"lr\":3,\"params\":[]}]}");
    add(catalog, "optimizers", "{\"param_groups\":[{\"lr\":4}]}");
    check(catalog, "[{\"lr\":1,\"params\":[\"a\"]},{\"lr\":2,\"params\":[\"b\"]},"
                   "{\"lr\":3,\"params\":[]}]");
    add(catalog, "optimizer", "{\"param_groups\":[{\"lr\":5}]}"); /* the one of all */
    check(catalog, "[{\"lr\":5}]");
    dcp_catalog_free(catalog);
}

/* Updates of each weight are the most that one had; a single count is refused. */
static void counts_that_differ(void **state)
{
    struct dcp_catalog *catalog = NULL;
    int64_t updates = 0;

    (void)state;
    for (int differ = 0; differ < 2; differ++) {
        assert_int_equal(dcp_catalog_new(&catalog, NULL), DCP_OK);
        add(catalog, "trainer", "{\"step\":9}");
        add(catalog, "optimizer", differ ? "{\"steps\":[2,3]}" : "{\"step\":3}");
        assert_int_equal(dcp_training_updates(catalog, &updates, NULL), DCP_OK);
        assert_int_equal(updates, 3);
        assert_int_equal(dcp_training_one_count(catalog, "x", NULL),
                         differ ? DCP_E_MISMATCH : DCP_OK);
        dcp_catalog_free(catalog);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_optimizers),
        cmocka_unit_test(counts_that_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
