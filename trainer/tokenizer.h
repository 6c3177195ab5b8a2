/* tokenizer: what the files of the tokenizer and of data share. */
#ifndef TRAINER_TOKENIZER_H
#define TRAINER_TOKENIZER_H

#include "data.h"
#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
