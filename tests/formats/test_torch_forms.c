/* torch_forms: streams and tar archives written by hand: what a sound one gives, and what
 * is refused. */
#include "base/buf.h"
#include "base/mem.h"
#include "formats/archive/tar.h"
#include "formats/torch_save/torch_save.h"
#include "lib/format_io.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct file {
    struct dcp_store store;
    struct dcp_source source;
    struct dcp_catalog *catalog;
    struct dcp_error err;
};

static int file_index(struct file *f, const struct dcp_buf *bytes)
{
    *f = (struct file){ 0 };
    assert_int_equal(dcp_buf_check(bytes, NULL), 0);
    assert_int_equal(dcp_store_mem(&f->store, &f->err), 0);
    assert_int_equal(
        dcp_store_write_file(&f->store, "x", bytes->data, bytes->size_bytes, &f->err), 0);
    f->source = (struct dcp_source){ .store = &f->store, .name = "x" };
    assert_int_equal(dcp_catalog_new(&f->catalog, &f->err), 0);
    int rc = dcp_format_torch.index(&f->source, f->catalog, &f->err);
    return rc ? rc : dcp_catalog_sort(f->catalog, &f->err);
}

static void file_fini(struct file *f)
{
    dcp_catalog_free(f->catalog);
    dcp_store_free(&f->store);
}

/* The first element of every tensor, as bytes. */
static void check_first(struct file *f, const char *name, int64_t n_elems, float first)
{
    int at = dcp_catalog_find(f->catalog, name);
    void *data;
    float got;

    if (at < 0)
        fail_msg("no tensor '%s'", name);
    assert_int_equal(f->catalog->tensors[at].n_elems, n_elems);
    if (format_read_tensor(&f->source, f->catalog, at, &data, &f->err))
        fail_msg("%s", f->err.message);
    memcpy(&got, data, sizeof got);
    assert_true(got == first);
    free(data);
}

static void expect(const struct dcp_buf *bytes, int want, const char *words,
                   const char *what)
{
    struct file f;
    int rc = file_index(&f, bytes);

    if (rc != want || (rc && !strstr(f.err.message, words)))
        fail_msg("%s: %d %s", what, rc, f.err.message);
    file_fini(&f);
}

/* n float32 numbers: first, first + 1, … */
static void put_floats(struct dcp_buf *buf, float first, int n)
{
    for (int i = 0; i < n; i++, first += 1)
        dcp_buf_add(buf, &first, sizeof first);
}

/* -- streams ------------------------------------------------------------------------- */

#define BYTES(text) text, sizeof(text) - 1
#define MAGIC BYTES("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.")
#define VERSION BYTES("\x80\x02M\xe9\x03.")
#define FACTS                                                                \
    BYTES("\x80\x02}(X\x10\0\0\0protocol_versionM\xe9\x03X\x0d\0\0\0little_" \
          "endian\x88u.")

/* A persistent id, and a tensor of 6 elements from 0 on. */
#define ID(cls, key, numel, part)                                                      \
    "(X\x07\0\0\0storagectorch\n" cls "\nX\x02\0\0\0" key "X\x03\0\0\0cpuK" numel part \
    "tQ"
#define TENSOR(id) "ctorch._utils\n_rebuild_tensor\n(" id "K\0K\6\x85K\1\x85tR"
#define WHOLE TENSOR(ID("FloatStorage", "41", "\x08", "N"))
#define DICT(a, b) "\x80\x02}(X\1\0\0\0a" a "X\1\0\0\0b" b "u."
#define KEYS(keys) "\x80\x02](" keys "e."
#define KEY(key) "X\x02\0\0\0" key

struct stream {
    const char *name;
    const char *object;
    size_t object_bytes;
    const char *keys;
    size_t keys_bytes;
    int counts[2], floats[2]; /* of storages; -1: there is none */
    const char *tail;         /* behind the last */
    int rc;
    const char *words;
};

static const struct stream streams[] = {
    { "two storages",
      BYTES(DICT(WHOLE, TENSOR(ID("FloatStorage", "42", "\x06", "N")))),
      BYTES(KEYS(KEY("41") KEY("42"))),
      { 8, 6 },
      { 8, 6 },
      "",
      0,
      "" },
    { "an unusual order",
      BYTES(DICT(WHOLE, TENSOR(ID("FloatStorage", "42", "\x06", "N")))),
      BYTES(KEYS(KEY("42") KEY("41"))),
      { 6, 8 },
      { 6, 8 },
      "",
      0,
      "" },
    { "a part",
      BYTES(
          DICT(WHOLE, TENSOR(ID("FloatStorage", "41", "\x08", KEY("43") "K\2K\6\x87")))),
      BYTES(KEYS(KEY("41"))),
      { 8, -1 },
      { 8, -1 },
      "",
      0,
      "" },
    { "a class",
      BYTES(DICT(WHOLE, "(X\6\0\0\0modulecm\nC\nX\1\0\0\0fX\1\0\0\0stQ)\x81")),
      BYTES(KEYS(KEY("41"))),
      { 8, -1 },
      { 8, -1 },
      "",
      0,
      "" },
    { "trailing bytes",
      BYTES(DICT(WHOLE, "N")),
      BYTES(KEYS(KEY("41"))),
      { 8, -1 },
      { 8, -1 },
      "x",
      DCP_E_CORRUPT,
      "bytes follow" },
    { "incomplete",
      BYTES(DICT(WHOLE, "N")),
      BYTES(KEYS(KEY("41"))),
      { 8, -1 },
      { 7, -1 },
      "",
      DCP_E_CORRUPT,
      "incomplete" },
    { "negative or fractional",
      BYTES(DICT(WHOLE, "N")),
      BYTES(KEYS(KEY("41"))),
      { -1, -1 },
      { -1, -1 },
      "",
      DCP_E_CORRUPT,
      "incomplete" },
    { "another count",
      BYTES(DICT(WHOLE, "N")),
      BYTES(KEYS(KEY("41"))),
      { 7, -1 },
      { 8, -1 },
      "",
      DCP_E_CORRUPT,
      "another size" },
    { "a key twice",
      BYTES(DICT(WHOLE, "N")),
      BYTES(KEYS(KEY("41") KEY("41"))),
      { 8, 8 },
      { 8, 8 },
      "",
      DCP_E_CORRUPT,
      "names one twice" },
    { "a key of nothing",
      BYTES(DICT(WHOLE, "N")),
      BYTES(KEYS(KEY("41") KEY("42"))),
      { 8, 8 },
      { 8, 8 },
      "",
      DCP_E_CORRUPT,
      "nothing uses" },
    { "no key",
      BYTES(DICT(WHOLE, "N")),
      BYTES(KEYS("")),
      { -1, -1 },
      { -1, -1 },
      "",
      DCP_E_CORRUPT,
      "has no bytes" },
    { "keys that are no list",
      BYTES(DICT(WHOLE, "N")),
      BYTES("\x80\x02}."),
      { -1, -1 },
      { -1, -1 },
      "",
      DCP_E_CORRUPT,
      "list of its storages" },
    { "a key that is no number",
      BYTES(DICT(TENSOR(ID("FloatStorage", "..", "\x08", "N")), "N")),
      BYTES(KEYS("")),
      { -1, -1 },
      { -1, -1 },
      "",
      DCP_E_CORRUPT,
      "no number" },
    { "two dtypes",
      BYTES(DICT(WHOLE, TENSOR(ID("IntStorage", "41", "\x08", "N")))),
      BYTES(KEYS(KEY("41"))),
      { 8, -1 },
      { 8, -1 },
      "",
      DCP_E_CORRUPT,
      "not its dtype or size" },
    { "two sizes",
      BYTES(DICT(WHOLE, TENSOR(ID("FloatStorage", "41", "\x07", "N")))),
      BYTES(KEYS(KEY("41"))),
      { 8, -1 },
      { 8, -1 },
      "",
      DCP_E_CORRUPT,
      "not its dtype or size" },
    { "a part too far",
      BYTES(
          DICT(WHOLE, TENSOR(ID("FloatStorage", "41", "\x08", KEY("43") "K\3K\6\x87")))),
      BYTES(KEYS(KEY("41"))),
      { 8, -1 },
      { 8, -1 },
      "",
      DCP_E_CORRUPT,
      "no part of" },
    { "a small part",
      BYTES(
          DICT(WHOLE, TENSOR(ID("FloatStorage", "41", "\x08", KEY("43") "K\2K\5\x87")))),
      BYTES(KEYS(KEY("41"))),
      { 8, -1 },
      { 8, -1 },
      "",
      DCP_E_CORRUPT,
      "past the end" },
    { "quantized",
      BYTES(DICT(TENSOR(ID("QInt8Storage", "41", "\x08", "N")), "N")),
      BYTES(KEYS(KEY("41"))),
      { 8, -1 },
      { 8, -1 },
      "",
      DCP_E_UNSUPPORTED,
      "class" },
    { "an id that is no storage",
      BYTES(DICT("X\1\0\0\0sQ", "N")),
      BYTES(KEYS("")),
      { -1, -1 },
      { -1, -1 },
      "",
      DCP_E_CORRUPT,
      "no storage" },
    { "a pickle without an end",
      BYTES("\x80\x02}"),
      BYTES(""),
      { -1, -1 },
      { -1, -1 },
      "",
      DCP_E_CORRUPT,
      "has no end" },
    { "a text of 4 GiB",
      BYTES("\x80\x02X\xff\xff\xff\xff"),
      BYTES(""),
      { -1, -1 },
      { -1, -1 },
      "",
      DCP_E_CORRUPT,
      "has no end" },
    { "an opcode of protocol 0",
      BYTES("\x80\x02I1\n."),
      BYTES(""),
      { -1, -1 },
      { -1, -1 },
      "",
      DCP_E_CORRUPT,
      "no opcode" },
};

static void put_stream(struct dcp_buf *buf, const struct stream *s)
{
    dcp_buf_add(buf, MAGIC);
    dcp_buf_add(buf, VERSION);
    dcp_buf_add(buf, FACTS);
    dcp_buf_add(buf, s->object, s->object_bytes);
    dcp_buf_add(buf, s->keys, s->keys_bytes);
    for (int i = 0; i < 2; i++) {
        if (s->counts[i] < 0)
            continue;
        dcp_buf_add_le64(buf, (uint64_t)s->counts[i]);
        put_floats(buf, (float)(10 * i), s->floats[i]);
    }
    dcp_buf_add_text(buf, s->tail);
}

static void test_streams(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(streams); i++) {
        struct dcp_buf buf = { 0 };
        put_stream(&buf, &streams[i]);
        expect(&buf, streams[i].rc, streams[i].words, streams[i].name);
        dcp_buf_fini(&buf);
    }
}

static void test_stream_values(void **state)
{
    static const float firsts[][2] = { { 0, 10 }, { 10, 0 }, { 0, 2 } };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(firsts); i++) {
        struct dcp_buf buf = { 0 };
        struct file f;
        put_stream(&buf, &streams[i]);
        assert_int_equal(file_index(&f, &buf), 0);
        check_first(&f, "a", 6, firsts[i][0]);
        check_first(&f, "b", 6, firsts[i][1]);
        file_fini(&f);
        dcp_buf_fini(&buf);
    }
}

/* -- tar ----------------------------------------------------------------------------- */

enum { BLOCK = 512, SUM_AT = 148, TYPE_AT = 156, MAGIC_AT = 257 };

static void sign(unsigned char head[BLOCK])
{
    unsigned sum = 0;

    memset(head + SUM_AT, ' ', 8);
    for (int i = 0; i < BLOCK; i++)
        sum += head[i];
    snprintf((char *)head + SUM_AT, 8, "%06o", sum);
}

static void put_member(struct dcp_buf *buf, const char *name, char type, const void *data,
                       size_t n)
{
    unsigned char head[BLOCK] = { 0 };

    snprintf((char *)head, 100, "%s", name);
    snprintf((char *)head + 124, 12, "%011zo", n);
    head[TYPE_AT] = (unsigned char)type;
    memcpy(head + MAGIC_AT, "ustar\00000", 8);
    sign(head);
    dcp_buf_add(buf, head, sizeof head);
    dcp_buf_add(buf, data, n);
    dcp_buf_add_fill(buf, 0, (BLOCK - n % BLOCK) % BLOCK);
}

static void put_end(struct dcp_buf *buf)
{
    dcp_buf_add_fill(buf, 0, 2 * BLOCK);
}

#define INT(n) "\x80\x02K" n "."

struct parts {
    const char *name;
    int n_storages, count, floats; /* of the one storage, of key 5 */
    const char *parts;
    size_t parts_bytes;
    int n_tensors, ndim;
    int64_t shape, stride, offset;
    const char *object;
    size_t object_bytes;
    int rc;
    const char *words;
};

#define NONE BYTES("\x80\x02].")
#define ONE BYTES("\x80\x02](K\6K\5K\1K\3ta.") /* key 6 is elements 1 to 3 of key 5 */
#define DICT1 BYTES("\x80\x02}X\1\0\0\0aK\x07Qs.")
#define DICT6 BYTES("\x80\x02}X\1\0\0\0aK\6Qs.")

static const struct parts tars[] = {
    { "one tensor", 1, 4, 4, NONE, 1, 1, 3, 1, 1, DICT1, 0, "" },
    { "a part", 1, 4, 4, ONE, 1, 1, 3, 1, 1, DICT6, 0, "" },
    { "too many storages", 2, 4, 4, NONE, 1, 1, 3, 1, 1, DICT1, DCP_E_CORRUPT, "" },
    { "too many tensors", 1, 4, 4, NONE, 2, 1, 3, 1, 1, DICT1, DCP_E_CORRUPT, "" },
    { "too few tensors", 1, 4, 4, NONE, 0, 1, 3, 1, 1, DICT1, DCP_E_CORRUPT,
      "behind its end" },
    { "storage incomplete", 1, 400, 4, NONE, 1, 1, 3, 1, 1, DICT1, DCP_E_CORRUPT,
      "ends before" },
    { "nine dimensions", 1, 4, 4, NONE, 1, 9, 3, 1, 1, DICT1, DCP_E_UNSUPPORTED,
      "dimensions" },
    { "a negative size", 1, 4, 4, NONE, 1, 1, -3, 1, 1, DICT1, DCP_E_CORRUPT,
      "negative" },
    { "too far", 1, 4, 4, NONE, 1, 1, 3, 1, 2, DICT1, DCP_E_CORRUPT, "past the end" },
    { "too wide", 1, 4, 4, NONE, 1, 1, 3, 2, 0, DICT1, DCP_E_CORRUPT, "past the end" },
    { "an id of nothing", 1, 4, 4, NONE, 1, 1, 3, 1, 1, DICT6, DCP_E_CORRUPT, "nothing" },
    { "a part too far", 1, 4, 4, BYTES("\x80\x02](K\6K\5K\2K\3ta."), 1, 1, 3, 1, 1, DICT1,
      DCP_E_CORRUPT, "past the end" },
    { "a part of nothing", 1, 4, 4, BYTES("\x80\x02](K\6K\x08K\1K\3ta."), 1, 1, 3, 1, 1,
      DICT1, DCP_E_CORRUPT, "malformed part" },
    { "a part with the key of its storage", 1, 4, 4, BYTES("\x80\x02](K\5K\5K\1K\3ta."),
      1, 1, 3, 1, 1, DICT1, DCP_E_CORRUPT, "two storages" },
};

static void put_parts(struct dcp_buf *buf, const struct parts *p)
{
    struct dcp_buf storages = { 0 }, tensors = { 0 };

    dcp_buf_add(&storages, BYTES("\x80\x02K"));
    dcp_buf_add_u8(&storages, (uint8_t)p->n_storages);
    dcp_buf_add(&storages, BYTES(".\x80\x02K\5X\3\0\0\0cpuctorch\nFloatStorage\n\x87."));
    dcp_buf_add_le64(&storages, (uint64_t)p->count);
    put_floats(&storages, 10, p->floats);
    dcp_buf_add(&storages, p->parts, p->parts_bytes);

    dcp_buf_add(&tensors, BYTES("\x80\x02K"));
    dcp_buf_add_u8(&tensors, (uint8_t)p->n_tensors);
    dcp_buf_add(&tensors, BYTES(".\x80\x02K\7K\5ctorch\nFloatTensor\n\x87."));
    dcp_buf_add_le32(&tensors, (uint32_t)p->ndim);
    dcp_buf_add_le32(&tensors, 0);
    dcp_buf_add_le64(&tensors, (uint64_t)p->shape);
    dcp_buf_add_le64(&tensors, (uint64_t)p->stride);
    dcp_buf_add_le64(&tensors, (uint64_t)p->offset);

    put_member(buf, "storages", '0', storages.data, storages.size_bytes);
    put_member(buf, "tensors", '0', tensors.data, tensors.size_bytes);
    put_member(buf, "pickle", '0', p->object, p->object_bytes);
    put_end(buf);
    dcp_buf_fini(&storages);
    dcp_buf_fini(&tensors);
}

static void test_tars(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(tars); i++) {
        struct dcp_buf buf = { 0 };
        put_parts(&buf, &tars[i]);
        expect(&buf, tars[i].rc, tars[i].words, tars[i].name);
        dcp_buf_fini(&buf);
    }
}

static void test_tar_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct dcp_buf buf = { 0 };
        struct file f;
        put_parts(&buf, &tars[i]);
        assert_int_equal(file_index(&f, &buf), 0);
        assert_string_equal(f.catalog->version, "tar");
        check_first(&f, "a", 3, 11);
        file_fini(&f);
        dcp_buf_fini(&buf);
    }
}

/* A sound archive, of which one thing is changed. */
static void change(struct dcp_buf *buf, const char *what)
{
    static const char pax[] = "11 path=xx\n";
    static const char size[] = "13 size=9999\n";
    static const char sparse[] = "22 GNU.sparse.major=1\n";

    if (!strcmp(what, "a link"))
        put_member(buf, "x", '2', "", 0);
    else if (!strcmp(what, "a folder"))
        put_member(buf, "folder/", '5', "", 0);
    else if (!strcmp(what, "a name twice"))
        put_member(buf, "pickle", '0', "", 0);
    else if (!strcmp(what, "a name that climbs"))
        put_member(buf, "../x", '0', "", 0);
    else if (!strcmp(what, "pax for all"))
        put_member(buf, "g", 'g', pax, sizeof pax - 1);
    else if (!strcmp(what, "a pax name"))
        put_member(buf, "x", 'x', pax, sizeof pax - 1);
    else if (!strcmp(what, "a pax size"))
        put_member(buf, "x", 'x', size, sizeof size - 1);
    else if (!strcmp(what, "sparse"))
        put_member(buf, "x", 'x', sparse, sizeof sparse - 1);
    else if (!strcmp(what, "corrupt pax"))
        put_member(buf, "x", 'x', "99 path=x\n", 10);
    else if (!strcmp(what, "a checksum"))
        put_member(buf, "x", '0', "", 0);
    if (!strcmp(what, "a checksum"))
        buf->data[buf->size_bytes - 1]++;
    else if (strncmp(what, "a pax", 5) == 0)
        put_member(buf, "y", '0', "z", 1);
}

static void test_archives(void **state)
{
    static const struct {
        const char *what;
        int rc;
        const char *words;
    } cases[] = {
        { "nothing", 0, "" },
        { "a folder", 0, "" },
        { "a pax name", 0, "" },
        { "a pax size", DCP_E_CORRUPT, "past the end" },
        { "pax for all", DCP_E_CORRUPT, "sets a name or size" },
        { "corrupt pax", DCP_E_CORRUPT, "corrupt pax" },
        { "sparse", DCP_E_UNSUPPORTED, "sparse" },
        { "a link", DCP_E_UNSUPPORTED, "not plain files" },
        { "a name twice", DCP_E_CORRUPT, "name of an earlier one" },
        { "a name that climbs", DCP_E_CORRUPT, "outside its folder" },
        { "a checksum", DCP_E_CORRUPT, "corrupt one" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct dcp_buf buf = { 0 };
        put_parts(&buf, &tars[0]);
        buf.size_bytes -= 2 * BLOCK; /* the end */
        change(&buf, cases[i].what);
        put_end(&buf);
        expect(&buf, cases[i].rc, cases[i].words, cases[i].what);
        dcp_buf_fini(&buf);
    }
}

static void test_archive_ends(void **state)
{
    struct dcp_buf buf = { 0 };

    (void)state;
    put_parts(&buf, &tars[0]);
    size_t whole = buf.size_bytes;
    dcp_buf_add_fill(&buf, 0, 10240);
    expect(&buf, 0, "", "a filled record");
    buf.data[buf.size_bytes - 1] = 1;
    expect(&buf, DCP_E_CORRUPT, "bytes follow", "bytes behind the end");
    buf.size_bytes = whole - 2 * BLOCK;
    expect(&buf, DCP_E_CORRUPT, "incomplete", "no end");
    buf.size_bytes -= 1;
    expect(&buf, DCP_E_CORRUPT, "incomplete", "the last member");
    dcp_buf_fini(&buf);

    put_member(&buf, "x", '0', "y", 1);
    put_end(&buf);
    expect(&buf, DCP_E_UNSUPPORTED, "no PyTorch file", "another archive");
    dcp_buf_fini(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),  cmocka_unit_test(test_stream_values),
        cmocka_unit_test(test_tars),     cmocka_unit_test(test_tar_values),
        cmocka_unit_test(test_archives), cmocka_unit_test(test_archive_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
