/* reshard: one checkpoint into another, in bounded memory, in one process or in parts.
 * Change of world size, layout, dtype, selection and format are all this one act; export
 * is world size 1. */
#ifndef DCP_RESHARD_H
#define DCP_RESHARD_H

#include <dcp/checkpoint.h>
#include <dcp/rename.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a user means by a path: a run folder (its newest complete step), one step, any
 * file or folder of a known format, or a tar archive, plain or compressed with zstd, of
 * such a folder. */
struct dcp_location {
    struct dcp_store *store;  /* rooted at the checkpoint's folder, or its archive */
    struct dcp_source source; /* in that store, by `name` */
    const struct dcp_format *format;
    char *name, *path; /* path: for messages, with the step that was chosen */
    struct dcp_reconstruction *rebuilt; /* private */
    struct dcp_error corruption; /* what was found, where parity gives what is missing */
    struct dcp_store_file *pin;  /* private */
    bool passed_over; /* a newer step was there and was incomplete, or not readable */
};
struct dcp_location_options {
    uint64_t max_header_bytes; /* as in dcp_store; 0: what real files have */
    const char *base; /* of the delta that the path is: see dcp_store_delta; or NULL */
};
/* A native step that lies in a folder is pinned, so that retention does not take it away
 * meanwhile. Caller owns, dcp_location_close. Errors: NOT_FOUND, CORRUPT (no complete
 * step), UNSUPPORTED, IO. */
DCP_PUBLIC int dcp_location_open_with(const char *path,
                                      const struct dcp_location_options *options,
                                      struct dcp_location *out_location,
                                      struct dcp_error *err);
/* The same without options. */
DCP_PUBLIC int dcp_location_open(const char *path, struct dcp_location *out_location,
                                 struct dcp_error *err);
DCP_PUBLIC void dcp_location_close(struct dcp_location *location);
/* Gives the pin back before the place is closed: before its store is taken out of it. */
DCP_PUBLIC void dcp_location_unpin(struct dcp_location *location);
/* What reading a place failed with, rc: NOT_FOUND, saying so, when the step was removed
 * meanwhile (there was no pin, or retention waited no longer), else rc itself. */
DCP_PUBLIC int dcp_location_failed(const struct dcp_location *location, int rc,
                                   struct dcp_error *err);
/* Its catalog, sorted; caller owns. When a file of a native step is missing or a manifest
 * is corrupt, and the step has parity for it, `corruption` says so, and the source reads
 * what was written from then on. */
DCP_PUBLIC int dcp_location_index(struct dcp_location *location,
                                  struct dcp_catalog **out_catalog,
                                  struct dcp_error *err);
/* The same without the pieces where the format can do without (dcp_catalog.head), for who
 * only tells of the checkpoint as a whole. */
DCP_PUBLIC int dcp_location_head(struct dcp_location *location,
                                 struct dcp_catalog **out_catalog, struct dcp_error *err);
/* The description of the model, as config.json of Hugging Face has it: that of the
 * catalog of the place, or what lies beside it; *out (caller frees) is NULL where there
 * is none. Errors: MEMORY. */
DCP_PUBLIC int dcp_location_config(const struct dcp_location *location,
                                   const struct dcp_catalog *catalog, char **out,
                                   struct dcp_error *err);
/* Puts the place's path into an error of reading it. */
DCP_PUBLIC void dcp_location_name_error(const struct dcp_location *location,
                                        struct dcp_error *err);
/* A descriptor of a file of the catalog, open for reading, whose bytes are as they are
 * read, to be mapped; caller owns, close. -1: there is none, as in an archive, in a delta
 * or where parity gives what is read. Errors: those of opening it, IO. */
DCP_PUBLIC int dcp_location_descriptor(const struct dcp_location *location,
                                       const struct dcp_file *file, int *out_fd,
                                       struct dcp_error *err);
/* The source as it lies, not reconstructed. */
DCP_PUBLIC struct dcp_source dcp_location_plain(const struct dcp_location *location);

/* The pieces of every tensor at a world: the rule behind a layout name. Replaces the
 * pieces of the catalog by pieces in no file. Names: "flat", "zero1", "zero2", "zero3",
 * "dim0", "replicated". Errors: USAGE (unknown name, world_size < 1), MEMORY. */
DCP_PUBLIC int dcp_layout_apply(struct dcp_catalog *catalog, const char *layout,
                                int world_size, struct dcp_error *err);
/* NULL-terminated. Static. */
DCP_PUBLIC const char *const *dcp_layout_names(void);

enum dcp_only { DCP_ONLY_ALL, DCP_ONLY_MODEL, DCP_ONLY_OPTIM };

/* Where the source has a weight twice, in the precision the model computes with and as
 * the optimizer's master. */
enum dcp_weights {
    DCP_WEIGHTS_AUTO,  /* the master where another dtype is asked for, and where a model
                        * leaves a format that has masters of all (DeepSpeed) without its
                        * optimizer; else the weight */
    DCP_WEIGHTS_MODEL, /* the weight; where only masters are stored, rounded from them */
    DCP_WEIGHTS_MASTER
};

struct dcp_reshard_options {
    const struct dcp_catalog *source; /* of the place, if it is indexed already; borrowed
                                       * until free. NULL: it is read */
    int world_size;                   /* 0: the source's */
    struct dcp_mesh mesh;             /* zero: { world size, 1, 1 } */
    const char *layout;               /* NULL: the source's, or "zero3" */
    const char *format;               /* NULL: native */
    int dtype;                 /* enum dcp_dtype of floating tensors, -1: as they are */
    const char *const *select; /* globs on tensor names, NULL-terminated; NULL: all */
    enum dcp_only only;
    enum dcp_weights weights;
    struct dcp_rename_rules *rename; /* borrowed until free; NULL: names stay */
    enum dcp_codec codec;
    int parity;            /* see dcp_save_options; native targets only */
    uint64_t memory_bytes; /* buffers in all; 0: 256 MiB */
    int threads;           /* 0: 2 */
    bool no_verify;        /* do not check digests and fingerprints */
    bool force;            /* replace the target, after success */
    bool lossy;            /* leave out what the target cannot hold */
    /* Blocks of the file system that lie alike in source and target are shared, which
     * takes no space, in place of being written; they are read and proved all the same.
     * Not with a codec, nor where source or target is an archive. */
    bool reflink;
    /* Objects that name classes which are not known safe (<dcp/globals.h>) are refused,
     * or left out when lossy or when only the model is wanted; those that name nothing
     * worse than unknown classes that match a glob, NULL-terminated, are kept. */
    const char *const *trust;
    bool keep_unsafe; /* and so are all of them */
    struct dcp_target_options target;
    /* One reshard on many machines, which share the folder of the target: n_parts
     * processes with equal options make part 1 to n_parts of it, at any time and in any
     * order, and then one with `finish`, for which n_parts may be 0, proves the whole and
     * publishes it. Zero: all of it here. A target is a folder of files then. */
    int part, n_parts;
    bool finish;
    struct dcp_progress progress;
    const struct dcp_log *log; /* what could not be removed is a warning; NULL: silence */
    /* Called when a target that is a folder is written and proved, under its temporary
     * name, and may add files to it. What it returns, if not 0, ends the reshard: nothing
     * is published. NULL: nobody is called. */
    int (*made)(void *self, const struct dcp_source *target, struct dcp_error *err);
    void *self;
};

/* What a reshard would do. */
struct dcp_reshard_plan {
    uint64_t n_tensors;
    uint64_t source_bytes, target_bytes; /* of tensors */
    uint64_t parity_bytes;               /* of parity files, about */
    uint64_t n_cast;                     /* tensors of another dtype than in the source */
    uint64_t n_kept;         /* floats of another dtype than was asked for: a cast would
                              * change what integers beside them stand for */
    uint64_t n_unproved;     /* tensors that no digest of the source's format proves */
    uint64_t n_from_masters; /* weights that are made of masters */
    uint64_t n_masters_left; /* masters that say more than what is taken */
    uint64_t n_left; /* tensors of the source that the target cannot hold (lossy) */
    const char *first_left; /* one of them, borrowed, or NULL */
    uint64_t n_beside; /* tensors that are no weights, where the model was asked for */
    const char *first_beside;        /* one of them, borrowed, or NULL */
    const char *const *objects_left; /* what is no tensor and has no place in the target:
                                      * names, NULL-terminated; borrowed; NULL: nothing */
    const char *assumed; /* what the source does not prove and the target says: of which
                          * weights the moments are, which tensors are trained; borrowed,
                          * or NULL */
    /* Objects that name what is not known safe, or are archives that the target cannot
     * hold: left out, kept; one of them, "config: my.Config", borrowed, or NULL. */
    uint64_t n_objects_left, n_unsafe_kept;
    const char *first_object;
    size_t source_files, target_files;
    uint64_t n_copies; /* contiguous runs, before merging */
    uint64_t n_reads;  /* after merging */
    uint64_t n_writes;
    uint64_t read_bytes;   /* more than source_bytes: some bytes are read twice */
    uint64_t buffer_bytes; /* the largest the buffers get */
    uint64_t free_bytes;   /* at the target */
    /* With `reflink`: bytes of tensors in all files of the target, and those of them that
     * are shared, not written. */
    uint64_t stored_bytes, shared_bytes;
};

/* What falls to one of the processes that make a target in parts. */
struct dcp_reshard_part {
    size_t n_files;      /* that are known before anything is written */
    uint64_t size_bytes; /* of these; with a codec at most */
    bool made;           /* it was done when the reshard was planned */
};

struct dcp_reshard; /* a decided reshard */

/* Decides everything, writes nothing. Caller owns *out. Errors: MISMATCH (the target
 * cannot hold it, nothing selected), EXISTS (the target), USAGE, and those of
 * dcp_location_index; with `reflink` UNSUPPORTED (the file systems cannot). */
DCP_PUBLIC int dcp_reshard_plan(struct dcp_location *location, const char *target_path,
                                const struct dcp_reshard_options *options,
                                struct dcp_reshard **out_reshard, struct dcp_error *err);
DCP_PUBLIC const struct dcp_reshard_plan *dcp_reshard_facts(
    const struct dcp_reshard *reshard);
/* The target's catalog, borrowed until free. */
DCP_PUBLIC const struct dcp_catalog *dcp_reshard_target(
    const struct dcp_reshard *reshard);
/* Number of parts, 0 when the reshard has none, and what falls to part i (from 0),
 * borrowed until free. */
DCP_PUBLIC int dcp_reshard_n_parts(const struct dcp_reshard *reshard);
DCP_PUBLIC const struct dcp_reshard_part *dcp_reshard_part(
    const struct dcp_reshard *reshard, int i);
/* Streams, proves and publishes; of a reshard in parts, what of that falls to this
 * process. A part that fails leaves what other parts made, and can be made again; so can
 * a finish. Where the source is corrupt and has parity for it, what
 * was written is read, and location->corruption says so afterwards. On failure nothing is
 * left at the target's name, or what was there; only when the very last sync fails the
 * target is there, whole. Errors: CORRUPT (source corrupt, or fingerprints of what was
 * written differ), NO_SPACE, IO, BUSY (another process makes the same target, or the same
 * part of it), INTERRUPTED; in parts also NOT_FOUND (parts are not made) and EXISTS. */
DCP_PUBLIC int dcp_reshard_run(struct dcp_reshard *reshard, struct dcp_error *err);
/* After a run: the part was made, or the target published, before, and nothing was
 * written. */
DCP_PUBLIC bool dcp_reshard_was_done(const struct dcp_reshard *reshard);
/* After a run: how many numbers were out of the range of the dtype they were cast to, and
 * became infinite or NaN; *out_tensors of how many tensors, *out_first (borrowed) one of
 * them or NULL. */
DCP_PUBLIC uint64_t dcp_reshard_overflows(const struct dcp_reshard *reshard,
                                          size_t *out_tensors, const char **out_first);
/* After a run: bytes of tensors that the target shares with the source, or the part that
 * was made; fewer than planned where the source was reconstructed. */
DCP_PUBLIC uint64_t dcp_reshard_shared(const struct dcp_reshard *reshard);
DCP_PUBLIC void dcp_reshard_free(struct dcp_reshard *reshard);

/* Reading tensors piece by piece, for programs: elements begin .. end of the flattened
 * tensor to out, with `verify` only what its digests hold of. Bounded memory, any format.
 * Thread rule: one reader, one thread. */
struct dcp_reader;
DCP_PUBLIC int dcp_reader_new(const struct dcp_source *source,
                              const struct dcp_catalog *catalog, uint64_t memory_bytes,
                              bool verify, struct dcp_reader **out_reader,
                              struct dcp_error *err);
DCP_PUBLIC int dcp_reader_read(struct dcp_reader *reader, int tensor, int64_t begin,
                               int64_t end, void *out, struct dcp_error *err);
/* Another reader of the same, for another thread, with memory of its own. */
DCP_PUBLIC int dcp_reader_clone(struct dcp_reader *reader, uint64_t memory_bytes,
                                struct dcp_reader **out_reader, struct dcp_error *err);
/* From now on what is corrupt is read through the parity of the step, where it has one
 * and that gives it; and the first corruption that was read so, code 0: none. Borrowed.
 */
DCP_PUBLIC void dcp_reader_reconstruct(struct dcp_reader *reader);
DCP_PUBLIC const struct dcp_error *dcp_reader_reconstructed(
    const struct dcp_reader *reader);
/* Some formats have one checksum for a whole record, of which a tensor may be a small
 * part. Reads what is left of the records that were touched, by clones too, which are
 * idle: until this was called, only digests of blocks vouch for what dcp_reader_read
 * gave. Errors: CORRUPT, IO. */
DCP_PUBLIC int dcp_reader_check(struct dcp_reader *reader, struct dcp_error *err);
DCP_PUBLIC void dcp_reader_free(struct dcp_reader *reader);

#ifdef __cplusplus
}
#endif
#endif
