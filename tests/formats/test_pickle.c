/* pickle: what the machine makes of opcodes, what it refuses, and what the writer makes
 * of JSON, read again. */
#include "base/arena.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/pickle/json.h"
#include "formats/pickle/write.h"
#include <dcp/globals.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A pickle with its length: it may hold NUL. */
#define PICKLE(text) text, sizeof(text) - 1

static const struct {
    const char *pickle;
    size_t size_bytes;
    const char *json;
} values[] = {
    { PICKLE("\x80\x02N."), "null" },
    { PICKLE("\x80\x02\x88."), "true" },
    { PICKLE("\x80\x04\x95\x02\0\0\0\0\0\0\0\x89."), "false" },
    { PICKLE("K\xff."), "255" },
    { PICKLE("M\x01\x02."), "513" },
    { PICKLE("J\xff\xff\xff\xff."), "-1" },
    { PICKLE("\x8a\0."), "0" },
    { PICKLE("\x8a\x01\x80."), "-128" },
    { PICKLE("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), "9223372036854775807" },
    { PICKLE("\x8a\x09\0\0\0\0\0\0\0\x80\0."), "{\"$int\":\"9223372036854775808\"}" },
    { PICKLE("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\xfe."),
      "{\"$int\":\"-18446744073709551617\"}" },
    { PICKLE("\x8b\x09\0\0\0\0\0\0\0\0\0\0\0\x40."),
      "{\"$int\":\"1180591620717411303424\"}" },
    { PICKLE("G\x3f\xf8\0\0\0\0\0\0."), "1.5" },
    { PICKLE("G\x7f\xf0\0\0\0\0\0\0."), "{\"$float\":\"inf\"}" },
    { PICKLE("G\x7f\xf8\0\0\0\0\0\0."), "{\"$float\":\"nan\"}" },
    { PICKLE("X\x03\0\0\0abc."), "\"abc\"" },
    { PICKLE("\x8c\x02\xc3\xa9."), "\"\xc3\xa9\"" },
    { PICKLE("X\x03\0\0\0a\0b."), "{\"$text\":\"610062\"}" },
    { PICKLE("U\x02\x61\x62."), "\"ab\"" },
    { PICKLE("U\x02\x61\xff."), "{\"$bytes\":\"61ff\"}" },
    { PICKLE("C\x02\x00\xff."), "{\"$bytes\":\"00ff\"}" },
    { PICKLE("\x96\x01\0\0\0\0\0\0\0z."), "{\"$bytearray\":\"7a\"}" },
    { PICKLE("c_codecs\nencode\nX\x03\0\0\0\0\xc3\xbfX\x06\0\0\0latin1\x86R."),
      "{\"$bytes\":\"00ff\"}" },
    { PICKLE("c__builtin__\nbytes\n)R."), "{\"$bytes\":\"\"}" },
    { PICKLE("](K\x01K\x02\x65."), "[1,2]" },
    { PICKLE(")."), "{\"$tuple\":[]}" },
    { PICKLE("(K\x01K\x02K\x03K\x04t."), "{\"$tuple\":[1,2,3,4]}" },
    /* MEMOIZE takes the number of indices that are set, as CPython: here 1 again, */
    { PICKLE("\x8c\x01\x61q\x01\x30\x8c\x01\x62\x94\x30h\x01."), "\"b\"" },
    /* here 2, behind 0 and 5, and then 3, behind one that was set again */
    { PICKLE("K\0q\x05\x30K\x01q\0\x30K\x02\x94\x30K\x03q\x02\x30K\x04\x94\x30"
             "(h\x05h\0h\x02h\x03t."),
      "{\"$tuple\":[0,1,3,4]}" },
    { PICKLE("K\x01K\x02\x86."), "{\"$tuple\":[1,2]}" },
    { PICKLE("\x8f(K\x01\x90."), "{\"$set\":[1]}" },
    { PICKLE("(K\x01\x91."), "{\"$frozenset\":[1]}" },
    { PICKLE("c__builtin__\nset\n]K\x01\x61\x85R."), "{\"$set\":[1]}" },
    { PICKLE("}X\x01\0\0\0aK\x01s."), "{\"a\":1}" },
    { PICKLE("}(X\x01\0\0\0aK\x01K\x02Nu."), "{\"$dict\":[[\"a\",1],[2,null]]}" },
    { PICKLE("}X\x02\0\0\0$aK\x01s."), "{\"$dict\":[[\"$a\",1]]}" },
    { PICKLE("}X\x07\0\0\0$objectK\x01s."), "{\"$dict\":[[\"$object\",1]]}" },
    { PICKLE("ctorch\nfloat32\n."), "{\"$global\":\"torch.float32\"}" },
    { PICKLE("\x8c\x05torch\x8c\x04Size\x93)\x85R."),
      "{\"$object\":\"torch.Size\",\"args\":[{\"$tuple\":[]}]}" },
    { PICKLE("\x8c\x0ctorch._utils\x8c\x13torch.channels_last\x93."),
      "{\"$global\":\"torch.channels_last\"}" },
    { PICKLE("\x8c\x01m\x8c\x0b_Outer.B.in\x93."), "{\"$global\":\"m:_Outer.B.in\"}" },
    { PICKLE("cm\nC\n)\x81}X\x01\0\0\0xK\x01sb."),
      "{\"$object\":\"m.C\",\"new\":true,\"state\":{\"x\":1}}" },
    { PICKLE("cm\nC\n)}X\x01\0\0\0xK\x01s\x92."),
      "{\"$object\":\"m.C\",\"new\":true,\"kwargs\":{\"x\":1}}" },
    { PICKLE("cm\nC\n)R(K\x01\x65(K\x02K\x03u."),
      "{\"$object\":\"m.C\",\"items\":[1],\"pairs\":[[2,3]]}" },
    { PICKLE("ccollections\nOrderedDict\n]]K\x01\x61K\x02\x61\x61\x85R."),
      "{\"$object\":\"collections.OrderedDict\",\"pairs\":[[1,2]]}" },
    { PICKLE("c__builtin__\nxrange\n)R."), "{\"$object\":\"builtins.range\"}" },
    { PICKLE("]q\x00h\x00\x86."), "{\"$tuple\":[[],[]]}" },
    { PICKLE("]\x94h\x00\x86."), "{\"$tuple\":[[],[]]}" },
    { PICKLE("K\x01K\x02"
             "0."),
      "1" },
    { PICKLE("K\x01(K\x02K\x03"
             "1."),
      "1" },
    { PICKLE("K\x01\x32\x86."), "{\"$tuple\":[1,1]}" },
    { PICKLE("c__builtin__\ngetattr\ncdeepspeed.runtime.zero.config\nZeroStageEnum\n"
             "X\x07\0\0\0weights\x86R."),
      "{\"$object\":\"builtins.getattr\",\"args\":[{\"$global\":\"deepspeed.runtime.zero."
      "config.ZeroStageEnum\"},\"weights\"]}" },
};

static const struct {
    const char *name;
    enum dcp_global_kind kind;
} judged[] = {
    { "collections.OrderedDict", DCP_GLOBAL_SAFE },
    { "collections.Ordered", DCP_GLOBAL_UNKNOWN },
    { "collections.OrderedDictX", DCP_GLOBAL_UNKNOWN },
    { "collection.OrderedDict", DCP_GLOBAL_UNKNOWN },
    { "collections.abc.OrderedDict", DCP_GLOBAL_UNKNOWN },
    { "zoneinfo:ZoneInfo._unpickle", DCP_GLOBAL_SAFE },
    { "zoneinfo.ZoneInfo._unpickle", DCP_GLOBAL_UNKNOWN },
    { "pathlib:PosixPath.unlink", DCP_GLOBAL_UNKNOWN },
    { "torch:os.system", DCP_GLOBAL_DANGEROUS },
    { "torch:_C.x", DCP_GLOBAL_UNKNOWN },
    { "torch.load", DCP_GLOBAL_DANGEROUS },
    { "torch.float32", DCP_GLOBAL_SAFE },
    { "torch.storage._load_from_bytes", DCP_GLOBAL_DANGEROUS },
    { "os.system", DCP_GLOBAL_DANGEROUS },
    { "os.path.join", DCP_GLOBAL_DANGEROUS },
    { "osx.system", DCP_GLOBAL_UNKNOWN },
    { "builtins.eval", DCP_GLOBAL_DANGEROUS },
    { "builtins.dict", DCP_GLOBAL_SAFE },
    { "my.module.Config", DCP_GLOBAL_UNKNOWN },
    { "eval", DCP_GLOBAL_DANGEROUS },
    { "", DCP_GLOBAL_DANGEROUS },
    { "a b.c", DCP_GLOBAL_DANGEROUS },
    { "collections.OrderedDict\n.x", DCP_GLOBAL_DANGEROUS },
    { "collections.OrderedDict Counter", DCP_GLOBAL_DANGEROUS },
};

static void test_judgement(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(judged); i++)
        if (dcp_global_judge(judged[i].name) != judged[i].kind)
            fail_msg("%s is %s", judged[i].name,
                     dcp_global_kind_name(dcp_global_judge(judged[i].name)));
}

#define GETATTR "c__builtin__\ngetattr\n"
#define ZONE "czoneinfo\nZoneInfo\nX\x09\0\0\0_unpickle"
#define STAGE "cdeepspeed.runtime.zero.config\nZeroStageEnum\nX\x07\0\0\0weights"
#define STAGE_CLASS "deepspeed.runtime.zero.config.ZeroStageEnum "
#define ZONE_NAMES "zoneinfo.ZoneInfo zoneinfo:ZoneInfo._unpickle "

/* What getattr is used for: names in classes and members of Enums, or anything. */
static const struct {
    const char *pickle;
    size_t size_bytes;
    const char *names;
} named[] = {
    { PICKLE(GETATTR ZONE "\x86R."), ZONE_NAMES },
    { PICKLE(GETATTR STAGE "\x86R."), STAGE_CLASS },
    { PICKLE(GETATTR "q\0" ZONE "\x86Rh\0" STAGE "\x86R\x86."), ZONE_NAMES STAGE_CLASS },
    { PICKLE(GETATTR "."), "builtins.getattr " },
    { PICKLE(GETATTR "0N."), "builtins.getattr " },
    { PICKLE(GETATTR "2" ZONE "\x86R0."), ZONE_NAMES "builtins.getattr " },
    { PICKLE(GETATTR "q\0" ZONE "\x86R0h\0cm\nf\nK\1\x86R."),
      ZONE_NAMES "m.f builtins.getattr " },
    { PICKLE("cm\nf\n" GETATTR "\x85R."), "m.f builtins.getattr " },
    { PICKLE("]" GETATTR "\x61."), "builtins.getattr " },
    { PICKLE(GETATTR "cos\npath\nX\x03\0\0\0sep\x86R."), "os.path builtins.getattr " },
    { PICKLE(GETATTR GETATTR STAGE "\x86RX\1\0\0\0a\x86R."),
      STAGE_CLASS "builtins.getattr " },
    { PICKLE(GETATTR "](" ZONE "eR."), "zoneinfo.ZoneInfo builtins.getattr " },
    { PICKLE("(" GETATTR ZONE "o."), "zoneinfo.ZoneInfo builtins.getattr " },
    { PICKLE("(" ZONE "ibuiltins\ngetattr\n."), "zoneinfo.ZoneInfo builtins.getattr " },
    { PICKLE(GETATTR STAGE), STAGE_CLASS "builtins.getattr " },
};

enum { NAMES_CAP = 512 };

static int take_name(void *self, const char *name, struct dcp_error *err)
{
    char *all = self;
    size_t n = strlen(all);

    (void)err;
    snprintf(all + n, NAMES_CAP - n, "%s ", name);
    return 0;
}

static void test_names(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(named); i++) {
        char all[NAMES_CAP] = "";
        const struct dcp_pickle_names names = { .take = take_name, .self = all };
        size_t used;
        dcp_pickle_names(named[i].pickle, named[i].size_bytes, &names, &used, NULL);
        assert_string_equal(all, named[i].names);
    }
}

static json_t *convert(const char *pickle, size_t size_bytes, struct dcp_arena *arena,
                       struct dcp_error *err)
{
    struct dcp_pickle_node *root;
    json_t *json = NULL;

    if (!dcp_pickle_parse(pickle, size_bytes, arena, &root, NULL, err))
        dcp_pickle_to_json(root, arena, NULL, &json, err);
    return json;
}

static void test_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(values); i++) {
        struct dcp_arena *arena = dcp_arena_new();
        struct dcp_error err = { 0 };
        json_t *json = convert(values[i].pickle, values[i].size_bytes, arena, &err);
        if (!json)
            fail_msg("%s: %s", values[i].json, err.message);
        char *text = dcp_json_text(json, 0);
        assert_string_equal(text, values[i].json);
        free(text);
        json_decref(json);
        dcp_arena_free(arena);
    }
}

/* Every cut of a sound pickle is refused, and never read behind its end. */
static void test_cuts(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(values); i++)
        for (size_t n = 0; n < values[i].size_bytes; n++) {
            struct dcp_arena *arena = dcp_arena_new();
            struct dcp_error err = { 0 };
            char *cut = malloc(n + 1);
            memcpy(cut, values[i].pickle, n);
            assert_null(convert(cut, n, arena, &err));
            assert_true(err.message[0]);
            free(cut);
            dcp_arena_free(arena);
        }
}

static const struct {
    const char *pickle;
    size_t size_bytes;
    const char *words;
} refused[] = {
    { PICKLE("N.N"), "follow the end" },
    { PICKLE("\xff."), "no opcode" },
    { PICKLE("\x80\x06N."), "protocol is 6" },
    { PICKLE("\x80\x04\x95\x09\0\0\0\0\0\0\0N."), "frame" },
    { PICKLE("K\x01K\x02."), "must leave one object" },
    { PICKLE("N(."), "must leave one object" },
    { PICKLE("K\x01(0\x85"
             "1."),
      "no mark" },
    { PICKLE("K\x01(\x85."), "stack is too short" },
    { PICKLE("h\x00."), "remembered" },
    { PICKLE("Nq\x06h\x06."), "larger than any" },
    { PICKLE("]K\x01K\x02s."), "cannot take items" },
    { PICKLE("}K\x01\x61."), "cannot take items" },
    { PICKLE("]}b."), "cannot take a state" },
    { PICKLE("cm\nC\n)R}b}b."), "cannot take a state" },
    { PICKLE("N)R."), "what it calls is not a name" },
    { PICKLE("cm\nC\nNR."), "not a tuple" },
    { PICKLE("cm\nC\n)]\x92."), "not a dict" },
    { PICKLE("cm\nC.d\n."), "malformed" },
    { PICKLE("cm\n\n."), "malformed" },
    { PICKLE("\x8c\x05torch\x8c\x0bos.path.sep\x93."), "malformed" },
    { PICKLE("\x8c\x01m\x8c\x04"
             "A..b\x93."),
      "malformed" },
    { PICKLE("\x8c\x01m\x8c\x02"
             "A.\x93."),
      "malformed" },
    { PICKLE("\x8c\x01m\x8c\x05"
             "A.o.b\x93."),
      "malformed" },
    { PICKLE("cm m\nC\n."), "malformed" },
    { PICKLE("X\x01\0\0\0mK\x01\x93."), "not a string" },
    { PICKLE("c__builtin__\ngetattr\ncos\nsystem\nX\x01\0\0\0x\x86R."), "getattr" },
    { PICKLE("c__builtin__\ngetattr\n)R."), "getattr" },
    { PICKLE("K\x01Q."), "outside it" },
    { PICKLE("}(X\x01\0\0\0aNX\x01\0\0\0aNu."), "key twice" },
    { PICKLE("(I1\nt."), "not allowed" },
    { PICKLE("cos\nsystem\n(oN."), "not allowed" },
    { PICKLE("Pid\n."), "not allowed" },
    { PICKLE("X\x01\0\0\0\xff."), "UTF-8" },
    { PICKLE("X\x03\0\0\0\xed\x9f\xff."), "not UTF-8" },
    { PICKLE("X\x02\0\0\0\xed\xa0."), "not UTF-8" },
    { PICKLE("X\x04\0\0\0\xed\xa0\x80\xff."), "not UTF-8" },
    { PICKLE("X\x04\0\0\0\xc0\xed\xa0\x80."), "not UTF-8" },
    { PICKLE("X\x03\0\0\0\xed\xa0\x41."), "not UTF-8" },
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(refused); i++) {
        struct dcp_arena *arena = dcp_arena_new();
        struct dcp_error err = { 0 };
        json_t *json = convert(refused[i].pickle, refused[i].size_bytes, arena, &err);
        if (json || !strstr(err.message, refused[i].words))
            fail_msg("%zu, '%s': %s", i, refused[i].words, err.message);
        dcp_arena_free(arena);
    }
}

/* What Python reads, and what is corrupt: not the same refusal. */
static void test_unsupported(void **state)
{
    static const struct {
        const char *pickle;
        size_t size_bytes;
        int rc;
    } pickles[] = {
        { PICKLE("]q\x00h\x00\x61."), DCP_E_UNSUPPORTED },
        { PICKLE("}q\x00K\x01h\x00s."), DCP_E_UNSUPPORTED },
        { PICKLE("X\x03\0\0\0\xed\xa0\x80."), DCP_E_UNSUPPORTED },
        { PICKLE("X\x07\0\0\0\x61\xed\xb2\x80\xc3\xa9z."), DCP_E_UNSUPPORTED },
        { PICKLE("X\x06\0\0\0\xed\xa0\xbd\xed\xb8\x80."), DCP_E_UNSUPPORTED },
        { PICKLE("X\x01\0\0\0\xff."), DCP_E_CORRUPT },
        { PICKLE("X\x04\0\0\0\xed\xa0\x80\xff."), DCP_E_CORRUPT },
        { PICKLE("X\x04\0\0\0\xff\xed\xa0\x80."), DCP_E_CORRUPT },
    };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(pickles); i++) {
        struct dcp_arena *arena = dcp_arena_new();
        struct dcp_pickle_node *root;
        struct dcp_error err = { 0 };
        int rc = dcp_pickle_parse(pickles[i].pickle, pickles[i].size_bytes, arena, &root,
                                  NULL, &err);
        if (rc != pickles[i].rc)
            fail_msg("%zu: %d, %s", i, rc, err.message);
        dcp_arena_free(arena);
    }
}

/* Tuples of the same tuple, again and again: 2^24 values in two kilobytes. */
static void test_shared_bomb(void **state)
{
    enum { WIDTH = 256, DEPTH = 3 };
    struct dcp_arena *arena = dcp_arena_new();
    struct dcp_pickle_out out = { 0 };
    struct dcp_error err = { 0 };

    (void)state;
    dcp_pickle_begin(&out);
    dcp_pickle_none(&out);
    uint32_t item = dcp_pickle_put(&out);
    for (int i = 0; i < DEPTH; i++) {
        dcp_pickle_tuple_begin(&out, WIDTH);
        for (int k = 0; k < WIDTH; k++)
            dcp_pickle_fetch(&out, item);
        dcp_pickle_tuple_end(&out, WIDTH);
        item = out.n_memo - 1;
    }
    for (int i = 0; i < DEPTH; i++) /* all stand on the stack: one must be left */
        dcp_pickle_tuple_end(&out, 2);
    dcp_pickle_end(&out);
    assert_true(out.buf.size_bytes < 2048);
    assert_null(convert((const char *)out.buf.data, out.buf.size_bytes, arena, &err));
    if (!strstr(err.message, "stands for over"))
        fail_msg("%s", err.message);
    dcp_pickle_out_fini(&out);
    dcp_arena_free(arena);
}

static void test_depth(void **state)
{
    (void)state;
    for (unsigned depth = DCP_PICKLE_MAX_DEPTH - 2; depth < DCP_PICKLE_MAX_DEPTH + 3;
         depth++) {
        struct dcp_arena *arena = dcp_arena_new();
        struct dcp_pickle_out out = { 0 };
        struct dcp_pickle_node *root;
        dcp_pickle_none(&out);
        for (unsigned i = 1; i < depth; i++)
            dcp_pickle_op(&out, '\x85');
        dcp_pickle_end(&out);
        int rc =
            dcp_pickle_parse(out.buf.data, out.buf.size_bytes, arena, &root, NULL, NULL);
        assert_int_equal(rc, depth <= DCP_PICKLE_MAX_DEPTH ? 0 : DCP_E_UNSUPPORTED);
        if (!rc)
            assert_int_equal(root->height, depth);
        dcp_pickle_out_fini(&out);
        dcp_arena_free(arena);
    }
}

static void test_several_in_a_row(void **state)
{
    struct dcp_arena *arena = dcp_arena_new();
    struct dcp_pickle_node *root;
    size_t used;

    (void)state;
    assert_int_equal(dcp_pickle_parse("K\x01.K\x02.", 6, arena, &root, &used, NULL), 0);
    assert_int_equal(used, 3);
    assert_int_equal(root->number, 1);
    dcp_arena_free(arena);
}

static void test_long_numbers(void **state)
{
    static const char *const texts[] = {
        "0",
        "1",
        "-1",
        "127",
        "128",
        "-128",
        "-129",
        "255",
        "256",
        "-256",
        "999999999",
        "1000000000",
        "-1000000000000000000000000000000000000000001",
        "340282366920938463463374607431768211456",
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(texts); i++) {
        struct dcp_arena *arena = dcp_arena_new();
        const unsigned char *bytes;
        size_t n;
        assert_true(dcp_pickle_long_parse(arena, texts[i], &bytes, &n));
        assert_string_equal(dcp_pickle_long_text(arena, bytes, n), texts[i]);
        /* the shortest form */
        assert_true(n == 1 || !((bytes[n - 1] == 0 && bytes[n - 2] < 0x80) ||
                                (bytes[n - 1] == 0xff && bytes[n - 2] >= 0x80)));
        dcp_arena_free(arena);
    }
    struct dcp_arena *arena = dcp_arena_new();
    const unsigned char *bytes;
    size_t n;
    assert_false(dcp_pickle_long_parse(arena, "", &bytes, &n));
    assert_false(dcp_pickle_long_parse(arena, "-", &bytes, &n));
    assert_false(dcp_pickle_long_parse(arena, "1e5", &bytes, &n));
    dcp_arena_free(arena);
}

/* Which opcodes CPython 3.11 puts around n items. */
static void test_batches(void **state)
{
    static const struct {
        enum dcp_pickle_fill fill;
        size_t n;
        const char *ops;
    } cases[] = {
        { DCP_PICKLE_FILL_DICT, 0, "" },        { DCP_PICKLE_FILL_DICT, 1, "s" },
        { DCP_PICKLE_FILL_DICT, 2, "(u" },      { DCP_PICKLE_FILL_DICT, 1000, "(u(u" },
        { DCP_PICKLE_FILL_DICT, 1001, "(u(u" }, { DCP_PICKLE_FILL_DICT, 2000, "(u(u(u" },
        { DCP_PICKLE_FILL_PAIRS, 1, "s" },      { DCP_PICKLE_FILL_PAIRS, 1000, "(u" },
        { DCP_PICKLE_FILL_PAIRS, 1001, "(us" }, { DCP_PICKLE_FILL_PAIRS, 1002, "(u(u" },
        { DCP_PICKLE_FILL_LIST, 1, "a" },       { DCP_PICKLE_FILL_LIST, 1000, "(e" },
        { DCP_PICKLE_FILL_LIST, 1001, "(e(e" },
    };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct dcp_pickle_out out = { 0 };
        for (size_t k = 0; k < cases[i].n; k++)
            dcp_pickle_fill_next(&out, cases[i].fill, k, cases[i].n);
        dcp_pickle_fill_end(&out, cases[i].fill, cases[i].n);
        dcp_pickle_op(&out, '\0');
        assert_string_equal(out.buf.data, cases[i].ops);
        dcp_pickle_out_fini(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_judgement),        cmocka_unit_test(test_names),
        cmocka_unit_test(test_values),           cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_refused),          cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_shared_bomb),      cmocka_unit_test(test_depth),
        cmocka_unit_test(test_several_in_a_row), cmocka_unit_test(test_long_numbers),
        cmocka_unit_test(test_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
