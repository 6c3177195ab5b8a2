/* file: the tokens of one file. */
#ifndef TRAINER_DATA_FILE_H
#define TRAINER_DATA_FILE_H

#include <dcp/error.h>
#include <stdint.h>

struct tokenizer;

struct data_file {
    char *name; /* without its folder */
    uint64_t size_bytes;
    int64_t n_tokens;
    int width;        /* bytes of an id: 1, 2 or 4, little-endian */
    const void *ids;  /* in the mapping or in `encoded` */
    void *mapping;    /* of the whole file, NULL: none */
    int32_t *encoded; /* ids of a text that had to be encoded, NULL: none */
};

/* Maps a file and finds out what it holds, in this order:
 *   1. llm.c's magic 20240520 (version 1, uint16) or 20240801 (version 7, uint32):
 * tokens, exactly as many as the header says. Its other magics are refused by name.
 *   2. What is known to be no text is refused: see refuse.h.
 *   3. UTF-8 without NUL bytes, or text in an 8-bit encoding, which is to say without
 *      control characters but white space: text. UTF-16 with a byte order mark is
 * refused. (The first MiB decides.)
 *   4. An even number of bytes that are all ids below vocab_size as uint16: nanoGPT.
 * Anything else is refused. Of token files the first 64 MiB are checked against
 * vocab_size here; ids further down are the model's to refuse. A folder is DCP_E_DIFFERS.
 * `tokenizer` may be NULL when there is no text. Errors: NOT_FOUND, CORRUPT, MISMATCH (an
 * id that is not below vocab_size), UNSUPPORTED, USAGE (a tokenizer with more ids than
 * vocab_size, or none), IO, MEMORY. */
int data_file_open(const char *path, const struct tokenizer *tokenizer, int vocab_size,
                   struct data_file *out, struct dcp_error *err);
void data_file_close(struct data_file *file);
/* Ids of n tokens from `begin` on; an id beyond int32_t reads as INT32_MAX. */
void data_file_read(const struct data_file *file, int64_t begin, int64_t n, int32_t *out);

#endif
