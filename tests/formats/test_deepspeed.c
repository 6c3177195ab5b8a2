/* deepspeed: files of the real DeepSpeed give the tensors it says, go to every other
 * stage and world size and back, and are refused in words when they are incomplete; the
 * arithmetic of partitions against a naive oracle. */
#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/deepspeed/cut.h"
#include "formats/deepspeed/disposition.h"
#include "formats/deepspeed/muon.h"
#include "formats/torch/torch.h"
#include "lib/checkpoint.h"
#include "lib/reshard_folder.h"
#include "lib/sha256.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DATA DCP_TESTS_DIR "/formats/data/deepspeed/"

/* -- reading ----------------------------------------------------------------------- */

static void check_tensor(struct checkpoint *c, const json_t *expected)
{
    const char *role = json_string_value(json_object_get(expected, "role"));
    const char *param = json_string_value(json_object_get(expected, "param"));
    int at = dcp_identity_find(c->identity, (enum dcp_role)dcp_role_parse(role), param);
    if (at < 0)
        fail_msg("there is no %s of '%s'", role, param);
    checkpoint_expect_tensor(c, at, expected);
}

static size_t count_role(const struct dcp_catalog *catalog, enum dcp_role role)
{
    size_t n = 0;

    for (size_t t = 0; t < catalog->n_tensors; t++)
        n += catalog->tensors[t].role == role && !catalog->tensors[t].tied_to;
    return n;
}

static void check_counts(const struct checkpoint *c)
{
    json_t *trainer = checkpoint_object(c->catalog, "trainer");
    json_t *optimizer = checkpoint_object(c->catalog, "optimizer");
    json_t *scheduler = checkpoint_object(c->catalog, "scheduler");

    assert_int_equal(c->catalog->step, 3);
    assert_int_equal(json_integer_value(json_object_get(trainer, "step")), 3);
    assert_int_equal(json_integer_value(json_object_get(trainer, "samples")), 36);
    /* Without ZeRO DeepSpeed makes an update of zeros before the first. */
    assert_in_range(json_integer_value(json_object_get(optimizer, "step")), 3, 4);
    assert_string_equal(json_string_value(json_object_get(scheduler, "type")),
                        "WarmupLR");
    assert_int_equal(
        json_integer_value(json_object_get(scheduler, "last_batch_iteration")), 2);
    json_decref(trainer);
    json_decref(optimizer);
    json_decref(scheduler);
}

static void check_fixture(const char *name, const json_t *expected)
{
    json_t *tensors = json_object_get(expected, "tensors"), *tensor;
    bool universal = !strncmp(name, "universal", 9);
    struct checkpoint c;
    char path[512];
    size_t i;

    print_message("%s\n", name);
    snprintf(path, sizeof path, DATA "%s", name);
    checkpoint_open(path, &c);
    assert_string_equal(c.location.format->name, universal ? "universal" : "deepspeed");
    assert_string_equal(c.catalog->layout,
                        json_string_value(json_object_get(expected, "layout")));
    assert_int_equal(c.catalog->world_size,
                     json_integer_value(json_object_get(expected, "world")));
    json_array_foreach(tensors, i, tensor)
    {
        check_tensor(&c, tensor);
    }
    size_t masters = count_role(c.catalog, DCP_ROLE_MASTER);
    if (json_array_size(tensors))
        assert_int_equal(3 * masters, json_array_size(tensors));
    assert_int_equal(count_role(c.catalog, DCP_ROLE_OPTIM), 0);
    assert_true(dcp_catalog_find(c.catalog, "head.weight") >= 0 ||
                dcp_catalog_find(c.catalog, "lm_head.weight") >= 0);
    check_counts(&c);
    checkpoint_close(&c);
}

static void test_fixtures(void **state)
{
    (void)state;
    json_t *expected = checkpoint_load_json(DATA "expected.json"), *entry;
    const char *name;

    json_object_foreach(expected, name, entry)
    {
        check_fixture(name, entry);
    }
    json_decref(expected);
}

/* The folder of a tag alone, without the file that names it. */
static void test_tag_folder(void **state)
{
    (void)state;
    struct checkpoint c;

    checkpoint_open(DATA "z2/global_step3", &c);
    assert_string_equal(c.location.format->name, "deepspeed");
    assert_int_equal(c.catalog->world_size, 3);
    checkpoint_close(&c);
}

/* What the client saved, and what is not trained. */
static void test_extras(void **state)
{
    (void)state;
    struct checkpoint c;

    checkpoint_open(DATA "z3", &c);
    int rng = dcp_catalog_find(c.catalog, "client_state.rng");
    int mask = dcp_catalog_find(c.catalog, "mask");
    int frozen = dcp_catalog_find(c.catalog, "frozen.weight");
    assert_true(rng >= 0 && mask >= 0 && frozen >= 0);
    assert_int_equal(c.catalog->tensors[rng].role, DCP_ROLE_OTHER);
    assert_int_equal(c.catalog->tensors[mask].role, DCP_ROLE_BUFFER);
    assert_int_equal(c.catalog->tensors[frozen].role, DCP_ROLE_MODEL);
    assert_true(c.catalog->tensors[frozen].n_pieces > 1);
    assert_int_equal(c.catalog->weights_dtype, DCP_F32);
    json_t *note = checkpoint_object(c.catalog, "deepspeed");
    json_t *client = json_object_get(note, "model_states");
    assert_int_equal(json_integer_value(json_object_get(client, "epoch")), 3);
    assert_non_null(json_object_get(json_object_get(client, "nested"), "$dict"));
    assert_string_equal(json_string_value(json_object_get(note, "tag")), "global_step3");
    json_decref(note);
    checkpoint_close(&c);
}

/* -- writing ----------------------------------------------------------------------- */

/* A second name stands for the same weight, or for its master. */
static void check_tie(const struct dcp_catalog *a, const struct dcp_tensor *tensor,
                      const struct dcp_catalog *b)
{
    int at = dcp_catalog_find(b, tensor->name),
        kept = dcp_catalog_find(a, tensor->tied_to);

    assert_true(at >= 0 && kept >= 0);
    if (!b->tensors[at].tied_to)
        fail_msg("'%s' is tied no more", tensor->name);
    int other = dcp_catalog_find(b, b->tensors[at].tied_to);
    assert_true(other >= 0);
    assert_string_equal(b->tensors[other].param, a->tensors[kept].param);
}

/* Every tensor of a that b may have: all but weights that b's masters stand for. */
static void check_same(struct checkpoint *a, struct checkpoint *b)
{
    for (size_t t = 0; t < a->catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &a->catalog->tensors[t];
        int at = dcp_identity_find(b->identity, tensor->role, tensor->param);
        if (tensor->tied_to) {
            check_tie(a->catalog, tensor, b->catalog);
            continue;
        }
        if (at < 0 && tensor->role == DCP_ROLE_MODEL)
            at = dcp_identity_find(b->identity, DCP_ROLE_MASTER, tensor->param);
        if (at < 0)
            fail_msg("'%s' is lost", tensor->name);
        if (b->catalog->tensors[at].dtype != tensor->dtype)
            continue; /* a master for a 16-bit weight */
        void *mine = checkpoint_read(a, (int)t), *other = checkpoint_read(b, at);
        if (memcmp(mine, other, (size_t)dcp_tensor_bytes(tensor)) != 0)
            fail_msg("'%s' is another", tensor->name);
        free(mine);
        free(other);
    }
}

static void check_objects(const struct checkpoint *a, const struct checkpoint *b)
{
    static const char *const names[] = { "trainer", "optimizer", "scheduler",
                                         "loss_scaler" };

    for (size_t i = 0; i < DCP_ARRAY_LEN(names); i++) {
        json_t *x = checkpoint_object(a->catalog, names[i]),
               *y = checkpoint_object(b->catalog, names[i]);
        if (x && !json_equal(x, y))
            fail_msg("the object '%s' is another", names[i]);
        json_decref(x);
        json_decref(y);
    }
    json_t *x = checkpoint_object(a->catalog, "deepspeed"),
           *y = checkpoint_object(b->catalog, "deepspeed");
    static const char *const kept[] = { "tag", "step", "module", "model_states" };
    for (size_t i = 0; i < DCP_ARRAY_LEN(kept); i++)
        if (json_object_get(x, kept[i]))
            assert_true(
                json_equal(json_object_get(x, kept[i]), json_object_get(y, kept[i])));
    json_decref(x);
    json_decref(y);
}

/* Every record of every archive is what its checksum says; torch does not look at that,
 * other readers of zip do. */
static void check_archives(const struct checkpoint *c)
{
    for (size_t f = 0; f < c->catalog->n_files; f++) {
        DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };
        const char *name = c->catalog->files[f].name;
        struct dcp_error err = { 0 };
        size_t n = strlen(name);
        if (n < 3 || strcmp(name + n - 3, ".pt") != 0)
            continue;
        int rc = dcp_torch_open(&file, &c->location.source, name, &err);
        for (size_t r = 0; r < file.zip.n_records && !rc; r++) {
            void *data = NULL;
            rc = dcp_zip_read(&file.in, &file.zip.records[r], 1 << 20, &data, &n, &err);
            free(data);
        }
        if (rc)
            fail_msg("%s", err.message);
    }
}

/* DeepSpeed looks for every frozen weight in a dict of them, so there is none without. */
static void check_frozen(const struct checkpoint *c)
{
    bool any = false;

    for (size_t t = 0; t < c->catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &c->catalog->tensors[t];
        any |= tensor->role == DCP_ROLE_MODEL && !tensor->tied_to &&
               dcp_identity_find(c->identity, DCP_ROLE_MASTER, tensor->param) < 0;
    }

    for (size_t f = 0; f < c->catalog->n_files; f++) {
        DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };
        const char *name = c->catalog->files[f].name;
        if (!strstr(name, "model_states.pt"))
            continue;
        assert_int_equal(dcp_torch_open(&file, &c->location.source, name, NULL), 0);
        assert_int_equal(dcp_torch_read_tree(&file, NULL), 0);
        const struct dcp_pickle_node *parts =
            dcp_pickle_get(file.tree, "frozen_param_fragments");
        assert_non_null(parts);
        assert_true(any || parts->kind == DCP_PICKLE_NONE);
    }
}

static void check_target(const char *name, const char *format, const char *layout,
                         int world_size, const struct reshard_folder *folder)
{
    const struct dcp_reshard_options options = { .world_size = world_size,
                                                 .layout = layout,
                                                 .format = format,
                                                 .dtype = -1,
                                                 .threads = 1,
                                                 .force = true };
    struct checkpoint a, b;
    char path[512];

    snprintf(path, sizeof path, DATA "%s", name);
    print_message("%s to %s %s of %d\n", name, format, layout, world_size);
    reshard_folder_must_run(path, folder->target, &options);
    checkpoint_open(path, &a);
    checkpoint_open(folder->target, &b);
    assert_string_equal(b.location.format->name, format);
    assert_string_equal(b.catalog->layout, layout);
    assert_int_equal(b.catalog->world_size, world_size);
    check_same(&a, &b);
    check_objects(&a, &b);
    check_archives(&b);
    if (!strcmp(format, "deepspeed"))
        check_frozen(&b);
    checkpoint_close(&a);
    checkpoint_close(&b);
}

/* An optimizer without moments: what it keeps of a weight says that it trains it. */
static void test_frozen_without_moments(void **state)
{
    static const int64_t shape[] = { 2 };
    struct dcp_tensor tensors[] = {
        { .name = "a", .dtype = DCP_BF16 },
        { .name = "frozen", .dtype = DCP_BF16 },
        { .name = "optimizer.momentum_buffer.a", .role = DCP_ROLE_OPTIM, .param = "a" },
    };
    static const enum dcp_disposition dispositions[] = { DCP_DISPOSITION_DERIVED,
                                                         DCP_DISPOSITION_STORED,
                                                         DCP_DISPOSITION_STORED };
    struct dcp_catalog *src;
    struct dcp_identity *of_src;

    (void)state;
    assert_int_equal(dcp_catalog_new(&src, NULL), 0);
    for (size_t t = 0; t < DCP_ARRAY_LEN(tensors); t++) {
        tensors[t].ndim = 1;
        tensors[t].shape = shape;
        assert_int_equal(dcp_catalog_add_tensor(src, &tensors[t], NULL, NULL), 0);
    }
    assert_int_equal(dcp_identity_new(src, &of_src, NULL), 0);
    for (size_t t = 0; t < DCP_ARRAY_LEN(tensors); t++)
        assert_int_equal(dcp_ds_disposition(src, of_src, true, &src->tensors[t]),
                         dispositions[t]);
    dcp_identity_free(of_src);
    dcp_catalog_free(src);
}

static void test_targets(void **state)
{
    static const char *const layouts[] = { "zero1", "zero2", "zero3" };
    static const int world_sizes[] = { 1, 2, 3, 7, 64 };
    json_t *expected = checkpoint_load_json(DATA "expected.json"), *entry;
    const char *name;

    json_object_foreach(expected, name, entry)
    {
        if (!strcmp(name, "z2-elastic")) /* says no options of groups */
            continue;
        for (size_t w = 0; w < DCP_ARRAY_LEN(world_sizes); w++)
            check_target(name, "deepspeed", layouts[(w + strlen(name)) % 3],
                         world_sizes[w], *state);
        check_target(name, "universal", "zero3", 2, *state);
        check_target(name, "universal", "zero2", 1, *state);
    }
    json_decref(expected);
}

/* -- arithmetic -------------------------------------------------------------------- */

static uint64_t seed = 0x2545f4914f6cdd1du;

static int64_t random_below(int64_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (int64_t)(seed >> 11) % n;
}

/* The element that stands at `at` of a rank's partition, as parameter and index, laid out
 * element by element; -1: padding. */
static void lay_naively(const struct dcp_ds_group *group, int stage, int world_size,
                        int64_t *param_at, int64_t *elem_at, int64_t n)
{
    int64_t at = 0;

    for (int64_t i = 0; i < n; i++)
        param_at[i] = -1;
    for (size_t p = 0; p < group->n_params; p++) {
        const struct dcp_ds_param *param = &group->params[p];
        int64_t part = (param->n_elems + world_size - 1) / world_size;
        for (int64_t e = 0; e < param->n_elems; e++) {
            int64_t location =
                stage == 3 ? (e / part) * group->part + at + e % part : at + e;
            assert_true(location < n && param_at[location] < 0);
            param_at[location] = (int64_t)p;
            elem_at[location] = e;
        }
        at += stage == 3 ? part : param->n_elems + param->padding;
    }
}

static void check_cut(struct dcp_ds_group *group, int stage, int world_size)
{
    assert_int_equal(dcp_ds_cut(group, stage, world_size, NULL), 0);
    int64_t n = group->part * world_size, held = 0, wanted = 0;
    int64_t *param_at = calloc((size_t)n + 1, sizeof *param_at);
    int64_t *elem_at = calloc((size_t)n + 1, sizeof *elem_at);

    assert_true(param_at && elem_at);
    lay_naively(group, stage, world_size, param_at, elem_at, n);
    for (int rank = 0; rank < world_size; rank++)
        for (size_t p = 0; p < group->n_params; p++) {
            struct dcp_ds_part part;
            if (!dcp_ds_part_of(group, &group->params[p], stage, world_size, rank, &part))
                continue;
            for (int64_t e = part.begin; e < part.end; e++, held++) {
                int64_t location = rank * group->part + part.at + e - part.begin;
                assert_int_equal(param_at[location], (int64_t)p);
                assert_int_equal(elem_at[location], e);
            }
        }
    for (size_t p = 0; p < group->n_params; p++)
        wanted += group->params[p].n_elems;
    assert_int_equal(held, wanted);
    for (int rank = 0; rank < world_size && stage != 3; rank++)
        for (int64_t i = dcp_ds_filled(group, rank); i < group->part; i++)
            assert_int_equal(param_at[rank * group->part + i], -1);
    free(param_at);
    free(elem_at);
}

static void test_cut(void **state)
{
    struct dcp_ds_param params[6];

    (void)state;
    for (int i = 0; i < 3000; i++) {
        struct dcp_ds_group group = { .params = params,
                                      .n_params = 1 + (size_t)random_below(6) };
        int stage = 1 + (int)random_below(3), world_size = 1 + (int)random_below(9);
        for (size_t p = 0; p < group.n_params; p++)
            params[p] = (struct dcp_ds_param){
                .n_elems = random_below(4) ? random_below(40) : random_below(3),
                .padding = stage != 3 && random_below(3) == 0 ? random_below(8) : 0
            };
        check_cut(&group, stage, world_size);
    }
    /* The examples of the format's description: ranks at the end that hold nothing. */
    params[0] = (struct dcp_ds_param){ .n_elems = 7 };
    params[1] = (struct dcp_ds_param){ .n_elems = 3 };
    struct dcp_ds_group group = { .params = params, .n_params = 2 };
    assert_int_equal(dcp_ds_cut(&group, 2, 8, NULL), 0);
    assert_int_equal(group.part, 2);
    assert_int_equal(dcp_ds_filled(&group, 4), 2);
    assert_int_equal(dcp_ds_filled(&group, 5), 0);
    params[0].n_elems = INT64_MAX / 2;
    params[1].n_elems = INT64_MAX / 2;
    assert_int_equal(dcp_ds_cut(&group, 1, 3, NULL), DCP_E_CORRUPT);
    assert_int_equal(dcp_ds_cut(&group, 3, 1, NULL), DCP_E_CORRUPT);
}

#define BF16                           \
    "{\"bf16\": {\"enabled\": true}, " \
    "\"data_types\": {\"grad_accum_dtype\": \"fp32\"}}"

/* The order of original_muon.py's sorted(), what stage_1_and_2.py keeps of a rank, and
 * which configurations it is not for. */
static void test_muon(void **state)
{
    static const int64_t shapes[][2] = { { 2, 3 }, { 3, 2 }, { 2, 4 }, { 3, 2 }, { 4 } };
    static const char *const names[] = { "a", "b", "c", "d", "e" };
    static const char *const sorted[] = { "e", "b", "d", "c", "a" };
    static const int64_t elems[] = { 10, 12, 14, 8, 6, 0, 0 }; /* eb bd dc c a */
    static const struct {
        int stage;
        bool whole;
        const char *config;
    } rows[] = {
        { 1, true, "{}" },
        { 3, false, "{}" },
        { 2, false,
          "{\"zero_optimization\":"
          " {\"offload_optimizer\": {\"device\": \"cpu\"}}}" },
        { 2, true,
          "{\"zero_optimization\":"
          " {\"offload_optimizer\": {\"device\": \"none\"}}}" },
        { 1, true, "{\"bf16\": {\"enabled\": true}}" },
        { 1, false, BF16 },
        { 2, true, BF16 },
    };
    struct dcp_ds_param params[5];
    struct dcp_ds_group group = { .params = params, .n_params = 5 };
    json_t *muon = json_pack("{s:b}", "use_muon", 1);

    (void)state;
    for (int p = 0; p < 5; p++)
        params[p] = (struct dcp_ds_param){ .name = names[p],
                                           .ndim = p < 4 ? 2 : 1,
                                           .shape = shapes[p],
                                           .n_elems = p == 2   ? 8
                                                      : p == 4 ? 4
                                                               : 6 };
    dcp_ds_muon_sort(params, 5);
    for (int p = 0; p < 5; p++)
        assert_string_equal(params[p].name, sorted[p]);
    assert_int_equal(dcp_ds_cut(&group, 2, 7, NULL), 0);
    for (int rank = 0; rank < 7; rank++)
        assert_int_equal(dcp_ds_muon_elems(&group, 7, rank), elems[rank]);
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        const char *text = rows[i].config;
        json_t *config = NULL;
        assert_int_equal(dcp_json_parse(text, strlen(text), "test", &config, NULL), 0);
        assert_int_equal(dcp_ds_muon_is_whole(muon, rows[i].stage, config),
                         rows[i].whole);
        json_decref(config);
    }
    assert_true(dcp_ds_muon_is_whole(muon, 2, NULL));
    assert_false(dcp_ds_muon_is_whole(NULL, 2, NULL));
    json_decref(muon);
}

static void test_round_robin(void **state)
{
    size_t out[5];

    (void)state;
    dcp_ds_round_robin(5, 2, out); /* stored as 0 2 4 1 3 */
    assert_memory_equal(out, ((size_t[]){ 0, 3, 1, 4, 2 }), sizeof out);
    dcp_ds_round_robin(5, 9, out);
    assert_memory_equal(out, ((size_t[]){ 0, 1, 2, 3, 4 }), sizeof out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_round_robin),
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_tag_folder),
        cmocka_unit_test(test_extras),
        cmocka_unit_test(test_frozen_without_moments),
        cmocka_unit_test_setup_teardown(test_targets, reshard_folder_setup,
                                        reshard_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
