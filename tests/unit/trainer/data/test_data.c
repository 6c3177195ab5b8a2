/* data: what files hold, and the order of samples. */
#include "base/bytes.h"
#include "base/fs.h"
#include "base/mem.h"
#include "trainer/data/data.h"
#include "trainer/data/tokenizer.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

enum { VOCAB = 50257, SEQ = 8 };

static struct tokenizer *bytes;
static char folder[64];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "data.XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    return tokenizer_open("bytes", &bytes, NULL);
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_free(bytes);
    return dcp_fs_remove_all(folder, NULL);
}

static const char *at(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const void *data, size_t size)
{
    FILE *file = fopen(at(name), "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

/* n ids 0, 1, 2, … with or without llm.c's header. */
static void put_tokens(const char *name, int n, int width, uint32_t magic,
                       uint32_t version, uint32_t count)
{
    size_t header = magic ? 1024 : 0, size = header + (size_t)(n * width);
    unsigned char *file = calloc(1, size);
    assert_non_null(file);
    if (magic) {
        dcp_put_le32(file, magic);
        dcp_put_le32(file + 4, version);
        dcp_put_le32(file + 8, count);
    }
    for (int i = 0; i < n; i++) {
        if (width == 2)
            dcp_put_le16(file + header + 2 * i, (uint16_t)i);
        else
            dcp_put_le32(file + header + 4 * i, (uint32_t)i);
    }
    put(name, file, size);
    free(file);
}

static struct data *open_with(const char *pattern, int vocab_size, uint64_t seed)
{
    struct data *data = NULL;
    struct dcp_error err = { 0 };
    if (data_open(at(pattern), bytes, vocab_size, SEQ, seed, &data, &err))
        fail_msg("%s", err.message);
    return data;
}

static void refuse(const char *pattern, int vocab_size, int code, const char *message)
{
    struct data *data = NULL;
    struct dcp_error err = { 0 };
    int rc = data_open(at(pattern), bytes, vocab_size, SEQ, 0, &data, &err);
    if (rc != code || !strstr(err.message, message))
        fail_msg("%s: %d: %s", pattern, rc, err.message);
    assert_null(data);
}

/* Window `index` is first, first + 1, …, and its targets are one further. */
static void check_window(const struct data *data, int64_t index, int first)
{
    int32_t tokens[SEQ], targets[SEQ];
    data_window(data, index, tokens, targets);
    for (int i = 0; i < SEQ; i++) {
        assert_int_equal(tokens[i], first + i);
        assert_int_equal(targets[i], first + i + 1);
    }
}

static void test_text_is_its_bytes(void **state)
{
    char text[40];
    (void)state;
    for (int i = 0; i < 40; i++)
        text[i] = (char)(' ' + i);
    put("a.txt", text, sizeof text);
    struct data *data = open_with("a.txt", 256, 1);
    assert_int_equal(data_tokens(data), 40);
    assert_int_equal(data_samples(data), 4); /* 39 targets */
    check_window(data, 0, ' ');
    check_window(data, 3, ' ' + 24);
    data_free(data);
}

static void test_the_last_window_needs_its_target(void **state)
{
    (void)state;
    put_text("a.txt", "12345678");
    refuse("a.txt", 256, DCP_E_USAGE,
           "has 8 tokens in 1 file; a sample is seq_len + 1 = 9");
    put_text("a.txt", "123456789");
    struct data *data = open_with("a.txt", 256, 1);
    assert_int_equal(data_samples(data), 1);
    data_free(data);
}

static void test_a_sample_stays_in_its_file(void **state)
{
    (void)state;
    put_text("f10.txt", "klmnopqrstuv");         /* 12: one window */
    put_text("f2.txt", "abcdefghijklmnopqrstu"); /* 21: two windows */
    put_text("f3.txt", "");
    put_text("f4.txt", "short");
    assert_int_equal(mkdir(at("f5.txt"), 0777), 0); /* folders are passed over */
    struct data *data = open_with("f*.txt", 256, 1);
    assert_int_equal(data_tokens(data), 38);
    assert_int_equal(data_samples(data), 3);
    check_window(data, 0, 'a'); /* f2 comes before f10 */
    check_window(data, 1, 'i');
    check_window(data, 2, 'k');
    data_free(data);
}

static void test_token_files(void **state)
{
    static const struct {
        int width;
        uint32_t magic, version;
    } rows[] = { { 2, 20240520, 1 }, { 4, 20240801, 7 }, { 2, 0, 0 } };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        put_tokens("t.bin", 3000, rows[i].width, rows[i].magic, rows[i].version, 3000);
        struct data *data = open_with("t.bin", VOCAB, 1);
        assert_int_equal(data_tokens(data), 3000);
        assert_int_equal(data_samples(data), 2999 / SEQ);
        check_window(data, 0, 0);
        check_window(data, 373, 373 * SEQ);
        data_free(data);
        refuse("t.bin", 3000 - 1, DCP_E_MISMATCH,
               "token 2999 has id 2999, which is not below vocab_size 2999");
    }
}

static void test_kinds_mix(void **state)
{
    (void)state;
    put_tokens("m1", 20, 2, 20240520, 1, 20);
    put_tokens("m2", 20, 2, 0, 0, 0);
    put_text("m3", "ABCDEFGHIJKLMNOPQRSTUVWX");
    struct data *data = open_with("m*", VOCAB, 1);
    assert_int_equal(data_samples(data), 2 + 2 + 2);
    check_window(data, 1, 8);
    check_window(data, 2, 0);
    check_window(data, 4, 'A');
    data_free(data);
}

static void test_files_that_lie(void **state)
{
    (void)state;
    put_tokens("t.bin", 3000, 2, 20240520, 1, 3001);
    refuse("t.bin", VOCAB, DCP_E_CORRUPT,
           "its header says 3001 tokens of 2 bytes, but 6000 bytes follow");
    put_tokens("t.bin", 3000, 2, 20240520, 1, 2999);
    refuse("t.bin", VOCAB, DCP_E_CORRUPT, "2999 tokens");
    put_tokens("t.bin", 0, 2, 20240520, 1, UINT32_MAX);
    refuse("t.bin", VOCAB, DCP_E_CORRUPT, "4294967295 tokens");
    put_tokens("t.bin", 3000, 2, 20240520, 2, 3000);
    refuse("t.bin", VOCAB, DCP_E_UNSUPPORTED, "version 2; the known version is 1");
    put_tokens("t.bin", 3000, 4, 20240801, 1, 3000);
    refuse("t.bin", VOCAB, DCP_E_UNSUPPORTED, "the known version is 7");
    put_tokens("t.bin", 10, 2, 20240326, 3, 0);
    refuse("t.bin", VOCAB, DCP_E_UNSUPPORTED, "is a model of llm.c");
    put("t.bin", "\x88\xd8\x34\x01\x01", 5);
    refuse("t.bin", VOCAB, DCP_E_CORRUPT, "incomplete: it has 5 bytes");
    put("t.bin", "\x01\x00\x02\x00\xff\x00\x03", 7);
    refuse("t.bin", VOCAB, DCP_E_CORRUPT, "an odd number of bytes, 7");
    put("t.bin", "\xff\xfeh\0i\0", 6);
    refuse("t.bin", VOCAB, DCP_E_UNSUPPORTED, "UTF-16");
    put("t.bin", "\x01\x00\x02\x00\xff\xff", 6);
    refuse("t.bin", VOCAB, DCP_E_MISMATCH, "token 2 has id 65535");
    refuse("t.bin", 2, DCP_E_MISMATCH, "token 1 has id 2, ");
    put_text("a.txt", "some text that is long enough");
    refuse("a.txt", 255, DCP_E_USAGE, "has 256 ids, but vocab_size is 255");
    struct data *data;
    struct dcp_error err = { 0 };
    assert_int_equal(data_open(at("a.txt"), NULL, 256, SEQ, 0, &data, &err), DCP_E_USAGE);
    assert_non_null(strstr(err.message, "is text and needs a tokenizer"));
    refuse("none*", 256, DCP_E_NOT_FOUND, "no file matches");
    refuse("", 256, DCP_E_NOT_FOUND, "is a folder");
}

/* Text in any 8-bit encoding is text, also when its bytes would do as ids; so is UTF-8
 * that the look at its beginning cuts inside a character. */
static void test_text_is_not_taken_for_tokens(void **state)
{
    const size_t size = (1 << 20) + 100;
    char *text = malloc(size);
    (void)state;
    put("latin.txt", "caf\xe9 au lait, s'il vous pla\xeet", 28);
    struct data *data = open_with("latin.txt", VOCAB, 1);
    assert_int_equal(data_tokens(data), 28);
    data_free(data);
    assert_non_null(text);
    for (size_t shift = 0; shift < 3; shift++) {
        memset(text, '\x01', shift); /* a control character, to leave only UTF-8 */
        for (size_t i = shift; i + 2 < size; i += 3)
            memcpy(text + i, "\xe4\xb8\xad", 3);
        put("long.txt", text, shift + (size - shift) / 3 * 3);
        data = open_with("long.txt", 256, 1);
        assert_int_equal(data_tokens(data), shift + (size - shift) / 3 * 3);
        data_free(data);
    }
    free(text);
}

/* Each is named, with what to do. */
static void test_what_is_no_text(void **state)
{
    static const struct {
        const char *name, *data, *what;
    } rows[] = {
        { "a.gz", "\x1f\x8b\x08 and so on", "compressed with gzip" },
        { "a.zst", "\x28\xb5\x2f\xfd and so on", "compressed with zstd" },
        { "a.xz",
          "\xfd"
          "7zXZ and so on",
          "compressed with xz" },
        { "a.bz2", "BZh91AY&SY and so on", "compressed with bzip2" },
        { "a.zip", "PK\x03\x04 and so on", "a zip archive" },
        { "a.parquet", "PAR1 and so on", "a Parquet table" },
        { "a.npy", "\x93NUMPY and so on", "a NumPy array" },
        { "a.pdf", "%PDF-1.7 and so on", "a PDF" },
        { "a.txt", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n", "JSON lines" },
        { "b.txt", "\n{\"text\": \"one\"}\n\n{\"text\": \"two\"}", "JSON lines" },
        { "a.jsonl", "{\"text\": \"one\"}\n", "JSON lines" },
    };
    static const char *const texts[] = {
        "{\"name\": \"one text of JSON\"}\n",
        "{\n  \"name\": \"that is printed nicely\"\n}\n",
        "{ x } is a set\n{ y } is another one\n",
        "<html><body>a page</body></html>\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_text(rows[i].name, rows[i].data);
        refuse(rows[i].name, 256, DCP_E_UNSUPPORTED, rows[i].what);
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put_text("text", texts[i]);
        data_free(open_with("text", 256, 0));
    }
    put("tokens", "\x1f\x8b\0\x40\0\x40\0\x40\0\x40\0\x40\0\x40\0\x40\0\x40\0\x40",
        20); /* ids */
    data_free(open_with("tokens", 50257, 0));
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    refuse("pipe", 256, DCP_E_USAGE, "is a pipe, a socket or a device");
}

static void test_a_pass_visits_every_sample_once(void **state)
{
    enum { TOKENS = 1000, SAMPLES = (TOKENS - 1) / SEQ };
    int32_t tokens[SEQ], targets[SEQ], order[3][SAMPLES];
    (void)state;
    put_tokens("t.bin", TOKENS, 2, 0, 0, 0);
    struct data *data = open_with("t.bin", VOCAB, 1);
    assert_int_equal(data_samples(data), SAMPLES);
    int in_order = 0, as_before = 0;
    for (int pass = 0; pass < 3; pass++) {
        bool seen[SAMPLES] = { false };
        for (int i = 0; i < SAMPLES; i++) {
            data_sample(data, (int64_t)pass * SAMPLES + i, tokens, targets);
            assert_int_equal(tokens[0] % SEQ, 0);
            assert_int_equal(targets[SEQ - 1], tokens[0] + SEQ);
            int sample = tokens[0] / SEQ;
            assert_false(seen[sample]);
            seen[sample] = true;
            order[pass][i] = sample;
            in_order += sample == i;
            as_before += pass && order[pass - 1][i] == sample;
        }
    }
    assert_true(in_order < 20 && as_before < 20);
    data_free(data);

    /* The same seed gives the same order, another one another. */
    struct data *again = open_with("t.bin", VOCAB, 1),
                *other = open_with("t.bin", VOCAB, 2);
    int same = 0;
    for (int i = 0; i < SAMPLES; i++) {
        data_sample(again, i, tokens, targets);
        assert_int_equal(tokens[0] / SEQ, order[0][i]);
        data_sample(other, i, tokens, targets);
        same += tokens[0] / SEQ == order[0][i];
    }
    assert_true(same < 20);
    data_free(again);
    data_free(other);
}

static void test_entropy(void **state)
{
    (void)state;
    put_text("a.txt", "abababababab");
    struct data *data = open_with("a.txt", 256, 1);
    assert_true(fabs(data_unigram_entropy(data) - log(2)) < 1e-12);
    data_free(data);
    put_text("a.txt", "zzzzzzzzzzzz");
    data = open_with("a.txt", 256, 1);
    assert_true(fabs(data_unigram_entropy(data)) < 1e-12);
    data_free(data);
    put_tokens("t.bin", 4096, 2, 0, 0, 0);
    data = open_with("t.bin", VOCAB, 1);
    assert_true(fabs(data_unigram_entropy(data) - log(4096)) < 1e-9);
    data_free(data);
}

static uint64_t digest_of(const char *pattern, uint64_t seed)
{
    struct data *data = open_with(pattern, 256, seed);
    uint64_t digest = data_digest(data);
    data_free(data);
    return digest;
}

static void test_digest(void **state)
{
    (void)state;
    put_text("d1.txt", "enough text for one");
    uint64_t first = digest_of("d1.txt", 1);
    assert_true(first == digest_of("d1.txt", 1));
    assert_true(first != digest_of("d1.txt", 2));
    put_text("d2.txt", "enough text for one");
    assert_true(first != digest_of("d2.txt", 1));
    assert_true(first != digest_of("d*.txt", 1));
    put_text("d1.txt", "enough text for one.");
    assert_true(first != digest_of("d1.txt", 1));
}

int main(void)
{
#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(test_text_is_its_bytes),
        WITH_FOLDER(test_the_last_window_needs_its_target),
        WITH_FOLDER(test_a_sample_stays_in_its_file),
        WITH_FOLDER(test_token_files),
        WITH_FOLDER(test_kinds_mix),
        WITH_FOLDER(test_files_that_lie),
        WITH_FOLDER(test_text_is_not_taken_for_tokens),
        WITH_FOLDER(test_what_is_no_text),
        WITH_FOLDER(test_a_pass_visits_every_sample_once),
        WITH_FOLDER(test_entropy),
        WITH_FOLDER(test_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
