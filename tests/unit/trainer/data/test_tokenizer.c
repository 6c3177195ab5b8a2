/* tokenizer: words, merges, exact decoding, and files that are not what they should be.
 *
 * `test_unit_tokenizer encode SPEC` reads texts with a NUL behind each and prints a line
 * of ids for each, for the test against real GPT-2 tokenizers. */
#include "base/buf.h"
#include "base/fs.h"
#include "base/mem.h"
#include "trainer/data/data.h"
#include "trainer/data/tokenizer.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const merges[] = { "h e", "l l", "he ll", "hell o", "Ġ w",
                                      "Ġ t", "a b", "b c",   "d e",    "c de" };
#define N_MERGES DCP_ARRAY_LEN(merges)
#define END_ID (256 + (int)N_MERGES)

/* The character that stands for a byte in the files, as UTF-8. */
static void add_letter(struct dcp_buf *out, int byte)
{
    int code = 256;
    for (int b = 0; b < byte; b++)
        code += b < '!' || (b > '~' && b < 0xa1) || b == 0xad;
    if ((byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad))
        code = byte;
    if (code == '"' || code == '\\')
        dcp_buf_add_u8(out, '\\');
    if (code < 0x80) {
        dcp_buf_add_u8(out, (uint8_t)code);
    } else {
        dcp_buf_add_u8(out, (uint8_t)(0xc0 | code >> 6));
        dcp_buf_add_u8(out, (uint8_t)(0x80 | (code & 0x3f)));
    }
}

/* Bytes, what the merges make, <|endoftext|>: a vocabulary as GPT-2's, only smaller. */
static void add_vocab(struct dcp_buf *out, const char *more)
{
    for (int byte = 0; byte < 256; byte++) {
        dcp_buf_add_text(out, byte ? ", \"" : "{\"");
        add_letter(out, byte);
        dcp_buf_add_fmt(out, "\": %d", byte);
    }
    for (size_t i = 0; i < N_MERGES; i++) {
        const char *space = strchr(merges[i], ' ');
        dcp_buf_add_fmt(out, ", \"%.*s%s\": %zu", (int)(space - merges[i]), merges[i],
                        space + 1, 256 + i);
    }
    dcp_buf_add_fmt(out, ", \"<|endoftext|>\": %d%s}", END_ID, more);
}

static void add_merges(struct dcp_buf *out)
{
    dcp_buf_add_text(out, "#version: 0.2\n");
    for (size_t i = 0; i < N_MERGES; i++)
        dcp_buf_add_fmt(out, "%s\n", merges[i]);
}

struct folder {
    char dir[64], spec[96];
};

static void put(const struct folder *folder, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder->dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state)
{
    struct folder *folder = calloc(1, sizeof *folder);
    snprintf(folder->dir, sizeof folder->dir, "tokenizer.XXXXXX");
    if (!mkdtemp(folder->dir))
        return -1;
    snprintf(folder->spec, sizeof folder->spec, "gpt2:%s", folder->dir);
    DCP_CLEANUP_BUF struct dcp_buf vocab = { 0 }, lines = { 0 };
    add_vocab(&vocab, "");
    add_merges(&lines);
    put(folder, "vocab.json", (char *)vocab.data);
    put(folder, "merges.txt", (char *)lines.data);
    *state = folder;
    return 0;
}

static int teardown(void **state)
{
    struct folder *folder = *state;
    int rc = dcp_fs_remove_all(folder->dir, NULL);
    free(folder);
    return rc;
}

static struct tokenizer *open_ok(const char *spec)
{
    struct tokenizer *tokenizer = NULL;
    struct dcp_error err = { 0 };
    if (tokenizer_open(spec, &tokenizer, &err))
        fail_msg("%s", err.message);
    return tokenizer;
}

static void check_encode(const struct tokenizer *tokenizer, const char *text, size_t size,
                         const int32_t *want, size_t n)
{
    struct dcp_error err = { 0 };
    int32_t *ids = NULL;
    size_t found = 0, back_size = 0;
    char *back = NULL;
    assert_int_equal(tokenizer_encode(tokenizer, text, size, &ids, &found, &err), 0);
    if (want) {
        assert_int_equal(found, n);
        assert_memory_equal(ids, want, n * sizeof *ids);
    }
    assert_int_equal(tokenizer_decode(tokenizer, ids, found, &back, &back_size, &err), 0);
    assert_int_equal(back_size, size);
    assert_memory_equal(back, text, size);
    assert_int_equal(back[size], 0);
    free(ids);
    free(back);
}

#define CHECK(tokenizer, text, ...)                                                  \
    check_encode(tokenizer, text, sizeof text - 1, (const int32_t[]){ __VA_ARGS__ }, \
                 sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t))

/* Every byte there is, in an order without pattern. */
static void fill(char *text, size_t size, uint32_t seed)
{
    for (size_t i = 0; i < size; i++) {
        seed = seed * 1664525u + 1013904223u;
        text[i] = (char)(seed >> 24);
    }
}

static void test_bytes(void **state)
{
    struct tokenizer *tokenizer = open_ok("bytes");
    char text[1000];
    (void)state;
    assert_int_equal(tokenizer_vocab_size(tokenizer), 256);
    CHECK(tokenizer, "<|endoftext|>", '<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x',
          't', '|', '>');
    CHECK(tokenizer, "a\xc3\xa4", 'a', 0xc3, 0xa4);
    fill(text, sizeof text, 1);
    check_encode(tokenizer, text, sizeof text, NULL, 0);
    check_encode(tokenizer, "", 0, NULL, 0);
    const int32_t bad[] = { 1, 256 };
    char *out;
    size_t size;
    struct dcp_error err = { 0 };
    assert_int_equal(tokenizer_decode(tokenizer, bad, 2, &out, &size, &err),
                     DCP_E_CORRUPT);
    assert_non_null(strstr(err.message, "token 1 has id 256"));
    tokenizer_free(tokenizer);
}

static void test_words(void **state)
{
    static const struct {
        const char *text, *cut; /* the words, with | between */
    } rows[] = {
        { "Hello world", "Hello| world" },
        { "it's we're I've I'm he'll she'd don't", "it|'s| we|'re| I|'ve| I|'m| he|'ll| "
                                                   "she|'d| don|'t" },
        { "IT'S ''s '' 'x", "IT|'|S| ''|s| ''| '|x" },
        { "a  b   c", "a| | b|  | c" },
        { "end  ", "end|  " },
        { "\n\n x", "\n\n| x" },
        { "a\n\nb", "a|\n|\n|b" },
        { " \tx", " |\t|x" },
        { "x1 22 y", "x|1| 22| y" },
        { "a.b, (c)!?", "a|.|b|,| (|c|)!?" },
        { "äöü ß 中文 ²½ Ⅷ", "äöü| ß| 中文| ²½| Ⅷ" },
        { "a\xc2\xa0\xe3\x80\x80z", "a|\xc2\xa0|\xe3\x80\x80|z" },
        { "e\xcc\x81x", "e|\xcc\x81|x" }, /* a combining mark is no letter */
        { "ok\xff\xfe"
          "no\xe4",
          "ok|\xff\xfe|no|\xe4" },
        { "😀 😀😀", "😀| 😀😀" },
        { "_x", "_|x" },
    };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        DCP_CLEANUP_BUF struct dcp_buf cut = { 0 };
        const char *at = rows[i].text;
        for (size_t left = strlen(at), n; left; left -= n, at += n) {
            n = tokenizer_word(at, left);
            assert_in_range(n, 1, left);
            if (cut.size_bytes)
                dcp_buf_add_u8(&cut, '|');
            dcp_buf_add(&cut, at, n);
        }
        assert_string_equal((char *)cut.data, rows[i].cut);
    }
}

static void test_merges_by_rank(void **state)
{
    const struct folder *folder = *state;
    struct tokenizer *tokenizer = open_ok(folder->spec);
    enum { HE = 256, LL, HELL, HELLO, SPACE_W };
    assert_int_equal(tokenizer_vocab_size(tokenizer), END_ID + 1);
    CHECK(tokenizer, "hello", HELLO);
    CHECK(tokenizer, "hell wo", HELL, SPACE_W, 'o');
    CHECK(tokenizer, "lll", LL, 'l'); /* leftmost first */
    CHECK(tokenizer, "llll", LL, LL);
    CHECK(tokenizer, "hehe", HE, HE);
    /* b went into ab: its own merge with c is off, c's with de is not. */
    CHECK(tokenizer, "abcde", 262, 265);
    CHECK(tokenizer, "h\xff", 'h', 0xff);
    tokenizer_free(tokenizer);
}

static void test_end_of_text(void **state)
{
    const struct folder *folder = *state;
    struct tokenizer *tokenizer = open_ok(folder->spec);
    CHECK(tokenizer, "a <|endoftext|>b", 'a', ' ', END_ID, 'b');
    CHECK(tokenizer, "<|endoftext|><|endoftext|>", END_ID, END_ID);
    CHECK(tokenizer, "<|endoftext", '<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x',
          't');
    tokenizer_free(tokenizer);
}

static void test_any_bytes_come_back(void **state)
{
    const struct folder *folder = *state;
    struct tokenizer *tokenizer = open_ok(folder->spec);
    const size_t size = 100000;
    char *text = malloc(size);
    assert_non_null(text);
    fill(text, size, 2);
    check_encode(tokenizer, text, size, NULL, 0);
    /* One word as long as the text: its merges must not take quadratic time. */
    for (size_t i = 0; i < size; i++)
        text[i] = "hello"[i % 5];
    check_encode(tokenizer, text, size, NULL, 0);
    memset(text, 'l', size);
    check_encode(tokenizer, text, size, NULL, 0);
    memset(text, ' ', size);
    check_encode(tokenizer, text, size, NULL, 0);
    check_encode(tokenizer, "", 0, NULL, 0);
    free(text);
    const int32_t bad[] = { -1 };
    char *out;
    struct dcp_error err = { 0 };
    size_t out_size;
    assert_int_equal(tokenizer_decode(tokenizer, bad, 1, &out, &out_size, &err),
                     DCP_E_CORRUPT);
    tokenizer_free(tokenizer);
}

/* The same through data: a text is encoded when it is opened. */
static void test_data_of_encoded_text(void **state)
{
    const struct folder *folder = *state;
    struct tokenizer *tokenizer = open_ok(folder->spec);
    struct data *data = NULL;
    struct dcp_error err = { 0 };
    char path[128];
    put(folder, "text.txt", "hello wo hello wo <|endoftext|>");
    snprintf(path, sizeof path, "%s/text.txt", folder->dir);
    assert_int_equal(data_open(path, tokenizer, END_ID + 1, 4, 0, &data, &err), 0);
    tokenizer_free(tokenizer);
    const int32_t want[] = { 259, 260, 'o', ' ', 259, 260, 'o', ' ', END_ID };
    int32_t tokens[4], targets[4];
    assert_int_equal(data_tokens(data), 9);
    assert_int_equal(data_samples(data), 2);
    data_window(data, 1, tokens, targets);
    assert_memory_equal(tokens, want + 4, sizeof tokens);
    assert_memory_equal(targets, want + 5, sizeof targets);
    data_free(data);
}

/* tokenizer.json holds the same vocabulary and merges. */
static void test_the_single_file(void **state)
{
    const struct folder *folder = *state;
    struct folder other = { .dir = "single.XXXXXX" };
    assert_non_null(mkdtemp(other.dir));
    snprintf(other.spec, sizeof other.spec, "gpt2:%s", other.dir);
    for (int form = 0; form < 2; form++) {
        DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
        dcp_buf_add_text(&text,
                         "{\"added_tokens\": [{\"id\": 300, \"content\": \"<x>\"}],"
                         "\"normalizer\": null, \"pre_tokenizer\": {\"type\":"
                         "\"ByteLevel\", \"add_prefix_space\": false},"
                         "\"model\": {\"type\": \"BPE\", \"vocab\": ");
        add_vocab(&text, "");
        dcp_buf_add_text(&text, ", \"merges\": [");
        for (size_t i = 0; i < N_MERGES; i++) {
            const char *space = strchr(merges[i], ' ');
            dcp_buf_add_fmt(&text, form ? "%s[\"%.*s\", \"%s\"]" : "%s\"%.*s %s\"",
                            i ? ", " : "", (int)(space - merges[i]), merges[i],
                            space + 1);
        }
        dcp_buf_add_text(&text, "]}}");
        put(&other, "tokenizer.json", (char *)text.data);
        struct tokenizer *single = open_ok(other.spec), *pair = open_ok(folder->spec);
        CHECK(single, "hello wo", 259, 260, 'o');
        assert_int_equal(tokenizer_vocab_size(single), 301);
        CHECK(single, "<|endoftext|>", END_ID);
        CHECK(pair, "<|endoftext|>", END_ID);
        tokenizer_free(single);
        tokenizer_free(pair);
    }
    struct tokenizer *none;
    struct dcp_error err = { 0 };
    put(&other, "tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
    assert_int_equal(tokenizer_open(other.spec, &none, &err), DCP_E_UNSUPPORTED);
    assert_int_equal(dcp_fs_remove_all(other.dir, NULL), 0);
}

static void refuse(const char *spec, int code, const char *message)
{
    struct tokenizer *tokenizer = NULL;
    struct dcp_error err = { 0 };
    int rc = tokenizer_open(spec, &tokenizer, &err);
    if (rc != code || !strstr(err.message, message))
        fail_msg("%s: %d: %s", spec, rc, err.message);
    assert_null(tokenizer);
}

static void test_files_that_lie(void **state)
{
    const struct folder *folder = *state;
    DCP_CLEANUP_BUF struct dcp_buf vocab = { 0 }, twice = { 0 }, huge = { 0 },
                                   spaced = { 0 };
    add_vocab(&vocab, "");
    add_vocab(&twice, ", \"xy\": 3");
    add_vocab(&spaced, ", \" \": 290");
    add_vocab(&huge, ", \"xy\": 99999999");
    static const struct {
        const char *merges, *message;
    } rows[] = {
        { "h e\nh e\n", "merges 1 and 2 are the same" },
        { "h e\nx\n", "line 2 is not two tokens" },
        { "h e l\n", "line 1 is not two tokens" },
        { " e\n", "line 1 is not two tokens" },
        { "h \n", "line 1 is not two tokens" },
        { "h e\n\nq z\n", "merge 2: 'qz' is not in the vocabulary" },
        { "h e\nhe \xe4\n", "not UTF-8" },
        { "\xe4\xb8\xad e\n", "merge 1: '\xe4\xb8\xad' is not in the vocabulary" },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        put(folder, "merges.txt", rows[i].merges);
        refuse(folder->spec, DCP_E_CORRUPT, rows[i].message);
    }
    put(folder, "merges.txt", "#version: 0.2\r\nh e\r\n");
    tokenizer_free(open_ok(folder->spec));
    put(folder, "merges.txt", "");
    tokenizer_free(open_ok(folder->spec));

    /* A space that is written as itself, not as the files write bytes, is no byte. */
    put(folder, "vocab.json", (char *)spaced.data);
    struct tokenizer *tokenizer = open_ok(folder->spec);
    CHECK(tokenizer, " ", ' ');
    tokenizer_free(tokenizer);

    put(folder, "vocab.json", (char *)twice.data);
    refuse(folder->spec, DCP_E_CORRUPT, "two tokens have id 3");
    put(folder, "vocab.json", (char *)huge.data);
    refuse(folder->spec, DCP_E_CORRUPT, "token 'xy' must have an id from 0");
    put(folder, "vocab.json", "{\"a\": -1}");
    refuse(folder->spec, DCP_E_CORRUPT, "must have an id");
    put(folder, "vocab.json", "{\"a\": 0}");
    refuse(folder->spec, DCP_E_CORRUPT, "no token for byte 0x00");
    put(folder, "vocab.json", "{}");
    refuse(folder->spec, DCP_E_CORRUPT, "no token for byte");
    put(folder, "vocab.json", "[1]");
    refuse(folder->spec, DCP_E_CORRUPT, "not a JSON object");
    put(folder, "vocab.json", "{\"a\": ");
    refuse(folder->spec, DCP_E_CORRUPT, "vocab.json");
}

static void test_missing_files_and_names(void **state)
{
    struct tokenizer *tokenizer;
    struct dcp_error err = { 0 };
    (void)state;
    refuse("gpt2:no/such", DCP_E_NOT_FOUND, "no/such/vocab.json");
    refuse("gpt2:", DCP_E_USAGE, "there is no tokenizer 'gpt2:'");
    refuse("byte", DCP_E_USAGE, "there is no tokenizer 'byte'");
    assert_int_equal(tokenizer_open("gpt2", &tokenizer, &err), DCP_E_USAGE);
    assert_non_null(strstr(err.hint, "gpt2:FOLDER"));
}

static int print_ids(const char *spec)
{
    struct tokenizer *tokenizer;
    struct dcp_error err = { 0 };
    struct dcp_buf input = { 0 };
    char block[4096];
    int rc = tokenizer_open(spec, &tokenizer, &err);
    if (rc) {
        fprintf(stderr, "%s\n", err.message);
        return dcp_error_exit(rc);
    }
    for (size_t n; (n = fread(block, 1, sizeof block, stdin)) > 0;)
        dcp_buf_add(&input, block, n);
    for (size_t at = 0; at < input.size_bytes;) {
        const char *text = (const char *)input.data + at;
        size_t n = 0, size = strnlen(text, input.size_bytes - at);
        int32_t *ids = NULL;
        if (tokenizer_encode(tokenizer, text, size, &ids, &n, &err))
            return 1;
        for (size_t i = 0; i < n; i++)
            printf("%s%d", i ? " " : "", ids[i]);
        printf("\n");
        free(ids);
        at += size + 1;
    }
    dcp_buf_fini(&input);
    tokenizer_free(tokenizer);
    return 0;
}

int main(int argc, char **argv)
{
#define WITH_FILES(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_words),
        WITH_FILES(test_merges_by_rank),
        WITH_FILES(test_end_of_text),
        WITH_FILES(test_any_bytes_come_back),
        WITH_FILES(test_data_of_encoded_text),
        WITH_FILES(test_the_single_file),
        WITH_FILES(test_files_that_lie),
        cmocka_unit_test(test_missing_files_and_names),
    };
    if (argc == 3 && strcmp(argv[1], "encode") == 0)
        return print_ids(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
