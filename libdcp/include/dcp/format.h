/* format: what turns header bytes into a catalog (`index`), and a catalog into header
 * bytes (a target, from `open` to `close`). A format never moves tensor bytes. See
 * formats/README.md. */
#ifndef DCP_FORMAT_H
#define DCP_FORMAT_H

#include <dcp/store.h>
#include <dcp/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where a checkpoint is: a folder of the store, or one file of it. */
struct dcp_source {
    const struct dcp_store *store; /* borrowed */
    const char *name;              /* the file or folder in the store; "" is the root */
    bool is_dir;
};

/* How a target is to look. Zero means default. */
struct dcp_target_options {
    const char *name;              /* of the one file, for formats that write one */
    uint64_t max_shard_size_bytes; /* 0: the format's default */
    const char *config_json;       /* model description for folders that carry one */
    const char *spelling; /* of keys, in a distributed checkpoint: "nested", "flat",
                           * "torchtitan", "kept"; NULL: see formats/state_dict/out.h */
    const char *prefix;   /* container of the weights there; "": none; NULL: as usual */
    bool untie;           /* write tensors that share their bytes once for each name */
    uint64_t align_bytes; /* the first tensor of a file lies at a multiple of it, where
                           * the format allows it; 0: as usual */
};

/* What becomes of a tensor of the source in a target. */
enum dcp_disposition {
    DCP_DISPOSITION_STORED,  /* it gets an extent */
    DCP_DISPOSITION_DERIVED, /* the target says it in other words, and needs no extent for
                                it */
    DCP_DISPOSITION_UNSUPPORTED /* the target cannot hold it */
};

/* Bytes of a file that are no piece: headers, tables, manifests. */
struct dcp_literal {
    int file;         /* index in the catalog */
    uint64_t offset;  /* in the file */
    const void *data; /* belongs to the catalog */
    size_t size_bytes;
};
struct dcp_literals {
    struct dcp_literal *items; /* belongs to the catalog */
    size_t n, cap;
};

/* A checkpoint that is being written, from open to close. */
struct dcp_target {
    const struct dcp_format *format;          /* borrowed, as all here: */
    struct dcp_catalog *catalog;              /* what is written */
    const struct dcp_target_options *options; /* never NULL */
    struct dcp_literals literals;
    void *state;             /* the format's own: made by open, freed by close */
    int first_rank, n_ranks; /* whose pieces the catalog has, and whose files `assign`
                              * adds; n_ranks 0: all */
};
/* Appends a literal; data must live until the target is closed. Errors: MEMORY. */
DCP_PUBLIC int dcp_target_literal(struct dcp_target *target, int file, uint64_t offset,
                                  const void *data, size_t size_bytes,
                                  struct dcp_error *err);
/* The same, with a copy of the bytes. */
DCP_PUBLIC int dcp_target_literal_copy(struct dcp_target *target, int file,
                                       uint64_t offset, const void *data,
                                       size_t size_bytes, struct dcp_error *err);
/* Ways to cut, for dcp_format.partition: one DCP_WHOLE piece a tensor, for targets
 * without ranks; or by the catalog's layout for its world size, with replicas dealt
 * evenly, and tensors of at most 1 KiB whole. */
DCP_PUBLIC int dcp_partition_whole(struct dcp_target *target, struct dcp_error *err);
DCP_PUBLIC int dcp_partition_by_layout(struct dcp_target *target, struct dcp_error *err);

enum dcp_format_flags {
    DCP_FORMAT_READS = 1,
    DCP_FORMAT_WRITES = 2,
    DCP_FORMAT_SHARDED = 4,  /* a target may have any world size and sharding */
    DCP_FORMAT_IS_DIR = 8,   /* a target is a folder, else one file */
    DCP_FORMAT_OPTIM = 16,   /* holds optimizer tensors */
    DCP_FORMAT_OBJECTS = 32, /* holds objects */
    DCP_FORMAT_CRC32 = 64,   /* `finalize` needs each piece's crc32 */
    DCP_FORMAT_CODECS =
        128,               /* holds pieces with a codec; extents are set while writing */
    DCP_FORMAT_TIES = 256, /* says that two tensors share their bytes */
    DCP_FORMAT_MASTERS = 512, /* optimizer state has a master for every trained weight */
    DCP_FORMAT_PLAIN = 1024,  /* without an optimizer it is a plain dict of tensors */
    DCP_FORMAT_ARCHIVES =
        2048,                /* objects may be archives of torch.save, kept as they are */
    DCP_FORMAT_FILES = 4096, /* files that lie beside the weights have a place in it */
    DCP_FORMAT_STEPS = 8192, /* what a run is made of: steps, which may have parity and
                              * signatures; one format has it */
    DCP_FORMAT_ROLES = 16384 /* says what tensors are, whatever their names tell */
};

/* Listens to the differences that `check` finds; piece NULL: it is in the file. */
struct dcp_difference_listener {
    int (*report)(void *self, const struct dcp_piece *piece, const char *what,
                  struct dcp_error *err);
    void *self;
};

/* Hears of values that an object keeps, by names for people. */
struct dcp_value_listener {
    int (*take)(void *self, const char *name, struct dcp_error *err);
    void *self;
};

struct dcp_format {
    const char *name;  /* as in --to: "native", "safetensors", "torch", "hf" */
    const char *alias; /* an older name, which is understood too; or NULL */
    const char *help;  /* one line for people */
    const char
        *suffixes; /* "model.bin" ends; blank-separated: ".bin .pt .pth"; "" for none */
    unsigned flags;
    const char *layouts; /* of a SHARDED target, blank-separated, the default first:
                          * "zero3 zero1"; NULL: any */
    const struct dcp_format *packs; /* the target is one archive (dcp_store_bundle_new) of
                                     * the files of that format; NULL: it is not */
    const char *spelling; /* names of the objects that say how the format spells and nests
                           * names of tensors, blank-separated; NULL: there are none */
    /* Optional, of such an object: each value that stands nowhere else, as one beside a
     * tensor in a class of one's own. A target without the object leaves them out.
     * Errors: CORRUPT, MEMORY, those of the listener. */
    int (*kept)(const struct dcp_object *spelling,
                const struct dcp_value_listener *listener, struct dcp_error *err);
    const char *beside; /* how names of objects begin that are the contents of files
                         * beside the weights; NULL: there are none */

    /* How sure: the number of bits of the content that were verified, 0 when it is not
     * this format. Reads little, changes nothing, never fails. The highest bid wins. */
    int (*probe)(const struct dcp_source *source);

    /* Headers to catalog: tensors, pieces with extents, files, objects, step, world size.
     * Trusts nothing: every offset, size and name is checked against the files. File
     * names in the catalog are relative to the source's folder. Errors: CORRUPT,
     * UNSUPPORTED, IO, MEMORY. */
    int (*index)(const struct dcp_source *source, struct dcp_catalog *catalog,
                 struct dcp_error *err);

    /* Optional, all three or none: the same in two steps, for readers that need a part of
     * the pieces. The head has tensors, files and objects, and all files are there and as
     * long as they should be; then come the pieces of the ranks
     * that are marked, of world_size flags, to a catalog that is the head. It is sorted
     * then, and each tensor may tell where its pieces are (dcp_tensor.grid). */
    int (*index_head)(const struct dcp_source *source, struct dcp_catalog *catalog,
                      struct dcp_error *err);
    int (*index_ranks)(const struct dcp_source *source, const bool *ranks,
                       struct dcp_catalog *catalog, struct dcp_error *err);
    /* With these two: to a head, how many pieces lie in each file. All that index_ranks
     * would read was read then and has its digests, but no piece takes memory. */
    int (*index_counts)(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err);

    /* Optional. What becomes of a tensor of src (its tensors by role and param: of_src)
     * in a target, of which format, layout and world size are set. Without it every
     * tensor is stored, those of the optimizer when the flags say OPTIM. */
    enum dcp_disposition (*disposition)(const struct dcp_catalog *src,
                                        const struct dcp_identity *of_src,
                                        const struct dcp_catalog *target,
                                        const struct dcp_tensor *tensor);

    /* -- writing: each is called once for a target, in this order ------------------- */

    /* Optional. Makes the state, when tensors, objects, layout and world size are set. A
     * target that failed to open is closed all the same. Errors: MISMATCH ("cannot hold:
     * …"), MEMORY. */
    int (*open)(struct dcp_target *target, struct dcp_error *err);
    /* Cuts the tensors into the pieces of ranks; leaves the catalog sorted. Not called
     * for a checkpoint whose pieces lie in memory. NULL: `assign` adds the pieces, with
     * their extents. Errors: MISMATCH, MEMORY. */
    int (*partition)(struct dcp_target *target, struct dcp_error *err);
    /* Adds the files, gives each piece its file, offset and stored_size, each file its
     * size_bytes as far as known, and appends the literals that do not depend on the
     * tensors' bytes. With a codec, offset and stored_size are upper bounds here; the
     * writer packs the pieces of a file in the order of their offsets. Names in the files
     * are the format's business: a tensor is known by role and param. Tells which objects
     * it writes (dcp_catalog_mark_stored): the others are named to the user as left out.
     * Errors: MISMATCH ("cannot hold: …"), MEMORY. */
    int (*assign)(struct dcp_target *target, struct dcp_error *err);
    /* Optional. Once for each rank that writes, when its pieces are written (offset,
     * stored_size, crc, crc32, blocks set): appends the literals of its files that depend
     * on them. Errors: MEMORY. */
    int (*finalize)(struct dcp_target *target, int rank, struct dcp_error *err);
    /* Optional. When size_bytes and crc of all files so far are known: adds the files
     * that the coordinator writes last. Errors: MEMORY. */
    int (*finish)(struct dcp_target *target, struct dcp_error *err);
    /* Optional. Frees the state, after a failure too. */
    void (*close)(struct dcp_target *target);

    /* Optional, for formats that say twice what is in a file, of which `index` reads one:
     * holds what a file says of itself against the sorted catalog. pieces: indices of the
     * n that lie in the file, in any order. Errors: those of report; CORRUPT (what it
     * says cannot be understood), IO, MEMORY. */
    int (*check)(const struct dcp_source *source, const struct dcp_catalog *catalog,
                 size_t file, const size_t *pieces, size_t n,
                 const struct dcp_difference_listener *differs, struct dcp_error *err);
};

/* All formats, NULL-terminated, in the order of `dcp-reshard formats`. Static. */
DCP_PUBLIC const struct dcp_format *const *dcp_formats(void);
/* By name or alias, or NULL. */
DCP_PUBLIC const struct dcp_format *dcp_format_find(const char *name);
/* The one of steps, DCP_FORMAT_STEPS. */
DCP_PUBLIC const struct dcp_format *dcp_format_of_steps(void);
/* The format that writes such a file name by its suffix, or NULL. */
DCP_PUBLIC const struct dcp_format *dcp_format_for_suffix(const char *name);
/* The format that bids highest. Errors, when nobody bids: NOT_FOUND, IO (it cannot be
 * read), CORRUPT (it is incomplete), UNSUPPORTED (nobody knows it). */
DCP_PUBLIC int dcp_format_probe(const struct dcp_source *source,
                                const struct dcp_format **out_format,
                                struct dcp_error *err);
/* The same, where the caller owns the source's store: files of other programs' formats
 * may be links (dcp_store_dir_follow is on afterwards), those of the native format may
 * not. */
DCP_PUBLIC int dcp_format_probe_links(struct dcp_store *store,
                                      const struct dcp_source *source,
                                      const struct dcp_format **out_format,
                                      struct dcp_error *err);

#ifdef __cplusplus
}
#endif
#endif
