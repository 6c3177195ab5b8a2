/* deepspeed: folders that are incomplete, pickles that contradict each other, and changed
 * bytes: refused in words, or read within their files. */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/fs.h"
#include "base/mem.h"
#include "lib/packed_folder.h"
#include <dcp/format.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PACKS DCP_TESTS_DIR "/fuzz/corpus/deepspeed/"
#define DATA DCP_TESTS_DIR "/formats/data/deepspeed/"
#define TEXT(text) text, sizeof(text) - 1

static unsigned char *load(const char *path, size_t *out_n)
{
    void *data;

    assert_int_equal(dcp_fs_read_file(path, 1 << 20, &data, out_n, NULL), 0);
    return data;
}

static int index_store(const struct dcp_store *store, const char *format,
                       struct dcp_error *err)
{
    const struct dcp_source source = { .store = store, .name = "", .is_dir = true };
    struct dcp_catalog *catalog;

    *err = (struct dcp_error){ 0 };
    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    int rc = dcp_format_find(format)->index(&source, catalog, err);
    for (size_t p = 0; !rc && p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        uint64_t size = catalog->files[piece->file].size_bytes;
        assert_true(piece->offset <= size && piece->stored_size <= size - piece->offset);
    }
    dcp_catalog_free(catalog);
    return rc;
}

/* -- pickles that say something else
 * ----------------------------------------------------- */

/* In a pack, the n-th place (from 0) of some bytes of a pickle, and what stands there
 * instead, as long as they are. */
static const struct {
    const char *pack, *format;
    int nth;
    const char *from, *to;
    size_t size_bytes;
    int code;
    const char *words;
} changes[] = {
#define CHANGE(from, to) from, to, sizeof(from) - 1
    { "z2", "deepspeed", 0, CHANGE("dp_world_size", "dp_world_sizf"), DCP_E_CORRUPT,
      "has no valid 'dp_world_size'" },
    { "z2", "deepspeed", 0, CHANGE("skipped_steps", "autoep_layers"), DCP_E_UNSUPPORTED,
      "experts (MoE)" },
    { "z2", "deepspeed", 0, CHANGE("global_steps", "global_stepz"), DCP_E_CORRUPT,
      "has no valid 'global_steps'" },
    { "z2", "deepspeed", 0, CHANGE("\x06\0\0\0module", "\x06\0\0\0modul_"), DCP_E_CORRUPT,
      "has no 'module'" },
    { "z2", "deepspeed", 0, CHANGE("param_shapes", "param_shapez"), DCP_E_CORRUPT,
      "has no 'param_shapes'" },
    { "z2", "deepspeed", 0, CHANGE("zero_stage", "zero_stagf"), DCP_E_CORRUPT,
      "is of ZeRO stage" },
    { "z2", "deepspeed", 0, CHANGE("single_partition", "single_partitiom"), DCP_E_CORRUPT,
      "holds no optimizer state of ZeRO stage 1 or 2" },
    { "z2", "deepspeed", 1, CHANGE("base_optimizer", "base_optimizes"), DCP_E_CORRUPT,
      "holds no optimizer state of ZeRO stage 1 or 2" },
    { "z2", "deepspeed", 1, CHANGE("exp_avg_sq", "exp_avg_sr"), DCP_E_CORRUPT,
      "unlike the file of rank 0" },
    { "z2", "deepspeed", 0, CHANGE("param_alignment_p", "param_alignment_q"), 0, NULL },
    { "z2", "deepspeed", 1, CHANGE("param_slice_m", "param_slice_n"), 0, NULL },
    { "z2", "deepspeed", 1, CHANGE("numel", "numem"), 0, NULL }, /* the names are left */
    { "z2", "deepspeed", 1, CHANGE("startq[K\0", "startq[K\1"), DCP_E_CORRUPT,
      "has another part of" },
    { "z2-aligned", "deepspeed", 0, CHANGE("param_alignment_p", "param_alignment_q"),
      DCP_E_CORRUPT, "are expected" },
    { "z1-bf16", "deepspeed", 1,
      CHANGE("transformer.wpe.weight", "transformer.wte.weight"), DCP_E_CORRUPT,
      "two tensors named" },
    { "z1-bf16", "deepspeed", 2,
      CHANGE("transformer.wpe.weight", "transformer.wte.weight"), DCP_E_CORRUPT,
      "in two groups" },
    { "z3-parts", "deepspeed", 0, CHANGE("fp32_flat_groups", "fp32_flat_groupz"),
      DCP_E_CORRUPT, "holds no optimizer state of ZeRO stage 3" },
    { "z3-parts", "deepspeed", 0,
      CHANGE("frozen_param_fragments", "frozen_param_fragmentz"), DCP_E_CORRUPT,
      "has no 'frozen_param_fragments'" },
    /* files of two saves; a folder may have any name, so it tells nothing alone */
    { "z3-parts", "deepspeed", 0, CHANGE("stepsq\xd1K\3", "stepsq\xd1K\2"), DCP_E_CORRUPT,
      "zero_pp_rank_0_mp_rank_00_model_states.pt' has 2: they are of two saves" },
    { "z3-parts", "deepspeed", 0, CHANGE("stepsq\xcfK\3", "stepsq\xcfK\4"), DCP_E_CORRUPT,
      "zero_pp_rank_1_mp_rank_00_model_states.pt' has 4 as 'global_steps', " },
    { "z3-parts", "deepspeed", 0, CHANGE("sizeq\xd1K\2", "sizeq\xd1K\3"), DCP_E_CORRUPT,
      "has 3 as 'dp_world_size'" },
    { "universal-z3", "universal", 0, CHANGE("stepsq\xcfK\3", "stepsq\xcfK\4"),
      DCP_E_CORRUPT, "has 4 as 'global_steps'" },
    { "universal-z2", "universal", 0, CHANGE("stepsq\xd7K\3", "stepsq\xd7K\4"), 0, NULL },
    { "z0", "deepspeed", 0, CHANGE("param_groups", "param_groupz"), DCP_E_CORRUPT,
      "has an 'optimizer' of an unknown form" },
    { "universal-z2", "universal", 0, CHANGE("param_groups", "param_groupz"),
      DCP_E_CORRUPT, "in its 'param_groups'" },
    { "universal-z2", "universal", 1, CHANGE("\x05\0\0\0param", "\x05\0\0\0parak"),
      DCP_E_CORRUPT, "holds no tensor of a parameter" },
    { "universal-z3", "universal", 0, CHANGE("/fp32.pt", "/fp33.pt"), DCP_E_CORRUPT,
      "fp32.pt' is missing" },
};

static void test_changes(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(changes); i++) {
        struct dcp_error err;
        struct dcp_store store;
        char path[512];
        size_t n;
        snprintf(path, sizeof path, PACKS "%s.pack", changes[i].pack);
        unsigned char *data = load(path, &n), *at = data;
        for (int k = 0; k <= changes[i].nth && at; k++) {
            at = memmem(at + (k > 0), n - (size_t)(at + (k > 0) - data), changes[i].from,
                        changes[i].size_bytes);
        }
        if (!at)
            fail_msg("change %zu: there is no such text", i);
        memcpy(at, changes[i].to, changes[i].size_bytes);
        packed_folder_open(&store, data, n);
        int rc = index_store(&store, changes[i].format, &err);
        print_message("%s: %s\n", changes[i].pack, rc ? err.message : "accepted");
        assert_int_equal(rc, changes[i].code);
        if (rc && !strstr(err.message, changes[i].words))
            fail_msg("change %zu: not the words '%s'", i, changes[i].words);
        dcp_store_free(&store);
        free(data);
    }
}

/* The steps of a pack's optimizer are 0, those of the model's file 3: in a folder that
 * says 0 too, the latter is of another save. */
static void test_tag(void **state)
{
    static const struct {
        const char *pack, *tag;
        int code;
    } tags[] = {
        { "z2", "global_step3", 0 },
        { "z2", "global_step0", DCP_E_CORRUPT },
        { "z2", "global_step2", 0 },
        { "z2", "global_stepx", 0 },
        { "z2-fp16", "global_step0", DCP_E_CORRUPT },
        { "z3-parts", "global_step0", DCP_E_CORRUPT },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(tags); i++) {
        struct dcp_error err;
        struct dcp_store store;
        char path[512];
        size_t n, len = strlen(tags[i].tag);
        snprintf(path, sizeof path, PACKS "%s.pack", tags[i].pack);
        unsigned char *data = load(path, &n), *at = data;
        while ((at = memmem(at, n - (size_t)(at - data), "global_step3", len)) != NULL)
            memcpy(at, tags[i].tag, len), at += len;
        packed_folder_open(&store, data, n);
        int rc = index_store(&store, "deepspeed", &err);
        print_message("%s of %s: %s\n", tags[i].tag, tags[i].pack,
                      rc ? err.message : "accepted");
        assert_int_equal(rc, tags[i].code);
        assert_true(!rc || strstr(err.message, "model_states.pt' is of step 3, and"));
        dcp_store_free(&store);
        free(data);
    }
}

/* -- changed bytes of real files
 * --------------------------------------------------------- */

static void copy_folder(const struct dcp_store *from, const struct dcp_store *to,
                        const char *dir)
{
    struct dcp_store_entry *entries;
    size_t n, size;
    void *data;
    char name[512];

    assert_int_equal(from->ops->list(from->self, dir, &entries, &n, NULL), 0);
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s%s%s", dir, dir[0] ? "/" : "", entries[i].name);
        if (entries[i].is_dir) {
            assert_int_equal(to->ops->make_dir(to->self, name, NULL), 0);
            copy_folder(from, to, name);
            continue;
        }
        assert_int_equal(dcp_store_read_file(from, name, 1 << 20, &data, &size, NULL), 0);
        assert_int_equal(dcp_store_write_file(to, name, data, size, NULL), 0);
        free(data);
    }
    dcp_store_list_free(entries, n);
}

static void test_bytes(void **state)
{
    static const char name[] = "global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt";
    struct dcp_store disk, store;
    struct dcp_error err;
    size_t n, accepted = 0;
    void *data;

    (void)state;
    assert_int_equal(dcp_store_dir(&disk, DATA "z3", false, NULL), 0);
    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    copy_folder(&disk, &store, "");
    assert_int_equal(dcp_store_read_file(&store, name, 1 << 20, &data, &n, NULL), 0);
    assert_int_equal(index_store(&store, "deepspeed", &err), 0);
    for (size_t at = 0; at < n; at += 7) {
        unsigned char *changed = data;
        changed[at] ^= (unsigned char)(1u << (at & 7));
        assert_int_equal(store.ops->remove(store.self, name, NULL), 0);
        assert_int_equal(dcp_store_write_file(&store, name, changed, n, NULL), 0);
        int rc = index_store(&store, "deepspeed", &err);
        assert_true(!rc || rc == DCP_E_CORRUPT || rc == DCP_E_UNSUPPORTED);
        assert_true(!rc || err.message[0]);
        accepted += !rc; /* the bytes of tensors are read later */
        changed[at] ^= (unsigned char)(1u << (at & 7));
    }
    assert_true(accepted > 0 && accepted < n / 7);
    free(data);
    dcp_store_free(&store);
    dcp_store_free(&disk);
}

/* -- files that are not there, or too many
 * ----------------------------------------------- */

static const struct {
    const char *remove, *add; /* a file to remove, one to add as a copy of rank 0's */
    int code;
    const char *words;
} folders[] = {
    { "latest", NULL, DCP_E_CORRUPT, "there is no 'latest' to name one of the tags" },
    { "global_step3/zero_pp_rank_2_mp_rank_00_optim_states.pt", NULL, DCP_E_CORRUPT,
      "expected 4 optimizer shards, found 3: missing "
      "zero_pp_rank_2_mp_rank_00_optim_states.pt" },
    { "global_step3/zero_pp_rank_3_mp_rank_00_model_states.pt", NULL, DCP_E_CORRUPT,
      "expected 4 model shards, found 3" },
    { "global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt", NULL, DCP_E_CORRUPT,
      "the file of the model's states is missing" },
    { NULL, "global_step3/zero_pp_rank_4_mp_rank_00_optim_states.pt", DCP_E_CORRUPT,
      "is stale: 4 ranks wrote the last save" },
    { NULL, "global_step3/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", DCP_E_CORRUPT,
      "are both of rank 0" },
    { NULL, "global_step3/mp_rank_00_model_states.pt", DCP_E_CORRUPT,
      "are of two saves" },
    { NULL, "global_step3/zero_pp_rank_0_mp_rank_01_optim_states.pt", DCP_E_UNSUPPORTED,
      "second model-parallel rank" },
    /* spelled as DeepSpeed spells nothing, which it ignores */
    { NULL, "global_step3/zero_pp_rank_01_mp_rank_00_optim_states.pt", DCP_OK, NULL },
    { NULL, "global_step3/zero_pp_rank_1_mp_rank_0_optim_states.pt", DCP_OK, NULL },
    { NULL, "global_step3/zero_pp_rank_1_mp_rank_000_optim_states.pt", DCP_OK, NULL },
    { NULL, "global_step3/zero_pp_rank_1_mp_rank_00model_states.pt", DCP_OK, NULL },
    { NULL, "global_step3/mp_rank_0_model_states.pt", DCP_OK, NULL },
    { NULL, "global_step3/mp_rank_00model_states.pt", DCP_OK, NULL },
    { NULL, "global_step3/mp_rank_000_model_states.pt", DCP_OK, NULL },
    { NULL, "global_step3/fp16_mp_rank_00_model_states.pt", DCP_OK, NULL },
    { NULL, "global_step3/layer_00-model_00-model_states.pt", DCP_E_UNSUPPORTED,
      "pipeline stages" },
    { NULL, "global_step3/layer_0_expert_1_mp_rank_00_model_states.pt", DCP_E_UNSUPPORTED,
      "experts (MoE)" },
    { NULL, "global_step3/expp_rank_0_mp_rank_00_optim_states.pt", DCP_E_UNSUPPORTED,
      "experts (MoE)" },
    { NULL, "global_step3/offloaded_tensors/rank00/x", DCP_E_UNSUPPORTED, "NVMe" },
    { "global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt",
      "global_step3/zero_pp_rank_1_mp_rank_00optim_states.pt", DCP_OK, NULL },
    { NULL, "global_step3/zero_pp_rank_99999999_mp_rank_00_optim_states.pt", DCP_OK,
      NULL },
    { NULL, "global_step3/zero_pp_rank_1999999_mp_rank_00_optim_states.pt",
      DCP_E_UNSUPPORTED, "has a rank over" },
};

static void test_folders(void **state)
{
    static const char first[] = "global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt";
    struct dcp_store disk;
    struct dcp_error err;

    (void)state;
    assert_int_equal(dcp_store_dir(&disk, DATA "z3", false, NULL), 0);
    for (size_t i = 0; i < DCP_ARRAY_LEN(folders); i++) {
        struct dcp_store store;
        void *data;
        size_t n;
        assert_int_equal(dcp_store_mem(&store, NULL), 0);
        copy_folder(&disk, &store, "");
        assert_int_equal(dcp_store_read_file(&store, first, 1 << 20, &data, &n, NULL), 0);
        if (folders[i].remove)
            assert_int_equal(store.ops->remove(store.self, folders[i].remove, NULL), 0);
        if (folders[i].add && strstr(folders[i].add, "rank00/")) {
            store.ops->make_dir(store.self, "global_step3/offloaded_tensors", NULL);
            store.ops->make_dir(store.self, "global_step3/offloaded_tensors/rank00",
                                NULL);
        }
        if (folders[i].add)
            assert_int_equal(dcp_store_write_file(&store, folders[i].add, data, n, NULL),
                             0);
        int rc = index_store(&store, "deepspeed", &err);
        print_message("%s\n", rc ? err.message : "accepted");
        assert_int_equal(rc, folders[i].code);
        if (rc && !strstr(err.message, folders[i].words))
            fail_msg("folder %zu: not the words '%s'", i, folders[i].words);
        free(data);
        dcp_store_free(&store);
    }
    dcp_store_free(&disk);
}

static void replace(const struct dcp_store *store, const char *name, const void *data,
                    size_t n)
{
    assert_int_equal(store->ops->remove(store->self, name, NULL), 0);
    assert_int_equal(dcp_store_write_file(store, name, data, n, NULL), 0);
}

/* At stages 1 and 2 a rank's file says which parameters are in it. */
static void test_ranks(void **state)
{
    static const char *const packs[] = { "z1-bf16", "z2", "z2-elastic" };

    (void)state;
    for (size_t i = 0; i < 2 * DCP_ARRAY_LEN(packs); i++) {
        struct dcp_store disk, store;
        struct dcp_error err;
        char path[512], names[2][128];
        size_t sizes[2];
        void *files[2];
        snprintf(path, sizeof path, DATA "%s", packs[i / 2]);
        assert_int_equal(dcp_store_dir(&disk, path, false, NULL), 0);
        assert_int_equal(dcp_store_mem(&store, NULL), 0);
        copy_folder(&disk, &store, "");
        for (int r = 0; r < 2; r++) {
            snprintf(names[r], sizeof names[r],
                     "global_step3/bf16_zero_pp_rank_%d_mp_rank_00_optim_states.pt", r);
            if (dcp_store_read_file(&store, names[r], 1 << 20, &files[r], &sizes[r],
                                    NULL)) {
                memmove(names[r] + 13, names[r] + 18, strlen(names[r] + 18) + 1);
                assert_int_equal(dcp_store_read_file(&store, names[r], 1 << 20, &files[r],
                                                     &sizes[r], NULL),
                                 0);
            }
        }
        assert_int_equal(index_store(&store, "deepspeed", &err), 0);
        replace(&store, names[1], files[0], sizes[0]);
        if (i % 2)
            replace(&store, names[0], files[1], sizes[1]);
        int rc = index_store(&store, "deepspeed", &err);
        print_message("%s: %s\n", packs[i / 2], rc ? err.message : "accepted");
        assert_int_equal(rc, DCP_E_CORRUPT);
        assert_non_null(strstr(err.message, "holds what another rank saved"));
        free(files[0]);
        free(files[1]);
        dcp_store_free(&store);
        dcp_store_free(&disk);
    }
}

/* What "latest" says. */
static void test_latest(void **state)
{
    static const struct {
        const char *text;
        const char *words; /* NULL: it is read */
    } latest[] = {
        { "global_step3\n", NULL },
        { "  global_step3 ", NULL },
        { "global_step4", "and there is no such folder" },
        { "../z3/global_step3", "names no folder" },
        { "..", "names no folder" },
        { "", "names no folder" },
        { "/", "names no folder" },
    };
    struct dcp_store disk;
    struct dcp_error err;

    (void)state;
    assert_int_equal(dcp_store_dir(&disk, DATA "z3", false, NULL), 0);
    for (size_t i = 0; i < DCP_ARRAY_LEN(latest); i++) {
        struct dcp_store store;
        assert_int_equal(dcp_store_mem(&store, NULL), 0);
        copy_folder(&disk, &store, "");
        assert_int_equal(store.ops->remove(store.self, "latest", NULL), 0);
        assert_int_equal(dcp_store_write_file(&store, "latest", latest[i].text,
                                              strlen(latest[i].text), NULL),
                         0);
        int rc = index_store(&store, "deepspeed", &err);
        assert_int_equal(rc, latest[i].words ? DCP_E_CORRUPT : DCP_OK);
        if (rc && !strstr(err.message, latest[i].words))
            fail_msg("'%s': %s", latest[i].text, err.message);
        dcp_store_free(&store);
    }
    dcp_store_free(&disk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changes), cmocka_unit_test(test_tag),
        cmocka_unit_test(test_bytes),   cmocka_unit_test(test_folders),
        cmocka_unit_test(test_latest),  cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
