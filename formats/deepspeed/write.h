/* write: what the parts of the DeepSpeed writer share. Private to
 * this folder.
 *
 * A writer is made from the target's catalog alone: it is the state of the target. */
#ifndef DCP_FORMATS_DEEPSPEED_WRITE_H
#define DCP_FORMATS_DEEPSPEED_WRITE_H

#include "base/arena.h"
#include "cut.h"
#include "formats/torch/out.h"
#include <dcp/format.h>
#include <jansson.h>

#define DCP_DS_VERSION "0.19.8" /* whose files these are */
#define DCP_DS_LAYOUTS "zero3 zero1 zero2"

/* A kind of tensor that the optimizer keeps for each parameter. */
struct dcp_ds_column {
    const char *key; /* "master", "exp_avg", … */
    enum dcp_dtype dtype;
    int *tensors; /* of each trained parameter; -1: none */
};

struct dcp_ds_writer {
    struct dcp_catalog *catalog;
    struct dcp_arena *arena;
    int stage, world_size;
    const char *tag;
    /* trained parameters */
    json_t *param_groups;        /* of the optimizer, only of what is trained */
    struct dcp_ds_group *groups; /* flat arrays, cut */
    size_t n_groups, n_params;
    json_t *places; /* name: number of a trained parameter, first of its group + place */
    struct dcp_ds_column *columns; /* the masters first */
    size_t n_columns, cap_columns;
    /* the module: tensors of the catalog, in its order; at stage 3 the trained ones are
     * their masters */
    int *module;
    size_t n_module;
    enum dcp_dtype weights_dtype;
    const char *head; /* a second name that only the model's description tells; or NULL */
    int head_of;      /* the tensor that it stands for */
    /* objects; each may be NULL */
    json_t *note, *config, *trainer, *scheduler, *loss_scaler;
    const char
        *scheduler_name; /* of the object; belongs to the catalog; NULL: it is none */
    json_t *others;      /* objects without a place in DeepSpeed's files, by name */
    int64_t updates;
    struct dcp_torch_outs outs; /* files of the target */
};
/* dcp_format.open, finalize and close; the catalog's layout is "zero1", "zero2" or
 * "zero3". Errors: MISMATCH (what DeepSpeed's files cannot say), CORRUPT (objects),
 * MEMORY. */
int dcp_ds_target_open(struct dcp_target *target, struct dcp_error *err);
int dcp_ds_target_finalize(struct dcp_target *target, int rank, struct dcp_error *err);
void dcp_ds_target_close(struct dcp_target *target);
/* Assigns the extents of one file, which is freed; rc: what making it returned. */
int dcp_ds_assign_file(struct dcp_target *target, struct dcp_torch_out *out, int rc,
                       struct dcp_error *err);

/* Sets the objects of the writer, the others and the updates. Errors: MISMATCH (counts
 * that differ), CORRUPT, MEMORY. */
int dcp_ds_take_objects(struct dcp_ds_writer *writer, struct dcp_error *err);

/* Classes that DeepSpeed's pickles hold. */
extern const struct dcp_torch_class dcp_ds_classes[];

/* Whether a tensor of the module is frozen: neither trained nor a buffer. */
bool dcp_ds_is_frozen(const struct dcp_ds_writer *writer, int tensor);

/* Names of files in the folder of the tag; they belong to the catalog; NULL: out of
 * memory. rank -1: the model's file for all. */
const char *dcp_ds_model_name(const struct dcp_ds_writer *writer, int rank);
const char *dcp_ds_optim_name(const struct dcp_ds_writer *writer, int rank);
const char *dcp_ds_path(const struct dcp_ds_writer *writer, const char *name);

/* Adds the file in the target's folder that names the tag. Errors: MEMORY. */
int dcp_ds_pointer(struct dcp_target *target, const char *name, struct dcp_error *err);

/* The files: name, rank and tree are set. Freed with dcp_torch_out_fini also after a
 * failure. Errors: MISMATCH, MEMORY. */
int dcp_ds_model_file(const struct dcp_ds_writer *writer, int rank,
                      struct dcp_torch_out *out, struct dcp_error *err);
int dcp_ds_optim_file(const struct dcp_ds_writer *writer, int rank,
                      struct dcp_torch_out *out, struct dcp_error *err);

/* -- values; NULL when memory ran out, and each takes the values that it is given -- */

json_t *dcp_ds_size(int ndim, const int64_t *shape); /* torch.Size */
json_t *dcp_ds_loss_scaler(const struct dcp_ds_writer *writer);
/* Whether an engine's own scaler of the loss is the right one: of 16-bit training nobody
 * said what it scaled by. Where DeepSpeed asks for one all the same, dcp_ds_loss_scaler
 * is as DeepSpeed's begins. */
bool dcp_ds_scaler_unknown(const struct dcp_ds_writer *writer);
json_t *dcp_ds_stage_value(int stage);
/* A dict, and [key, value] pairs whose keys are no names, which no JSON object can have.
 */
json_t *dcp_ds_add_nameless(json_t *dict, json_t *pairs);
/* The step as the optimizer keeps it: an integer, or a tensor on a storage of its own. */
json_t *dcp_ds_step(const struct dcp_ds_writer *writer, struct dcp_torch_out *out,
                    int param_group);
/* A copy of the groups with `ids` numbers each, that follow one another. */
json_t *dcp_ds_group_values(const struct dcp_ds_writer *writer);
/* The scalars of an optimizer's file that the source had, or what DeepSpeed begins with:
 * "dynamic_loss_scale", "overflow", "clip_grad". */
json_t *dcp_ds_scalar_value(const struct dcp_ds_writer *writer, const char *key);
/* Sets all keys that the source's optimizer file had beside those of DeepSpeed. */
int dcp_ds_set_rest(const struct dcp_ds_writer *writer, struct dcp_torch_out *out,
                    json_t *optim);
/* ds_config for the target's stage. */
json_t *dcp_ds_config_value(const struct dcp_ds_writer *writer);

#endif
