/* A bit that flips between the digest and the disk: what is read back is not what was
 * written, and nothing is published. */
#include "lib/acts.h"
#include "lib/must.h"
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
    long at = 1;

    (void)state;
    while (one_flip(NULL, DCP_CODEC_NONE, at))
        at++;
    assert_true(at > 10);
    for (at = 1; one_flip(&all, DCP_CODEC_PLANES, at);)
        at++;
    assert_true(at > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
