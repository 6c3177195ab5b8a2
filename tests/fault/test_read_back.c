/* A bit that flips between the digest and the disk: what is read back is not what was
 * written, and nothing is published. */
#include "base/mem.h"
#include "lib/acts.h"
#include "lib/archives.h"
#include "lib/must.h"
#include "lib/step_files.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

/* A store of which the n-th write (from 1) stores a bit that was not given. */
static struct dcp_store_forward wrapper;
static long n_writes, wrong_at;
static bool struck;

static int wrong_write(void *self, struct dcp_store_file *file, uint64_t offset,
                       const void *data, size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;

    if (__atomic_add_fetch(&n_writes, 1, __ATOMIC_SEQ_CST) != wrong_at || !size_bytes)
        return inner->ops->write_at(inner->self, file, offset, data, size_bytes, err);
    unsigned char *copy = malloc(size_bytes);
    must(copy);
    memcpy(copy, data, size_bytes);
    copy[(size_t)wrong_at * 7919 % size_bytes] ^= 0x10;
    struck = true;
    int rc = inner->ops->write_at(inner->self, file, offset, copy, size_bytes, err);
    free(copy);
    return rc;
}

static struct dcp_store wrap(const struct dcp_store *right, long at)
{
    struct dcp_store store;

    dcp_store_forward(&store, &wrapper, right);
    wrapper.ops.write_at = wrong_write;
    n_writes = 0;
    wrong_at = at;
    struck = false;
    return store;
}

static bool one_flip(const struct dcp_save_options *more, enum dcp_codec codec, long at)
{
    struct dcp_store store;
    struct dcp_context ctx = { .store = &store };
    struct dcp_step step;

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    struct dcp_store wrong = wrap(&store, at);
    struct acts acts = { .store = &wrong,
                         .layout = "zero3",
                         .world_size = 2,
                         .step = 1,
                         .codec = codec,
                         .more = more,
                         .small = true };
    int rc = acts_save(&acts);
    assert_true(acts.agreed);
    bool hit = struck;
    if (hit && (rc != DCP_E_CORRUPT || dcp_find(&ctx, -1, &step, NULL) == DCP_OK))
        fail_msg("write %ld: %d %s", at, rc, acts.err.message);
    if (!hit)
        assert_int_equal(rc, 0);
    dcp_store_free(&store);
    return hit;
}

static void saves(void **state)
{
    const struct dcp_export consolidated = { "pytorch_model.bin", "torch", DCP_BF16 };
    const struct dcp_save_options all = { .parity = 1,
                                          .consolidated = &consolidated,
                                          .verify_after_save = true };
    const struct dcp_save_options parity = { .parity = 1 };
    long at = 1;

    (void)state;
    while (one_flip(NULL, DCP_CODEC_NONE, at))
        at++;
    assert_int_equal(at, 1 + 7); /* header, pieces, table of each rank; the manifest */
    for (at = 1; one_flip(&parity, DCP_CODEC_NONE, at);)
        at++;
    assert_int_equal(at, 1 + 12);
    for (at = 1; one_flip(&all, DCP_CODEC_PLANES, at);)
        at++;
    assert_true(at > 20);
}

/* Who does not want it read back finds out when it is read. */
static void not_read_back(void **state)
{
    const struct dcp_save_options bare = { .no_read_back = true };
    struct dcp_store store;
    const struct dcp_source source = { &store, "step-00000001", true };

    (void)state;
    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    struct dcp_store wrong = wrap(&store, 3); /* in a piece */
    struct acts acts = { .store = &wrong,
                         .layout = "zero3",
                         .world_size = 2,
                         .step = 1,
                         .more = &bare,
                         .small = true };
    assert_int_equal(acts_save(&acts), 0);
    assert_true(struck);
    assert_int_equal(dcp_verify(&source, NULL, NULL, NULL), DCP_E_CORRUPT);
    dcp_store_free(&store);
}

/* A bundle, whose files cannot be read back one by one. */
static void packs(void **state)
{
    static const struct archive_file files[] = { { "a", 70000 }, { "b", 5000000 } };
    bool hit = true;

    (void)state;
    for (long at = 1; hit; at++) {
        struct dcp_store store;
        assert_int_equal(dcp_store_mem(&store, NULL), 0);
        struct dcp_store wrong = wrap(&store, at);
        int rc = archive_pack(&wrong, files, DCP_ARRAY_LEN(files), 2, NULL);
        hit = struck;
        assert_int_equal(rc, hit ? DCP_E_CORRUPT : DCP_OK);
        assert_true(hit || at > 5);
        dcp_store_free(&store);
    }
}

/* A file that is written in one go. */
static void small_files(void **state)
{
    struct dcp_store store;

    (void)state;
    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    struct dcp_store wrong = wrap(&store, 1);
    assert_int_equal(dcp_store_write_file(&wrong, "a", "text", 4, NULL), DCP_E_CORRUPT);
    assert_int_equal(dcp_store_write_file(&wrong, "a", "text", 4, NULL), 0);
    dcp_store_free(&store);
}

/* A shard, a parity file and the manifest are rebuilt. Nothing wrong takes the place of
 * what is lost, and the next repair succeeds. */
static void repairs(void **state)
{
    static const char *const lost[] = { "shard-00001-of-00002.safetensors",
                                        "parity-00002-of-00003.bin", "manifest.json" };
    const struct dcp_save_options parity = { .parity = 3 };
    bool hit = true;
    long at;

    (void)state;
    for (at = 1; hit; at++) {
        struct dcp_store store;
        struct step_files whole;
        struct dcp_repair_result result;
        assert_int_equal(dcp_store_mem(&store, NULL), 0);
        struct acts acts = { .store = &store,
                             .layout = "zero3",
                             .world_size = 2,
                             .step = 1,
                             .more = &parity,
                             .small = true };
        assert_int_equal(acts_save(&acts), 0);
        step_files_read(&whole, &store, "step-00000001");
        for (size_t i = 0; i < DCP_ARRAY_LEN(lost); i++)
            step_files_remove(&whole, lost[i]);
        struct dcp_store wrong = wrap(&store, at);
        int rc = dcp_repair(&wrong, "step-00000001", NULL, &result, NULL);
        hit = struck;
        if (rc != (hit ? DCP_E_CORRUPT : DCP_OK))
            fail_msg("write %ld of a repair: %d", at, rc);
        if (hit)
            assert_int_equal(dcp_repair(&store, "step-00000001", NULL, &result, NULL), 0);
        assert_true(step_files_same(&whole));
        step_files_free(&whole);
        dcp_store_free(&store);
    }
    assert_true(at > 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves),   cmocka_unit_test(not_read_back),
        cmocka_unit_test(packs),   cmocka_unit_test(small_files),
        cmocka_unit_test(repairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
