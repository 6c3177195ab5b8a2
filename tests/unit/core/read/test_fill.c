/* A large tensor that one rank wants whole is proved by its fingerprint alone; what that
 * does not prove is read again by blocks, which say what is corrupt. */
#include "base/mem.h"
#include "lib/must.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { N = 900000 }; /* elements: three blocks and a part, of 32 bits */
#define TENSOR_BYTES (N * sizeof(float))
#define DATA_BYTES 65536 /* a read of so much is of the tensor */

struct tired_store {
    struct dcp_store_forward wrapper; /* first */
    struct dcp_store memory, store;
    const struct dcp_device *device;
    int flips, failures; /* so many reads to come go wrong so */
    size_t n_read;
};

static int read_at(void *self, struct dcp_store_file *file, uint64_t offset, void *out,
                   size_t n, struct dcp_error *err)
{
    struct tired_store *tired = self;
    const struct dcp_store *inner = tired->wrapper.inner;

    if (n < DATA_BYTES)
        return inner->ops->read_at(inner->self, file, offset, out, n, err);
    tired->n_read += n;
    if (tired->failures && tired->failures--)
        return dcp_error_set(err, DCP_E_IO, "the disk is tired");
    DCP_TRY(inner->ops->read_at(inner->self, file, offset, out, n, err));
    if (tired->flips && tired->flips--)
        ((unsigned char *)out)[n / 2] ^= 4;
    return DCP_OK;
}

/* A device that the host cannot write, and that a copy to fails. */

static int stage(void *self, size_t n, void **out, struct dcp_error *err)
{
    (void)self;
    (void)err;
    *out = malloc(n);
    return *out ? DCP_OK : DCP_E_MEMORY;
}

static void unstage(void *self, void *memory, size_t n)
{
    (void)self;
    (void)n;
    free(memory);
}

static int to_device(void *self, void *device, const void *host, size_t n,
                     struct dcp_error *err)
{
    (void)self;
    (void)device;
    (void)host;
    (void)n;
    return dcp_error_set(err, DCP_E_IO, "the device is tired");
}

static const struct dcp_device_ops far_ops = { .alloc_staging = stage,
                                               .free_staging = unstage,
                                               .to_device = to_device };
static const struct dcp_device far_device = { .ops = &far_ops };

/* Saves, or loads in a dtype. Returns the code of it. */
static int act(struct tired_store *tired, bool loads, enum dcp_dtype dtype,
               struct dcp_error *err)
{
    const int64_t shape[] = { N };
    unsigned char *data = calloc(N, sizeof(float));
    struct dcp_local_tensor local = { .name = "w",
                                      .dtype = dtype,
                                      .ndim = 1,
                                      .shape = shape,
                                      .region = { .kind = DCP_WHOLE },
                                      .data = data };
    struct dcp_state state = { .layout = "dim0", .locals = &local, .n_locals = 1 };
    struct dcp_context ctx = { .store = &tired->store,
                               .threads = 1,
                               .device = tired->device };
    struct dcp_save_options save = { .step = 1 };
    struct dcp_load_options load = { .step = 1, .allow_cast = true };
    float found;

    must(data);
    for (int i = 0; i < N && !loads; i++)
        ((float *)(void *)data)[i] = (float)(i % 251); /* exact in 16 bits, too */
    tired->n_read = 0;
    *err = (struct dcp_error){ 0 };
    int rc = loads ? dcp_load(&ctx, &load, &state, NULL, err)
                   : dcp_save(&ctx, &save, &state, NULL, err);
    for (int i = 0; i < N && loads && !rc; i++) {
        must(!dcp_cast(dtype, DCP_F32, data + (size_t)i * dcp_dtype_size(dtype), &found,
                       1, NULL));
        assert_true(found == (float)(i % 251));
    }
    free(data);
    return rc;
}

static int setup(void **state)
{
    struct tired_store *tired = calloc(1, sizeof *tired);
    struct dcp_error err;

    assert_non_null(tired);
    assert_int_equal(dcp_store_mem(&tired->memory, NULL), 0);
    dcp_store_forward(&tired->store, &tired->wrapper, &tired->memory);
    tired->wrapper.ops.read_at = read_at;
    assert_int_equal(act(tired, false, DCP_F32, &err), 0);
    *state = tired;
    return 0;
}

static int teardown(void **state)
{
    struct tired_store *tired = *state;

    dcp_store_free(&tired->memory);
    free(tired);
    return 0;
}

static void reads_once(void **state)
{
    struct dcp_error err;

    assert_int_equal(act(*state, true, DCP_F32, &err), 0);
    assert_int_equal(((struct tired_store *)*state)->n_read, TENSOR_BYTES);
}

static void what_goes_wrong_once_is_read_again(void **state)
{
    struct tired_store *tired = *state;
    struct dcp_error err;

    tired->flips = 1;
    assert_int_equal(act(tired, true, DCP_F32, &err), 0);
    assert_int_equal(tired->n_read, 2 * TENSOR_BYTES);
    tired->failures = 1;
    assert_int_equal(act(tired, true, DCP_F32, &err), 0);
    assert_int_equal(tired->flips + tired->failures, 0);
}

static void blocks_say_what_is_corrupt(void **state)
{
    struct tired_store *tired = *state;
    struct dcp_error err;

    tired->flips = 1000;
    assert_int_equal(act(tired, true, DCP_F32, &err), DCP_E_CORRUPT);
    assert_non_null(strstr(err.message, "tensor 'w' elements 0..262143 are corrupt"));
    assert_non_null(strstr(err.message, "the block digest differs"));
    tired->flips = 0;
    tired->failures = 1000;
    assert_int_equal(act(tired, true, DCP_F32, &err), DCP_E_IO);
    assert_string_equal(err.message, "the disk is tired");
    assert_string_equal(err.tensor, "w");
}

/* The fingerprint is that of other bytes than those that are loaded. */
static void a_cast_is_proved_by_blocks(void **state)
{
    struct tired_store *tired = *state;
    struct dcp_error err;

    assert_int_equal(act(tired, true, DCP_F16, &err), 0);
    tired->flips = 1;
    assert_int_equal(act(tired, true, DCP_F16, &err), DCP_E_CORRUPT);
}

static void the_device_fails(void **state)
{
    struct tired_store *tired = *state;
    struct dcp_error err;

    tired->device = &far_device;
    assert_int_equal(act(tired, true, DCP_F32, &err), DCP_E_IO);
    assert_string_equal(err.message, "the device is tired");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_once, setup, teardown),
        cmocka_unit_test_setup_teardown(what_goes_wrong_once_is_read_again, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(blocks_say_what_is_corrupt, setup, teardown),
        cmocka_unit_test_setup_teardown(a_cast_is_proved_by_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(the_device_fails, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
