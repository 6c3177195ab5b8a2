/* tokenizer_load: the files of a GPT-2 tokenizer. vocab.json maps tokens to ids, every
 * line of merges.txt is a pair of tokens in the order of their ranks. Both write each
 * byte as one printable character: 188 bytes as themselves, the other 68 as U+0100 and
 * the following (Radford et al. 2019, encoder.py). tokenizer.json holds the same two and
 * is what newer programs write in their place. */
#include "tokenizer_bpe.h"

#include "base/buf.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include <stdio.h>
#include <string.h>

#define MAX_FILE_BYTES ((size_t)64 << 20)
#define MAX_IDS (1 << 22)
#define N_BYTES 256
#define N_CODES (N_BYTES + 68)
#define SHOWN 80 /* of a token in a message */

struct alphabet {
    int16_t bytes[N_CODES]; /* byte of a character, -1: none */
};

static bool is_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
}

static void alphabet_init(struct alphabet *alphabet)
{
    for (int code = 0; code < N_CODES; code++)
        alphabet->bytes[code] = -1;
    int next = N_BYTES;
    for (int byte = 0; byte < N_BYTES; byte++)
        alphabet->bytes[is_itself(byte) ? byte : next++] = (int16_t)byte;
}

/* Adds the bytes that a token of the files stands for; false when a character stands for
 * none: such a token was added by hand and stands for itself. */
static bool spell(const struct alphabet *alphabet, const char *token, struct dcp_buf *out)
{
    size_t left = strlen(token);
    for (const char *at = token; left;) {
        uint32_t code = N_CODES;
        size_t len = dcp_utf8_decode(at, left, &code);
        if (!len || code >= N_CODES || alphabet->bytes[code] < 0)
            return false;
        dcp_buf_add_u8(out, (uint8_t)alphabet->bytes[code]);
        at += len;
        left -= len;
    }
    return true;
}

/* Id of a value of the vocabulary, -1: it is no id. */
static int32_t id_of(const json_t *value)
{
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    return id >= 0 && id < MAX_IDS ? (int32_t)id : -1;
}

static int add_token(struct bpe *bpe, const struct alphabet *alphabet, const char *token,
                     int32_t id, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf bytes = { 0 };
    if (!spell(alphabet, token, &bytes))
        return bpe_add_token(bpe, id, token, strlen(token), true, err);
    DCP_TRY(dcp_buf_check(&bytes, err));
    return bpe_add_token(bpe, id, bytes.data ? (char *)bytes.data : "", bytes.size_bytes,
                         false, err);
}

/* Adds the special tokens of a tokenizer.json that are not in its vocabulary. */
static int add_special(struct bpe *bpe, const json_t *vocab, const json_t *added,
                       struct dcp_error *err)
{
    size_t i;
    const json_t *item;
    json_array_foreach(added, i, item)
    {
        const char *text = json_string_value(json_object_get(item, "content"));
        if (!text || json_object_get(vocab, text))
            continue;
        DCP_TRY(bpe_add_token(bpe, id_of(json_object_get(item, "id")), text, strlen(text),
                              true, err));
    }
    return DCP_OK;
}

/* One more than the largest id, or an error. `added` may be NULL. */
static int count_ids(json_t *vocab, const json_t *added, int32_t *out,
                     struct dcp_error *err)
{
    const char *token;
    json_t *value;
    int32_t n = 0;
    json_object_foreach(vocab, token, value)
    {
        char shown[SHOWN];
        if (id_of(value) < 0)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "token '%s' must have an id from 0 to %d",
                                 dcp_str_escape(shown, sizeof shown, token), MAX_IDS - 1);
        if (id_of(value) >= n)
            n = id_of(value) + 1;
    }
    size_t i;
    json_array_foreach(added, i, value)
    {
        int32_t id = id_of(json_object_get(value, "id"));
        if (id < 0)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "added token %zu must have an id from 0 to %d", i,
                                 MAX_IDS - 1);
        if (id >= n)
            n = id + 1;
    }
    *out = n;
    return DCP_OK;
}

static int load_vocab(json_t *vocab, const json_t *added, struct bpe **out,
                      struct dcp_error *err)
{
    struct alphabet alphabet;
    struct bpe *bpe = NULL;
    int32_t n_ids = 0;
    alphabet_init(&alphabet);
    int rc = count_ids(vocab, added, &n_ids, err);
    if (!rc)
        rc = bpe_new(n_ids, &bpe, err);
    const char *token;
    const json_t *value;
    if (!rc)
        json_object_foreach(vocab, token, value)
        {
            rc = add_token(bpe, &alphabet, token, id_of(value), err);
            if (rc)
                break;
        }
    if (!rc)
        rc = add_special(bpe, vocab, added, err);
    if (rc) {
        bpe_free(bpe);
        return rc;
    }
    *out = bpe;
    return DCP_OK;
}

/* The merge of rank `rank` (from 1, for messages): both tokens and what they make must be
 * in the vocabulary. */
static int add_merge(struct bpe *bpe, const json_t *vocab, size_t rank, const char *left,
                     const char *right, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf merged = { 0 };
    dcp_buf_add_text(&merged, left);
    dcp_buf_add_text(&merged, right);
    DCP_TRY(dcp_buf_check(&merged, err));
    const char *texts[3] = { left, right, (const char *)merged.data };
    int32_t ids[3];
    for (int i = 0; i < 3; i++) {
        ids[i] = id_of(json_object_get(vocab, texts[i]));
        char shown[SHOWN];
        if (ids[i] < 0)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "merge %zu: '%s' is not in the vocabulary", rank,
                                 dcp_str_escape(shown, sizeof shown, texts[i]));
    }
    return bpe_add_merge(bpe, ids[0], ids[1], ids[2], err);
}

/* Splits "left right" in place; NULL when it is not two words. */
static char *split_pair(char *line)
{
    char *space = strchr(line, ' ');
    if (!space || space == line || !space[1] || strchr(space + 1, ' '))
        return NULL;
    *space = '\0';
    return space + 1;
}

static int load_merges_text(struct bpe *bpe, const json_t *vocab, char *text,
                            struct dcp_error *err)
{
    size_t rank = 0, number = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        size_t size = strlen(line);
        if (size && line[size - 1] == '\r')
            line[size - 1] = '\0';
        number++;
        if (!*line || dcp_str_starts(line, "#version"))
            continue;
        char *right = split_pair(line);
        if (!right)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "line %zu is not two tokens with a space between",
                                 number);
        DCP_TRY(add_merge(bpe, vocab, ++rank, line, right, err));
    }
    return DCP_OK;
}

/* Merges of a tokenizer.json: "left right" or ["left", "right"]. */
static int load_merges_json(struct bpe *bpe, const json_t *vocab, const json_t *merges,
                            struct dcp_error *err)
{
    size_t i;
    const json_t *item;
    json_array_foreach(merges, i, item)
    {
        DCP_CLEANUP_FREE char *copy = NULL;
        const char *left = json_string_value(json_array_get(item, 0));
        const char *right = json_string_value(json_array_get(item, 1));
        if (json_is_string(item)) {
            copy = strdup(json_string_value(item));
            if (!copy)
                return dcp_error_memory(err, "the merges");
            left = copy;
            right = split_pair(copy);
        }
        if (!left || !right)
            return dcp_error_set(err, DCP_E_CORRUPT, "merge %zu is not two tokens",
                                 i + 1);
        DCP_TRY(add_merge(bpe, vocab, i + 1, left, right, err));
    }
    return DCP_OK;
}

static int read_json(const char *path, json_t **out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *text = NULL;
    size_t size;
    DCP_TRY(dcp_fs_read_file(path, MAX_FILE_BYTES, &text, &size, err));
    DCP_TRY(dcp_json_parse(text, size, path, out, err));
    if (!json_is_object(*out))
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' is not a JSON object", path);
    return DCP_OK;
}

static int load_pair(const char *vocab_path, const char *merges_path, struct bpe **out,
                     struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *vocab = NULL;
    DCP_CLEANUP_FREE void *text = NULL;
    size_t size;
    DCP_TRY(read_json(vocab_path, &vocab, err));
    int rc = load_vocab(vocab, NULL, out, err);
    if (rc) {
        dcp_error_prefix(err, "'%s'", vocab_path);
        return rc;
    }
    DCP_TRY(dcp_fs_read_file(merges_path, MAX_FILE_BYTES, &text, &size, err));
    if (!dcp_str_utf8_ok(text, size))
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' is not UTF-8 text", merges_path);
    rc = load_merges_text(*out, vocab, text, err);
    if (rc)
        dcp_error_prefix(err, "'%s'", merges_path);
    return rc;
}

/* What a tokenizer.json may ask for beyond GPT-2's rules; NULL: nothing. */
static const char *find_foreign(const json_t *root, const json_t *model)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    const char *type = json_string_value(json_object_get(model, "type"));
    const char *pre_type = json_string_value(json_object_get(pre, "type"));
    const json_t *normalizer = json_object_get(root, "normalizer");
    if (type && strcmp(type, "BPE") != 0)
        return "its model is not BPE";
    if (!pre_type || strcmp(pre_type, "ByteLevel") != 0 ||
        json_is_true(json_object_get(pre, "add_prefix_space")) ||
        json_is_false(json_object_get(pre, "use_regex")))
        return "it does not split words as GPT-2 does";
    if (normalizer && !json_is_null(normalizer))
        return "it normalizes the text before splitting it";
    if (json_is_true(json_object_get(model, "byte_fallback")) ||
        json_is_true(json_object_get(model, "ignore_merges")))
        return "it does not merge as GPT-2 does";
    return NULL;
}

static int load_single(const char *path, struct bpe **out, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *root = NULL;
    DCP_TRY(read_json(path, &root, err));
    const json_t *model = json_object_get(root, "model");
    json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    const char *foreign = find_foreign(root, model);
    if (foreign)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' is not a GPT-2 tokenizer: %s",
                             path, foreign);
    if (!json_is_object(vocab) || !json_is_array(merges))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' has no vocabulary or no list of merges", path);
    int rc = load_vocab(vocab, json_object_get(root, "added_tokens"), out, err);
    if (!rc)
        rc = load_merges_json(*out, vocab, merges, err);
    if (rc)
        dcp_error_prefix(err, "'%s'", path);
    return rc;
}

int bpe_open(const char *folder, struct bpe **out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *vocab = dcp_fs_join(folder, "vocab.json");
    DCP_CLEANUP_FREE char *merges = dcp_fs_join(folder, "merges.txt");
    DCP_CLEANUP_FREE char *single = dcp_fs_join(folder, "tokenizer.json");
    if (!vocab || !merges || !single)
        return dcp_error_memory(err, "the tokenizer");
    struct bpe *bpe = NULL;
    int rc;
    if (!dcp_fs_exists(vocab) && dcp_fs_exists(single))
        rc = load_single(single, &bpe, err);
    else
        rc = load_pair(vocab, merges, &bpe, err);
    if (rc == DCP_E_NOT_FOUND)
        dcp_error_hint(err, "the folder must hold vocab.json and merges.txt, or "
                            "tokenizer.json, of a GPT-2 tokenizer");
    if (!rc) {
        rc = bpe_finish(bpe, err);
        if (rc)
            dcp_error_prefix(err, "tokenizer '%s'", folder);
    }
    if (rc) {
        bpe_free(bpe);
        return rc;
    }
    *out = bpe;
    return DCP_OK;
}
