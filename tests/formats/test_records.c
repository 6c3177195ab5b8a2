/* records: one checksum for what several tensors share, of which a load or a reshard
 * wants a part: what it did not want must hold, too. */
#include "base/bytes.h"
#include "base/mem.h"
#include "lib/acts.h"
#include "lib/reshard_folder.h"
#include "lib/torch_zip.h"
#include <dcp/dcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_FLOATS = 3 << 18, RECORD_BYTES = N_FLOATS * 4 }; /* three blocks */

/* Tensors of four floats, from number 2 of storage "0" on, and of the one of "1". */
#define STORAGE(key, numel)                                                            \
    "ctorch._utils\n_rebuild_tensor_v2\n("                                             \
    "(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0" key "X\x03\0\0\0cpuJ" numel \
    "tQ"
#define HOOKS \
    "\x89"    \
    "ccollections\nOrderedDict\n)RtR"
#define FOUR STORAGE("0", "\0\0\x0c\0") "K\x02K\x04\x85K\x01\x85" HOOKS
#define ONE STORAGE("1", "\1\0\0\0") "K\0))" HOOKS

/* {"w": four} */
static const char part[] = "}X\x01\0\0\0w" FOUR "s.";
/* {"model": {"w": four}, "optimizer": {"state": {0: {"step": one, "exp_avg": four}},
 *                                      "param_groups": [{"params": [0]}]}} */
static const char training[] =
    "}X\5\0\0\0model}X\1\0\0\0w" FOUR "ssX\x09\0\0\0optimizer}X\5\0\0\0state}K\0}"
    "X\4\0\0\0step" ONE "sX\7\0\0\0exp_avg" FOUR "sss"
    "X\x0c\0\0\0param_groups]}X\6\0\0\0params]K\0asass.";

/* Writes the file with a bit of a record flipped; -1: sound. */
static void put_file(const char *path, const char *pickle, size_t size_bytes,
                     const char *storage, long flipped)
{
    static const uint32_t sizes[] = { RECORD_BYTES, 4 };
    size_t n, record = 0, len = strlen(storage);
    unsigned char *data = torch_zip_storages(pickle, size_bytes, sizes, 2, &n);
    FILE *f = fopen(path, "wb");

    assert_non_null(data);
    assert_non_null(f);
    for (size_t i = 30; i + len < n && !record; i++) /* the name in its local header */
        if (!memcmp(data + i, storage, len))
            record = i + len + dcp_le16(data + i - 2);
    assert_int_not_equal(record, 0);
    if (flipped >= 0)
        data[record + (size_t)flipped] ^= 1;
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(data);
}

static void put_part(const char *path, long flipped)
{
    put_file(path, part, sizeof part - 1, "x/data/0", flipped);
}

static int load(const char *folder, struct dcp_error *err)
{
    static const int64_t shape[] = { 4 };
    float numbers[4] = { 1, 1, 1, 1 };
    const struct dcp_local_tensor local = {
        .name = "w", .dtype = DCP_F32, .ndim = 1, .shape = shape, .data = numbers
    };
    const struct dcp_state state = { .locals = &local, .n_locals = 1 };
    const struct dcp_load_options options = { .name = "x.pt",
                                              .step = -1,
                                              .format = "torch" };
    struct dcp_load_result result = { 0 };
    struct dcp_store store;
    struct dcp_comm comm;

    assert_int_equal(dcp_store_dir(&store, folder, false, NULL), 0);
    dcp_comm_self(&comm);
    const struct dcp_context ctx = { .comm = &comm, .store = &store };
    int rc = dcp_load(&ctx, &options, &state, &result, err);
    if (!rc) {
        assert_true(numbers[0] == 0 && numbers[3] == 0);
        dcp_catalog_free(result.catalog);
    }
    dcp_store_free(&store);
    return rc;
}

static const long locations[] = { 8, 100, RECORD_BYTES / 2, RECORD_BYTES - 1 };

static void what_a_load_left(void **state)
{
    (void)state;
    char folder[256], path[300];
    struct dcp_error err = { 0 };

    acts_folder(folder);
    snprintf(path, sizeof path, "%s/x.pt", folder);
    put_part(path, -1);
    if (load(folder, &err))
        fail_msg("%s", err.message);
    for (size_t i = 0; i < DCP_ARRAY_LEN(locations); i++) {
        put_part(path, locations[i]);
        assert_int_equal(load(folder, &err), DCP_E_CORRUPT);
        assert_non_null(strstr(err.message, "data/0"));
    }
    acts_folder_remove(folder);
}

static void what_a_reshard_left(void **state)
{
    (void)state;
    const struct dcp_reshard_options options = { .dtype = -1, .threads = 1 };
    char folder[256], source[300], target[300];
    struct dcp_error err = { 0 };

    acts_folder(folder);
    snprintf(source, sizeof source, "%s/x.pt", folder);
    snprintf(target, sizeof target, "%s/out", folder);
    for (size_t i = 0; i < DCP_ARRAY_LEN(locations); i++) {
        put_part(source, locations[i]);
        assert_int_equal(reshard_folder_run(source, target, &options, &err),
                         DCP_E_CORRUPT);
        assert_int_equal(reshard_folder_count(folder, "out"), 0);
    }
    put_part(source, -1);
    reshard_folder_must_run(source, target, &options);
    acts_folder_remove(folder);
}

/* The number of steps is read when the file is opened, and is a tensor nowhere. */
static void what_an_index_read(void **state)
{
    (void)state;
    char folder[256], path[300];

    acts_folder(folder);
    snprintf(path, sizeof path, "%s/x.pt", folder);
    for (int flipped = 0; flipped < 2; flipped++) {
        struct dcp_error err = { 0 };
        struct dcp_location location;
        struct dcp_catalog *catalog = NULL;
        put_file(path, training, sizeof training - 1, "x/data/1", flipped ? 2 : -1);
        assert_int_equal(dcp_location_open(path, &location, &err), 0);
        int rc = dcp_location_index(&location, &catalog, &err);
        if (rc != (flipped ? DCP_E_CORRUPT : 0))
            fail_msg("%d: %s", rc, err.message);
        dcp_catalog_free(catalog);
        dcp_location_close(&location);
    }
    acts_folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_load_left),
        cmocka_unit_test(what_a_reshard_left),
        cmocka_unit_test(what_an_index_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
