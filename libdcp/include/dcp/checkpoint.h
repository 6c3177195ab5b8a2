/* checkpoint: save, find, load, verify, prune. The five headline acts of the library.
 *
 * Collective functions are called by every rank of ctx->comm in the same order; all ranks
 * return the same code (see dcp_agree). Nothing returns early between two collectives. */
#ifndef DCP_CHECKPOINT_H
#define DCP_CHECKPOINT_H

#include <dcp/comm.h>
#include <dcp/device.h>
#include <dcp/format.h>
#include <dcp/log.h>
#include <dcp/store.h>
#include <dcp/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the acts work with: plain data the caller fills; zero means default. */
struct dcp_context {
    struct dcp_comm *comm;           /* NULL: a single rank */
    const struct dcp_store *store;   /* the run folder */
    const struct dcp_device *device; /* NULL: host memory */
    const struct dcp_log *log;       /* NULL: silence */
    int threads;                     /* of the background pool; 0: 2 */
};

/* A piece of a tensor in the caller's memory. Every rank lists every tensor in the same
 * order; one that holds nothing of it gives an empty flat range and no data. Two ranks
 * that give the same region hold replicas: it is written once. */
struct dcp_local_tensor {
    const char *name;  /* unique */
    const char *param; /* the model tensor it belongs to; NULL: name */
    enum dcp_role role;
    enum dcp_dtype dtype;
    int ndim;
    const int64_t *shape; /* of the whole tensor */
    int group;
    struct dcp_region region; /* what this rank holds */
    void *data;               /* that region, row-major, dense; on the context's device */
};

struct dcp_state {
    const struct dcp_local_tensor *locals;
    size_t n_locals;
    const struct dcp_object *objects; /* rank 0's are saved */
    size_t n_objects;
    const char
        *layout; /* name of the sharding behind the regions, for people and for reshard */
    struct dcp_mesh mesh;
};

/* A second file of the step that is made from it before it is published: the 16-bit
 * pytorch_model.bin. Streamed by the coordinator, in constant memory. */
struct dcp_export {
    const char *name;   /* "pytorch_model.bin" */
    const char *format; /* "torch", "safetensors" */
    int dtype;          /* enum dcp_dtype of floating weights, -1: as they are */
};

/* Parity: so many files beside the shards that any as many of them, shards or parity
 * files, can be lost and rebuilt. More than DCP_PARITY_GROUP ranks are several groups. */
#define DCP_PARITY_MAX_ROWS 32
#define DCP_PARITY_GROUP 128

struct dcp_save_options {
    int64_t step;
    enum dcp_codec codec;
    int keep;             /* complete steps to keep after this one is durable; 0: all */
    int keep_every;       /* steps divisible by it are kept for ever; 0: none */
    int keep_optimizer;   /* of so many newest steps the optimizer state stays, of older
                           * ones the weights alone; 0: of all. See dcp_retention */
    double pin_timeout_s; /* so long a reader may keep a step: see dcp_retention */
    int parity;           /* shards of each DCP_PARITY_GROUP that may be lost: 0 to
                           * DCP_PARITY_MAX_ROWS */
    int delta; /* of so many saves one is a full step; those between are stored as deltas
                * on it (<dcp/delta.h>), which needs a store of dcp_store_delta: each rank
                * writes what differs, and nothing of what is the full step's. The first
                * save of a saver is a delta on the newest complete step of the run, or on
                * that one's base. What cannot be a delta is full, and a warning. 0, 1:
                * all are full. Not with parity or a codec */
    bool verify_after_save; /* read back from the disk, the page cache dropped; else from
                             * wherever it comes. Then only the step is published. From
                             * staging, and without codec or parity, all goes past the
                             * cache where the file system can */
    bool no_read_back; /* nothing is read back: what the kernel was given is believed */
    const struct dcp_export *consolidated; /* NULL: none */
    bool diverged; /* the caller knows that the state is of no use: its loss is not
                    * finite. That weights are not is found here */
    bool idle; /* the caller knows that nothing was learned since the save before: that
                * the state is the same is no warning */
    bool in_place; /* the caller leaves the state as it is until dcp_save_wait returns: it
                    * is written from where it lies, without staging memory, unless the
                    * host cannot read it there */
};

/* Memory, about, that rank 0 works with while such a save is finished in the background,
 * beside the copy of the state: for a delta (the other ranks, too), a consolidated file,
 * steps that keep their weights alone. 0: none of these is asked for. */
DCP_PUBLIC uint64_t dcp_save_work_bytes(const struct dcp_save_options *options);

/* Where a state comes from: what training adds to a step as the object "lineage". It is
 * no part of the state: two steps are the same whatever theirs say. */
#define DCP_LINEAGE "lineage"
#define DCP_LINEAGE_CAP 128
struct dcp_lineage {
    uint64_t run;         /* random, drawn when the run began; 0: unknown */
    int64_t parent;       /* the step that was saved or resumed before; -1: none */
    uint64_t fingerprint; /* of the parent's state, see dcp_state_fingerprint */
};
/* All unknown where there is none, or none that can be read. */
DCP_PUBLIC void dcp_lineage_read(const struct dcp_catalog *catalog,
                                 struct dcp_lineage *out_lineage);
/* The object to save; its text is in `text`. */
DCP_PUBLIC void dcp_lineage_object(const struct dcp_lineage *lineage,
                                   char text[DCP_LINEAGE_CAP],
                                   struct dcp_object *out_object);
/* One number for all tensors with their names: equal at every sharding, world size and
 * codec. 0: unknown, since a tensor has no fingerprint. */
DCP_PUBLIC uint64_t dcp_state_fingerprint(const struct dcp_catalog *catalog);
/* The same of the weights alone, without what an optimizer keeps. */
DCP_PUBLIC uint64_t dcp_weights_fingerprint(const struct dcp_catalog *catalog);
/* Whether it has neither tensors nor settings of an optimizer, so that training does not
 * go on from it. */
DCP_PUBLIC bool dcp_holds_weights_only(const struct dcp_catalog *catalog);

struct dcp_save_result {
    int64_t step;
    uint64_t fingerprint; /* of the state; known to rank 0 alone */
    bool diverged;        /* weights or loss are not finite; known to rank 0 alone */
    bool stale; /* the weights are those of the step that this saver saved before, or
                 * found in the run folder, below this one; or the moments are all zero;
                 * logged as a warning; known to rank 0 alone */
    uint64_t size_bytes;    /* of all shards */
    uint64_t written_bytes; /* of the step's files, as they were written, */
    uint64_t base_bytes;    /* and so many of all shards are the bytes of the step that
                             * this one is a delta on; both known to rank 0 alone */
    double stall_s;         /* time the caller was held in start; in place: write_s */
    double write_s;         /* from start to durable */
};

struct dcp_saver; /* keeps staging memory and the plan from one save to the next */

/* Caller owns. The context is copied; what it points to is borrowed until free. */
DCP_PUBLIC int dcp_saver_new(const struct dcp_context *ctx, struct dcp_saver **out_saver,
                             struct dcp_error *err);
/* Waits for the threads of a save in flight and abandons it (its temporary folder is
 * reaped by the next save); not collective. */
DCP_PUBLIC void dcp_saver_free(struct dcp_saver *saver);

/* Collective. Copies the state to staging memory, digests it on the way, and returns:
 * training may go on and change it, unless it is saved in place. The writing happens on
 * the pool. Errors: USAGE (a
 * save is in flight), NO_SPACE with the numbers, BUSY (another saver has the root),
 * EXISTS (the step), MISMATCH (holes or overlaps between ranks, names the tensor), COMM,
 * IO, MEMORY. */
DCP_PUBLIC int dcp_save_start(struct dcp_saver *saver,
                              const struct dcp_save_options *options,
                              const struct dcp_state *state, struct dcp_error *err);
/* Collective, cheap, does not wait: moves the save in flight on. *out_done says whether
 * it is published, on all ranks alike. A failed save is over; the previous step is
 * complete. With no save in flight *out_done is true. */
DCP_PUBLIC int dcp_save_poll(struct dcp_saver *saver, bool *out_done,
                             struct dcp_save_result *out_result, struct dcp_error *err);
/* Collective. Returns when the step is complete and durable: 0 is that promise. */
DCP_PUBLIC int dcp_save_wait(struct dcp_saver *saver, struct dcp_save_result *out_result,
                             struct dcp_error *err);
/* Collective. A saver, start and wait in one, in place. */
DCP_PUBLIC int dcp_save(const struct dcp_context *ctx,
                        const struct dcp_save_options *options,
                        const struct dcp_state *state, struct dcp_save_result *out_result,
                        struct dcp_error *err);

/* Collective. The tensors of a state with the fingerprints that a step of it would have,
 * the same on every rank; nothing is written. Caller owns *out_catalog. Errors: those of
 * dcp_save_start that are about the state, COMM, MEMORY. */
DCP_PUBLIC int dcp_fingerprint(const struct dcp_context *ctx,
                               const struct dcp_state *state,
                               struct dcp_catalog **out_catalog, struct dcp_error *err);

/* A step of a run folder. */
struct dcp_step {
    int64_t step;
    char name[64];    /* of its folder in the store */
    bool complete;    /* manifest parses, its digest holds, every shard is there with its
                         size */
    bool recoverable; /* it is not, yet its parity gives what is missing: dcp_load takes
                       * it, dcp_repair makes it complete */
    struct dcp_error why; /* when it is incomplete */
    bool diverged;        /* its weights or its loss were not finite when it was saved */
    int world_size;       /* the ranks that saved it */
    uint64_t size_bytes;  /* of its tensors, */
    uint64_t optimizer_bytes;   /* and so many of an optimizer */
    bool weights_only;          /* see dcp_holds_weights_only */
    struct dcp_lineage lineage; /* when it is, with the fingerprint of its own state */
    uint64_t fingerprint;
    uint64_t weights_fingerprint; /* likewise; 0: unknown */
    int chain;     /* deltas one upon the other, this one included; 0: it is none */
    char base[64]; /* of a delta: the step that it is against, or the path of another
                    * folder, cut to its beginning */
};
/* Whether the folder of a store is that of a step, also when its manifest is lost; a run
 * folder has steps. */
DCP_PUBLIC bool dcp_is_step(const struct dcp_store *store);
/* All steps of a run folder, newest first; *out is freed with free. *out_unfinished (may
 * be NULL) counts temporary folders. Not collective. Errors: NOT_FOUND (no folder), IO,
 * MEMORY. */
DCP_PUBLIC int dcp_steps(const struct dcp_store *store, struct dcp_step **out,
                         size_t *out_n, size_t *out_unfinished, struct dcp_error *err);
/* Collective: rank 0 looks and tells. The newest complete step, or the one numbered
 * `step`
 * (-1: newest). Steps that were passed over are logged as warnings. Errors: NOT_FOUND,
 * CORRUPT. */
DCP_PUBLIC int dcp_find(const struct dcp_context *ctx, int64_t step,
                        struct dcp_step *out_step, struct dcp_error *err);

/* Collective: rank 0 acts. For a run that goes on from `step`: the steps above it,
 * complete or not, are renamed to "step-00000060.aside" and are no longer part of the
 * run. They are of a course of training that was given up, or corrupt; left where they
 * are they would be in the way of new steps of their number, and be taken for the newest.
 * Nothing is deleted; each is logged as a warning. Errors: BUSY, IO, COMM, MEMORY. */
DCP_PUBLIC int dcp_supersede(const struct dcp_context *ctx, int64_t step,
                             struct dcp_error *err);

struct dcp_load_options {
    const char
        *name;    /* folder of the step in the store ("" is the root); NULL: dcp_find */
    int64_t step; /* with name NULL; -1: the newest complete one */
    const char *format; /* NULL: native. "auto" probes: any readable format */
    bool only_model;    /* leave tensors of the optimizer in `into` as they are */
    /* An optimizer is loaded, also if it has no tensors: those that the step has of one,
     * and `into` has not, are warned of. */
    bool with_optimizer;
    bool allow_cast; /* a stored floating dtype may differ from the wanted one */
    bool no_verify;  /* do not check block digests and fingerprints */
};

struct dcp_load_result {
    int64_t step;
    int world_size;      /* that saved it */
    uint64_t size_bytes; /* read by this rank */
    double read_s;
    size_t n_tensors;            /* that were filled */
    size_t n_unproved;           /* of them, that no digest of the checkpoint proves */
    struct dcp_catalog *catalog; /* tensors and objects; caller owns, dcp_catalog_free */
};

/* Collective, at any world size. Fills the caller's pieces from a step, each block
 * verified while it is read; where the ranks read parts of blocks, as columns of what was
 * saved in rows, they prove these together by the fingerprint of the tensor. With name
 * NULL and step -1 a step that turns out corrupt is passed over for the one before, and
 * logged, unless its parity reconstructs what is read of it. Errors: NOT_FOUND, CORRUPT
 * (names tensor and range), MISMATCH (shape, dtype, or a tensor that is not stored),
 * COMM, IO, MEMORY.
 */
DCP_PUBLIC int dcp_load(const struct dcp_context *ctx,
                        const struct dcp_load_options *options,
                        const struct dcp_state *into, struct dcp_load_result *out_result,
                        struct dcp_error *err);

/* One finding of dcp_verify. */
struct dcp_finding {
    int code;           /* DCP_E_CORRUPT; DCP_E_NOT_FOUND, DCP_E_IO and DCP_E_UNSUPPORTED
                         * (a link): of a whole file, once, without a tensor */
    const char *file;   /* or NULL */
    const char *tensor; /* or NULL; not escaped */
    int64_t begin, end; /* elements of the flattened tensor, when tensor is given */
    uint64_t offset, size_bytes; /* in the file, when file is given */
    const char *what;            /* one clause: "block digest differs" */
    bool with_file; /* a part of a tensor that is lost with its file, or with the shard
                     * manifest that says where it lies: another finding is about those */
};
struct dcp_verify_options {
    /* What is verified, once, before the findings; borrowed until dcp_verify returns. */
    void (*begin)(void *self, const struct dcp_catalog *catalog);
    void (*finding)(void *self, const struct dcp_finding *finding); /* each finding */
    void *self;
    struct dcp_progress progress;
    int threads; /* 0: 2 */
    /* Only the blocks that lie between these fractions of the bytes of a native step, by
     * their own digests; those of whole pieces, tensors and files need all. `to` 0: all.
     */
    double from, to;
};
struct dcp_verify_result {
    uint64_t n_findings, size_bytes, n_blocks, n_tensors;
    uint64_t n_unproved; /* tensors whose format keeps no digest: read, not proved */
};
/* Reads everything and checks every digest, every fingerprint, holes and overlaps.
 * Continues after an error. 0 when complete, DCP_E_CORRUPT when not, DCP_E_IO when files
 * could not be read and nothing else was found. Not collective. */
DCP_PUBLIC int dcp_verify(const struct dcp_source *source,
                          const struct dcp_verify_options *options,
                          struct dcp_verify_result *out_result, struct dcp_error *err);

/* Why a step stays, or that it goes. */
enum dcp_stay {
    DCP_GOES,
    DCP_STAYS_NEW,     /* one of the newest, or newer than those that count */
    DCP_STAYS_EVERY,   /* keep_every */
    DCP_STAYS_FINITE,  /* one of the two newest before the run diverged */
    DCP_STAYS_MARKED,  /* somebody pinned or tagged it */
    DCP_STAYS_BASE,    /* a delta in the run folder is against it */
    DCP_STAYS_UNKNOWN, /* it could not be judged: a newer version may have written it */
    DCP_STAYS_READ,    /* a reader pins it, or a process is at work on it or its marks */
    DCP_STAYS_STUCK,   /* it was to go, and removing it failed */
    DCP_STAYS_SIGNED,  /* it is signed, and optimizer state is a part of that */
    DCP_STAYS_PARTS,   /* other parts may still come, and such were not asked for */
    DCP_STAYS_SUPERSEDED, /* it was superseded, and such steps were not asked for: see
                             dcp_gc */
};
/* Which steps stay. Zero means default. */
struct dcp_retention {
    int keep;             /* complete steps; 0: all stay */
    int keep_every;       /* steps divisible by it stay for ever; 0: none */
    int keep_optimizer;   /* so many of the newest complete steps keep their optimizer
                           * state; of older ones that stay the weights do; 0: of all. One
                           * that is read, marked, signed, or the base of a delta is left
                           * alone, and so are the newest ones that did not diverge */
    double pin_timeout_s; /* how long a step to be removed waits for its readers; 0: an
                           * hour, below 0: not at all */
    bool dry_run;         /* nothing is removed */
    /* Called for each step, newest first; NULL: nobody is told. */
    void (*judged)(void *self, const struct dcp_step *step, enum dcp_stay stay);
    /* Called for each that keep_optimizer is about, whose optimizer state goes or stays;
     * NULL: nobody is told. */
    void (*thinned)(void *self, const struct dcp_step *step, enum dcp_stay stay);
    void *self;
};
/* Removes the steps that are not to stay, newest first, and what dead savers left. A step
 * without its optimizer state is written anew, proved, and takes the place of the old one
 * in one act: where the file system cannot exchange two names it stays as it is. Never
 * the newest complete step, nor the newest one that did not diverge, and none that a
 * reader pins. Not collective; takes the lease, but for a dry run. */
DCP_PUBLIC int dcp_prune(const struct dcp_store *store,
                         const struct dcp_retention *retention, size_t *out_removed,
                         struct dcp_error *err);

/* What people say of a step. Retention removes none that is pinned or has a tag. */
#define DCP_MAX_TAGS 16
#define DCP_TAG_MAX 63
struct dcp_marks {
    bool pinned;
    int n_tags;
    char tags[DCP_MAX_TAGS][DCP_TAG_MAX + 1];
};
/* Letters, digits and -_.:+=/ */
DCP_PUBLIC bool dcp_tag_ok(const char *tag);
DCP_PUBLIC bool dcp_marks_has(const struct dcp_marks *marks, const char *tag);
/* Of the step of that name; all zero when there are none. Errors: CORRUPT, IO, MEMORY. */
DCP_PUBLIC int dcp_marks_read(const struct dcp_store *store, const char *step,
                              struct dcp_marks *out_marks, struct dcp_error *err);
/* Reads them, lets `change` change them, and replaces them, in one step; needs no lease.
 * Nobody else changes them meanwhile, nor does retention remove the step. What `change`
 * returns, if not 0, ends it. *out_marks: as they are then. Errors: NOT_FOUND (no such
 * step, or it went meanwhile), BUSY (others are at it for half a minute), CORRUPT, IO,
 * MEMORY. */
DCP_PUBLIC int dcp_marks_change(const struct dcp_store *store, const char *step,
                                int (*change)(void *self, struct dcp_marks *marks,
                                              struct dcp_error *err),
                                void *self, struct dcp_marks *out_marks,
                                struct dcp_error *err);

/* What dead processes left in a folder, a run or one that targets are made in. */
enum dcp_leftover {
    DCP_LEFT_NOTHING,
    DCP_LEFT_UNFINISHED, /* ".tmp-…", or what was to replace a small file */
    DCP_LEFT_TRASH,      /* ".trash-…" */
    DCP_LEFT_NOTE,       /* beside a step that is gone */
    DCP_LEFT_SUPERSEDED, /* a superseded step: see dcp_supersede */
    DCP_LEFT_PARTS       /* ".parts-…": of a reshard in parts that was not finished */
};
struct dcp_gc {
    bool dry_run;    /* nothing is removed */
    bool superseded; /* superseded steps go, too; READ and MARKED ones stay */
    bool parts;      /* reshards in parts go, too, that nobody is at work on right now */
    /* Called for each, which stays when a living process is at work on it (READ), or it
     * cannot be removed (STUCK); NULL: nobody is told. */
    void (*found)(void *self, const char *name, enum dcp_leftover kind,
                  uint64_t size_bytes, enum dcp_stay stay);
    void *self;
};
/* Finds and removes them, but for what a living process makes. Goes on after what cannot
 * be removed, and tells the first of it. Not collective. Errors: IO, MEMORY; CORRUPT (the
 * marks of a superseded step). */
DCP_PUBLIC int dcp_gc(const struct dcp_store *store, const struct dcp_gc *gc,
                      size_t *out_removed, struct dcp_error *err);

/* What protects the files of a step; all zero when nothing does. */
struct dcp_parity_facts {
    int rows;            /* so many files can be lost of each group of shards */
    int n_groups;        /* 1, unless there are more than DCP_PARITY_GROUP ranks */
    uint64_t size_bytes; /* of the parity files, but for the copies of the manifest */
};
/* Errors: CORRUPT, UNSUPPORTED (parity of a newer version), MEMORY. */
DCP_PUBLIC int dcp_parity_facts(const struct dcp_catalog *catalog,
                                struct dcp_parity_facts *out_facts,
                                struct dcp_error *err);

/* Rebuilding what is lost or corrupt of a step with parity. */
struct dcp_repair_options {
    int threads; /* 0: 2 */
    struct dcp_progress progress;
    /* Called for each file that was written again, at the end. */
    void (*repaired)(void *self, const char *file, uint64_t size_bytes);
    void *self;
};
struct dcp_repair_result {
    size_t n_files;      /* written again; 0: nothing was wrong */
    uint64_t n_units;    /* of 64 KiB of them that were lost or corrupt */
    uint64_t size_bytes; /* read */
};
/* Takes the lease of the run folder. Every file is proved before the step is touched, and
 * put in its place in one step: afterwards all files are byte for byte what was saved.
 * Not collective. Errors: NOT_FOUND (no parity), CORRUPT (more is lost than there is
 * parity for; nothing was changed), BUSY, NO_SPACE, IO, INTERRUPTED, MEMORY. */
DCP_PUBLIC int dcp_repair(const struct dcp_store *store, const char *step,
                          const struct dcp_repair_options *options,
                          struct dcp_repair_result *out_result, struct dcp_error *err);

#ifdef __cplusplus
}
#endif
#endif
