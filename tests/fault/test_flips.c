/* A bit that flips in memory on the way: between the caller's memory and the copy of it,
 * in the copy before it is written, in what is read to be resharded, and between source
 * and target of a reshard. Nothing wrong is published. */
#include "lib/acts.h"
#include "lib/must.h"
#include "lib/reshard_folder.h"
#include "lib/sample.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

/* --- copies that go wrong --- */

/* Of the copies into begin .. end the n-th one (from 1) has a bit that was not given. */
static unsigned char *target_begin, *target_end;
static long n_copies, wrong_copy;
static bool any_target; /* all copies of what is no text count */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OWN_MEMCPY 1

static bool is_data(const unsigned char *from, size_t n)
{
    size_t odd = 0;

    for (size_t i = 0; i < 64 && i < n; i++)
        odd += from[i] >= 0x80;
    return n >= 64 && odd >= 8;
}

/* Called by this pointer, or the compiler would make it a call of memcpy. */
static void *(*volatile move)(void *, const void *, size_t) = memmove;

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    unsigned char *out = to;

    move(to, from, n);
    if (__atomic_load_n(&wrong_copy, __ATOMIC_RELAXED) && n &&
        (any_target ? is_data(from, n) : out >= target_begin && out < target_end) &&
        __atomic_add_fetch(&n_copies, 1, __ATOMIC_SEQ_CST) == wrong_copy)
        out[n / 2] ^= 0x04;
    return to;
}
#else
#define OWN_MEMCPY 0
#endif

/* --- staging memory that is known --- */

static struct dcp_device host;
static struct dcp_device_ops device_ops;

static int alloc_staging(void *self, size_t size_bytes, void **out, struct dcp_error *err)
{
    int rc = host.ops->alloc_staging(self, size_bytes, out, err);

    if (!rc) {
        target_begin = *out;
        target_end = target_begin + size_bytes;
    }
    return rc;
}

static void free_staging(void *self, void *staging, size_t size_bytes)
{
    target_begin = target_end = NULL;
    host.ops->free_staging(self, staging, size_bytes);
}

static struct dcp_device known_device(void)
{
    dcp_device_host(&host);
    device_ops = *host.ops;
    device_ops.alloc_staging = alloc_staging;
    device_ops.free_staging = free_staging;
    return (struct dcp_device){ &device_ops, host.self, host.host_readable };
}

/* --- stores with wrong bits --- */

static struct dcp_store_forward wrapper;
static long flip_byte;           /* of the staging memory, at the first write; or -1 */
static long n_reads, wrong_read; /* of the n-th read (from 1) a bit is wrong; 0: none */

static int write_at(void *self, struct dcp_store_file *file, uint64_t offset,
                    const void *data, size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;

    if (flip_byte >= 0 && target_begin) {
        must(target_begin + flip_byte < target_end);
        target_begin[flip_byte] ^= 0x20;
        flip_byte = -1;
    }
    return inner->ops->write_at(inner->self, file, offset, data, size_bytes, err);
}

static int read_at(void *self, struct dcp_store_file *file, uint64_t offset, void *out,
                   size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;
    int rc = inner->ops->read_at(inner->self, file, offset, out, size_bytes, err);

    if (!rc && size_bytes &&
        __atomic_add_fetch(&n_reads, 1, __ATOMIC_SEQ_CST) == wrong_read)
        ((unsigned char *)out)[size_bytes / 2] ^= 0x40;
    return rc;
}

static struct dcp_store wrap(const struct dcp_store *right)
{
    struct dcp_store store;

    dcp_store_forward(&store, &wrapper, right);
    wrapper.ops.write_at = write_at;
    wrapper.ops.read_at = read_at;
    flip_byte = -1;
    n_reads = wrong_read = 0;
    return store;
}

/* --- saves --- */

static void check_refused(const struct dcp_store *store, int rc)
{
    struct dcp_context ctx = { .store = store };
    struct dcp_step step;

    assert_int_equal(rc, DCP_E_CORRUPT);
    assert_int_equal(dcp_find(&ctx, -1, &step, NULL), DCP_E_NOT_FOUND);
}

/* As dcp_save, but with a copy of the state, as if training went on. */
static int save_aside(const struct dcp_context *ctx,
                      const struct dcp_save_options *options,
                      const struct dcp_state *state)
{
    struct dcp_saver *saver;
    int rc = dcp_saver_new(ctx, &saver, NULL);

    if (!rc)
        rc = dcp_save_start(saver, options, state, NULL);
    if (!rc)
        rc = dcp_save_wait(saver, NULL, NULL);
    dcp_saver_free(saver);
    return rc;
}

/* Saves the sample by one rank; a byte of the staging memory, or a copy, goes wrong. */
static int save_with(long byte, long copy, enum dcp_codec codec, struct dcp_store *store)
{
    struct dcp_store wrong;
    struct dcp_device device = known_device();
    struct dcp_context ctx = { .store = &wrong, .device = &device, .threads = 1 };
    struct dcp_save_options options = { .step = 1, .codec = codec };
    struct sample sample;

    assert_int_equal(dcp_store_mem(store, NULL), 0);
    wrong = wrap(store);
    flip_byte = byte;
    any_target = false;
    n_copies = 0;
    wrong_copy = copy;
    sample_make_first(&sample, sample_n_tensors() - 1, "dim0", 1, 0, true, 5);
    int rc = save_aside(&ctx, &options, &sample.state);
    sample_free(&sample);
    wrong_copy = 0;
    return rc;
}

static void bits_of_the_copy(void **state)
{
    struct dcp_store store;

    (void)state;
    for (int codec = DCP_CODEC_NONE; codec < DCP_N_CODECS; codec++)
        for (long byte = 0; byte < 1024; byte += 64) { /* each piece begins at one */
            check_refused(&store, save_with(byte, 0, (enum dcp_codec)codec, &store));
            dcp_store_free(&store);
        }
    assert_int_equal(save_with(-1, 0, DCP_CODEC_NONE, &store), 0);
    dcp_store_free(&store);
}

static void wrong_copies_of_the_state(void **state)
{
    struct dcp_store store;
    long at = 0;
    int rc;

    (void)state;
    if (!OWN_MEMCPY)
        return;
    do {
        rc = save_with(-1, ++at, DCP_CODEC_NONE, &store);
        if (n_copies >= at)
            check_refused(&store, rc);
        else
            assert_int_equal(rc, 0);
        dcp_store_free(&store);
    } while (n_copies >= at);
    assert_true(at > 5);
}

/* --- reads --- */

/* Every read of a save with parity, of which any may see a bit that is not there: the
 * save fails, or the step is what it should be. */
static void wrong_reads_of_a_save(void **state)
{
    const struct dcp_save_options more = { .parity = 1 };
    long at = 0;
    size_t refused = 0;

    (void)state;
    do {
        struct dcp_store store;
        assert_int_equal(dcp_store_mem(&store, NULL), 0);
        struct dcp_store wrong = wrap(&store);
        struct acts acts = { .store = &wrong,
                             .layout = "dim0",
                             .world_size = 2,
                             .step = 1,
                             .more = &more,
                             .small = true };
        wrong_read = ++at;
        int rc = acts_save(&acts);
        const struct dcp_source source = { &store, "step-00000001", true };
        if (rc)
            assert_int_equal(rc, DCP_E_CORRUPT);
        else
            assert_int_equal(dcp_verify(&source, NULL, NULL, NULL), 0);
        /* The parity is that of the shards: repair finds nothing to do. */
        struct dcp_repair_result repaired = { 0 };
        if (!rc)
            assert_int_equal(dcp_repair(&store, source.name, NULL, &repaired, NULL), 0);
        assert_int_equal(repaired.n_files, 0);
        refused += rc != 0;
        dcp_store_free(&store);
    } while (n_reads >= at);
    assert_true(refused > 4);
}

/* --- reshards --- */

/* Every copy of data in a reshard: it is refused, or what was published is right. */
static void wrong_copies_of_a_reshard(void **state)
{
    const struct reshard_folder *folder = *state;
    struct dcp_reshard_options options = {
        .world_size = 3, .layout = "zero1", .dtype = -1, .threads = 1
    };
    long at = 0, refused = 0;

    if (!OWN_MEMCPY)
        return;
    reshard_folder_save(folder->source, "dim0", 2, DCP_CODEC_NONE);
    do {
        struct dcp_error err = { 0 };
        at++;
        any_target = true;
        n_copies = 0;
        wrong_copy = at;
        int rc = reshard_folder_run(folder->source, folder->target, &options, &err);
        wrong_copy = 0;
        if (rc) {
            if (rc != DCP_E_CORRUPT)
                fail_msg("copy %ld: %d %s", at, rc, err.message);
            assert_int_equal(reshard_folder_count(folder->path, "target"), 0);
            refused += strstr(err.message, "fingerprint") != NULL;
        } else {
            reshard_folder_check(folder->target, "zero1", 3);
            acts_folder_remove(folder->target);
        }
    } while (n_copies >= at);
    assert_true(refused > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_the_copy),
        cmocka_unit_test(wrong_copies_of_the_state),
        cmocka_unit_test(wrong_reads_of_a_save),
        cmocka_unit_test_setup_teardown(wrong_copies_of_a_reshard, reshard_folder_setup,
                                        reshard_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
