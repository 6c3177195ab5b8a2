/* What is written through an open file is made durable through it, before it is closed:
 * ranks on several machines each have their own page cache, and the sync of one says
 * nothing of what another wrote. */
#include "lib/acts.h"
#include "lib/step_files.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

#define STEP "step-00000001"
enum { MAX_OPEN = 256 };

/* --- a store that watches --- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dcp_store_file *dirty[MAX_OPEN]; /* written to, and not synced since */
static long n_writes, n_forgotten;

/* Puts a file into the list, or takes it out; whether it was there. */
static bool note(struct dcp_store_file *file, bool is_dirty)
{
    int at = -1, hole = 0;

    pthread_mutex_lock(&lock);
    for (int i = MAX_OPEN - 1; i >= 0; i--) {
        at = dirty[i] == file ? i : at;
        hole = dirty[i] ? hole : i;
    }
    if (at < 0 && is_dirty)
        dirty[hole] = file;
    else if (at >= 0 && !is_dirty)
        dirty[at] = NULL;
    n_writes += is_dirty;
    pthread_mutex_unlock(&lock);
    return at >= 0;
}

static int watch_write(void *self, struct dcp_store_file *file, uint64_t offset,
                       const void *data, size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;

    note(file, true);
    return inner->ops->write_at(inner->self, file, offset, data, size_bytes, err);
}

static int watch_sync(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                      struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;

    note(file, false);
    return inner->ops->sync(inner->self, file, size_bytes, err);
}

static int watch_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;

    if (note(file, false))
        __atomic_add_fetch(&n_forgotten, 1, __ATOMIC_SEQ_CST);
    return inner->ops->close(inner->self, file, err);
}

static struct dcp_store watched(const struct dcp_store *memory,
                                struct dcp_store_forward *wrapper)
{
    struct dcp_store store;

    dcp_store_forward(&store, wrapper, memory);
    wrapper->ops.write_at = watch_write;
    wrapper->ops.sync = watch_sync;
    wrapper->ops.close = watch_close;
    n_writes = n_forgotten = 0;
    return store;
}

/* --- what writes --- */

struct kind {
    int world_size, parity;
    enum dcp_codec codec;
    const char *consolidated;
};

static void save(const struct dcp_store *store, const struct kind *kind)
{
    struct dcp_export consolidated = { kind->consolidated, "torch", DCP_BF16 };
    const struct dcp_save_options more = {
        .parity = kind->parity, .consolidated = kind->consolidated ? &consolidated : NULL
    };
    struct acts acts = { .store = store,
                         .layout = "zero3",
                         .world_size = kind->world_size,
                         .step = 1,
                         .codec = kind->codec,
                         .more = &more };

    if (acts_save(&acts))
        fail_msg("%s", acts.err.message);
    assert_true(n_writes > kind->world_size + kind->parity);
    assert_int_equal(n_forgotten, 0);
}

static void saves(void **state)
{
    static const struct kind kinds[] = {
        { 1, 0, DCP_CODEC_NONE, "pytorch_model.bin" },
        { 3, 0, DCP_CODEC_PLANES, NULL },
        { 2, 2, DCP_CODEC_NONE, "pytorch_model.bin" },
        { 4, 1, DCP_CODEC_ZSTD, NULL },
    };

    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct dcp_store_forward wrapper;
        struct dcp_store memory;
        assert_int_equal(dcp_store_mem(&memory, NULL), 0);
        struct dcp_store store = watched(&memory, &wrapper);
        save(&store, &kinds[k]);
        dcp_store_free(&memory);
    }
}

static void repairs(void **state)
{
    static const struct kind kind = { 3, 2, DCP_CODEC_NONE, NULL };
    struct dcp_store_forward wrapper;
    struct dcp_store memory;
    struct step_files files;
    struct dcp_error err = { 0 };

    (void)state;
    assert_int_equal(dcp_store_mem(&memory, NULL), 0);
    struct dcp_store store = watched(&memory, &wrapper);
    save(&store, &kind);
    step_files_read(&files, &memory, STEP);
    step_files_remove(&files, "shard-00001-of-00003.safetensors");
    step_files_remove(&files, "parity-00001-of-00002.bin");
    step_files_remove(&files, "manifest.json");
    n_writes = 0;
    if (dcp_repair(&store, STEP, NULL, NULL, &err))
        fail_msg("%s", err.message);
    assert_true(step_files_same(&files));
    assert_true(n_writes > 2);
    assert_int_equal(n_forgotten, 0);
    step_files_free(&files);
    dcp_store_free(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves),
        cmocka_unit_test(repairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
