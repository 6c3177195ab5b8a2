/* The first byte says what the rest is: 'D' a data file; 'V' vocab.json, merges.txt and a
 * text with NULs between; 'J' tokenizer.json and a text. All samples are read; every text
 * comes back from its ids. */
#include "base/fs.h"
#include "base/mem.h"
#include "trainer/data/data.h"
#include "trainer/data/tokenizer.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEQ_LEN 3

static char folder[] = "fuzz_tokens.XXXXXX";

static void remove_folder(void)
{
    dcp_fs_remove_all(folder, NULL);
}

static void put(const char *name, const void *data, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static void fuzz_data(const uint8_t *bytes, size_t size)
{
    struct tokenizer *tokenizer;
    struct data *data;
    char path[64];
    int32_t tokens[SEQ_LEN], targets[SEQ_LEN];
    int vocab_size = size ? 200 * bytes[0] + 1 : 1;
    put("data", bytes, size);
    snprintf(path, sizeof path, "%s/data", folder);
    if (tokenizer_open("bytes", &tokenizer, NULL))
        return;
    if (!data_open(path, tokenizer, vocab_size, SEQ_LEN, 1, &data, NULL)) {
        for (int64_t i = 0; i < data_samples(data); i++) {
            data_sample(data, i, tokens, targets);
            for (int k = 0; k < SEQ_LEN; k++)
                if (tokens[k] < 0 || tokens[k] >= vocab_size || targets[k] < 0 ||
                    targets[k] >= vocab_size)
                    abort();
        }
        if (!(data_unigram_entropy(data) >= -1e-9))
            abort();
        data_free(data);
    }
    tokenizer_free(tokenizer);
}

static void check_text(const struct tokenizer *tokenizer, const char *text, size_t size)
{
    int32_t *ids;
    size_t n, back_size;
    char *back;
    if (tokenizer_encode(tokenizer, text, size, &ids, &n, NULL))
        return;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= tokenizer_vocab_size(tokenizer))
            abort();
    if (tokenizer_decode(tokenizer, ids, n, &back, &back_size, NULL))
        abort();
    if (back_size != size || memcmp(back, text, size) != 0)
        abort();
    free(ids);
    free(back);
}

static void fuzz_tokenizer(const char *spec, const char *text, size_t size)
{
    struct tokenizer *tokenizer;
    struct dcp_error err = { 0 };
    if (tokenizer_open(spec, &tokenizer, &err)) {
        if (!err.message[0])
            abort();
        return;
    }
    check_text(tokenizer, text, size);
    tokenizer_free(tokenizer);
}

/* Cuts off what stands before the next NUL. */
static const uint8_t *part(const uint8_t **at, size_t *left, size_t *out_size)
{
    const uint8_t *begin = *at, *end = *left ? memchr(begin, 0, *left) : NULL;
    *out_size = end ? (size_t)(end - begin) : *left;
    size_t used = end ? *out_size + 1 : *left;
    *at += used;
    *left -= used;
    return begin;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char spec[64];
    size_t n;
    if (strstr(folder, "XXXXXX")) {
        if (!mkdtemp(folder))
            exit(1);
        atexit(remove_folder);
    }
    if (!size)
        return 0;
    const uint8_t *at = data + 1;
    size_t left = size - 1;
    snprintf(spec, sizeof spec, "gpt2:%s", folder);
    if (*data == 'D')
        fuzz_data(at, left);
    if (*data != 'V' && *data != 'J')
        return 0;
    char path[64];
    snprintf(path, sizeof path, "%s/vocab.json", folder);
    unlink(path);
    const uint8_t *first = part(&at, &left, &n);
    put(*data == 'V' ? "vocab.json" : "tokenizer.json", first, n);
    if (*data == 'V') {
        const uint8_t *second = part(&at, &left, &n);
        put("merges.txt", second, n);
    }
    fuzz_tokenizer(spec, (const char *)at, left);
    return 0;
}
