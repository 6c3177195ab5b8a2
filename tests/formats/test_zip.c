/* zip: archives over 4 GiB, written and read without their contents, and contradictions
 * that a reader must not believe. */
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "formats/archive/zip.h"
#include "lib/sparse.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GIB (1ull << 30)

/* -- helpers ------------------------------------------------------------------------- */

struct archive {
    struct sparse sparse;
    struct dcp_store store;
    struct dcp_arena *arena;
    struct dcp_input in;
    struct dcp_zip zip;
};

static void archive_write(struct archive *a, struct dcp_zip_out *records, size_t n)
{
    uint64_t directory;

    *a = (struct archive){ .arena = dcp_arena_new() };
    assert_int_equal(dcp_catalog_new(&a->sparse.target.catalog, NULL), 0);
    dcp_zip_plan(records, n, 64, &directory, &a->sparse.size_bytes);
    assert_int_equal(dcp_zip_write_headers(records, n, 0, &a->sparse.target, NULL), 0);
    assert_int_equal(
        dcp_zip_write_tail(records, n, directory, 0, &a->sparse.target, NULL), 0);
    a->store = sparse_store(&a->sparse);
}

static int archive_read(struct archive *a, struct dcp_error *err)
{
    const struct dcp_source source = { .store = &a->store, .name = "x.zip" };

    assert_int_equal(dcp_input_open(&a->in, &source, NULL, err), 0);
    return dcp_zip_open(&a->in, 0, a->in.size_bytes, a->arena, &a->zip, err);
}

static void archive_free(struct archive *a)
{
    dcp_input_close(&a->in);
    dcp_catalog_free(a->sparse.target.catalog);
    dcp_arena_free(a->arena);
}

/* -- tests --------------------------------------------------------------------------- */

static void test_large(void **state)
{
    struct dcp_zip_out records[] = {
        { .name = "r/first", .data = "abc", .size_bytes = 3, .crc32 = 0x352441c2 },
        { .name = "r/big", .size_bytes = 5 * GIB, .crc32 = 7 },
        { .name = "r/far", .size_bytes = 100, .crc32 = 8 },
        { .name = "r/edge", .size_bytes = UINT32_MAX, .crc32 = 9 },
        { .name = "r/empty", .size_bytes = 0 },
    };
    const size_t n = DCP_ARRAY_LEN(records);
    struct dcp_error err = { 0 };
    struct archive a;

    (void)state;
    archive_write(&a, records, n);
    if (archive_read(&a, &err))
        fail_msg("%s", err.message);
    assert_int_equal(a.zip.n_records, n);
    for (size_t i = 0; i < n; i++) {
        const struct dcp_zip_record *r = dcp_zip_find(&a.zip, records[i].name);
        assert_non_null(r);
        assert_int_equal(r->offset, records[i].offset);
        assert_int_equal(r->offset % 64, 0);
        assert_int_equal(r->size_bytes, records[i].size_bytes);
        assert_int_equal(r->crc32, records[i].crc32);
    }
    assert_null(dcp_zip_find(&a.zip, "r/FIRST"));
    assert_null(dcp_zip_find(&a.zip, "r/none"));
    archive_free(&a);
}

static void test_content(void **state)
{
    struct dcp_zip_out records[] = {
        { .name = "r/good", .data = "abc", .size_bytes = 3, .crc32 = 0x352441c2 },
        { .name = "r/bad", .data = "abd", .size_bytes = 3, .crc32 = 0x352441c2 },
        { .name = "r/unknown", .data = "abd", .size_bytes = 3, .crc32 = 0 },
    };
    struct archive a;
    void *data;
    size_t n;

    (void)state;
    archive_write(&a, records, DCP_ARRAY_LEN(records));
    assert_int_equal(archive_read(&a, NULL), 0);
    assert_int_equal(dcp_zip_read(&a.in, &a.zip.records[0], 3, &data, &n, NULL), 0);
    assert_string_equal(data, "abc");
    free(data);
    assert_int_equal(dcp_zip_read(&a.in, &a.zip.records[0], 2, &data, &n, NULL),
                     DCP_E_CORRUPT);
    assert_int_equal(dcp_zip_read(&a.in, &a.zip.records[1], 3, &data, &n, NULL),
                     DCP_E_CORRUPT);
    assert_int_equal(dcp_zip_read(&a.in, &a.zip.records[2], 3, &data, &n, NULL), 0);
    free(data);
    archive_free(&a);
}

/* Changes bytes of the file in place. */
static void change(struct archive *a, uint64_t offset, const void *bytes, size_t n)
{
    assert_int_equal(dcp_target_literal(&a->sparse.target, 0, offset, bytes, n, NULL), 0);
}

/* Where, counted from the file's end (negative) or from the central entry of the first
 * record (in_entry), what is written there, and the words of the refusal. */
static const struct {
    const char *words;
    bool in_entry;
    int at;
    size_t n;
    const char *bytes;
} lies[] = {
    { "encrypted", true, 8, 1, "\x01" },
    { "flags", true, 8, 1, "\x04" },
    { "method 12", true, 10, 1, "\x0c" },
    { "different methods", true, 10, 1, "\x08" },
    { "two sizes", true, 20, 1, "\x02" },
    { "several disks", true, 34, 1, "\x01" },
    { "different names", true, 46 + 2, 1, "G" },
    { "outside its folder", true, 46, 6, "../ood" },
    { "outside its folder", true, 46, 6, "/a/ood" },
    { "outside its folder", true, 46, 6, "r//ood" },
    { "outside its folder", true, 46, 6, "r\\good" },
    { "different names", true, 42, 1, "\x40" }, /* the header of another place */
    { "corrupt", true, 0, 1, "X" },
    { "end record is missing", false, -22, 1, "X" },
    { "bytes follow", false, -2, 1, "\x01" },
    { "several disks", false, -18, 1, "\x01" },
    { "two end records differ", false, -10, 1, "\x09" },
    { "two end records differ", false, -6, 1, "\x01" },
    { "locator points elsewhere", false, -34, 1, "\x01" },
    { "zip64 end record is corrupt", false, -98, 1, "X" },
};

static void test_lies(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(lies); i++) {
        struct dcp_zip_out records[] = {
            { .name = "r/good", .data = "abc", .size_bytes = 3, .crc32 = 0x352441c2 },
            { .name = "r/more", .data = "abc", .size_bytes = 3, .crc32 = 0x352441c2 },
        };
        struct dcp_error err = { 0 };
        struct archive a;
        archive_write(&a, records, 2);
        uint64_t size = a.sparse.size_bytes, entry = size - 98 - 2 * (46 + 6);
        change(&a, (lies[i].in_entry ? entry : size) + (uint64_t)(int64_t)lies[i].at,
               lies[i].bytes, lies[i].n);
        int rc = archive_read(&a, &err);
        if (!rc || !strstr(err.message, lies[i].words))
            fail_msg("lie %zu, '%s': %d %s", i, lies[i].words, rc, err.message);
        archive_free(&a);
    }
}

static void test_overlap(void **state)
{
    struct dcp_zip_out records[] = {
        { .name = "r/one", .size_bytes = 200, .crc32 = 1 },
        { .name = "r/two", .size_bytes = 10, .crc32 = 2 },
    };
    unsigned char sizes[4];
    struct dcp_error err = { 0 };
    struct archive a;

    (void)state;
    archive_write(&a, records, 2);
    uint64_t entry = a.sparse.size_bytes - 98 - 2 * (46 + 5);
    dcp_put_le32(sizes, 270);
    change(&a, entry + 20, sizes, 4);
    change(&a, entry + 24, sizes, 4);
    assert_int_equal(archive_read(&a, &err), DCP_E_CORRUPT);
    if (!strstr(err.message, "overlap"))
        fail_msg("%s", err.message);
    archive_free(&a);
}

/* No deflated byte gives more than 1032: a record that declares more is refused before
 * anything is made ready for its content. */
static void test_claims(void **state)
{
    struct dcp_zip_out records[] = {
        { .name = "r/one", .data = "abc", .size_bytes = 3, .crc32 = 1 },
    };
    unsigned char deflated[2] = { 8 }, size_bytes[4];

    (void)state;
    for (uint32_t over = 0; over < 2; over++) {
        struct dcp_error err = { 0 };
        struct archive a;
        archive_write(&a, records, 1);
        uint64_t entry = a.sparse.size_bytes - 98 - (46 + 5);
        dcp_put_le32(size_bytes, 4 * 1032 - 1 + over); /* of three bytes */
        change(&a, 8, deflated, 2);
        change(&a, entry + 10, deflated, 2);
        change(&a, entry + 24, size_bytes, 4);
        assert_int_equal(archive_read(&a, &err), over ? DCP_E_CORRUPT : 0);
        assert_int_equal(strstr(err.message, "declares more") != NULL, over);
        archive_free(&a);
    }
}

/* Bytes before the first record are no part of the archive: another reader could begin
 * there. */
static void test_bytes_in_front(void **state)
{
    struct dcp_zip_out records[] = {
        { .name = "r/hidden", .data = "abc", .size_bytes = 3, .crc32 = 1 },
        { .name = "r/seen", .data = "abc", .size_bytes = 3, .crc32 = 1 },
    };
    struct dcp_error err = { 0 };
    uint64_t directory;
    struct archive a;

    (void)state;
    archive_write(&a, records, 2);
    dcp_zip_plan(records, 2, 64, &directory, &a.sparse.size_bytes);
    a.sparse.target.literals.n = 0;
    assert_int_equal(dcp_zip_write_headers(records + 1, 1, 0, &a.sparse.target, &err), 0);
    assert_int_equal(
        dcp_zip_write_tail(records + 1, 1, directory, 0, &a.sparse.target, &err), 0);
    a.sparse.size_bytes -= 46 + strlen(records[0].name);
    assert_int_equal(archive_read(&a, &err), DCP_E_CORRUPT);
    if (!strstr(err.message, "before its first record"))
        fail_msg("%s", err.message);
    archive_free(&a);
}

/* An archive inside a file: its offsets count from its own beginning. */
static void test_slice(void **state)
{
    struct dcp_zip_out records[] = {
        { .name = "r/good", .data = "abc", .size_bytes = 3, .crc32 = 0x352441c2 },
    };
    enum { BEFORE = 100, BEHIND = 7 };
    struct dcp_error err = { 0 };
    struct archive a;
    void *data;
    size_t n;

    (void)state;
    archive_write(&a, records, 1);
    uint64_t size = a.sparse.size_bytes;
    for (size_t i = 0; i < a.sparse.target.literals.n; i++)
        a.sparse.target.literals.items[i].offset += BEFORE;
    a.sparse.size_bytes += BEFORE + BEHIND;
    assert_int_equal(archive_read(&a, &err), DCP_E_CORRUPT);
    assert_int_equal(dcp_zip_open(&a.in, BEFORE, BEFORE + size, a.arena, &a.zip, NULL),
                     0);
    assert_int_equal(a.zip.records[0].offset, BEFORE + records[0].offset);
    assert_int_equal(dcp_zip_read(&a.in, &a.zip.records[0], 3, &data, &n, NULL), 0);
    assert_string_equal(data, "abc");
    free(data);
    assert_int_equal(dcp_zip_open(&a.in, 0, BEFORE + size, a.arena, &a.zip, NULL),
                     DCP_E_CORRUPT);
    assert_int_equal(dcp_zip_open(&a.in, BEFORE, size + 999, a.arena, &a.zip, NULL),
                     DCP_E_CORRUPT);
    archive_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large),          cmocka_unit_test(test_content),
        cmocka_unit_test(test_lies),           cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_bytes_in_front), cmocka_unit_test(test_slice),
        cmocka_unit_test(test_claims),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
