/* flat: the library for other languages. Opaque handles, pointers with lengths, integers
 * of fixed width, UTF-8 names in one blob; no struct by value, no variable arguments, and
 * nothing that a foreign function interface cannot say.
 *
 * Every struct that crosses begins with `struct_size`, which the caller sets to the size
 * that it knows: the library reads and writes no more, and what the caller does not know
 * is zero. So structs grow at their end and old callers go on working. Zero means
 * default, but where a comment says otherwise; NULL of a text means none.
 *
 * Every function that can fail returns 0 or a DCP_E_… code, and fills `err`, which may be
 * NULL. Thread rule: a checkpoint may be used on many threads; it is closed when none
 * uses it. What a list gives belongs to the checkpoint until it is closed. */
#ifndef DCP_FLAT_H
#define DCP_FLAT_H

#include <dcp/error.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What failed: see struct dcp_error. */
struct dcp_flat_error {
    size_t struct_size;
    int32_t code, exit_status, sys_errno, rank;
    char name[16]; /* of the code: "CORRUPT" */
    char file[256], tensor[160], message[640], hint[240];
};

/* Long work tells how far it is, and can be stopped: it then ends with INTERRUPTED and
 * leaves nothing behind. NULL in place of one: neither. */
struct dcp_flat_hooks {
    size_t struct_size;
    /* From one thread at a time, not always the caller's; not 0 stops the work. */
    int32_t (*progress)(void *self, uint64_t done_bytes, uint64_t total_bytes);
    void *self;
    const int32_t *cancel; /* may be set to 1 at any time, from any thread; or NULL */
};

/* A list of texts: text i is the bytes offsets[i] .. offsets[i + 1] - 1 of `blob`, the
 * last of which is a NUL that is not counted. */
struct dcp_flat_texts {
    size_t struct_size;
    const char *blob;
    const uint64_t *offsets; /* n + 1 */
    uint64_t n;
};

/* -- words ------------------------------------------------------------------------- */

struct dcp_flat_dtype {
    size_t struct_size;
    const char *name, *torch_name; /* "BF16", "bfloat16"; static */
    uint64_t size_bytes;
    int32_t is_float;
};
/* The dtype of that number, and the role's name. Errors: NOT_FOUND (behind the last). */
DCP_PUBLIC int32_t dcp_flat_dtype_get(int32_t i, struct dcp_flat_dtype *out);
DCP_PUBLIC int32_t dcp_flat_role_get(int32_t i, const char **out_name);

struct dcp_flat_format {
    size_t struct_size;
    const char *name, *alias, *help, *suffixes; /* static */
    int32_t reads, writes, is_dir, sharded, optim, objects;
};
/* Format i in the order of `dcp-reshard formats`. Errors: NOT_FOUND (behind the last). */
DCP_PUBLIC int32_t dcp_flat_format_get(int32_t i, struct dcp_flat_format *out);

/* XXH3-64 of these bytes, the digest of blocks: for files that others lay out. */
DCP_PUBLIC void dcp_flat_bytes_digest(const void *bytes, uint64_t n, uint64_t *out);

/* -- a checkpoint that is read ----------------------------------------------------- */

struct dcp_flat_checkpoint;

struct dcp_flat_open_options {
    size_t struct_size;
    const char *path;  /* as dcp_location_open takes it */
    int64_t step;      /* of a run folder; -1: the newest complete one */
    const char *base;  /* of the delta that it is: see dcp_store_delta; or NULL */
    int32_t threads;   /* that a read works on; 0: 2 */
    int32_t no_verify; /* what is read is not held against digests */
};
/* Reads headers only. Caller owns *out. Errors: those of dcp_location_open and
 * dcp_location_index. */
DCP_PUBLIC int32_t dcp_flat_checkpoint_open(const struct dcp_flat_open_options *options,
                                            struct dcp_flat_checkpoint **out,
                                            struct dcp_flat_error *err);
DCP_PUBLIC void dcp_flat_checkpoint_close(struct dcp_flat_checkpoint *checkpoint);

struct dcp_flat_info {
    size_t struct_size;
    const char *path, *format, *version, *layout, *producer; /* "" where unknown */
    int64_t step;                                            /* -1: unknown */
    int32_t world_size, dp, tp, pp;
    int32_t diverged,
        passed_over; /* passed_over: a newer step was there and is not whole */
    uint64_t n_tensors, n_files, n_objects, size_bytes;
    /* What is corrupt and was read through parity, so far; "": nothing. */
    char corruption[640];
};
DCP_PUBLIC void dcp_flat_checkpoint_info(struct dcp_flat_checkpoint *checkpoint,
                                         struct dcp_flat_info *out);

/* All tensors, in the order of the checkpoint; an array of n for each fact. */
#define DCP_FLAT_IS_META 1 /* only dtype and shape were saved, or it cannot be read */
#define DCP_FLAT_HAS_FINGERPRINT 2
struct dcp_flat_tensors {
    size_t struct_size;
    uint64_t n;
    struct dcp_flat_texts names, params, tied, quantized; /* "" where it is neither */
    const int32_t *roles, *dtypes, *ndims, *flags;
    const int64_t *shapes;        /* one behind the other, ndims[i] numbers each */
    const uint64_t *fingerprints; /* where the flag says so */
    const uint64_t *n_pieces;
};
DCP_PUBLIC int32_t dcp_flat_tensors_list(struct dcp_flat_checkpoint *checkpoint,
                                         struct dcp_flat_tensors *out,
                                         struct dcp_flat_error *err);

/* The pieces of one tensor. */
struct dcp_flat_piece {
    size_t struct_size;
    int32_t rank;
    int32_t kind;               /* 0: all of the tensor; 1: a box; 2: a flat range */
    int64_t begin, end;         /* of a flat range, in elements */
    int64_t offset[8], size[8]; /* of a box */
    const char *file;
    uint64_t file_offset, stored_bytes;
    const char *codec;
};
/* Piece i of a tensor. Errors: NOT_FOUND (there is none). */
DCP_PUBLIC int32_t dcp_flat_piece_get(struct dcp_flat_checkpoint *checkpoint,
                                      uint64_t tensor, uint64_t i,
                                      struct dcp_flat_piece *out);

struct dcp_flat_object {
    size_t struct_size;
    const char *name;
    int32_t is_json; /* UTF-8 text; else opaque bytes, which nothing here executes */
    const void *data;
    uint64_t size_bytes;
};
/* Object i. Errors: NOT_FOUND (behind the last). */
DCP_PUBLIC int32_t dcp_flat_object_get(struct dcp_flat_checkpoint *checkpoint, uint64_t i,
                                       struct dcp_flat_object *out);

/* Boxes of tensors, and where they go: row-major, dense, in the tensor's dtype. */
struct dcp_flat_boxes {
    size_t struct_size;
    uint64_t n;
    const uint64_t *tensors;
    const int64_t *offsets; /* one behind the other, as many numbers as each tensor has */
    const int64_t *sizes;   /* dimensions; both NULL: all of each */
    void *const *data;
};
/* Reads them all, verified as a load is; what was read of one is of no use after an
 * error. Errors: those of dcp_load, INTERRUPTED. */
DCP_PUBLIC int32_t dcp_flat_boxes_read(struct dcp_flat_checkpoint *checkpoint,
                                       const struct dcp_flat_boxes *boxes,
                                       const struct dcp_flat_hooks *hooks,
                                       struct dcp_flat_error *err);

/* Where the elements of a box lie in a file of this machine, as they are: element i, j…
 * begins `offset` + i * strides[0] + j * strides[1]… bytes behind its beginning. */
struct dcp_flat_mapping {
    size_t struct_size;
    int32_t fd; /* open for reading; caller owns, close */
    uint64_t offset;
    int64_t strides[8];
};
/* For callers that map it in place of reading it. What they see is held against no
 * digest. offset and size: of each dimension; the box is not empty. Errors: UNSUPPORTED
 * (it lies in several pieces, compressed, in an archive, in a delta, is reconstructed…),
 * USAGE, NOT_FOUND, IO, MEMORY. */
DCP_PUBLIC int32_t dcp_flat_box_map(struct dcp_flat_checkpoint *checkpoint,
                                    uint64_t tensor, const int64_t *offset,
                                    const int64_t *size, struct dcp_flat_mapping *out,
                                    struct dcp_flat_error *err);

/* The CRC-64/XZ of a tensor's global row-major bytes: as stored, or, where the format
 * keeps none, of what is read. Errors: those of dcp_flat_boxes_read. */
DCP_PUBLIC int32_t dcp_flat_tensor_fingerprint(struct dcp_flat_checkpoint *checkpoint,
                                               uint64_t tensor,
                                               const struct dcp_flat_hooks *hooks,
                                               uint64_t *out_fingerprint,
                                               struct dcp_flat_error *err);

/* One finding of a verify: see struct dcp_finding. Texts are borrowed for the call. */
struct dcp_flat_finding {
    size_t struct_size;
    int32_t code;
    const char *file, *tensor, *what; /* "" where there is none */
    int64_t begin, end;
    uint64_t offset, size_bytes;
};
struct dcp_flat_verify_options {
    size_t struct_size;
    void (*finding)(void *self, const struct dcp_flat_finding *finding); /* or NULL */
    void *self;
    int32_t threads; /* 0: 2 */
};
struct dcp_flat_verify_result {
    size_t struct_size;
    uint64_t n_findings, size_bytes, n_blocks, n_tensors, n_unproved;
    char lacks[64]; /* see dcp_family_lacks_weight; "": none is known to be missing */
};
/* See dcp_verify. CORRUPT and IO with findings are what it found, not that it failed. */
DCP_PUBLIC int32_t dcp_flat_checkpoint_verify(
    struct dcp_flat_checkpoint *checkpoint, const struct dcp_flat_verify_options *options,
    const struct dcp_flat_hooks *hooks, struct dcp_flat_verify_result *out_result,
    struct dcp_flat_error *err);

/* How two tensors differ. Of other dtypes the values are not compared. */
enum dcp_flat_difference {
    DCP_FLAT_ONLY_A,
    DCP_FLAT_ONLY_B,
    DCP_FLAT_OTHER_SHAPE,
    DCP_FLAT_OTHER_DTYPE,
    DCP_FLAT_OTHER_BITS
};
struct dcp_flat_diff_options {
    size_t struct_size;
    /* Each pair that differs: indices of the tensors, -1 where a side has none, and the
     * first element whose bits differ, or -1. */
    void (*differs)(void *self, int32_t how, int64_t a, int64_t b, int64_t first);
    void *self;
};
struct dcp_flat_diff_result {
    size_t struct_size;
    uint64_t n_same, n_by_fingerprint, n_differ;
};
/* The tensors of two checkpoints, of any formats and worlds, bit by bit: paired by name,
 * else by what they are to training. What has equal fingerprints is not read. Errors:
 * those of dcp_flat_boxes_read. */
DCP_PUBLIC int32_t dcp_flat_checkpoint_diff(struct dcp_flat_checkpoint *a,
                                            struct dcp_flat_checkpoint *b,
                                            const struct dcp_flat_diff_options *options,
                                            const struct dcp_flat_hooks *hooks,
                                            struct dcp_flat_diff_result *out_result,
                                            struct dcp_flat_error *err);

/* -- another checkpoint of one ----------------------------------------------------- */

struct dcp_flat_reshard_options {
    size_t struct_size;
    const char *source, *target;
    int64_t step;            /* of a run folder; -1: the newest complete one */
    int32_t for_export;      /* the weights in one piece: world size 1, and the format by
                              * the target's suffix, else "hf" */
    int32_t world_size;      /* 0: the source's; 1 for an export */
    const char *layout;      /* see struct dcp_reshard_options, as all that follows */
    const char *format;      /* "deepspeed" */
    const char *dtype;       /* "bf16" */
    const char *only;        /* "all", "model", "optim"; NULL: all, model for an export */
    const char *weights;     /* "auto", "model", "master" */
    const char *rename;      /* the text of rules */
    const char *codec;       /* "split" */
    const char *config_json; /* of the model; NULL: the source's */
    const char *spelling, *prefix;
    const char *const *select; /* NULL-terminated */
    const char *const *trust;  /* NULL-terminated */
    uint64_t max_shard_bytes, memory_bytes;
    int32_t parity, threads;
    int32_t no_verify, force, lossy, untie, keep_unsafe, dry_run;
    int32_t reflink;
};
struct dcp_flat_reshard_result {
    size_t struct_size;
    uint64_t n_tensors, source_bytes, target_bytes, read_bytes, n_files;
    uint64_t n_unproved, n_left, n_objects_left, n_overflows;
    uint64_t shared_bytes; /* with reflink; of a dry run what would be */
    int64_t step;          /* that was taken; -1: unknown */
    int32_t passed_over;   /* a newer one was there, and is not whole */
    uint64_t n_beside;     /* tensors that are no weights, where the model is asked for */
    char lacks[64];        /* of the source: see struct dcp_flat_verify_result */
    char assumed[640];     /* what the source does not prove and the target says, a
                            * sentence; "": nothing */
    char objects_left[640]; /* those names for which there is room, a line each */
};
/* Plans, and runs unless dry_run says so. Errors: those of dcp_location_open,
 * dcp_reshard_plan and dcp_reshard_run. */
DCP_PUBLIC int32_t dcp_flat_reshard(const struct dcp_flat_reshard_options *options,
                                    const struct dcp_flat_hooks *hooks,
                                    struct dcp_flat_reshard_result *out_result,
                                    struct dcp_flat_error *err);

struct dcp_flat_repair_options {
    size_t struct_size;
    const char *path; /* of a step, or of a run folder: every step that has parity */
    void (*repaired)(void *self, const char *step, const char *file, uint64_t size_bytes);
    void *self;      /* repaired: each file that was written again; or NULL */
    int32_t threads; /* 0: 2 */
};
struct dcp_flat_repair_result {
    size_t struct_size;
    uint64_t n_steps, n_files, n_units, size_bytes;
};
/* Rebuilds what is lost or corrupt: see dcp_repair, also for the errors. */
DCP_PUBLIC int32_t dcp_flat_repair(const struct dcp_flat_repair_options *options,
                                   const struct dcp_flat_hooks *hooks,
                                   struct dcp_flat_repair_result *out_result,
                                   struct dcp_flat_error *err);

/* -- saves and loads of many ranks -------------------------------------------------- */

/* Ranks that find each other over TCP, for callers that have no process group: see
 * dcp_comm_tcp. One thread at a time uses it, or an act that it was given to. */
struct dcp_flat_group;
struct dcp_flat_group_options {
    size_t struct_size;
    int32_t rank, world_size;
    const char *host;   /* where rank 0 runs; NULL for a single rank */
    int32_t port;       /* rank 0 listens at a free one of the 16 behind it */
    int32_t timeout_ms; /* of the start, and of each call; 0: 60 s */
    const char *job, *secret;
};
/* All ranks call it. Caller owns *out. Errors: those of dcp_comm_tcp. */
DCP_PUBLIC int32_t dcp_flat_group_open(const struct dcp_flat_group_options *options,
                                       struct dcp_flat_group **out,
                                       struct dcp_flat_error *err);
/* Not collective: who still waits for this rank learns that it is gone. */
DCP_PUBLIC void dcp_flat_group_close(struct dcp_flat_group *group);
/* `size_bytes` of every rank to every rank: out has them in rank order. Errors: COMM. */
DCP_PUBLIC int32_t dcp_flat_group_allgather(struct dcp_flat_group *group, const void *in,
                                            uint64_t size_bytes, void *out,
                                            struct dcp_flat_error *err);

/* How ranks talk, for callers that have a process group of their own: kilobytes, on the
 * caller's thread, within the act. Both return 1 when it is done, else 0, which is also
 * what comes of a callback that never ran: ctypes gives it for one that Ctrl-C ended. */
struct dcp_flat_comm {
    size_t struct_size;
    int32_t rank, world_size;
    int32_t timeout_ms; /* handed to each call; 0: 60 s */
    /* `size_bytes` of every rank to every rank: out has them in rank order. */
    int32_t (*allgather)(void *self, const void *in, uint64_t size_bytes, void *out,
                         int32_t timeout_ms);
    /* Root's bytes to every rank. */
    int32_t (*bcast)(void *self, void *data, uint64_t size_bytes, int32_t root,
                     int32_t timeout_ms);
    void *self;
    /* Not NULL: they talk by it, and nothing else here counts. Stays open as long. */
    struct dcp_flat_group *group;
};

/* What this rank holds, or where it wants what is loaded. Every rank lists every tensor
 * in the same order. Memory is row-major and dense, on the host.
 *
 * Of tens of thousands of tensors most are cut alike. So a box (dtype, shape, and what
 * this rank holds of it) is told once, and each tensor has the number of its own. */
struct dcp_flat_state {
    size_t struct_size;
    uint64_t n;
    const char *names; /* n texts one behind the other, each with its NUL */
    uint64_t names_bytes;
    const char *params; /* likewise the weight each belongs to; NULL: their own names */
    uint64_t params_bytes;
    const uint8_t *roles;
    const uint32_t *boxes;
    void *const *data; /* NULL: this rank holds nothing of it */
    uint64_t n_boxes;
    const int32_t *dtypes, *ndims; /* of each box */
    const int64_t *shapes;         /* of whole tensors, ndims[i] numbers for each box, */
    const int64_t *offsets;        /* and of what this rank holds, likewise */
    const int64_t *sizes;
    const char *layout;
    int32_t dp, tp, pp; /* 0: 1 */
    uint64_t n_objects; /* rank 0's are saved */
    const char *const *object_names;
    const int32_t *objects_are_json; /* not 0: UTF-8 text of JSON */
    const void *const *object_data;
    const uint64_t *object_sizes;
};

struct dcp_flat_save_options {
    size_t struct_size;
    const char *path; /* the run folder; made when it is missing */
    int64_t step;
    const char *codec;                                /* "split"; NULL: none */
    int32_t keep, keep_every, keep_optimizer, parity; /* see struct dcp_save_options */
    int32_t verify_after_save, diverged;
    int32_t threads;                                             /* 0: 2 */
    void (*log)(void *self, int32_t level, const char *message); /* warnings; or NULL */
    void *self;
    int32_t delta, in_place;   /* see struct dcp_save_options */
    const char *export_name;   /* of a consolidated file in the step; NULL: none */
    const char *export_format; /* "torch", "safetensors" */
    const char *export_dtype;  /* "bf16"; NULL: as they are */
};
struct dcp_flat_save_result {
    size_t struct_size;
    int64_t step;
    uint64_t fingerprint; /* of the state; of rank 0 alone, as the two below */
    uint64_t size_bytes;
    int32_t diverged, stale;
    double write_s;
    double stall_s;         /* that the caller was held by the start */
    uint64_t written_bytes; /* of the step's files; of rank 0 alone */
};
/* Collective: see dcp_save. 0: the step is complete and durable, on all ranks. Saves in
 * place, whatever the options say. */
DCP_PUBLIC int32_t dcp_flat_save(const struct dcp_flat_save_options *options,
                                 const struct dcp_flat_comm *comm,
                                 const struct dcp_flat_state *state,
                                 struct dcp_flat_save_result *out_result,
                                 struct dcp_flat_error *err);

/* Saves that go on in the background, one after the other, with staging memory that is
 * kept. Each call is collective, made by one thread at a time, and not always the same
 * one: what `comm` calls runs on it, and must not meet calls of another thread. */
struct dcp_flat_saver;
struct dcp_flat_saver_options {
    size_t struct_size;
    const char *path; /* the run folder; made when it is missing */
    int32_t threads;  /* 0: 2 */
    void (*log)(void *self, int32_t level, const char *message); /* warnings; or NULL */
    void *self;
};
/* Caller owns *out. What comm and options point to is used until it is freed. */
DCP_PUBLIC int32_t dcp_flat_saver_new(const struct dcp_flat_saver_options *options,
                                      const struct dcp_flat_comm *comm,
                                      struct dcp_flat_saver **out,
                                      struct dcp_flat_error *err);
/* See dcp_save_start; path, threads and log are the saver's. The state may change when it
 * returns, but for tensors that are saved in place. */
DCP_PUBLIC int32_t dcp_flat_save_start(struct dcp_flat_saver *saver,
                                       const struct dcp_flat_save_options *options,
                                       const struct dcp_flat_state *state,
                                       struct dcp_flat_error *err);
/* See dcp_save_wait. 0: the step is complete and durable, on all ranks. */
DCP_PUBLIC int32_t dcp_flat_save_wait(struct dcp_flat_saver *saver,
                                      struct dcp_flat_save_result *out_result,
                                      struct dcp_flat_error *err);
/* Not collective; a save in flight is abandoned. */
DCP_PUBLIC void dcp_flat_saver_free(struct dcp_flat_saver *saver);

struct dcp_flat_load_options {
    size_t struct_size;
    const char *path;                          /* the run folder */
    int64_t step;                              /* -1: the newest complete one */
    int32_t only_model, allow_cast, no_verify; /* see struct dcp_load_options */
    int32_t threads;                           /* 0: 2 */
    void (*log)(void *self, int32_t level, const char *message);
    void *self;
    int32_t with_optimizer; /* see struct dcp_load_options */
};
struct dcp_flat_load_result {
    size_t struct_size;
    int64_t step;
    int32_t world_size; /* that saved it */
    uint64_t size_bytes, n_tensors, n_unproved;
};
struct dcp_flat_loaded; /* the objects of the step */
/* Collective, at any world size: see dcp_load. Caller owns *out_loaded. */
DCP_PUBLIC int32_t dcp_flat_load(const struct dcp_flat_load_options *options,
                                 const struct dcp_flat_comm *comm,
                                 const struct dcp_flat_state *into,
                                 struct dcp_flat_load_result *out_result,
                                 struct dcp_flat_loaded **out_loaded,
                                 struct dcp_flat_error *err);
/* Collective, once all is loaded, when training goes on from options->step: the steps
 * above it are set aside, see dcp_supersede. Path, threads and log of the options count,
 * too. */
DCP_PUBLIC int32_t dcp_flat_rewind(const struct dcp_flat_load_options *options,
                                   const struct dcp_flat_comm *comm,
                                   struct dcp_flat_error *err);
/* Object i of the step. Errors: NOT_FOUND (behind the last). */
DCP_PUBLIC int32_t dcp_flat_loaded_object(struct dcp_flat_loaded *loaded, uint64_t i,
                                          struct dcp_flat_object *out);
DCP_PUBLIC void dcp_flat_loaded_free(struct dcp_flat_loaded *loaded);

#ifdef __cplusplus
}
#endif
#endif
