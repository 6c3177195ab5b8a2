/* gguf: the files of ggml and llama.cpp: keys and values, names of tensors, their bytes.
 * Sources: docs/gguf.md and src/gguf.cpp of ggml; gguf-py's constants.py, gguf_writer.py;
 * convert_hf_to_gguf.py of llama.cpp.
 *
 * The keys and values become the object "gguf.metadata", a JSON object in their order.
 * Strings and booleans stand as they are, any other value as an object with its type:
 *
 *   {"u32": 12}  {"f32": 1e-5}  {"[string]": ["a", "b"]}  {"[i32]": [1, 2]}
 *
 * and what JSON has no form for as text: {"f32": "nan"} ("inf", "-inf"), {"u64":
 * "18446744073709551615"}; a string that is not UTF-8 or holds NUL is {"$bytes": "00ff"}.
 *
 * A file of a family that models/names.h knows, all of whose tensors have a place there,
 * gives Hugging Face's names and shapes, and "model_config"; any other keeps its names,
 * with the dimensions in the order of the rest of the world: the slowest first. */
#ifndef DCP_FORMATS_GGUF_GGUF_H
#define DCP_FORMATS_GGUF_GGUF_H

#include "base/arena.h"
#include "base/buf.h"
#include "formats/common/input.h"
#include "formats/models/names.h"
#include <dcp/format.h>
#include <jansson.h>

extern const struct dcp_format dcp_format_gguf;

#define DCP_GGUF_METADATA "gguf.metadata" /* the object's name */
#define DCP_GGUF_ALIGN 32                 /* where a file says nothing */
#define DCP_GGUF_MAX_ALIGN (1 << 16)      /* that is written */
#define DCP_GGUF_MAX_DIMS 4
#define DCP_GGUF_MAX_NAME_BYTES 63
#define DCP_GGUF_MAX_KEY_BYTES 65535
#define DCP_GGUF_MAX_STRING_BYTES (16u << 20)
#define DCP_GGUF_MAX_VALUES (4u << 20) /* of all arrays together */
#define DCP_GGUF_MAX_TENSORS (1u << 20)
#define DCP_GGUF_MAX_METADATA_BYTES (256u << 20)

#define DCP_GGUF_ARCHITECTURE "general.architecture"
#define DCP_GGUF_ALIGNMENT "general.alignment"
#define DCP_GGUF_FILE_TYPE "general.file_type"
#define DCP_GGUF_HEAD "output.weight" /* is absent where the head is the embedding */

/* -- reading ----------------------------------------------------------------------- */

struct dcp_gguf_tensor {
    const char *name;
    enum dcp_dtype dtype;
    const char *quantized; /* the type of its blocks, or NULL; static */
    int ndim;
    int64_t shape[DCP_GGUF_MAX_DIMS]; /* the slowest dimension first */
    uint64_t offset, size_bytes;      /* in the file */
};
/* What stands before the bytes of the tensors; every tensor lies in the file. */
struct dcp_gguf {
    struct dcp_arena *arena; /* owns tensors and names */
    uint32_t version;
    json_t *metadata;
    struct dcp_gguf_tensor *tensors;
    size_t n_tensors;
};
/* dcp_gguf_fini also after a failure. Errors: CORRUPT, UNSUPPORTED (another version, byte
 * order, a type that is not known, a part of a split file), IO, MEMORY. */
int dcp_gguf_read(const struct dcp_input *in, struct dcp_gguf *out,
                  struct dcp_error *err);
void dcp_gguf_fini(struct dcp_gguf *gguf);
#define DCP_CLEANUP_GGUF DCP_CLEANUP(dcp_gguf_fini)

/* The tensor of that name, or NULL. */
const struct dcp_gguf_tensor *dcp_gguf_find(const struct dcp_gguf *gguf,
                                            const char *name);

/* The number of a dtype in these files, or -1. */
int dcp_gguf_type_of(enum dcp_dtype dtype);

/* -- values ------------------------------------------------------------------------ */

/* Reads headers from front to back in a small buffer. */
struct dcp_gguf_cursor {
    const struct dcp_input *in;
    unsigned char *buf;
    size_t n, cap, at;    /* bytes in buf, its size, the next byte */
    uint64_t base;        /* of buf in the file */
    uint64_t values_left; /* of arrays */
};
/* The next n bytes, valid until the next call. Errors: CORRUPT (the file is incomplete),
 * IO, MEMORY. */
int dcp_gguf_take(struct dcp_gguf_cursor *cursor, uint64_t n, const unsigned char **out,
                  struct dcp_error *err);
/* A string of at most max_bytes. `what` names it in the message. */
int dcp_gguf_take_text(struct dcp_gguf_cursor *cursor, uint64_t max_bytes,
                       const char *what, const char **out, size_t *out_n,
                       struct dcp_error *err);
uint64_t dcp_gguf_left(const struct dcp_gguf_cursor *cursor);

/* The value behind a key, with its type, as JSON. */
int dcp_gguf_take_value(struct dcp_gguf_cursor *cursor, const char *key, json_t **out,
                        struct dcp_error *err);
/* And back. Errors: CORRUPT (JSON that describes no value). */
int dcp_gguf_add_value(struct dcp_buf *buf, const char *key, const json_t *value,
                       struct dcp_error *err);

/* Values of common types: new references, NULL: out of memory. */
json_t *dcp_gguf_u32(int64_t number);
json_t *dcp_gguf_f32(double number);
/* The value of an integer or of a floating key, whatever its width; false when it is
 * none. Floats of 32 bits come as the shortest decimal number that becomes them. */
bool dcp_gguf_get_int(const json_t *metadata, const char *key, int64_t *out);
bool dcp_gguf_get_real(const json_t *metadata, const char *key, double *out);

/* -- the model --------------------------------------------------------------------- */

/* config.json from the keys; *out is NULL when they do not tell enough, or something that
 * config.json of that family has no words for. */
int dcp_gguf_to_config(const struct dcp_gguf *gguf, const struct dcp_input *in,
                       const struct dcp_names_family *family, json_t **out,
                       struct dcp_error *err);
/* Keys from config.json: those that metadata has not yet. Errors: MISMATCH, MEMORY. */
int dcp_gguf_from_config(const json_t *config, const struct dcp_names_family *family,
                         json_t *metadata, struct dcp_error *err);
/* Heads of the queries or of the keys, whose rows are that many. False: config.json says
 * something else, or nothing. */
bool dcp_gguf_heads(const json_t *config, enum dcp_names_axes axes, int64_t n_rows,
                    int64_t *out);

/* Llama 3 stretches the rotation by a factor for each frequency, and its files hold them
 * as a tensor. From rope_scaling of config.json: *out has *out_n numbers (none: this
 * model has no such thing); caller frees. And back: *out is NULL when the numbers are not
 * of that form. Source: generate_extra_tensors of llama.cpp's conversion/llama.py. */
#define DCP_GGUF_ROPE_FREQS "rope_freqs.weight"
int dcp_gguf_rope_factors(const json_t *config, float **out, size_t *out_n,
                          struct dcp_error *err);
int dcp_gguf_rope_scaling(const float *factors, size_t n, double base, json_t **out,
                          struct dcp_error *err);

/* dcp_format.assign and disposition. */
int dcp_gguf_assign(struct dcp_target *target, struct dcp_error *err);
enum dcp_disposition dcp_gguf_disposition(const struct dcp_catalog *src,
                                          const struct dcp_identity *of_src,
                                          const struct dcp_catalog *target,
                                          const struct dcp_tensor *tensor);

#endif
