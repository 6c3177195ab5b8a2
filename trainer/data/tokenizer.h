/* tokenizer: text to ids and back. */
#ifndef TRAINER_DATA_TOKENIZER_H
#define TRAINER_DATA_TOKENIZER_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;
/* "bytes" (256 ids) or "gpt2:FOLDER" with vocab.json and merges.txt (or the
 * tokenizer.json that holds both). Errors: NOT_FOUND, CORRUPT, USAGE, UNSUPPORTED, IO,
 * MEMORY. Caller owns. Thread rule: once open, any thread. */
int tokenizer_open(const char *spec, struct tokenizer **out, struct dcp_error *err);
void tokenizer_free(struct tokenizer *tokenizer);
int tokenizer_vocab_size(const struct tokenizer *tokenizer);
/* UTF-8 (any bytes) to ids; *out is freed with free. Where the vocabulary has
 * <|endoftext|>, that text becomes its id. Errors: MEMORY, UNSUPPORTED. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text,
                     size_t size_bytes, int32_t **out, size_t *out_n,
                     struct dcp_error *err);
/* Ids to bytes, NUL-terminated; caller frees. Errors: CORRUPT (no such id), MEMORY. */
int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n,
                     char **out, size_t *out_size_bytes, struct dcp_error *err);

/* True when the ids of a text are its bytes. */
bool tokenizer_is_bytes(const struct tokenizer *tokenizer);

/* Length of the first word of a text (n >= 1 bytes left), as the pattern of GPT-2 cuts
 * it: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ (Radford
 * et al. 2019, encoder.py). A byte that is not valid UTF-8 is neither letter, number nor
 * space. */
size_t tokenizer_word(const char *text, size_t n);

/* Growing list of ids. */
struct tokenizer_ids {
    int32_t *ids;
    size_t n, cap;
};

/* Byte-level byte pair encoding: a vocabulary and ranked merges. */
struct bpe;
/* Reads vocab.json and merges.txt of a folder, or tokenizer.json when they are not there.
 * Caller owns. Errors: NOT_FOUND, CORRUPT, UNSUPPORTED, IO, MEMORY. */
int bpe_open(const char *folder, struct bpe **out, struct dcp_error *err);
void bpe_free(struct bpe *bpe);
int bpe_vocab_size(const struct bpe *bpe);
/* Id of a token by its text, -1: none. */
int32_t bpe_find(const struct bpe *bpe, const char *text);
/* Bytes of a token, NULL: there is no such id. Belongs to bpe. */
const char *bpe_token(const struct bpe *bpe, int32_t id, size_t *out_size_bytes);
/* Appends the ids of a text without special tokens. Errors: MEMORY, UNSUPPORTED. */
int bpe_encode(const struct bpe *bpe, const char *text, size_t size_bytes,
               struct tokenizer_ids *ids, struct dcp_error *err);

#endif
