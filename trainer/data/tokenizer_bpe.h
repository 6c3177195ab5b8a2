/* tokenizer_bpe: how the reader of files builds a bpe. Order: bpe_new, every token, every
 * merge by rank, bpe_finish. */
#ifndef TRAINER_DATA_TOKENIZER_BPE_H
#define TRAINER_DATA_TOKENIZER_BPE_H

#include "tokenizer.h"

/* Room for ids 0 .. n_ids - 1. Caller owns. Errors: MEMORY. */
int bpe_new(int32_t n_ids, struct bpe **out, struct dcp_error *err);
/* Copies. The id is in range. A whole token was added by hand: no merge makes it, and it
 * is not the token of a byte. Errors: CORRUPT (two tokens with one id), MEMORY. */
int bpe_add_token(struct bpe *bpe, int32_t id, const char *bytes, size_t size_bytes,
                  bool is_whole, struct dcp_error *err);
/* left and right, neighbours, become merged. Errors: MEMORY. */
int bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t merged,
                  struct dcp_error *err);
/* Errors: CORRUPT (a byte without token, a merge twice), MEMORY. */
int bpe_finish(struct bpe *bpe, struct dcp_error *err);

#endif
