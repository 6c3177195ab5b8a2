/* Archives that are corrupt or lie: refused with a sentence, or read as they were. */
#include "base/bytes.h"
#include "base/mem.h"
#include "lib/archives.h"
#include "port/store/tar_header.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct archive_file files[] = {
    { "a", 700 },
    { "b/c", 1500000 },
    { "d", 300000 },
};
enum { N_FILES = DCP_ARRAY_LEN(files), TABLE_BYTES = 8 + 2 * 8 + 9 };

/* Opens what is in data as an archive; the code, and the sentence. */
static int open_bytes(const struct dcp_buf *data, struct dcp_store *out,
                      struct dcp_error *err)
{
    struct dcp_store store;

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    archive_put(&store, "archive", data->data, data->size_bytes);
    int rc = dcp_store_bundle(out, &store, "archive", err);
    if (rc)
        dcp_store_free(&store);
    return rc;
}

/* Refuses the archive, with this code and these words. */
static void check_refused(const struct dcp_buf *data, int code, const char *words)
{
    struct dcp_store bundle;
    struct dcp_error err = { 0 };

    int rc = open_bytes(data, &bundle, &err);
    if (!rc)
        dcp_store_free(&bundle);
    if (rc != code || !strstr(err.message, words))
        fail_msg("'%s': %d %s", words, rc, err.message);
    assert_non_null(strstr(err.message, "archive"));
}

/* Every file that can be read is as it was; how many cannot be, or -1: none. A message
 * says what is wrong. */
static int count_finding(const struct dcp_buf *data)
{
    struct dcp_store bundle;
    struct dcp_error err = { 0 };
    int corrupt = 0;

    if (open_bytes(data, &bundle, &err)) {
        assert_true(err.message[0] != '\0');
        return -1;
    }
    for (size_t i = 0; i < N_FILES; i++) {
        void *bytes;
        size_t n;
        struct dcp_error why = { 0 };
        int rc = dcp_store_read_file(&bundle, files[i].name, 1u << 24, &bytes, &n, &why);
        assert_int_equal(rc != 0, why.message[0] != '\0');
        corrupt += rc != 0;
        if (rc)
            continue;
        assert_int_equal(n, files[i].size_bytes);
        assert_true(archive_is(&files[i], 0, bytes, n));
        free(bytes);
    }
    dcp_store_free(&bundle);
    return corrupt;
}

static void make(struct dcp_buf *ours, struct dcp_buf *one_frame)
{
    DCP_CLEANUP_BUF struct dcp_buf tar = { 0 };
    struct dcp_store store;

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    assert_int_equal(archive_pack(&store, files, N_FILES, 1, NULL), 0);
    archive_take(&store, "archive", ours);
    archive_decode(ours, &tar);
    if (one_frame)
        archive_encode(&tar, 0, one_frame);
    dcp_store_free(&store);
}

/* Cut anywhere: refused when it is opened. */
static void cut_off(void **state)
{
    DCP_CLEANUP_BUF struct dcp_buf ours = { 0 }, foreign = { 0 };

    (void)state;
    make(&ours, &foreign);
    assert_int_equal(count_finding(&ours), 0);
    assert_int_equal(count_finding(&foreign), 0);
    for (size_t n = 0; n < ours.size_bytes; n += 1 + ours.size_bytes / 97) {
        struct dcp_buf part = { .data = ours.data, .size_bytes = n };
        /* Only the table is gone: nothing is lost. */
        bool whole = n >= ours.size_bytes - TABLE_BYTES;
        assert_int_equal(count_finding(&part) == -1, !whole);
        if (n > foreign.size_bytes - 16)
            continue;
        part.data = foreign.data;
        assert_int_equal(count_finding(&part), -1);
    }
}

/* The same without compression, where only the headers tell. */
static void cut_off_plain(void **state)
{
    DCP_CLEANUP_BUF struct dcp_buf ours = { 0 }, tar = { 0 };

    (void)state;
    make(&ours, NULL);
    archive_decode(&ours, &tar);
    size_t end = tar.size_bytes - 2 * TAR_RECORD;
    end -= dcp_tar_padding(files[N_FILES - 1].size_bytes);
    for (size_t n = 0; n < tar.size_bytes; n += 1 + tar.size_bytes / 997) {
        struct dcp_buf part = { .data = tar.data, .size_bytes = n };
        int corrupt = count_finding(&part);
        assert_true(n < end ? corrupt != 0 : corrupt <= 0);
    }
}

/* The frame is whole, the archive in it is not. */
static void cut_off_inside(void **state)
{
    DCP_CLEANUP_BUF struct dcp_buf tar = { 0 }, coded = { 0 };
    static char part[50000];

    (void)state;
    memset(part, 'x', sizeof part - 1);
    archive_add(&tar, &(struct archive_part){ .name = "x", .data = "1" });
    archive_add(&tar, &(struct archive_part){
                          .name = "large", .data = part, .size = "00040000000" });
    archive_encode(&tar, 0, &coded);
    check_refused(&coded, DCP_E_CORRUPT, "its last file is not all there");
}

/* One byte is another: no file is read with other bytes than it had. */
static void flipped(void **state)
{
    DCP_CLEANUP_BUF struct dcp_buf ours = { 0 };
    int n_found = 0, n = 0;

    (void)state;
    make(&ours, NULL);
    for (size_t at = 0; at < ours.size_bytes; at += 1 + ours.size_bytes / 211, n++) {
        ours.data[at] ^= (unsigned char)(1 + at % 255);
        n_found += count_finding(&ours) != 0;
        ours.data[at] ^= (unsigned char)(1 + at % 255);
    }
    assert_int_equal(n_found, n);
    for (size_t at = ours.size_bytes - TABLE_BYTES; at < ours.size_bytes; at++) {
        ours.data[at] ^= 0x10;
        count_finding(&ours); /* it may go without the table */
        ours.data[at] ^= 0x10;
    }
}

/* Adds to a number of the seek table: entry i, or the count when i is 2. */
static void change_table(struct dcp_buf *ours, int i, bool raw, int64_t by)
{
    unsigned char *at =
        ours->data + ours->size_bytes - TABLE_BYTES + 8 + 8 * i + (raw ? 4 : 0);

    dcp_put_le32(at, dcp_le32(at) + (uint32_t)by);
}

static void a_seek_table_that_lies(void **state)
{
    static const char words[] = "its seek table does not fit";

    (void)state;
    for (int way = 0; way < 6; way++) {
        DCP_CLEANUP_BUF struct dcp_buf ours = { 0 };
        make(&ours, NULL);
        switch (way) {
        case 0: /* the frames are shorter than the file */
            change_table(&ours, 0, false, -1);
            check_refused(&ours, DCP_E_CORRUPT, words);
            break;
        case 1: /* there are more of them than fit */
            change_table(&ours, 2, false, 1);
            check_refused(&ours, DCP_E_CORRUPT, words);
            break;
        case 2:
            change_table(&ours, 2, false, (int64_t)1 << 31);
            check_refused(&ours, DCP_E_CORRUPT, words);
            break;
        case 3: /* the sum is right, the border is not */
            change_table(&ours, 0, false, 5);
            change_table(&ours, 1, false, -5);
            check_refused(&ours, DCP_E_CORRUPT, "does not decode");
            break;
        case 4: /* a frame is longer when it is decoded */
            change_table(&ours, 0, true, -1);
            change_table(&ours, 1, true, 1);
            check_refused(&ours, DCP_E_CORRUPT, "zstd frame at byte 0");
            break;
        case 5: /* and shorter */
            change_table(&ours, 0, true, 1);
            change_table(&ours, 1, true, -1);
            check_refused(&ours, DCP_E_CORRUPT, "its seek table says 1048577");
            break;
        }
    }
}

static void check_parts(const struct archive_part *parts, size_t n, int code,
                        const char *words)
{
    DCP_CLEANUP_BUF struct dcp_buf tar = { 0 }, coded = { 0 };

    for (size_t i = 0; i < n; i++)
        archive_add(&tar, &parts[i]);
    archive_end(&tar);
    check_refused(&tar, code, words);
    archive_encode(&tar, 0, &coded);
    check_refused(&coded, code, words);
}

static void bad_entries(void **state)
{
    static const struct {
        struct archive_part parts[2];
        size_t n;
        int code;
        const char *words;
    } cases[] = {
        { { { .name = "/etc/x" } }, 1, DCP_E_CORRUPT, "'/etc/x', which is no name" },
        { { { .name = "../x" } }, 1, DCP_E_CORRUPT, "'../x', which is no name" },
        { { { .name = "a/../b" } }, 1, DCP_E_CORRUPT, "is no name" },
        { { { .name = "a//b" } }, 1, DCP_E_CORRUPT, "is no name" },
        { { { .name = "x", .kind = '2', .link = "/etc" } },
          1,
          DCP_E_UNSUPPORTED,
          "'x', which is a link or a device" },
        { { { .name = "a", .data = "1" }, { .name = "x", .kind = '1', .link = "a" } },
          2,
          DCP_E_UNSUPPORTED,
          "'x', which is a link or a device" },
        { { { .name = "x", .kind = '3' } }, 1, DCP_E_UNSUPPORTED, "a link or a device" },
        { { { .name = "x", .kind = '6' } }, 1, DCP_E_UNSUPPORTED, "a link or a device" },
        { { { .name = "x" }, { .name = "./x" } },
          2,
          DCP_E_CORRUPT,
          "'x', which is there twice" },
        { { { .name = "x" }, { .name = "x/", .kind = '5' } },
          2,
          DCP_E_CORRUPT,
          "'x', which is there twice" },
        { { { .name = "x/y" }, { .name = "x", .data = "1" } },
          2,
          DCP_E_CORRUPT,
          "'x', which is both a file and a folder" },
        { { { .name = "x", .size = "77777777777" } }, 1, DCP_E_CORRUPT, "" },
        { { { .name = "x", .size = "\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff" } },
          1,
          DCP_E_CORRUPT,
          "" },
        { { { .name = "x", .size = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" } },
          1,
          DCP_E_CORRUPT,
          "" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++)
        check_parts(cases[i].parts, cases[i].n, cases[i].code, cases[i].words);
}

static void no_archives(void **state)
{
    static unsigned char zeros[4096];
    DCP_CLEANUP_BUF struct dcp_buf none = { 0 }, text = { 0 }, coded = { 0 };
    DCP_CLEANUP_BUF struct dcp_buf empty = { 0 }, garbled = { 0 }, skippable = { 0 };
    struct dcp_store bundle;
    struct dcp_store_entry *entries;
    size_t n;

    (void)state;
    check_refused(&none, DCP_E_UNSUPPORTED, "holds no tar archive");
    for (int i = 0; i < 200; i++)
        dcp_buf_add_text(&text, "no archive ");
    check_refused(&text, DCP_E_UNSUPPORTED, "holds no tar archive");
    archive_encode(&text, 0, &coded);
    check_refused(&coded, DCP_E_UNSUPPORTED, "holds no tar archive");
    dcp_buf_add_le32(&skippable, 0x184d2a50u);
    dcp_buf_add_le32(&skippable, UINT32_MAX);
    dcp_buf_add_fill(&skippable, 0, 3000);
    check_refused(&skippable, DCP_E_CORRUPT, "ends in the middle of a zstd frame");
    archive_add(&garbled, &(struct archive_part){ .name = "x" });
    archive_add(&garbled, &(struct archive_part){ .name = "y" });
    garbled.data[TAR_RECORD] ^= 1; /* the sum of the second header differs */
    check_refused(&garbled, DCP_E_CORRUPT, "its tar headers say");
    dcp_buf_add(&empty, zeros, sizeof zeros);
    if (!open_bytes(&empty, &bundle, NULL)) { /* an end without a beginning */
        assert_int_equal(bundle.ops->list(bundle.self, "", &entries, &n, NULL), 0);
        assert_int_equal(n, 0);
        dcp_store_free(&bundle);
    }
}

/* A window of a gigabyte is not allocated. */
static void a_window_too_large(void **state)
{
    static const unsigned char head[] = { 0x28,           0xb5, 0x2f, 0xfd, 0x00,
                                          (30 - 10) << 3, 0x01, 0x00, 0x00 };
    DCP_CLEANUP_BUF struct dcp_buf data = { 0 };

    (void)state;
    dcp_buf_add(&data, head, sizeof head);
    check_refused(&data, DCP_E_UNSUPPORTED, "a window of more than 128 MiB");
}

/* One folder that holds everything is taken away, others are not. */
static void top_folders(void **state)
{
    static const struct {
        const char *names[3], *top;
    } cases[] = {
        { { "s/a", "s/b" }, "a" },
        { { "./s/a", "./s/b/c" }, "a" },
        { { "./a", "./b" }, "a" },
        { { "s/a", "t/b" }, "s" },
        { { "s/a", "s-/b" }, "s" },
        { { "s/", "s/a" }, "a" },
        { { "./", "./s/", "./s/a" }, "a" },
        { { "s/", "s/t/", "s/t/a" }, "t" },
        { { "a" }, "a" },
        { { "s/", "x/", "s/a" }, "s" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        DCP_CLEANUP_BUF struct dcp_buf tar = { 0 };
        struct dcp_store bundle;
        struct dcp_store_entry *entries;
        struct dcp_error err = { 0 };
        size_t n;
        for (int k = 0; k < 3 && cases[i].names[k]; k++) {
            const char *name = cases[i].names[k];
            bool is_dir = name[strlen(name) - 1] == '/';
            archive_add(&tar,
                        &(struct archive_part){ .name = name, .kind = is_dir ? '5' : 0 });
        }
        archive_end(&tar);
        if (open_bytes(&tar, &bundle, &err))
            fail_msg("%s: %s", cases[i].names[0], err.message);
        assert_int_equal(bundle.ops->list(bundle.self, "", &entries, &n, NULL), 0);
        assert_true(n > 0);
        assert_string_equal(entries[0].name, cases[i].top);
        dcp_store_list_free(entries, n);
        dcp_store_free(&bundle);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_off),
        cmocka_unit_test(cut_off_plain),
        cmocka_unit_test(cut_off_inside),
        cmocka_unit_test(flipped),
        cmocka_unit_test(a_seek_table_that_lies),
        cmocka_unit_test(bad_entries),
        cmocka_unit_test(no_archives),
        cmocka_unit_test(a_window_too_large),
        cmocka_unit_test(top_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
