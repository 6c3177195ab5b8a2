/* A state in memory that the host cannot read, of a device that tells of no other: what
 * is saved comes through the device, once, whatever the tensors' sizes. */
#include "lib/must.h"
#include "lib/rank_threads.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { WORLD_SIZE = 3, LARGE = 3000, SMALL = 30, ONE = 3 };

static const int64_t shapes[][1] = { { LARGE }, { SMALL }, { ONE } };
static const char *const names[] = { "large", "small", "one" };

/* The device's memory has every bit turned over. */
static int to_host(void *self, void *host, const void *device, size_t n,
                   struct dcp_error *err)
{
    (void)self;
    (void)err;
    for (size_t i = 0; i < n; i++)
        ((unsigned char *)host)[i] = (unsigned char)~((const unsigned char *)device)[i];
    return 0;
}

static int to_device(void *self, void *device, const void *host, size_t n,
                     struct dcp_error *err)
{
    return to_host(self, device, host, n, err);
}

static struct dcp_device_ops ops;

static struct dcp_device turned(void)
{
    struct dcp_device device;

    dcp_device_host(&device);
    ops = *device.ops;
    ops.to_host = to_host;
    ops.to_device = to_device;
    ops.is_host = NULL;
    device.ops = &ops;
    device.host_readable = 0;
    return device;
}

/* Part r of w of each tensor; its numbers count from 0. */
struct part {
    int32_t data[3][LARGE];
    struct dcp_local_tensor locals[3];
    struct dcp_state state;
};

static void part_make(struct part *part, int rank, int world_size)
{
    memset(part, 0, sizeof *part);
    part->state =
        (struct dcp_state){ .locals = part->locals, .n_locals = 3, .layout = "flat" };
    for (size_t t = 0; t < 3; t++) {
        int64_t n = shapes[t][0] / world_size;
        part->locals[t] = (struct dcp_local_tensor){
            .name = names[t],
            .param = names[t],
            .dtype = DCP_I32,
            .ndim = 1,
            .shape = shapes[t],
            .region = { .kind = DCP_FLAT, .begin = rank * n, .end = (rank + 1) * n },
            .data = part->data[t],
        };
    }
}

struct run {
    const struct dcp_store *store;
    bool staged;
    struct dcp_catalog *fingerprints; /* of rank 0 */
};

static void save(void *arg, struct dcp_comm *comm)
{
    struct run *run = arg;
    struct dcp_device device = turned();
    struct dcp_context ctx = { .comm = comm, .store = run->store, .device = &device };
    struct dcp_save_options options = { .step = 1 };
    struct dcp_catalog *catalog;
    struct dcp_saver *saver;
    struct part *part = malloc(sizeof *part);

    must(part != NULL);
    part_make(part, comm->rank, WORLD_SIZE);
    for (size_t t = 0; t < 3; t++) {
        const struct dcp_region *region = &part->locals[t].region;
        for (int64_t i = region->begin; i < region->end; i++)
            part->data[t][i - region->begin] = ~(int32_t)i;
    }
    must(dcp_fingerprint(&ctx, &part->state, &catalog, NULL) == 0);
    if (comm->rank == 0)
        run->fingerprints = catalog;
    else
        dcp_catalog_free(catalog);
    if (run->staged) {
        must(dcp_saver_new(&ctx, &saver, NULL) == 0);
        must(dcp_save_start(saver, &options, &part->state, NULL) == 0);
        must(dcp_save_wait(saver, NULL, NULL) == 0);
        dcp_saver_free(saver);
    } else {
        must(dcp_save(&ctx, &options, &part->state, NULL, NULL) == 0);
    }
    free(part);
}

static void check(bool staged)
{
    struct dcp_store store;
    struct run run = { .store = &store, .staged = staged };
    struct dcp_context ctx = { .store = &store };
    struct dcp_load_result loaded;
    static struct part whole;

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    rank_threads_run(WORLD_SIZE, save, &run);
    part_make(&whole, 0, 1);
    assert_int_equal(dcp_load(&ctx, &(struct dcp_load_options){ .step = 1 }, &whole.state,
                              &loaded, NULL),
                     0);
    for (size_t t = 0; t < 3; t++) {
        for (int32_t i = 0; i < shapes[t][0]; i++)
            assert_int_equal(whole.data[t][i], i);
        assert_int_equal(run.fingerprints->tensors[t].fingerprint,
                         loaded.catalog->tensors[t].fingerprint);
    }
    dcp_catalog_free(loaded.catalog);
    dcp_catalog_free(run.fingerprints);
    dcp_store_free(&store);
}

static void in_place(void **state)
{
    (void)state;
    check(false);
}

static void staged(void **state)
{
    (void)state;
    check(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_place),
        cmocka_unit_test(staged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
