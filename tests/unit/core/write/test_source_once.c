/* However many threads make a target, however many of its ranks want something of one
 * block, and however little memory there is: each byte of the source is read once. */
/* labels: tsan */
#include "base/mem.h"
#include "lib/must.h"
#include "lib/reshard_folder.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { TENSORS = 24, RANKS = 64, COLUMNS = 1024, THREADS = 4 };
#define ELEMS ((size_t)RANKS * COLUMNS)
#define TENSOR_BYTES (ELEMS * sizeof(float))

static atomic_ullong n_read;

static int read_at(void *self, struct dcp_store_file *file, uint64_t offset, void *out,
                   size_t n, struct dcp_error *err)
{
    const struct dcp_store *inner = ((struct dcp_store_forward *)self)->inner;

    n_read += n;
    return inner->ops->read_at(inner->self, file, offset, out, n, err);
}

static void save(const char *path)
{
    static const int64_t shape[] = { RANKS, COLUMNS };
    struct dcp_local_tensor locals[TENSORS] = { { 0 } };
    char names[TENSORS][16];
    float *data = malloc(TENSORS * TENSOR_BYTES);
    struct dcp_store store;

    must(data);
    for (size_t i = 0; i < TENSORS * ELEMS; i++)
        data[i] = (float)(i % 100003);
    for (size_t t = 0; t < TENSORS; t++) {
        snprintf(names[t], sizeof names[t], "layers.%zu", t);
        locals[t] = (struct dcp_local_tensor){ .name = names[t],
                                               .dtype = DCP_F32,
                                               .ndim = 2,
                                               .shape = shape,
                                               .data = data + t * ELEMS };
    }
    must(!dcp_store_dir(&store, path, true, NULL));
    struct dcp_context ctx = { .store = &store };
    struct dcp_save_options options = { .step = 1 };
    struct dcp_state state = { .layout = "replicated",
                               .locals = locals,
                               .n_locals = TENSORS };
    must(!dcp_save(&ctx, &options, &state, NULL, NULL));
    dcp_store_free(&store);
    free(data);
}

/* Returns how many times the tensors' bytes are read. */
static double read_times(const struct reshard_folder *folder, int threads,
                         uint64_t memory_bytes, enum dcp_codec codec)
{
    struct dcp_reshard_options options = { .world_size = RANKS,
                                           .layout = "dim0",
                                           .dtype = -1,
                                           .threads = threads,
                                           .memory_bytes = memory_bytes,
                                           .codec = codec,
                                           .force = true };
    struct dcp_location location;
    struct dcp_store_forward wrapper;
    struct dcp_store counting;
    struct dcp_reshard *job;
    struct dcp_error err = { 0 };

    must(!dcp_location_open(folder->source, &location, NULL));
    dcp_store_forward(&counting, &wrapper, location.source.store);
    wrapper.ops.read_at = read_at;
    location.source.store = &counting;
    n_read = 0;
    must(!dcp_reshard_plan(&location, folder->target, &options, &job, NULL));
    int rc = dcp_reshard_run(job, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(rc, 0);
    dcp_reshard_free(job);
    location.source.store = wrapper.inner;
    dcp_location_close(&location);
    return (double)n_read / (double)(TENSORS * TENSOR_BYTES);
}

/* 1 byte of memory: the cache is as small as it gets, and holds a part of the tensors. */
static void each_byte_once(void **state)
{
    static const enum dcp_codec codecs[] = { DCP_CODEC_NONE, DCP_CODEC_ZSTD };
    const struct reshard_folder *folder = *state;

    save(folder->source);
    for (int threads = 1; threads <= THREADS; threads *= 2)
        for (uint64_t memory = 0; memory < 2; memory++)
            for (size_t c = 0; c < DCP_ARRAY_LEN(codecs); c++) {
                double times = read_times(folder, threads, memory, codecs[c]);
                if (times < 1 || times > 1.1)
                    fail_msg("%d threads read the source %.2f times, codec %d", threads,
                             times, (int)codecs[c]);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_byte_once, reshard_folder_setup,
                                        reshard_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
