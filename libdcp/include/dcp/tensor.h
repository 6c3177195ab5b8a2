/* The words of libdcp: dtype, tensor, box, flat range, piece, extent, block, object,
 * catalog.
 *
 * A checkpoint is a catalog: tensors, and the pieces of them that lie somewhere.
 * Everything else in this library turns one catalog into another. A catalog is plain data
 * in one arena; thread rule: build it on one thread, then read it on any. */
#ifndef DCP_TENSOR_H
#define DCP_TENSOR_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DCP_MAX_NDIM 8 /* dimensions of a tensor */
#define DCP_BLOCK_BYTES \
    (1u << 20) /* raw bytes of a block; the last of a piece is shorter */

/*    X(code, size_bytes, safetensors name, torch name) */
#define DCP_DTYPE_TABLE(X)                              \
    X(BOOL, 1, "BOOL", "bool")                          \
    X(U8, 1, "U8", "uint8")                             \
    X(I8, 1, "I8", "int8")                              \
    X(F8_E5M2, 1, "F8_E5M2", "float8_e5m2")             \
    X(F8_E4M3, 1, "F8_E4M3", "float8_e4m3fn")           \
    X(F8_E8M0, 1, "F8_E8M0", "float8_e8m0fnu")          \
    X(F8_E4M3FNUZ, 1, "F8_E4M3FNUZ", "float8_e4m3fnuz") \
    X(F8_E5M2FNUZ, 1, "F8_E5M2FNUZ", "float8_e5m2fnuz") \
    X(I16, 2, "I16", "int16")                           \
    X(U16, 2, "U16", "uint16")                          \
    X(F16, 2, "F16", "float16")                         \
    X(BF16, 2, "BF16", "bfloat16")                      \
    X(I32, 4, "I32", "int32")                           \
    X(U32, 4, "U32", "uint32")                          \
    X(F32, 4, "F32", "float32")                         \
    X(C64, 8, "C64", "complex64")                       \
    X(F64, 8, "F64", "float64")                         \
    X(I64, 8, "I64", "int64")                           \
    X(U64, 8, "U64", "uint64")                          \
    X(C128, 16, "C128", "complex128")

/* The order is that of the safetensors writer (its last comes first in a file). */
enum dcp_dtype {
#define DCP_X(code, size, st, torch) DCP_##code,
    DCP_DTYPE_TABLE(DCP_X)
#undef DCP_X
        DCP_N_DTYPES
};

/* Bytes of one element. */
DCP_PUBLIC size_t dcp_dtype_size(enum dcp_dtype dtype);
/* "F32" / "float32". Static. */
DCP_PUBLIC const char *dcp_dtype_name(enum dcp_dtype dtype);
DCP_PUBLIC const char *dcp_dtype_torch_name(enum dcp_dtype dtype);
/* Takes both names in any case, and fp32, bf16, half, float…; -1 when it is none. */
DCP_PUBLIC int dcp_dtype_parse(const char *text);

/* Converts n elements: floating to floating and integer to floating by rounding to
 * nearest, ties to even; out of range becomes infinity, or NaN where the type has none.
 * Same dtype: a copy. in and out do not overlap. Errors: UNSUPPORTED (complex, or
 * floating to integer). */
DCP_PUBLIC int dcp_cast(enum dcp_dtype from, enum dcp_dtype to, const void *in, void *out,
                        size_t n, struct dcp_error *err);
/* How many of n finite numbers a cast made infinite or NaN, because they are out of the
 * range of the new type. */
DCP_PUBLIC size_t dcp_cast_overflows(enum dcp_dtype from, enum dcp_dtype to,
                                     const void *in, const void *out, size_t n);
/* True for F64, F32, BF16, F16 and the 8-bit floats. */
DCP_PUBLIC bool dcp_dtype_is_float(enum dcp_dtype dtype);

/* What a tensor is to training. `param` of a tensor names the model tensor it belongs to.
 */
enum dcp_role {
    DCP_ROLE_MODEL,      /* a weight, in the precision the model computes with */
    DCP_ROLE_BUFFER,     /* part of the model's state dict, but not trained */
    DCP_ROLE_MASTER,     /* the fp32 copy of a 16-bit weight */
    DCP_ROLE_EXP_AVG,    /* first moment */
    DCP_ROLE_EXP_AVG_SQ, /* second moment */
    DCP_ROLE_OPTIM,      /* any other tensor of the optimizer */
    DCP_ROLE_OTHER,
    DCP_N_ROLES
};
/* "model", "buffer", "master", "exp_avg", "exp_avg_sq", "optim", "other"; and back, or
 * -1. */
DCP_PUBLIC const char *dcp_role_name(enum dcp_role role);
DCP_PUBLIC int dcp_role_parse(const char *text);
/* True for master, exp_avg, exp_avg_sq and optim. */
DCP_PUBLIC bool dcp_role_is_optim(enum dcp_role role);

/* Which part of a tensor. Zero means all of it. */
enum dcp_region_kind {
    DCP_WHOLE, /* the whole tensor */
    DCP_BOX,   /* offset[d] .. offset[d] + size[d] in every dimension d */
    DCP_FLAT   /* elements begin .. end of the row-major flattened tensor */
};
struct dcp_region {
    enum dcp_region_kind kind;
    int64_t begin, end;    /* DCP_FLAT, in elements */
    const int64_t *offset; /* DCP_BOX: ndim numbers; belongs to the catalog */
    const int64_t *size;   /* DCP_BOX: ndim numbers; belongs to the catalog */
};

struct dcp_mesh {
    int dp, tp, pp; /* 0 means 1 */
};

struct dcp_grid;

/* A global array. Strings and arrays belong to the catalog. */
struct dcp_tensor {
    const char *name;  /* unique in the catalog; UTF-8; shown only escaped */
    const char *param; /* the model tensor it belongs to (its own name for a weight) */
    enum dcp_role role;
    enum dcp_dtype dtype;
    int ndim;
    const int64_t *shape;  /* ndim numbers, each >= 0 */
    int64_t n_elems;       /* product of shape; 1 when ndim is 0 */
    int group;             /* parameter group: flat layouts cut group by group */
    bool is_meta;          /* only dtype and shape were saved (PyTorch's meta device) */
    const char *quantized; /* of blocks of that type ("Q4_K"), whose numbers are not */
    uint64_t quantized_bytes; /* read, so it is_meta too; its dtype says nothing */
    const char *tied_to;      /* the tensor whose very bytes it shares, or NULL */
    bool has_fingerprint;
    uint64_t fingerprint;        /* CRC-64/XZ of its row-major little-endian bytes */
    const struct dcp_grid *grid; /* where its pieces are, as a native step tells it before
                                  * they are read; NULL: it does not */
    size_t first_piece;          /* in the catalog's pieces, once they are sorted */
    size_t n_pieces;
};

/* How an extent is coded. The first ones code block by block and are what this library
 * writes; their numbers never change. Split is the fastest and makes weights smallest;
 * planes is older. The streams are met in files of others: the whole extent is one coded
 * stream, which can only be read from its beginning. */
enum dcp_codec {
    DCP_CODEC_NONE = 0,
    DCP_CODEC_ZSTD = 1,   /* a frame of zstd */
    DCP_CODEC_PLANES = 2, /* one of the block's bytes in planes, all first bytes first */
    DCP_CODEC_SPLIT = 3,  /* each plane coded alone, as a trial says */
    DCP_N_CODECS,
    DCP_CODEC_ZSTD_STREAM = DCP_N_CODECS, /* frames of zstd */
    DCP_CODEC_DEFLATE_STREAM              /* raw deflate, as in zip archives */
};
/* "none", "zstd", "planes", "split", "zstd stream", "deflate stream"; and back, the first
 * four only, or -1. */
DCP_PUBLIC const char *dcp_codec_name(enum dcp_codec codec);
DCP_PUBLIC int dcp_codec_parse(const char *text);

/* The unit that is hashed and coded: DCP_BLOCK_BYTES raw bytes of a piece. */
struct dcp_block {
    uint64_t xxh3;        /* XXH3-64 of the stored bytes */
    uint32_t stored_size; /* equals the raw size when the codec did not help */
};

/* A part of a tensor that lies somewhere: in a file (file >= 0) or in memory (data). */
struct dcp_piece {
    int tensor; /* index in the catalog */
    int rank;   /* who holds it */
    struct dcp_region region;
    int file;              /* index in the catalog, -1: in memory */
    enum dcp_codec codec;  /* of the extent */
    uint64_t offset;       /* the extent: first byte in the file, */
    uint64_t stored_size;  /* and its bytes there */
    uint64_t skip;         /* streams: decoded bytes before the piece's first */
    const int64_t *stride; /* in elements, of the region's dimensions, a box; NULL:
                            * row-major and dense (the rule). In a target the strides
                            * fill the extent without gaps: axes are permuted */
    int swap_bytes;        /* a source: its numbers, of so many bytes, stand there with
                            * the highest byte first; 0: as everywhere, the lowest */
    const struct dcp_block *blocks; /* NULL when the format keeps no block digests */
    size_t n_blocks;
    bool has_crc;
    uint64_t crc; /* CRC-64/XZ of its raw bytes */
    bool has_crc32;
    uint32_t crc32; /* of its raw bytes, for formats that keep one */
    void *data;     /* borrowed memory of a piece that is not in a file: a device's, */
    bool on_host;   /* unless it is known to be the host's whatever the device */
};

struct dcp_file {
    const char *name; /* below the checkpoint's folder; plain names joined by '/' */
    int rank;         /* who writes it; 0 for what the coordinator writes */
    uint64_t size_bytes;
    bool has_crc;
    uint64_t crc; /* CRC-64/XZ of the whole file */
    int lost;     /* in a partial catalog: an error code, the file is missing or */
    const char *lost_why; /* not what it was; one sentence */
    uint64_t n_pieces;    /* that lie in it, when the catalog is a head; else 0 */
};

/* A range of a file with one checksum over all of it, as a zip archive keeps it of its
 * records. Pieces lie in it, in whole or in part: who reads any of it checks all of it.
 */
struct dcp_record {
    const char *name; /* for messages; belongs to the catalog */
    int file;
    enum dcp_codec codec;         /* none or a stream, */
    uint64_t offset, stored_size; /* of this extent; */
    uint64_t skip;                /* streams: decoded bytes before its first */
    uint64_t size_bytes;          /* of its content */
    uint32_t crc32;               /* of its content; or, when it is not known yet, */
    bool crc32_behind; /* it stands in the zip descriptor that follows in the stream */
};

/* What is not a tensor: scheduler, RNG, data cursor, user JSON, an opaque pickle. */
enum dcp_object_kind { DCP_OBJECT_JSON, DCP_OBJECT_BYTES };
struct dcp_object {
    const char *name;
    enum dcp_object_kind kind;
    const void *data; /* JSON: UTF-8 text without a final NUL being counted */
    size_t size_bytes;
    bool held; /* of a target whose extents are assigned: the format writes it */
};

/* Whether an object of that name only says how one format spells and nests the names of
 * its tensors ("torch.tree"): of no use where they have other names. */
DCP_PUBLIC bool dcp_object_is_spelling(const char *name);
/* The name of the file that an object is the content of, where one lies beside the
 * weights in folders of Hugging Face ("hf/tokenizer.json") and nowhere else; else NULL.
 * Points into name. */
DCP_PUBLIC const char *dcp_object_file(const char *name);

struct dcp_arena;

struct dcp_catalog {
    struct dcp_arena *arena; /* owns every string and array below */
    const char *format;      /* name of the format it was indexed from, or "" */
    const char *version;     /* of the format, for people: "v1", "torch zip" */
    const char *layout;      /* "zero3", "dim0", … or "" */
    const char *producer;    /* who wrote it, for people, or "" */
    int64_t step;            /* -1 when unknown */
    int world_size;          /* ranks that saved it; 1 when unknown */
    struct dcp_mesh mesh;
    bool diverged;       /* its weights or its loss were not finite when it was saved */
    const char *parity;  /* what protects the files, as text; NULL: nothing */
    const char *assumed; /* which tensors are trained, for people, where the source does
                          * not prove it; NULL: it does */
    const char *assumed_order; /* in the same way: of which weights the moments are */
    const char *untold; /* what its files do not say, so that no digest can tell: which
                         * rank each is of; for people; NULL: nothing */
    bool partial; /* set before `index`: a file of a native step that is missing or not
                   * what it was is marked as lost, and does not end the act */
    bool head;    /* pieces were not read: there is everything else, and where pieces are
                   * (dcp_tensor.grid, dcp_file.n_pieces) as far as that is known */
    int weights_dtype; /* enum dcp_dtype the model computes with, where only the masters
                        * are stored; -1 when unknown */
    struct dcp_tensor *tensors;
    size_t n_tensors;
    struct dcp_piece *pieces; /* by tensor, then region, once sorted */
    size_t n_pieces;
    struct dcp_file *files;
    size_t n_files;
    struct dcp_record *records; /* what pieces lie in them is told by their places */
    size_t n_records;
    struct dcp_object *objects;
    size_t n_objects;
    bool sorted;
    size_t cap_tensors, cap_pieces, cap_files, cap_records, cap_objects; /* private */
    struct dcp_names *index;                                             /* private */
};

/* An empty catalog; caller owns. Errors: MEMORY. */
DCP_PUBLIC int dcp_catalog_new(struct dcp_catalog **out_catalog, struct dcp_error *err);
DCP_PUBLIC void dcp_catalog_free(struct dcp_catalog *catalog);

/* Room for so many tensors and pieces more: adding them one by one moves nothing then.
 * Who has the counts from a file checks them first. Errors: MEMORY. */
DCP_PUBLIC int dcp_catalog_reserve(struct dcp_catalog *catalog, size_t n_tensors,
                                   size_t n_pieces, struct dcp_error *err);
/* Each add copies what it is given, strings and arrays too, and returns the index through
 * out_… (may be NULL). They refuse what no valid file can hold: a name twice, ndim or
 * shape out of range, a size that overflows, a region outside its tensor. Errors: MEMORY,
 * CORRUPT. */
DCP_PUBLIC int dcp_catalog_add_tensor(struct dcp_catalog *catalog,
                                      const struct dcp_tensor *tensor, int *out_index,
                                      struct dcp_error *err);
DCP_PUBLIC int dcp_catalog_add_piece(struct dcp_catalog *catalog,
                                     const struct dcp_piece *piece,
                                     struct dcp_error *err);
DCP_PUBLIC int dcp_catalog_add_file(struct dcp_catalog *catalog,
                                    const struct dcp_file *file, int *out_index,
                                    struct dcp_error *err);
/* Records do not overlap. Errors: MEMORY. */
DCP_PUBLIC int dcp_catalog_add_record(struct dcp_catalog *catalog,
                                      const struct dcp_record *record,
                                      struct dcp_error *err);
DCP_PUBLIC int dcp_catalog_add_object(struct dcp_catalog *catalog,
                                      const struct dcp_object *object,
                                      struct dcp_error *err);

/* A second name for a tensor: the same dtype, shape, role and pieces; tied_to says so.
 * Errors: MEMORY, CORRUPT (the name is taken). */
DCP_PUBLIC int dcp_catalog_add_alias(struct dcp_catalog *catalog, const char *name,
                                     int tensor, struct dcp_error *err);

/* Memory that lives as long as the catalog, zeroed; NULL when there is none. */
DCP_PUBLIC void *dcp_catalog_alloc(struct dcp_catalog *catalog, size_t n,
                                   size_t size_bytes);
/* A copy of text in the catalog; NULL when there is no memory. */
DCP_PUBLIC const char *dcp_catalog_text(struct dcp_catalog *catalog, const char *text);

/* Sorts the pieces by tensor and place, and sets first_piece and n_pieces. Files and
 * tensors keep their order. Pieces may be added again later; then sort again. */
DCP_PUBLIC int dcp_catalog_sort(struct dcp_catalog *catalog, struct dcp_error *err);

/* Index of a tensor by its unique name, of an object by name, or -1. */
DCP_PUBLIC int dcp_catalog_find(const struct dcp_catalog *catalog, const char *name);
DCP_PUBLIC int dcp_catalog_find_object(const struct dcp_catalog *catalog,
                                       const char *name);
/* For `layout` of a format: it writes what the object of that name says, if there is one;
 * NULL: what every object says. */
DCP_PUBLIC void dcp_catalog_mark_stored(struct dcp_catalog *catalog, const char *name);

/* The tensors of a catalog by what they are: the index of the first with that role and
 * param (NULL: any), or -1. The catalog is borrowed, and must not change. Caller owns.
 * Errors: MEMORY.
 */
struct dcp_identity;
DCP_PUBLIC int dcp_identity_new(const struct dcp_catalog *catalog,
                                struct dcp_identity **out_identity,
                                struct dcp_error *err);
DCP_PUBLIC int dcp_identity_find(const struct dcp_identity *identity, enum dcp_role role,
                                 const char *param);
/* Whether the optimizer has something of a weight: moments, a master, or whatever else it
 * keeps. Where it has nothing of any, each may be trained. */
DCP_PUBLIC bool dcp_identity_is_trained(const struct dcp_identity *identity,
                                        const char *param);
DCP_PUBLIC void dcp_identity_free(struct dcp_identity *identity);

/* Elements in a piece's region, and its raw bytes. */
DCP_PUBLIC int64_t dcp_piece_elems(const struct dcp_catalog *catalog,
                                   const struct dcp_piece *piece);
DCP_PUBLIC uint64_t dcp_piece_bytes(const struct dcp_catalog *catalog,
                                    const struct dcp_piece *piece);
/* Raw bytes from its first element to behind its last, where it is stored: more than the
 * above when it has strides. */
DCP_PUBLIC uint64_t dcp_piece_span(const struct dcp_catalog *catalog,
                                   const struct dcp_piece *piece);
/* Raw bytes of a whole tensor. */
DCP_PUBLIC uint64_t dcp_tensor_bytes(const struct dcp_tensor *tensor);

/* The default name of a tensor that belongs to a parameter: the parameter's own for
 * weights and buffers, "optimizer.<role>.<param>" for the rest. Belongs to the catalog.
 */
DCP_PUBLIC const char *dcp_tensor_default_name(struct dcp_catalog *catalog,
                                               enum dcp_role role, const char *param);

/* Every element of every tensor is held exactly once (replicas, pieces with the same
 * region, count once). Needs a sorted catalog. Errors: CORRUPT, naming the tensor and the
 * first element that is missing or held twice; UNSUPPORTED (it is_meta). */
DCP_PUBLIC int dcp_catalog_check(const struct dcp_catalog *catalog,
                                 struct dcp_error *err);

#ifdef __cplusplus
}
#endif
#endif
