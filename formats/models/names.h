/* names: how families of models name their tensors, in config.json and in three kinds of
 * files, and how the axes of a tensor differ between them. The one table of names: every
 * format that maps names, and every rename, uses it.
 *
 * The canonical name of a tensor, its `param`, is that of Hugging Face's state dict.
 * Sources: transformers' models gpt2, llama, mistral, qwen2; gguf-py's tensor_mapping.py
 * and the converters of llama.cpp (conversion/gpt2.py, conversion/llama.py); Meta's llama
 * model.py. */
#ifndef DCP_FORMATS_MODELS_NAMES_H
#define DCP_FORMATS_MODELS_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCP_NAMES_MAX_BYTES 128 /* of a name that is spelled here, NUL included */
#define DCP_NAMES_MAX_LAYERS 100000

enum dcp_names_scheme {
    DCP_NAMES_HF,   /* "transformer.h.0.attn.c_attn.weight" */
    DCP_NAMES_GGUF, /* "blk.0.attn_qkv.weight" */
    DCP_NAMES_META, /* "layers.0.attention.wq.weight" */
    DCP_N_NAMES
};

/* How a matrix of Hugging Face stands in the other files. */
enum dcp_names_axes {
    DCP_AXES_SAME,
    DCP_AXES_TRANSPOSED, /* Hugging Face's Conv1D is (in, out), theirs (out, in) */
    DCP_AXES_Q_ROWS,     /* within each head the halves of the rows are interleaved; */
    DCP_AXES_K_ROWS      /* the heads of the queries, or those of the keys */
};

/* What Meta's files of several ranks do with a tensor. */
enum dcp_names_split {
    DCP_SPLIT_NOT,
    DCP_SPLIT_ROWS,
    DCP_SPLIT_COLUMNS,
    DCP_SPLIT_EITHER
};

/* A tensor, or one of each layer. */
struct dcp_names_row {
    const char *name[DCP_N_NAMES]; /* '#' is the number of the layer; without prefix and
                                    * suffix; NULL: these files have none */
    enum dcp_names_axes axes;
    enum dcp_names_split split;
};

struct dcp_names_family {
    const char *model_type;   /* of config.json */
    const char *architecture; /* its class there: "GPT2LMHeadModel" */
    const char *base;         /* the class without a head, whose names have no prefix */
    const char *gguf;         /* general.architecture of GGUF */
    const char *prefix;       /* of the base model's names, which some files leave out */
    const char *head;         /* the name that stands without the prefix */
    bool tied;              /* whether the head is the embedding where nothing is said */
    bool permuted;          /* whether GGUF interleaves rows */
    const char *dropped[3]; /* ends of names of buffers that old files hold */
    const struct dcp_names_row *rows;
    size_t n_rows;
};

/* By model_type, or by general.architecture (the family whose own name it is); NULL: not
 * known. The names may be NULL. Static. */
const struct dcp_names_family *dcp_names_family(const char *model_type);
const struct dcp_names_family *dcp_names_gguf_family(const char *architecture);

/* A name that the family knows. */
struct dcp_names_match {
    const struct dcp_names_family *family;
    const struct dcp_names_row *row;
    int64_t layer;      /* -1: of no layer */
    const char *suffix; /* ".weight" or ".bias"; static */
};
/* Whether a name is one of the family's in a scheme. Hugging Face's may lack the prefix.
 */
bool dcp_names_match(const struct dcp_names_family *family, enum dcp_names_scheme scheme,
                     const char *name, struct dcp_names_match *out);
/* Its name in another scheme, Hugging Face's with the prefix. False: it has none there.
 */
bool dcp_names_spell(const struct dcp_names_match *match, enum dcp_names_scheme scheme,
                     char out[DCP_NAMES_MAX_BYTES]);
/* Both in one step. */
bool dcp_names_translate(const struct dcp_names_family *family,
                         enum dcp_names_scheme from, enum dcp_names_scheme to,
                         const char *name, char out[DCP_NAMES_MAX_BYTES]);
/* A buffer that no new file has: a causal mask, the frequencies of the rotation. */
bool dcp_names_dropped(const struct dcp_names_family *family, const char *name);

/* The axes of a matched tensor in files of GGUF and Meta. */
enum dcp_names_axes dcp_names_axes_of(const struct dcp_names_match *match, int ndim);

#endif
