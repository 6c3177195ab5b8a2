/* torch: what the files of torch.save share: the open container, tensors as views of
 * storages, and the tree of Python objects around them.
 *
 * There are three containers. A zip archive (torch 1.6 and later) has a pickle and a
 * record for each storage. A stream (0.1.10 to 1.5, and later when asked for) is five
 * pickles, and the storages behind them. A tar archive (up to 0.1.9) has members with
 * pickles between which storages and the shapes of tensors stand. Only zip is written.
 *
 * A file holds one Python object. Its tensors are named by the keys that lead to them,
 * joined by '.'. Unless the object is a flat dict of tensors, the catalog also gets the
 * object "torch.tree": the Python object as JSON (pickle/py.h), in which names stand for
 * tensors and objects; from it `layout` writes the same object again, of the same
 * classes. What holds no tensor and stands beside one becomes an object of its own, named
 * by its path. */
#ifndef DCP_FORMATS_TORCH_TORCH_H
#define DCP_FORMATS_TORCH_TORCH_H

#include "base/buf.h"
#include "formats/archive/zip.h"
#include "formats/pickle/pickle.h"
#include <dcp/format.h>
#include <jansson.h>

#define DCP_TORCH_TREE "torch.tree"    /* the object's name */
#define DCP_TORCH_BARE_TENSOR "tensor" /* name of a tensor that is the whole file */
#define DCP_TORCH_MAX_OBJECTS 4096     /* of their own; the rest stays in the tree */
#define DCP_TORCH_MAX_EXPANDED_BYTES                                    \
    (1ull << 30)                   /* of a view larger than its storage \
                                    */
#define DCP_TORCH_ALIGN 64         /* of storages in a file that is written */
#define DCP_TORCH_MAX_KEY_BYTES 20 /* digits of a storage's key: an address at most */

enum dcp_torch_form { DCP_TORCH_ZIP, DCP_TORCH_STREAM, DCP_TORCH_TAR };

/* Bytes that tensors are views of. */
struct dcp_torch_storage {
    const char *key;              /* as the pickle names it, a number; in the arena */
    uint64_t size_bytes;          /* of the content */
    uint64_t offset, stored_size; /* of the extent in the file */
    enum dcp_codec codec;         /* DCP_CODEC_DEFLATE_STREAM in some zip files */
    int dtype;                    /* of the tensors that use it; -1 before the first */
};

/* A tensor of a tar file, by the key that the pickle names it with. */
struct dcp_torch_tar_tensor {
    const char *key;
    size_t storage; /* index */
    int64_t offset; /* in elements */
    int ndim;
    int64_t shape[DCP_MAX_NDIM], stride[DCP_MAX_NDIM];
};

/* An open file. The arena holds directory, tree and tables. */
struct dcp_torch_file {
    struct dcp_input in;
    bool in_borrowed; /* somebody else closes it */
    struct dcp_arena *arena;
    enum dcp_torch_form form;
    bool takes_streams;  /* the caller sets it when it honours the codec of views: without
                          * it tensors in deflated records are refused */
    struct dcp_zip zip;  /* ZIP */
    char *root;          /* ZIP: the folder of all records, without '/' */
    uint64_t begin, end; /* of the archive; of a stream: of the object's pickle, and of
                          * the file */
    struct dcp_tar *tar; /* TAR: the members */
    struct dcp_torch_tar_tensor *tensors; /* TAR: by key */
    size_t n_tensors;
    void *pickle;
    struct dcp_pickle_node *tree;
    struct dcp_torch_storage *storages; /* by key, once the tree is read */
    size_t n_storages;
    /* Called for each pickle that stands between other things, before it is read; NULL:
     * nobody wants them. Set between dcp_torch_open and dcp_torch_read_tree. */
    int (*meet)(void *self, uint64_t at, const void *data, size_t n,
                struct dcp_error *err);
    void *self;
};
/* Opens a container and reads its directory; dcp_torch_close also after a failure.
 * Errors: CORRUPT, UNSUPPORTED (none of the containers: said in words; TorchScript), IO.
 */
int dcp_torch_open(struct dcp_torch_file *file, const struct dcp_source *source,
                   const char *name, struct dcp_error *err);
/* The same for an archive that lies in bytes begin .. end of an open file, which outlives
 * it. Errors: CORRUPT, UNSUPPORTED, IO. */
int dcp_torch_open_part(struct dcp_torch_file *file, const struct dcp_input *in,
                        uint64_t begin, uint64_t end, struct dcp_error *err);
/* Reads the pickle of the object, and finds the storages. */
int dcp_torch_read_tree(struct dcp_torch_file *file, struct dcp_error *err);
void dcp_torch_close(struct dcp_torch_file *file);
#define DCP_CLEANUP_TORCH DCP_CLEANUP(dcp_torch_close)

/* Adds the file to a catalog, with the checksums that it keeps. Errors: MEMORY. */
int dcp_torch_add_file(const struct dcp_torch_file *file, const char *name, int rank,
                       struct dcp_catalog *catalog, int *out_index,
                       struct dcp_error *err);
/* n bytes of a storage, which begin at an offset of the file, or, with a codec, `skip`
 * decoded bytes behind it; its checksum holds. Errors: CORRUPT, UNSUPPORTED (a storage
 * with a codec that is no small one), IO, MEMORY. */
int dcp_torch_read(struct dcp_torch_file *file, uint64_t offset, enum dcp_codec codec,
                   uint64_t skip, void *out, size_t n, struct dcp_error *err);

/* The storage with that key, or NULL. */
struct dcp_torch_storage *dcp_torch_find_storage(const struct dcp_torch_file *file,
                                                 const char *key);
/* The tensor of a tar file with that key, or NULL. */
const struct dcp_torch_tar_tensor *dcp_torch_find_tar_tensor(
    const struct dcp_torch_file *file, const char *key);

/* A tensor as part of a storage, or of the pickle. */
struct dcp_torch_view {
    enum dcp_dtype dtype;
    int ndim;
    int64_t shape[DCP_MAX_NDIM];
    int64_t stride[DCP_MAX_NDIM]; /* in elements */
    bool dense;                   /* row-major without gaps: stride says no more */
    bool has_data;                /* false: it was on the meta device */
    uint64_t offset, stored_size; /* in the file: first element to behind the last, */
    enum dcp_codec codec;         /* or, with a codec, the whole coded storage, */
    uint64_t skip;                /* and the decoded bytes before the first element */
    const void *memory;           /* of a NumPy array, in the file's arena; else NULL */
};
/* Whether a node is a tensor (or a parameter, a NumPy array, a bare storage), and which.
 * `name` is for messages. Errors: CORRUPT, UNSUPPORTED, MEMORY. */
int dcp_torch_view(struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                   const char *name, bool *out_found, struct dcp_torch_view *out,
                   struct dcp_error *err);
/* As above for NumPy arrays; called by dcp_torch_view. */
int dcp_torch_numpy_view(struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                         bool *out_found, struct dcp_torch_view *out,
                         struct dcp_error *err);
/* Whether the strides are those of a row-major array without gaps; it has elements, and
 * dcp_torch_view_elems was true. */
bool dcp_torch_view_is_dense(const struct dcp_torch_view *view);
/* Product of the shape, checked; 0 when a dimension is. */
bool dcp_torch_view_elems(const struct dcp_torch_view *view, int64_t *out);

/* The one number that a view of one element is, of at most 8 bytes; *out_found false: it
 * is no such. Errors: as dcp_torch_read. */
int dcp_torch_number(struct dcp_torch_file *file, const struct dcp_torch_view *view,
                     bool *out_found, double *out, struct dcp_error *err);

/* The piece of a catalog that a view is, of the file with that index; tensor, rank and
 * region are the caller's. A view of memory is copied. Errors: MEMORY. */
int dcp_torch_view_piece(const struct dcp_torch_view *view, int file_index,
                         struct dcp_catalog *catalog, struct dcp_piece *out,
                         struct dcp_error *err);

/* Adds a view as the one piece of a tensor with its dtype and shape. */
int dcp_torch_add_piece(struct dcp_catalog *catalog, int file_index, int tensor,
                        const struct dcp_torch_view *view, struct dcp_error *err);
/* A tuple or list of integers from 0 on, or a torch.Size of one: how many, -1 when it is
 * none, DCP_MAX_NDIM + 1 when they are more than that. */
int dcp_torch_numbers(const struct dcp_pickle_node *node, int64_t out[DCP_MAX_NDIM]);
/* A dtype by its name, torch.float32. */
bool dcp_torch_dtype(const struct dcp_pickle_node *node, enum dcp_dtype *out);

/* Ties tensors of a catalog whose first pieces are the same extent, and which have the
 * same dtype, shape and strides, to the first of them. Errors: MEMORY. */
int dcp_torch_tie_views(struct dcp_catalog *catalog, struct dcp_error *err);
/* The tensor that one is tied to and shares its storage with when it is written; itself
 * when there is none. */
size_t dcp_torch_tie(const struct dcp_catalog *catalog, size_t tensor);
/* The dtype of a storage class, torch.FloatStorage or torch.cuda.FloatStorage;
 * *out_untyped: of UntypedStorage, whose elements are bytes. False when it is none. */
bool dcp_torch_class_dtype(const struct dcp_pickle_node *cls, enum dcp_dtype *out,
                           bool *out_untyped);
/* torch's storage class of a dtype ("FloatStorage"), or NULL: it is stored untyped. */
const char *dcp_torch_storage_class(enum dcp_dtype dtype);

/* The record .data/serialization_id, 40 digits: torch hashes names and checksums. names
 * are those of all records before it, without the root. */
struct dcp_torch_id_record {
    const char *name;
    uint64_t size_bytes;
    uint32_t crc32;
};
int dcp_torch_serialization_id(const struct dcp_torch_id_record *records, size_t n,
                               char out[41], struct dcp_error *err);

#endif
