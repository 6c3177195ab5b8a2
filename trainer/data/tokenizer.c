/* tokenizer: bytes or GPT-2's byte pair encoding behind one door. */
#include "tokenizer.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include <limits.h>
#include <string.h>

#define N_BYTES 256
#define END_OF_TEXT "<|endoftext|>"

struct tokenizer {
    struct bpe *bpe; /* NULL: bytes */
    int32_t end_of_text;
};

int tokenizer_open(const char *spec, struct tokenizer **out, struct dcp_error *err)
{
    static const char prefix[] = "gpt2:";
    bool is_bytes = strcmp(spec, "bytes") == 0;
    if (!is_bytes && (!dcp_str_starts(spec, prefix) || !spec[sizeof prefix - 1])) {
        dcp_error_set(err, DCP_E_USAGE, "there is no tokenizer '%s'", DCP_SHOWN(spec));
        dcp_error_hint(err, "it is \"bytes\", or \"gpt2:FOLDER\" for a folder with "
                            "vocab.json and merges.txt");
        return DCP_E_USAGE;
    }
    struct tokenizer *tokenizer = dcp_mem_calloc(1, sizeof *tokenizer);
    if (!tokenizer)
        return dcp_error_memory(err, "the tokenizer");
    tokenizer->end_of_text = -1;
    if (!is_bytes) {
        int rc = bpe_open(spec + sizeof prefix - 1, &tokenizer->bpe, err);
        if (rc) {
            tokenizer_free(tokenizer);
            return rc;
        }
        tokenizer->end_of_text = bpe_find(tokenizer->bpe, END_OF_TEXT);
    }
    *out = tokenizer;
    return DCP_OK;
}

void tokenizer_free(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    bpe_free(tokenizer->bpe);
    free(tokenizer);
}

bool tokenizer_is_bytes(const struct tokenizer *tokenizer)
{
    return !tokenizer->bpe;
}

int tokenizer_vocab_size(const struct tokenizer *tokenizer)
{
    return tokenizer->bpe ? bpe_vocab_size(tokenizer->bpe) : N_BYTES;
}

static int encode_bytes(const char *text, size_t size_bytes, struct tokenizer_ids *ids,
                        struct dcp_error *err)
{
    ids->ids = dcp_mem_calloc(size_bytes, sizeof *ids->ids);
    if (!ids->ids)
        return dcp_error_memory(err, "the ids of a text");
    for (size_t i = 0; i < size_bytes; i++)
        ids->ids[i] = (unsigned char)text[i];
    ids->n = size_bytes;
    return DCP_OK;
}

static int add_id(struct tokenizer_ids *ids, int32_t id, struct dcp_error *err)
{
    int32_t *grown = dcp_mem_grow(ids->ids, &ids->cap, ids->n + 1, sizeof *grown);
    if (!grown)
        return dcp_error_memory(err, "the ids of a text");
    ids->ids = grown;
    ids->ids[ids->n++] = id;
    return DCP_OK;
}

/* The special token cuts the text: what stands between is encoded part by part. */
static int encode_bpe(const struct tokenizer *tokenizer, const char *text,
                      size_t size_bytes, struct tokenizer_ids *ids, struct dcp_error *err)
{
    const size_t mark_size = sizeof END_OF_TEXT - 1;
    const char *at = text, *end = text + size_bytes;
    while (at < end) {
        const char *mark = NULL;
        if (tokenizer->end_of_text >= 0)
            mark = memmem(at, (size_t)(end - at), END_OF_TEXT, mark_size);
        const char *part_end = mark ? mark : end;
        DCP_TRY(bpe_encode(tokenizer->bpe, at, (size_t)(part_end - at), ids, err));
        if (mark)
            DCP_TRY(add_id(ids, tokenizer->end_of_text, err));
        at = mark ? mark + mark_size : end;
    }
    return DCP_OK;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text,
                     size_t size_bytes, int32_t **out, size_t *out_n,
                     struct dcp_error *err)
{
    struct tokenizer_ids ids = { 0 };
    int rc = tokenizer->bpe ? encode_bpe(tokenizer, text, size_bytes, &ids, err)
                            : encode_bytes(text, size_bytes, &ids, err);
    if (rc) {
        free(ids.ids);
        return rc;
    }
    *out = ids.ids;
    *out_n = ids.n;
    return DCP_OK;
}

int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n,
                     char **out, size_t *out_size_bytes, struct dcp_error *err)
{
    struct dcp_buf text = { 0 };
    for (size_t i = 0; i < n; i++) {
        size_t size = 0;
        const char *bytes = NULL;
        char byte = (char)ids[i];
        if (tokenizer->bpe) {
            bytes = bpe_token(tokenizer->bpe, ids[i], &size);
        } else if (ids[i] >= 0 && ids[i] < N_BYTES) {
            bytes = &byte;
            size = 1;
        }
        if (!bytes) {
            dcp_buf_fini(&text);
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "token %zu has id %d; the tokenizer has no such id", i,
                                 ids[i]);
        }
        dcp_buf_add(&text, bytes, size);
    }
    size_t size_bytes = text.size_bytes;
    dcp_buf_add_u8(&text, '\0');
    int rc = dcp_buf_check(&text, err);
    if (rc) {
        dcp_buf_fini(&text);
        return rc;
    }
    *out = (char *)text.data;
    *out_size_bytes = size_bytes;
    return DCP_OK;
}
