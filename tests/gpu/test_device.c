/* The memory of a real GPU: what is saved from it is what was there, by ranks side by
 * side, and what is loaded into it; a step of the host's memory and one of the device's
 * are the same. Exit status 77 without a GPU. */
#include "core/catalog/region.h"
#include "lib/must.h"
#include "lib/rank_threads.h"
#include "lib/sample.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>
#include <dcp/dcp.h>

enum { SALT = 5 };

/* --- a state on the device --- */

/* The sample's memory moves to the device, or back, but for what is offloaded. */
static void move(struct sample *sample, enum cudaMemcpyKind kind)
{
    for (size_t t = 0; t < sample->state.n_locals; t++) {
        struct dcp_local_tensor *local = &sample->locals[t];
        const struct dcp_tensor *tensor = &sample->catalog->tensors[t];
        size_t n = (size_t)dcp_region_elems(tensor, &local->region) *
                   dcp_dtype_size(tensor->dtype);
        void *to = NULL;
        if (!local->data || t % 3 == 2)
            continue;
        if (kind == cudaMemcpyHostToDevice)
            must(!cudaMalloc(&to, n + 1));
        else
            must((to = malloc(n + 1)) != NULL);
        must(!cudaMemcpy(to, local->data, n, kind));
        must(!cudaDeviceSynchronize()); /* it may return before it is done */
        if (kind == cudaMemcpyHostToDevice)
            free(local->data);
        else
            must(!cudaFree(local->data));
        local->data = to;
    }
}

struct act {
    const struct dcp_store *store;
    const char *layout;
    bool load, on_device, copied; /* copied: a save that need not leave the state alone */
    int64_t wrong;                /* of a load */
};

/* Staging that is taken, beside the state. */
static _Atomic size_t staged;
static struct dcp_device_ops counted;

static int count_staging(void *self, size_t size_bytes, void **out, struct dcp_error *err)
{
    struct dcp_device cuda;
    int rc = dcp_device_cuda(&cuda, 0, err);
    if (!rc)
        rc = cuda.ops->alloc_staging(self, size_bytes, out, err);
    dcp_device_free(&cuda);
    staged += size_bytes;
    return rc;
}

static int save(const struct dcp_context *ctx, const struct act *a,
                const struct dcp_state *state, struct dcp_error *err)
{
    const struct dcp_save_options options = { .step = 1, .in_place = !a->copied };
    struct dcp_saver *saver;
    int rc = dcp_saver_new(ctx, &saver, err);
    must(!rc);
    rc = dcp_save_start(saver, &options, state, err);
    if (!rc)
        rc = dcp_save_wait(saver, NULL, err);
    dcp_saver_free(saver);
    return rc;
}

static void act(void *arg, struct dcp_comm *comm)
{
    struct act *a = arg;
    struct dcp_device device = { 0 };
    struct dcp_context ctx = { .comm = comm, .store = a->store };
    const struct dcp_load_options load = { .step = -1 };
    struct sample sample;
    struct dcp_error err = { 0 };

    sample_make(&sample, a->layout, comm->world_size, comm->rank, !a->load, SALT);
    if (a->on_device) {
        must(!dcp_device_cuda(&device, 0, NULL));
        counted = *device.ops;
        counted.alloc_staging = count_staging;
        device.ops = &counted;
        ctx.device = &device;
        move(&sample, cudaMemcpyHostToDevice);
    }
    int rc = a->load ? dcp_load(&ctx, &load, &sample.state, NULL, &err)
                     : save(&ctx, a, &sample.state, &err);
    if (rc)
        fail_msg("rank %d: %s", comm->rank, err.message);
    if (a->on_device)
        move(&sample, cudaMemcpyDeviceToHost);
    if (a->load)
        __atomic_add_fetch(&a->wrong, sample_wrong(&sample, SALT), __ATOMIC_SEQ_CST);
    sample_free(&sample);
    dcp_device_free(&device);
}

/* --- tests --- */

static void saves_and_loads(void **state)
{
    (void)state;
    for (int from = 0; from < 2; from++) /* the host, the device */
        for (int to = 0; to < 2; to++)
            for (int world_size = 1; world_size <= 4; world_size *= 2) {
                struct dcp_store store;
                struct act a = { .store = &store, .layout = "zero3", .on_device = from };
                const struct dcp_source source = { &store, "step-00000001", true };
                assert_int_equal(dcp_store_mem(&store, NULL), 0);
                rank_threads_run(world_size, act, &a);
                assert_int_equal(dcp_verify(&source, NULL, NULL, NULL), 0);
                a.load = true;
                a.on_device = to;
                a.layout = "dim0";
                rank_threads_run(5 - world_size, act, &a);
                assert_int_equal(a.wrong, 0);
                dcp_store_free(&store);
            }
}

/* Staging of a save from the device by one rank. */
static size_t staging_of(bool copied)
{
    struct dcp_store store;
    struct act a = {
        .store = &store, .layout = "zero3", .on_device = true, .copied = copied
    };
    const struct dcp_source source = { &store, "step-00000001", true };
    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    staged = 0;
    rank_threads_run(1, act, &a);
    assert_int_equal(dcp_verify(&source, NULL, NULL, NULL), 0);
    dcp_store_free(&store);
    return staged;
}

/* What is offloaded is copied only when training may change it. */
static void saves_in_place(void **state)
{
    (void)state;
    size_t copied = staging_of(true), in_place = staging_of(false);
    assert_true(in_place > 0 && in_place < copied);
}

static void no_such_device(void **state)
{
    struct dcp_device device;
    struct dcp_error err = { 0 };

    (void)state;
    assert_int_equal(dcp_device_cuda(&device, 1000, &err), DCP_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "cannot use a CUDA device: CUDA says '"));
    assert_null(device.ops);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_such_device),
        cmocka_unit_test(saves_and_loads),
        cmocka_unit_test(saves_in_place),
    };
    struct dcp_device device;
    struct dcp_error err = { 0 };

    if (dcp_device_cuda(&device, 0, &err)) {
        printf("skipped: no GPU: %s\n", err.message);
        return err.code == DCP_E_UNSUPPORTED ? 77 : 1;
    }
    dcp_device_free(&device);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
