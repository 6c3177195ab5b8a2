/* Lineage: written and read back, foreign text is none; and the number of a state. */
#include "lib/acts.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

static struct dcp_lineage read_text(const char *text)
{
    struct dcp_object object = { .name = DCP_LINEAGE,
                                 .kind = DCP_OBJECT_JSON,
                                 .data = text,
                                 .size_bytes = strlen(text) };
    struct dcp_catalog *catalog;
    struct dcp_lineage lineage;

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    assert_int_equal(dcp_catalog_add_object(catalog, &object, NULL), 0);
    dcp_lineage_read(catalog, &lineage);
    dcp_catalog_free(catalog);
    return lineage;
}

static void round_trip(void **state)
{
    static const struct dcp_lineage cases[] = {
        { .run = UINT64_MAX, .parent = INT64_MAX, .fingerprint = UINT64_MAX },
        { .run = 1, .parent = 0, .fingerprint = 7 },
        { .run = 1, .parent = 5 },
        { .run = 1, .parent = -1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[DCP_LINEAGE_CAP];
        struct dcp_object object;
        dcp_lineage_object(&cases[i], text, &object);
        struct dcp_lineage read = read_text(object.data);
        assert_true(read.run == cases[i].run);
        assert_int_equal(read.parent, cases[i].parent);
        assert_true(read.fingerprint == cases[i].fingerprint);
    }
}

static void what_is_none(void **state)
{
    static const char *const texts[] = { "[]", "{}", "{", "{\"run\":1}",
                                         "{\"run\":\"0\",\"parent\":3}" };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct dcp_lineage read = read_text(texts[i]);
        assert_true(!read.run && read.parent == -1 && !read.fingerprint);
    }
    assert_int_equal(read_text("{\"run\":\"00000000000000ff\",\"parent\":-7}").parent,
                     -1);
}

/* Equal at every world size and codec; another state has another one. */
static void fingerprints(void **state)
{
    struct dcp_store store;
    struct dcp_step *steps;
    size_t n;

    (void)state;
    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    for (int i = 1; i <= 3; i++) {
        struct acts acts = { .store = &store,
                             .layout = i == 2 ? "dim0" : "zero3",
                             .world_size = i,
                             .step = i,
                             .salt = i == 3 ? 2 : 1,
                             .codec = i == 2 ? DCP_CODEC_ZSTD : DCP_CODEC_NONE };
        assert_int_equal(acts_save(&acts), 0);
    }
    assert_int_equal(dcp_steps(&store, &steps, &n, NULL, NULL), 0);
    assert_int_equal(n, 3);
    assert_true(steps[2].fingerprint != 0);
    assert_true(steps[2].fingerprint == steps[1].fingerprint);
    assert_true(steps[0].fingerprint != steps[1].fingerprint);
    assert_int_equal(steps[0].lineage.run, 0);
    free(steps);
    dcp_store_free(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(what_is_none),
        cmocka_unit_test(fingerprints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
