/* read: what the parts of the DeepSpeed reader share. Private to
 * this folder.
 *
 * The catalog gets: the weights and buffers (stage 3 stores no trained weights, only
 * their masters); "optimizer.master.<name>", "optimizer.exp_avg.<name>" and so on of
 * every trained parameter; the canonical objects of common/training.h; tensors of the
 * client's state as "client_state.<path>"; and the object "deepspeed", from which a
 * writer makes the same files again:
 *
 *   {"tag", "version", "stage",
 *    "step": torch's name of the steps' dtype, or "int" where they are plain integers,
 *    "steps": [of each group of the optimizer, where they differ],
 *    "state": [of each group: {what the optimizer keeps that is no flat tensor}],
 *    "module": {"state": of the state dict itself, "extra": {key: what is no tensor}},
 *    "model_states": {every other key of the model's file: value, as in pickle/py.h},
 *    "nameless": {"$dict": [[key, value] of the same file where a key is no name]},
 *    "optim_states": {the same of the optimizer's file}} */
#ifndef DCP_FORMATS_DEEPSPEED_READ_H
#define DCP_FORMATS_DEEPSPEED_READ_H

#include "cut.h"
#include "folder.h"
#include "formats/common/optim.h"
#include "formats/torch/torch.h"
#include <jansson.h>

#define DCP_DS_OBJECT "deepspeed"
#define DCP_DS_CLIENT "client_state."
#define DCP_DS_MAX_GROUPS 65536
#define DCP_DS_HYSTERESIS 2 /* of a scaler of the loss that is configured nowhere */

/* A trained parameter: its group, and its place there. */
struct dcp_ds_slot {
    size_t group, param;
};

struct dcp_ds_reader {
    const struct dcp_source *source;
    struct dcp_catalog *catalog;
    struct dcp_arena *arena;
    struct dcp_ds_folder folder;
    int stage, world_size;
    struct dcp_ds_group *groups; /* of each flat array, in the file's order */
    size_t n_groups, n_params;
    json_t *places; /* name of a trained parameter: first of its group + place */
    struct dcp_ds_slot *order; /* all of them, in the order of the module */
    size_t n_order;
    json_t *ties;         /* second name: the name that is stored */
    json_t *config;       /* ds_config; NULL when it is no dict */
    json_t *note;         /* the object "deepspeed" */
    json_t *param_groups; /* of the optimizer, with names; NULL: unknown */
    json_t *loss_scaler;  /* canonical; NULL: unknown */
    json_t *scheduler;    /* the state; NULL: none */
    int64_t global_steps, global_samples, skipped_steps; /* -1: unknown */
    int64_t updates;                /* the most that is said; -1: nothing is */
    struct dcp_optim_counts counts; /* of weights or groups, each */
};
/* Everything but source, catalog and folder is made here. Errors: MEMORY. */
int dcp_ds_reader_init(struct dcp_ds_reader *reader, const struct dcp_source *source,
                       struct dcp_catalog *catalog, struct dcp_error *err);
void dcp_ds_reader_fini(struct dcp_ds_reader *reader);

/* -- values of a pickle ------------------------------------------------------------ */

/* An integer, that of a key; false: there is none. */
bool dcp_ds_int(const struct dcp_pickle_node *node, int64_t *out);
bool dcp_ds_get_int(const struct dcp_pickle_node *dict, const char *key, int64_t *out);
/* The value of a dict's integer key, or NULL. */
const struct dcp_pickle_node *dcp_ds_get_nth(const struct dcp_pickle_node *dict,
                                             int64_t key);
/* True for no node and for None. */
bool dcp_ds_none(const struct dcp_pickle_node *node);
/* A text in the arena without NUL; NULL when it is none, or no memory is left. */
const char *dcp_ds_text(struct dcp_arena *arena, const struct dcp_pickle_node *node);
/* The members of a list or tuple; 0 for anything else. */
size_t dcp_ds_count(const struct dcp_pickle_node *node);
/* The stage of ZeRO: an integer, or DeepSpeed's enumeration of it; -1: it is none. */
int dcp_ds_stage(const struct dcp_pickle_node *node);
/* Whether a node is a tensor of one element without dimensions, and its value. */
int dcp_ds_scalar(struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                  bool *out_found, enum dcp_dtype *out_dtype, double *out,
                  struct dcp_error *err);

/* An open file: its pickle is a dict. */
struct dcp_ds_file {
    struct dcp_torch_file torch;
    int index; /* in the catalog */
};
/* Errors: also CORRUPT (it is no dict). dcp_ds_close also after a failure. */
int dcp_ds_open(struct dcp_ds_reader *reader, const char *name, int rank,
                struct dcp_ds_file *out, struct dcp_error *err);
void dcp_ds_close(struct dcp_ds_file *file);
#define DCP_CLEANUP_DS DCP_CLEANUP(dcp_ds_close)
/* CORRUPT: what is wrong with a file. */
int dcp_ds_corrupt(const struct dcp_ds_file *file, struct dcp_error *err, const char *fmt,
                   ...) DCP_PRINTF(3, 4);
/* Any value as JSON; its tensors go to the catalog, named by DCP_DS_CLIENT and the path.
 * Those of NumPy stay objects. */
int dcp_ds_json(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                const struct dcp_pickle_node *node, const char *path, json_t **out,
                struct dcp_error *err);
/* All names in a dict that are not in the list (NULL-terminated), as JSON. */
int dcp_ds_json_rest(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                     const struct dcp_pickle_node *dict, const char *path,
                     const char *const *known, json_t **out, struct dcp_error *err);
/* The others: keys that are no plain text, as a client's state may have. NULL: none. */
int dcp_ds_json_nameless(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                         const struct dcp_pickle_node *dict, json_t **out,
                         struct dcp_error *err);

/* -- parts ------------------------------------------------------------------------- */

/* A dict of names and shapes as a group, whose `first` is set; nothing is cut yet. */
int dcp_ds_read_group(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                      const struct dcp_pickle_node *dict, struct dcp_ds_group *out,
                      struct dcp_error *err);
/* Reads the model's file: world size, stage (0, 3, or 1 for what the optimizer's files
 * tell), groups, weights, buffers, and what is kept of the rest. */
int dcp_ds_read_model(struct dcp_ds_reader *reader, struct dcp_error *err);
/* Stage 3: the model files of all ranks, which must be of one save, and the parts of
 * frozen weights in them; `file` is that of rank 0. */
int dcp_ds_read_ranks(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                      struct dcp_error *err);
/* Once the optimizer was read. Tags are free, so a folder "global_step20" of another step
 * is no corruption; but when the optimizer is of step 20 too, the model's file is of
 * another save. Errors: CORRUPT. */
int dcp_ds_check_tag(const struct dcp_ds_reader *reader, struct dcp_error *err);
/* Reads every rank's optimizer file. */
int dcp_ds_read_optim(struct dcp_ds_reader *reader, struct dcp_error *err);
/* Takes the updates of a weight or a group; -1: unknown. */
void dcp_ds_see_updates(struct dcp_ds_reader *reader, int64_t updates);
/* Without ZeRO: the optimizer that the model's file holds whole. */
int dcp_ds_read_plain(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                      const struct dcp_pickle_node *optimizer, struct dcp_error *err);
/* What an optimizer's file says beside its tensors: loss scaler, and what is kept. */
int dcp_ds_read_scalars(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                        const struct dcp_pickle_node *optim, struct dcp_error *err);
/* Which group of the optimizer each of our flat arrays belongs to, and its number in the
 * state: at stage 3 a group has an array for each of its sub-groups. */
int dcp_ds_read_ids(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                    const struct dcp_pickle_node *groups, int64_t *out_ids,
                    struct dcp_error *err);
/* The groups of a torch optimizer, with the names of our groups' parameters. */
int dcp_ds_read_param_groups(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                             const struct dcp_pickle_node *groups, struct dcp_error *err);
/* Second names, once everything has its first. */
int dcp_ds_add_ties(struct dcp_ds_reader *reader, struct dcp_error *err);
/* The value of the client's state in which a writer keeps objects that DeepSpeed has no
 * place for: random numbers, the data cursor. */
#define DCP_DS_OTHERS "dcp_objects"
/* Adds the scheduler, and those of the others that the catalog has not. Errors: CORRUPT,
 * MEMORY. */
int dcp_ds_add_others(struct dcp_ds_reader *reader, json_t *others,
                      struct dcp_error *err);
/* The canonical objects, those others, and "deepspeed". */
int dcp_ds_add_objects(struct dcp_ds_reader *reader, struct dcp_error *err);

/* Step, producer. */
int dcp_ds_describe(struct dcp_ds_reader *reader, struct dcp_error *err);

/* Adds a tensor of a trained parameter; `key` is what the optimizer calls it. */
int dcp_ds_add_state(struct dcp_ds_reader *reader, const struct dcp_ds_slot *slot,
                     const char *key, enum dcp_dtype dtype, int *out_index,
                     struct dcp_error *err);
/* "master", "exp_avg" and "exp_avg_sq" have roles of their own. */
enum dcp_role dcp_ds_role_of_key(const char *key);
/* And back: what an optimizer calls a tensor of its state: static, or in its name; and
 * the same in the arena, NULL: out of memory. */
void dcp_ds_key(const struct dcp_tensor *tensor, const char **out, size_t *out_n);
const char *dcp_ds_key_of(struct dcp_arena *arena, const struct dcp_tensor *tensor);

#endif
