/* dcp_write: what other formats hold, as a distributed checkpoint and back. */
#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/state_dict/nested.h"
#include "formats/torch_dist/reading.h"
#include "formats/torch_dist/torch_dist.h"
#include "lib/format_io.h"
#include "lib/reshard_folder.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A catalog whose tensors lie in memory: F32, two rows of three, value = index. */
struct fixture {
    struct dcp_catalog *catalog, *again;
    struct dcp_store store;
    struct dcp_source source;
    struct dcp_error err;
};

static void begin(struct fixture *f)
{
    *f = (struct fixture){ 0 };
    assert_int_equal(dcp_catalog_new(&f->catalog, NULL), 0);
    assert_int_equal(dcp_store_mem(&f->store, NULL), 0);
    f->source = (struct dcp_source){ .store = &f->store, .name = "", .is_dir = true };
}

static void end(struct fixture *f)
{
    dcp_catalog_free(f->catalog);
    dcp_catalog_free(f->again);
    dcp_store_free(&f->store);
}

static int add_tensor(struct fixture *f, enum dcp_role role, const char *name,
                      const char *param)
{
    const int64_t shape[] = { 2, 3 };
    const struct dcp_tensor tensor = { .name = name,
                                       .param = param,
                                       .role = role,
                                       .dtype = DCP_F32,
                                       .ndim = 2,
                                       .shape = shape };
    float *data = dcp_catalog_alloc(f->catalog, 6, sizeof *data);
    int index;

    assert_int_equal(dcp_catalog_add_tensor(f->catalog, &tensor, &index, NULL), 0);
    for (int i = 0; i < 6; i++)
        data[i] = (float)(10 * index + i);
    const struct dcp_piece piece = {
        .tensor = index, .file = -1, .data = data, .stored_size = 6 * sizeof *data
    };
    assert_int_equal(dcp_catalog_add_piece(f->catalog, &piece, NULL), 0);
    return index;
}

static void add_weight(struct fixture *f, const char *param)
{
    static const enum dcp_role roles[] = { DCP_ROLE_EXP_AVG, DCP_ROLE_EXP_AVG_SQ,
                                           DCP_ROLE_MASTER };

    add_tensor(f, DCP_ROLE_MODEL, param, param);
    for (size_t i = 0; i < DCP_ARRAY_LEN(roles); i++)
        add_tensor(f, roles[i], dcp_tensor_default_name(f->catalog, roles[i], param),
                   param);
}

static void add_json(struct fixture *f, const char *name, const char *text)
{
    const struct dcp_object object = {
        .name = name, .kind = DCP_OBJECT_JSON, .data = text, .size_bytes = strlen(text)
    };
    assert_int_equal(dcp_catalog_add_object(f->catalog, &object, NULL), 0);
}

static int write_it(struct fixture *f)
{
    const struct dcp_target_options options = { 0 };

    f->err = (struct dcp_error){ 0 };
    assert_int_equal(dcp_catalog_sort(f->catalog, NULL), 0);
    return format_write(&f->source, f->catalog, &dcp_format_torch_dist, &options,
                        &f->store, &f->err);
}

static void write_and_read(struct fixture *f)
{
    if (write_it(f))
        fail_msg("%s", f->err.message);
    assert_int_equal(dcp_catalog_new(&f->again, NULL), 0);
    if (dcp_format_torch_dist.index(&f->source, f->again, &f->err))
        fail_msg("%s", f->err.message);
}

static const struct dcp_tensor *tensor_of(const struct fixture *f, const char *name)
{
    int at = dcp_catalog_find(f->again, name);

    if (at < 0)
        fail_msg("no tensor '%s'", name);
    return &f->again->tensors[at];
}

static void assert_json(const struct fixture *f, const char *name, const char *text)
{
    int at = dcp_catalog_find_object(f->again, name);
    DCP_CLEANUP_JSON json_t *want = NULL;
    DCP_CLEANUP_JSON json_t *got = NULL;

    if (at < 0)
        fail_msg("no object '%s'", name);
    const struct dcp_object *object = &f->again->objects[at];
    assert_int_equal(object->kind, DCP_OBJECT_JSON);
    assert_int_equal(dcp_json_parse(text, strlen(text), name, &want, NULL), 0);
    assert_int_equal(dcp_json_parse(object->data, object->size_bytes, name, &got, NULL),
                     0);
    if (!json_equal(want, got))
        fail_msg("%s: %s", name, (const char *)object->data);
}

/* -- tensors ------------------------------------------------------------------------- */

static void test_names_and_roles(void **state)
{
    static const struct {
        const char *name;
        enum dcp_role role;
        const char *param;
    } want[] = {
        { "model.h.0.w", DCP_ROLE_MODEL, "h.0.w" },
        { "optim.state.h.0.w.exp_avg", DCP_ROLE_EXP_AVG, "h.0.w" },
        { "optim.state.h.0.w.exp_avg_sq", DCP_ROLE_EXP_AVG_SQ, "h.0.w" },
        { "optim.state.h.0.w.master", DCP_ROLE_MASTER, "h.0.w" },
        { "model.mean", DCP_ROLE_BUFFER, "mean" },
        { "model.state", DCP_ROLE_OTHER, "model.state" },
        { "optim.state.h.0.w.max", DCP_ROLE_OPTIM, "h.0.w" },
    };
    struct fixture f;

    (void)state;
    begin(&f);
    add_weight(&f, "h.0.w");
    add_tensor(&f, DCP_ROLE_BUFFER, "mean", "mean");
    add_tensor(&f, DCP_ROLE_OTHER, "model.state", "model.state");
    add_tensor(&f, DCP_ROLE_OPTIM, "optim.state.h.0.w.max", "h.0.w");
    f.catalog->step = 9;
    write_and_read(&f);
    assert_int_equal(f.again->n_tensors, DCP_ARRAY_LEN(want)); /* no step */
    for (size_t i = 0; i < DCP_ARRAY_LEN(want); i++) {
        const struct dcp_tensor *tensor = tensor_of(&f, want[i].name);
        assert_int_equal(tensor->role, want[i].role);
        assert_string_equal(tensor->param, want[i].param);
    }
    /* The groups that were made of nothing are PyTorch's. */
    assert_json(
        &f, "optimizer",
        "{\"type\":\"AdamW\",\"step\":0,\"param_groups\":[{\"lr\":0.001,\"betas\":"
        "[0.9,0.999],\"eps\":1e-8,\"weight_decay\":0.01,\"amsgrad\":false,"
        "\"maximize\":false,\"capturable\":false,\"differentiable\":false,"
        "\"foreach\":null,\"fused\":null,\"decoupled_weight_decay\":true,"
        "\"params\":[\"h.0.w\"]}]}");
    end(&f);
}

/* A step for every parameter, found in the index as PyTorch finds it. */
static void test_steps(void **state)
{
    DCP_CLEANUP_TORCH_DIST_METADATA struct dcp_torch_dist_metadata meta = { 0 };
    struct fixture f;
    size_t n_steps = 0;
    uint64_t at = 0;

    (void)state;
    begin(&f);
    add_weight(&f, "a");
    add_weight(&f, "b");
    add_json(&f, "optimizer",
             "{\"step\":7,\"param_groups\":[{\"lr\":0.5,\"params\":[\"a\",\"b\"]}]}");
    write_and_read(&f);
    assert_int_equal(f.again->n_tensors, f.catalog->n_tensors);
    assert_json(&f, "optimizer",
                "{\"step\":7,\"param_groups\":[{\"lr\":0.5,\"params\":[\"a\",\"b\"]}]}");
    assert_int_equal(dcp_torch_dist_metadata_read(&f.source, &meta, NULL), 0);
    for (size_t t = 0; t < meta.n_tensors; t++) {
        const struct dcp_torch_dist_part *part = &meta.parts[meta.tensors[t].first_part];
        DCP_CLEANUP_ITEMS struct dcp_torch_dist_items items = { 0 };
        float value;
        if (!strstr(meta.tensors[t].name, ".step"))
            continue;
        dcp_torch_dist_items_init(&items, &f.source, &meta);
        assert_int_equal(
            dcp_torch_dist_items_read(&items, part, &value, sizeof value, NULL), 0);
        assert_true(value == 7);
        assert_true(!n_steps++ || part->offset == at); /* one item for all */
        at = part->offset;
    }
    assert_int_equal(n_steps, 2);
    end(&f);
}

/* Two names for one tensor are two keys of its items, and two names again. */
static void test_ties(void **state)
{
    static const char header[] =
        "{\"__metadata__\":{\"b\":\"a\"},\"a\":{\"dtype\":\"U8\","
        "\"shape\":[4],\"data_offsets\":[0,4]}}    data";
    const struct reshard_folder *folder = *state;
    const struct dcp_reshard_options to_dcp = { .format = "dcp",
                                                .world_size = 2,
                                                .dtype = -1 };
    struct dcp_location location;
    struct dcp_catalog *catalog;
    struct dcp_store store;
    unsigned char file[8 + sizeof header] = { sizeof header - 1 - 4 };

    memcpy(file + 8, header, sizeof header - 1);
    assert_int_equal(dcp_store_dir(&store, folder->path, false, NULL), 0);
    assert_int_equal(dcp_store_write_file(&store, "source", file, sizeof file - 1, NULL),
                     0);
    dcp_store_free(&store);
    reshard_folder_must_run(folder->source, folder->target, &to_dcp);
    assert_int_equal(dcp_location_open(folder->target, &location, NULL), 0);
    assert_int_equal(dcp_location_index(&location, &catalog, NULL), 0);
    assert_int_equal(catalog->n_tensors, 2);
    int kept = dcp_catalog_find(catalog, "a"), tied = dcp_catalog_find(catalog, "b");
    assert_true(kept >= 0 && tied >= 0);
    assert_string_equal(catalog->tensors[tied].tied_to, "a");
    assert_string_equal(catalog->tensors[tied].param, "b");
    const struct dcp_piece *x = &catalog->pieces[catalog->tensors[kept].first_piece];
    const struct dcp_piece *y = &catalog->pieces[catalog->tensors[tied].first_piece];
    assert_int_equal(x->offset, y->offset);
    assert_int_equal(dcp_verify(&location.source, NULL, NULL, NULL), 0);
    dcp_catalog_free(catalog);
    dcp_location_close(&location);
}

/* The head of a tied model has a key too, which is no tensor when it is read. */
static void test_tied_head(void **state)
{
    DCP_CLEANUP_TORCH_DIST_METADATA struct dcp_torch_dist_metadata meta = { 0 };
    struct fixture f;

    (void)state;
    begin(&f);
    add_tensor(&f, DCP_ROLE_MODEL, "transformer.wte.weight", "transformer.wte.weight");
    add_json(&f, "model_config", "{\"model_type\":\"gpt2\"}");
    write_and_read(&f);
    assert_int_equal(f.again->n_tensors, 1);
    assert_int_equal(dcp_torch_dist_metadata_read(&f.source, &meta, NULL), 0);
    assert_int_equal(meta.n_tensors, 2);
    assert_string_equal(meta.tensors[1].name, "lm_head.weight");
    assert_int_equal(meta.parts[0].offset, meta.parts[1].offset);
    assert_json(&f, "model_config", "{\"model_type\":\"gpt2\"}");
    end(&f);
}

/* Groups of a kind that is not understood are kept as they are, and none are made. */
static void test_odd_groups(void **state)
{
    struct fixture f;

    (void)state;
    begin(&f);
    add_weight(&f, "a");
    add_json(&f, "optim.param_groups.0.lr", "0.5");
    add_json(&f, "optim.param_groups.0.more.x", "1");
    add_json(&f, DCP_KEYS, "{\"groups\":\"none\",\"nested\":true}");
    add_json(&f, "optimizer", "{\"step\":4}");
    write_and_read(&f);
    assert_json(&f, "optim.param_groups.0.lr", "0.5");
    assert_json(&f, "optim.param_groups.0.more.x", "1");
    assert_json(&f, "optimizer", "{\"step\":4}");
    assert_json(&f, DCP_KEYS, "{\"groups\":\"none\",\"nested\":true}");
    assert_int_equal(f.again->n_objects, 4);
    end(&f);
    begin(&f); /* groups without any state */
    add_tensor(&f, DCP_ROLE_MODEL, "w", "w");
    add_json(&f, "optim.param_groups.0.lr", "0.5");
    add_json(&f, "optim.param_groups.0.params", "[\"w\"]");
    write_and_read(&f);
    assert_json(&f, "optim.param_groups.0.params", "[\"w\"]");
    assert_int_equal(f.again->n_objects, 3);
    end(&f);
}

/* Only groups that PyTorch's Adam would not take get options: NAdam's have betas too. */
static void test_groups_of_another_optimizer(void **state)
{
    static const char text[] =
        "{\"step\":4,\"param_groups\":[{\"lr\":0.5,\"betas\":[0.9,0.99],\"eps\":1e-8,"
        "\"weight_decay\":0,\"momentum_decay\":0.004,\"decoupled_weight_decay\":false,"
        "\"maximize\":false,\"foreach\":null,\"capturable\":false,"
        "\"differentiable\":false,\"params\":[\"a\"]}]}";
    struct fixture f;

    (void)state;
    begin(&f);
    add_weight(&f, "a");
    add_json(&f, "optimizer", text);
    write_and_read(&f);
    assert_json(&f, "optimizer", text);
    end(&f);
}

/* -- objects ------------------------------------------------------------------------- */

static void test_objects(void **state)
{
    static const struct {
        const char *name, *text;
    } objects[] = {
        { "trainer", "{\"step\":5,\"samples\":40,\"seed\":1}" },
        { "scheduler", "{\"type\":\"WarmupLR\",\"last_batch_iteration\":4}" },
        { "deep", "{\"a\":{\"b\":{\"c\":[1,2,{\"d\":null}]}},\"e\":[[1],[2,3]]}" },
        { "empty", "{}" },
        { "hollow", "{\"a\":{},\"b\":[]}" },
        { "number", "3" },
        { "words", "[\"a\",\"b\"]" },
        { "tuple", "{\"$tuple\":[1,{\"$tuple\":[]}]}" },
        { "dotted.name", "{\"x.y\":1,\"7\":2,\"\":3}" },
        { "control", "{\"a\\u001fb\":1}" },
        { "rows", "[{\"lr\":1},{\"lr\":2}]" },
    };
    struct fixture f;

    (void)state;
    begin(&f);
    add_tensor(&f, DCP_ROLE_MODEL, "w", "w");
    for (size_t i = 0; i < DCP_ARRAY_LEN(objects); i++)
        add_json(&f, objects[i].name, objects[i].text);
    add_json(&f, "torch.tree", "{\"model\":{\"w\":{\"$tensor\":\"w\"}}}");
    const struct dcp_object bytes = {
        .name = "blob", .kind = DCP_OBJECT_BYTES, .data = "\0\xff!", .size_bytes = 3
    };
    assert_int_equal(dcp_catalog_add_object(f.catalog, &bytes, NULL), 0);
    write_and_read(&f);
    for (size_t i = 0; i < DCP_ARRAY_LEN(objects); i++)
        assert_json(&f, objects[i].name, objects[i].text);
    /* a tree calls the tensors what they are called there */
    assert_json(&f, "torch.tree", "{\"model\":{\"w\":{\"$tensor\":\"model.w\"}}}");
    int at = dcp_catalog_find_object(f.again, "blob");
    assert_true(at >= 0 && f.again->objects[at].kind == DCP_OBJECT_BYTES);
    assert_memory_equal(f.again->objects[at].data, "\0\xff!", 3);
    assert_int_equal(f.again->n_objects, f.catalog->n_objects + 1);
    assert_json(&f, DCP_KEYS, "{\"nested\":true}");
    end(&f);
}

/* What PyTorch's planner makes of such an object. */
static void test_keys_of_objects(void **state)
{
    static const char *const keys[] = { "deep.a.b.0.d", "deep.a.b.1", "deep.e", "top" };
    DCP_CLEANUP_TORCH_DIST_METADATA struct dcp_torch_dist_metadata meta = { 0 };
    struct fixture f;

    (void)state;
    begin(&f);
    add_tensor(&f, DCP_ROLE_MODEL, "w", "w");
    add_json(&f, "deep", "{\"a\":{\"b\":[{\"d\":1},2]},\"e\":[[1],[2]]}");
    add_json(&f, "top", "true");
    write_and_read(&f);
    assert_int_equal(dcp_torch_dist_metadata_read(&f.source, &meta, NULL), 0);
    assert_int_equal(meta.n_objects, DCP_ARRAY_LEN(keys));
    for (size_t i = 0; i < DCP_ARRAY_LEN(keys); i++)
        assert_string_equal(meta.objects[i].name, keys[i]);
    assert_string_equal(meta.objects[0].path, "deep\x1f"
                                              "a\x1f"
                                              "b\x1e"
                                              "0\x1f"
                                              "d");
    end(&f);
}

/* Two objects whose parts would have one key: one of them stays whole. */
static void test_collisions(void **state)
{
    struct fixture f;

    (void)state;
    begin(&f);
    add_tensor(&f, DCP_ROLE_MODEL, "w", "w");
    add_json(&f, "a", "{\"b.c\":1}");
    add_json(&f, "a.b", "{\"c\":2}");
    add_json(&f, "x.y", "{\"b\":{\"d\":1}}");
    add_json(&f, "x", "{\"y\":{\"b\":{\"c\":1}}}");
    write_and_read(&f);
    assert_json(&f, "x.y", "{\"b\":{\"d\":1}}");
    assert_json(&f, "x", "{\"y\":{\"b\":{\"c\":1}}}");
    assert_json(&f, "a", "{\"b.c\":1}");
    assert_json(&f, "a.b", "{\"c\":2}");
    end(&f);
    begin(&f);
    add_tensor(&f, DCP_ROLE_MODEL, "w", "w");
    add_json(&f, "w", "1");
    assert_int_equal(write_it(&f), DCP_E_MISMATCH);
    assert_non_null(strstr(f.err.message, "'w'"));
    end(&f);
}

/* The keys of a checkpoint are the nesting of a file of torch.save, too. */
static void test_nouns(void **state)
{
    struct fixture f;
    json_t *tree;

    (void)state;
    begin(&f);
    add_tensor(&f, DCP_ROLE_MODEL, "a", "a");
    add_tensor(&f, DCP_ROLE_MODEL, "b", "b");
    add_json(&f, DCP_KEYS,
             "{\"nested\":true,\"names\":{\"model.a\":\"x\",\"model.b\":\"x\"}}");
    assert_int_equal(dcp_nested_make(f.catalog, &tree, &f.err), DCP_E_MISMATCH);
    assert_non_null(strstr(f.err.message, "a file of torch.save cannot hold"));
    f.err = (struct dcp_error){ 0 };
    assert_int_equal(write_it(&f), DCP_E_MISMATCH);
    assert_non_null(strstr(f.err.message, "a distributed checkpoint cannot hold"));
    end(&f);
}

/* -- Megatron ------------------------------------------------------------------------ */

/* What it keeps beside tensors: an attribute of Metadata, and a file. */
static void test_attributes(void **state)
{
    static const char keys[] = "{\"model\":\"\",\"nested\":true}";
    static const char attributes[] =
        "{\"mcore_data\":{\"w\":{\"shape\":{\"$object\":"
        "\"torch.Size\",\"args\":[{\"$tuple\":[2,3]}]}}},\"more\":{\"$set\":[1]}}";
    struct fixture f;

    (void)state;
    begin(&f);
    add_tensor(&f, DCP_ROLE_MODEL, "w", "w");
    add_json(&f, DCP_KEYS, keys);
    add_json(&f, DCP_ATTRIBUTES, attributes);
    write_and_read(&f);
    assert_json(&f, DCP_KEYS, keys);
    assert_json(&f, DCP_ATTRIBUTES, attributes);
    assert_int_equal(f.again->tensors[0].role, DCP_ROLE_MODEL);
    end(&f);
}

static void rewrite(struct fixture *f, const char *name, const void *data, size_t n)
{
    assert_int_equal(f->store.ops->remove(f->store.self, name, NULL), 0);
    assert_int_equal(dcp_store_write_file(&f->store, name, data, n, NULL), 0);
}

static void test_common(void **state)
{
    struct fixture f;
    void *data;
    size_t n;

    (void)state;
    begin(&f);
    add_tensor(&f, DCP_ROLE_MODEL, "w", "w");
    assert_int_equal(write_it(&f), 0);
    assert_int_equal(dcp_fs_read_file(DCP_TESTS_DIR "/formats/data/torch/nested.pt",
                                      1 << 20, &data, &n, NULL),
                     0);
    assert_int_equal(dcp_store_write_file(&f.store, "common.pt", data, n, NULL), 0);
    assert_int_equal(dcp_catalog_new(&f.again, NULL), 0);
    assert_int_equal(dcp_format_torch_dist.index(&f.source, f.again, &f.err), 0);
    assert_int_equal(f.again->n_tensors, 1); /* nobody says that it is Megatron's */
    dcp_catalog_free(f.again);
    assert_int_equal(dcp_store_write_file(&f.store, "metadata.json", "{}", 2, NULL), 0);
    assert_int_equal(dcp_catalog_new(&f.again, NULL), 0);
    if (dcp_format_torch_dist.index(&f.source, f.again, &f.err))
        fail_msg("%s", f.err.message);
    assert_json(&f, "common.epoch", "3");
    assert_int_equal(tensor_of(&f, "common.rng")->role, DCP_ROLE_OTHER);
    assert_int_equal(dcp_catalog_check(f.again, NULL), 0);
    /* It is carried byte for byte, so a tensor that nobody reads is checked, too. */
    size_t piece = tensor_of(&f, "common.rng")->first_piece;
    size_t at = f.again->pieces[piece].offset;
    ((unsigned char *)data)[at] ^= 1;
    dcp_catalog_free(f.again);
    rewrite(&f, "common.pt", data, n);
    assert_int_equal(dcp_catalog_new(&f.again, NULL), 0);
    assert_int_equal(dcp_format_torch_dist.index(&f.source, f.again, &f.err),
                     DCP_E_CORRUPT);
    /* So is metadata.json, by which Megatron knows what to do. */
    ((unsigned char *)data)[at] ^= 1;
    dcp_catalog_free(f.again);
    rewrite(&f, "common.pt", data, n);
    rewrite(&f, "metadata.json", "{\"sharded_backend\"", 18);
    f.err = (struct dcp_error){ 0 };
    assert_int_equal(dcp_catalog_new(&f.again, NULL), 0);
    assert_int_equal(dcp_format_torch_dist.index(&f.source, f.again, &f.err),
                     DCP_E_CORRUPT);
    assert_non_null(strstr(f.err.message, "'metadata.json'"));
    free(data);
    end(&f);
}

/* Which rank wrote what is true of the source alone. */
static void test_plans(void **state)
{
    struct fixture f;

    (void)state;
    begin(&f);
    add_tensor(&f, DCP_ROLE_MODEL, "w", "w");
    add_json(&f, DCP_ATTRIBUTES, "{\"all_local_plans\":[1],\"more\":2}");
    write_and_read(&f);
    assert_json(&f, DCP_ATTRIBUTES, "{\"more\":2}");
    end(&f);
}

/* Megatron's files go to where they came from, byte for byte, and not into keys. */
static void test_common_again(void **state)
{
    const struct reshard_folder *folder = *state;
    const struct dcp_reshard_options to_native = { .world_size = 2, .dtype = -1 },
                                     to_dcp = { .format = "dcp",
                                                .world_size = 3,
                                                .dtype = -1 };
    static const char mark[] = "{\"sharded_backend\": \"torch_dist\"}";
    static const char *const names[] = { "common.pt", "metadata.json" };
    DCP_CLEANUP_TORCH_DIST_METADATA struct dcp_torch_dist_metadata meta = { 0 };
    char dcp[512], step[512];
    const void *data[] = { NULL, mark };
    size_t n[] = { 0, sizeof mark - 1 };
    struct dcp_store store;
    void *nested, *again;

    snprintf(dcp, sizeof dcp, "%s/dcp", folder->path);
    snprintf(step, sizeof step, "%s/step", folder->path);
    reshard_folder_save(folder->source, "zero3", 2, DCP_CODEC_NONE);
    reshard_folder_must_run(folder->source, dcp, &to_dcp);
    assert_int_equal(dcp_fs_read_file(DCP_TESTS_DIR "/formats/data/torch/nested.pt",
                                      1 << 20, &nested, &n[0], NULL),
                     0);
    data[0] = nested;
    assert_int_equal(dcp_store_dir(&store, dcp, false, NULL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(dcp_store_write_file(&store, names[i], data[i], n[i], NULL), 0);
    dcp_store_free(&store);
    reshard_folder_must_run(dcp, step, &to_native);
    reshard_folder_must_run(step, folder->target, &to_dcp);
    assert_int_equal(dcp_store_dir(&store, folder->target, false, NULL), 0);
    for (int i = 0; i < 2; i++) {
        size_t got;
        assert_int_equal(
            dcp_store_read_file(&store, names[i], 1 << 20, &again, &got, NULL), 0);
        assert_int_equal(got, n[i]);
        assert_memory_equal(again, data[i], got);
        free(again);
    }
    const struct dcp_source source = { .store = &store, .name = "", .is_dir = true };
    assert_int_equal(dcp_torch_dist_metadata_read(&source, &meta, NULL), 0);
    for (size_t o = 0; o < meta.n_objects; o++)
        assert_null(strstr(meta.objects[o].name, "common."));
    for (size_t t = 0; t < meta.n_tensors; t++)
        assert_null(strstr(meta.tensors[t].name, "common."));
    dcp_store_free(&store);
    free(nested);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_roles),
        cmocka_unit_test(test_steps),
        cmocka_unit_test_setup_teardown(test_ties, reshard_folder_setup,
                                        reshard_folder_teardown),
        cmocka_unit_test(test_tied_head),
        cmocka_unit_test(test_odd_groups),
        cmocka_unit_test(test_groups_of_another_optimizer),
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_keys_of_objects),
        cmocka_unit_test(test_collisions),
        cmocka_unit_test(test_nouns),
        cmocka_unit_test(test_attributes),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_common),
        cmocka_unit_test_setup_teardown(test_common_again, reshard_folder_setup,
                                        reshard_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
