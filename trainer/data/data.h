/* data: token streams, and the order of samples. The order is a pure function of (seed,
 * cursor): it does not depend on the world size, so the cursor, one integer, is all that
 * a resume needs. */
#ifndef TRAINER_DATA_DATA_H
#define TRAINER_DATA_DATA_H

#include <dcp/error.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;
struct data;
/* Opens all files of a glob, in name order (numbers in names count as numbers): token
 * files of llm.c and nanoGPT are recognised by content, anything else is text for the
 * tokenizer; file.h has the rule. Ids must be below vocab_size. Files are mapped,
 * not read, but text for "gpt2:" is encoded here. The tokenizer is not needed afterwards.
 * A mapped file must not be cut while it is in use. Errors: NOT_FOUND, CORRUPT
 * (truncated, or a header that lies), MISMATCH (an id that is not below vocab_size),
 * USAGE (fewer than seq_len + 1 tokens), UNSUPPORTED, MEMORY, IO. Caller owns. */
int data_open(const char *glob, const struct tokenizer *tokenizer, int vocab_size,
              int seq_len, uint64_t seed, struct data **out, struct dcp_error *err);
void data_free(struct data *data);
/* Samples in one pass (non-overlapping windows of seq_len), and tokens in all. */
int64_t data_samples(const struct data *data);
int64_t data_tokens(const struct data *data);
/* The sample at a cursor position 0, 1, 2, …: seq_len tokens and the seq_len that follow
 * each. Each pass visits every sample once, in an order shuffled by (seed, pass). */
void data_sample(const struct data *data, int64_t cursor, int32_t *out_tokens,
                 int32_t *out_targets);
/* As data_sample, in file order (validation). */
void data_window(const struct data *data, int64_t index, int32_t *out_tokens,
                 int32_t *out_targets);
/* Entropy of the unigram distribution of the first tokens (at most a million), in nats:
 * what a model that knows only frequencies would reach. NaN: out of memory. */
double data_unigram_entropy(const struct data *data);
/* Identifies the data: a digest of names (without folders), sizes, seq_len and seed, kept
 * in the checkpoint. */
uint64_t data_digest(const struct data *data);

#endif
