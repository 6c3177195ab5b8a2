/* A head says what the whole catalog says, but for the pieces, and sees the same damage.
 */
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "core/catalog/index.h"
#include "formats/native/native.h"
#include "lib/acts.h"
#include "lib/step_files.h"
#include "lib/wide_step.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { WORLD_SIZE = 3, N_BEHIND = 36 /* the number of pieces, in a table */ };

static const char step_name[] = "step-00000001";

static void save(const struct dcp_store *store, const char *layout)
{
    struct acts acts = {
        .store = store, .layout = layout, .world_size = WORLD_SIZE, .step = 1
    };

    assert_int_equal(acts_save(&acts), 0);
}

static int index_head(const struct dcp_store *store, struct dcp_catalog **out,
                      struct dcp_error *err)
{
    const struct dcp_source source = { store, step_name, true };
    return dcp_index_head(&source, dcp_format_of_steps(), out, err);
}

static void a_head_counts(void **state)
{
    const struct dcp_store *store = *state;
    const struct dcp_source source = { store, step_name, true };
    struct dcp_catalog *head, *whole;

    save(store, "replicated"); /* what is small is rank 0's alone */
    assert_int_equal(index_head(store, &head, NULL), 0);
    assert_int_equal(dcp_index(&source, dcp_format_of_steps(), false, &whole, NULL), 0);
    assert_true(head->head && !whole->head && !head->n_pieces);
    assert_int_equal(head->n_tensors, whole->n_tensors);
    assert_int_equal(head->n_objects, whole->n_objects);
    assert_int_equal(head->n_files, whole->n_files);
    for (size_t f = 0; f < whole->n_files; f++) {
        size_t n = 0;
        for (size_t p = 0; p < whole->n_pieces; p++)
            n += whole->pieces[p].file == (int)f;
        assert_string_equal(head->files[f].name, whole->files[f].name);
        assert_int_equal(head->files[f].n_pieces, n);
        assert_int_equal(whole->files[f].n_pieces, 0);
    }
    dcp_catalog_free(head);
    dcp_catalog_free(whole);
}

static void damage_is_named(void **state)
{
    const struct dcp_store *store = *state;
    struct step_files files;
    struct dcp_catalog *head;

    save(store, "zero3");
    step_files_read(&files, store, step_name);
    for (size_t f = 0; f < files.n; f++) {
        bool table = strstr(files.files[f].name, NATIVE_TABLE_SUFFIX) != NULL;
        for (int how = table ? 0 : 1; how < 3; how++) { /* flipped, cut, gone */
            struct dcp_error err = { 0 };
            files.files[f].data[files.files[f].n / 2] ^= how == 0;
            if (how < 2)
                step_files_put(&files, files.files[f].name, files.files[f].data,
                               files.files[f].n - (how == 1));
            else
                step_files_remove(&files, files.files[f].name);
            files.files[f].data[files.files[f].n / 2] ^= how == 0;
            assert_int_equal(index_head(store, &head, &err), DCP_E_CORRUPT);
            assert_null(head);
            assert_non_null(strstr(err.message, files.files[f].name));
            step_files_restore(&files, f);
        }
    }
    assert_int_equal(index_head(store, &head, NULL), 0);
    dcp_catalog_free(head);
    step_files_free(&files);
}

/* A table under digests that hold, which says that it has so many pieces: read for the
 * head, or whole. */
static int read_forged(const struct dcp_store *store, uint64_t n, bool whole,
                       struct dcp_error *err)
{
    const struct dcp_source source = { store, step_name, true };
    struct step_files files;
    struct dcp_catalog *read;
    char old[20], new[20], tail[NATIVE_DIGEST_BYTES + 1];

    step_files_read(&files, store, step_name);
    size_t t = step_files_find(&files, "shard-00001-of-00003.pieces");
    size_t m = step_files_find(&files, NATIVE_MANIFEST);
    unsigned char *table = files.files[t].data, *manifest = files.files[m].data;
    size_t end = files.files[m].n - NATIVE_DIGEST_BYTES;
    snprintf(old, sizeof old, "%016" PRIx64, dcp_hash_crc64(0, table, files.files[t].n));
    dcp_put_le64(table + N_BEHIND, n);
    snprintf(new, sizeof new, "%016" PRIx64, dcp_hash_crc64(0, table, files.files[t].n));
    unsigned char *at = memmem(manifest, end, old, 16);
    assert_non_null(at);
    memcpy(at, new, 16);
    snprintf(tail, sizeof tail, NATIVE_DIGEST_FORMAT, dcp_hash_crc64(0, manifest, end));
    memcpy(manifest + end, tail, NATIVE_DIGEST_BYTES);
    step_files_put(&files, files.files[t].name, table, files.files[t].n);
    step_files_put(&files, files.files[m].name, manifest, files.files[m].n);
    step_files_free(&files);
    int rc = whole ? dcp_index(&source, dcp_format_of_steps(), false, &read, err)
                   : index_head(store, &read, err);
    dcp_catalog_free(read);
    return rc;
}

static void a_number_that_cannot_be(void **state)
{
    const struct dcp_store *store = *state;
    struct dcp_error err = { 0 };

    save(store, "zero3");
    assert_int_equal(read_forged(store, 1, false, &err), 0);
    for (int whole = 0; whole < 2; whole++) {
        assert_int_equal(read_forged(store, UINT64_MAX, whole, &err), DCP_E_CORRUPT);
        assert_non_null(strstr(err.message, "ends too early"));
        assert_int_equal(read_forged(store, 1000, whole, &err), DCP_E_CORRUPT);
    }
}

/* A step of many ranks, made for measurements, is one. */
static void a_wide_step(void **state)
{
    static const char *const layouts[] = { "flat", "dim0", "columns" };
    struct wide_step wide = {
        .world_size = 300, .n_tensors = 5, .rows = 900, .columns = 600
    };

    (void)state;
    for (size_t l = 0; l < DCP_ARRAY_LEN(layouts); l++) {
        struct dcp_store store;
        struct dcp_catalog *head, *whole;
        const struct dcp_source source = { &store, "", true };
        char folder[256];
        acts_folder(folder);
        wide.layout = layouts[l];
        wide_step_write(&wide, folder);
        assert_int_equal(dcp_store_dir(&store, folder, false, NULL), 0);
        assert_int_equal(dcp_index_head(&source, dcp_format_of_steps(), &head, NULL), 0);
        assert_int_equal(head->files[2 * 299].n_pieces, wide.n_tensors);
        assert_non_null(head->tensors[4].grid);
        assert_int_equal(dcp_index(&source, dcp_format_of_steps(), false, &whole, NULL),
                         0);
        assert_int_equal(dcp_catalog_check(whole, NULL), 0);
        assert_int_equal(whole->n_pieces, wide.world_size * wide.n_tensors);
        dcp_catalog_free(head);
        dcp_catalog_free(whole);
        dcp_store_free(&store);
        acts_folder_remove(folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wide_step),
        cmocka_unit_test_setup_teardown(a_head_counts, acts_setup, acts_teardown),
        cmocka_unit_test_setup_teardown(damage_is_named, acts_setup, acts_teardown),
        cmocka_unit_test_setup_teardown(a_number_that_cannot_be, acts_setup,
                                        acts_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
