/* Facts of a whole checkpoint. Called with `make FOLDER` it makes the run folder that
 * tests/cli looks at. */
#include "inspect/facts.h"

#include "inspect/map.h"
#include "lib/run_folder.h"
#include <dcp/reshard.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dcp_catalog *new_catalog(void)
{
    struct dcp_catalog *catalog;
    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    return catalog;
}

static int add(struct dcp_catalog *catalog, const char *name, enum dcp_role role,
               int64_t rows, int64_t columns)
{
    int64_t shape[] = { rows, columns };
    struct dcp_tensor tensor = { .name = name,
                                 .param = name,
                                 .role = role,
                                 .dtype = DCP_F32,
                                 .ndim = 2,
                                 .shape = shape };
    int index;
    assert_int_equal(dcp_catalog_add_tensor(catalog, &tensor, &index, NULL), 0);
    return index;
}

static void add_piece(struct dcp_catalog *catalog, int tensor, int rank,
                      struct dcp_region region, int file, uint64_t offset)
{
    struct dcp_piece piece = {
        .tensor = tensor, .rank = rank, .region = region, .file = file, .offset = offset
    };
    assert_int_equal(dcp_catalog_add_piece(catalog, &piece, NULL), 0);
}

static void add_file(struct dcp_catalog *catalog, const char *name, uint64_t size_bytes)
{
    struct dcp_file file = { .name = name, .size_bytes = size_bytes };
    assert_int_equal(dcp_catalog_add_file(catalog, &file, NULL, NULL), 0);
}

static struct inspect_facts gather(struct dcp_catalog *catalog)
{
    struct inspect_facts facts;
    assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
    assert_int_equal(inspect_facts_gather(catalog, &facts, NULL), 0);
    return facts;
}

static void tied_weights_count_once(void **state)
{
    (void)state;
    struct dcp_catalog *catalog = new_catalog();
    const struct dcp_region whole = { .kind = DCP_WHOLE };
    add_file(catalog, "a", 4000);
    add_piece(catalog, add(catalog, "wte", DCP_ROLE_MODEL, 10, 4), 0, whole, 0, 100);
    add_piece(catalog, add(catalog, "lm_head", DCP_ROLE_MODEL, 10, 4), 0, whole, 0, 100);
    add_piece(catalog, add(catalog, "h.0.w", DCP_ROLE_MODEL, 2, 4), 0, whole, 0, 500);
    struct inspect_facts facts = gather(catalog);
    assert_int_equal(facts.n_params, 48);
    assert_int_equal(facts.n_tied, 1);
    inspect_facts_fini(&facts);
    dcp_catalog_free(catalog);
}

/* ZeRO-3 stores the masters of what is trained, and the rest as it is. */
static void masters_alone_are_the_weights(void **state)
{
    (void)state;
    const int64_t shape[] = { 10, 4 };
    struct dcp_tensor master = { .name = "optimizer.master.w",
                                 .param = "w",
                                 .role = DCP_ROLE_MASTER,
                                 .dtype = DCP_F32,
                                 .ndim = 2,
                                 .shape = shape };
    struct dcp_catalog *catalog = new_catalog();
    add(catalog, "frozen", DCP_ROLE_MODEL, 2, 4);
    assert_int_equal(dcp_catalog_add_tensor(catalog, &master, NULL, NULL), 0);
    struct inspect_facts facts = gather(catalog);
    assert_int_equal(facts.n_params, 48);
    inspect_facts_fini(&facts);
    add(catalog, "w", DCP_ROLE_MODEL, 10, 4);
    facts = gather(catalog);
    assert_int_equal(facts.n_params, 48);
    inspect_facts_fini(&facts);
    dcp_catalog_free(catalog);
}

static void shards_are_files_with_pieces(void **state)
{
    (void)state;
    struct dcp_catalog *catalog = new_catalog();
    int w = add(catalog, "w", DCP_ROLE_MODEL, 10, 4);
    add_file(catalog, "manifest", 7);
    add_file(catalog, "a", 100);
    add_file(catalog, "b", 60);
    struct dcp_region low = { .kind = DCP_FLAT, .begin = 0, .end = 25 };
    struct dcp_region high = { .kind = DCP_FLAT, .begin = 25, .end = 40 };
    add_piece(catalog, w, 0, low, 1, 0);
    add_piece(catalog, w, 1, high, 2, 0);
    struct inspect_facts facts = gather(catalog);
    assert_int_equal(facts.n_shards, 2);
    assert_int_equal(facts.shard_bytes, 160);
    assert_int_equal(facts.shard_least, 60);
    assert_int_equal(facts.shard_most, 100);
    assert_false(facts.has_digests);
    inspect_facts_fini(&facts);
    dcp_catalog_free(catalog);
}

static void layers_are_guessed_from_names(void **state)
{
    (void)state;
    static const char *const names[] = { "model.layers.0.a", "model.layers.11.a",
                                         "model.embed", "model.layers.x9.b" };
    struct dcp_catalog *catalog = new_catalog();
    for (size_t i = 0; i < 4; i++)
        add(catalog, names[i], DCP_ROLE_MODEL, 1, 1);
    struct inspect_facts facts = gather(catalog);
    assert_int_equal(facts.family.n_layers, 12);
    assert_string_equal(facts.family.name, "");
    inspect_facts_fini(&facts);
    dcp_catalog_free(catalog);
}

static void config_is_read_and_odd_config_ignored(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        const char *family;
        int64_t n_layers, n_vocab;
    } cases[] = {
        { "{\"model_type\":\"gpt2\",\"n_layer\":3,\"vocab_size\":50257}", "gpt2", 3,
          50257 },
        { "{\"model_type\":\"llama\",\"num_hidden_layers\":5}", "llama", 5, 0 },
        { "{\"model_type\":\"a\\u001bb\",\"n_layer\":\"3\"}", "a\\x1bb", 0, 0 },
        { "{\"model_type\":7}", "", 0, 0 },
        { "not json", "", 0, 0 },
        { "[]", "", 0, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dcp_catalog *catalog = new_catalog();
        struct dcp_object object = { .name = "model_config",
                                     .kind = DCP_OBJECT_JSON,
                                     .data = cases[i].json,
                                     .size_bytes = strlen(cases[i].json) };
        assert_int_equal(dcp_catalog_add_object(catalog, &object, NULL), 0);
        struct inspect_facts facts = gather(catalog);
        assert_string_equal(facts.family.name, cases[i].family);
        assert_int_equal(facts.family.n_layers, cases[i].n_layers);
        assert_int_equal(facts.family.n_vocab, cases[i].n_vocab);
        inspect_facts_fini(&facts);
        dcp_catalog_free(catalog);
    }
}

static void what_a_resume_lacks_is_named(void **state)
{
    (void)state;
    struct dcp_catalog *catalog = new_catalog();
    struct dcp_object data = { .name = "data", .data = "{}", .size_bytes = 2 };
    add(catalog, "w", DCP_ROLE_MODEL, 1, 1);
    assert_int_equal(dcp_catalog_add_object(catalog, &data, NULL), 0);
    struct inspect_facts facts = gather(catalog);
    assert_string_equal(facts.missing, "optimizer, scheduler, random numbers");
    inspect_facts_fini(&facts);
    dcp_catalog_free(catalog);
}

static const struct dcp_tensor *paint(struct dcp_catalog *catalog, int n, int *cells,
                                      int *out_dim)
{
    assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
    *out_dim = inspect_map_paint(catalog, &catalog->tensors[0], n, cells);
    return &catalog->tensors[0];
}

static void cells_show_who_holds_most(void **state)
{
    (void)state;
    struct dcp_catalog *catalog = new_catalog();
    int cells[INSPECT_CELLS_MOST], dim;
    int w = add(catalog, "w", DCP_ROLE_MODEL, 10, 4);
    add_piece(catalog, w, 0, (struct dcp_region){ .kind = DCP_FLAT, .end = 11 }, -1, 0);
    add_piece(catalog, w, 1,
              (struct dcp_region){ .kind = DCP_FLAT, .begin = 11, .end = 20 }, -1, 0);
    add_piece(catalog, w, 2,
              (struct dcp_region){ .kind = DCP_FLAT, .begin = 30, .end = 40 }, -1, 0);
    paint(catalog, 4, cells, &dim);
    static const int want[] = { 0, 1, INSPECT_CELL_NOBODY, 2 };
    assert_memory_equal(cells, want, sizeof want);
    assert_int_equal(dim, -1);
    dcp_catalog_free(catalog);
}

static void replicas_and_columns_are_seen(void **state)
{
    (void)state;
    static const int64_t left[] = { 0, 0 }, right[] = { 0, 2 }, half[] = { 10, 2 };
    struct dcp_catalog *catalog = new_catalog();
    int cells[INSPECT_CELLS_MOST], dim;
    int w = add(catalog, "w", DCP_ROLE_MODEL, 10, 4);
    struct dcp_region a = { .kind = DCP_BOX, .offset = left, .size = half };
    struct dcp_region b = { .kind = DCP_BOX, .offset = right, .size = half };
    add_piece(catalog, w, 0, a, -1, 0);
    add_piece(catalog, w, 1, b, -1, 0);
    add_piece(catalog, w, 2, b, -1, 0);
    paint(catalog, 4, cells, &dim);
    static const int want[] = { 0, 0, INSPECT_CELL_SEVERAL, INSPECT_CELL_SEVERAL };
    assert_memory_equal(cells, want, sizeof want);
    assert_int_equal(dim, 1);
    dcp_catalog_free(catalog);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tied_weights_count_once),
        cmocka_unit_test(masters_alone_are_the_weights),
        cmocka_unit_test(shards_are_files_with_pieces),
        cmocka_unit_test(layers_are_guessed_from_names),
        cmocka_unit_test(config_is_read_and_odd_config_ignored),
        cmocka_unit_test(what_a_resume_lacks_is_named),
        cmocka_unit_test(cells_show_who_holds_most),
        cmocka_unit_test(replicas_and_columns_are_seen),
    };
    if (argc == 3 && strcmp(argv[1], "make") == 0)
        return run_folder_make(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
