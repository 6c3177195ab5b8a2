/* trainer: what Hugging Face's Trainer, and accelerate's save_state, put into a folder
 * beside the weights:
 *
 *   optimizer.pt, .bin         torch's state dict: numbers, or the names of FSDP
 *   optimizer_0/               the same as a distributed checkpoint, of FSDP
 *   pytorch_model_fsdp_0/      the weights of FSDP, and pytorch_model_fsdp.bin: whole
 *   scheduler.pt, .bin         the state dict of a scheduler
 *   scaler.pt                  that of a GradScaler
 *   rng_state.pth, rng_state_N.pth, random_states_N.pkl      random numbers of a rank
 *   sampler.bin, dl_state_dict.bin, custom_checkpoint_N.pkl  of accelerate, and more of
 *   sampler_1.bin, dl_state_dict_1.bin, scheduler_1.bin      them where there are several
 *   trainer_state.json         {"global_step", "log_history", …}
 *   training_args.bin          the arguments of the Trainer
 *
 * A second model or optimizer, model_1.safetensors, is refused. A run is a folder of such
 * folders, checkpoint-500 or checkpoint_3. Sources: files of transformers 5.23 and
 * accelerate 1.15; transformers/trainer.py, accelerate/checkpointing.py,
 * accelerate/utils/fsdp_utils.py. */
#ifndef DCP_FORMATS_HF_TRAINER_H
#define DCP_FORMATS_HF_TRAINER_H

#include <dcp/format.h>

extern const struct dcp_format dcp_format_hf_trainer;

/* -- weights (trainer_model.c) ---------------------------------------------------- */

/* Whether a folder has an optimizer, and the weights it belongs to. */
bool dcp_hf_trainer_has_optimizer(const struct dcp_source *source);
bool dcp_hf_trainer_has_model(const struct dcp_source *source);
/* Adds the weights. *out_ordered: they are in the order of the model. Errors: those of
 * their format. */
int dcp_hf_trainer_model(const struct dcp_source *source, struct dcp_catalog *catalog,
                         bool *out_ordered, struct dcp_error *err);

/* Adds the tensors, files and objects of a distributed checkpoint in a folder of the
 * source. */
int dcp_hf_trainer_dcp(const struct dcp_source *source, const char *folder,
                       struct dcp_catalog *catalog, struct dcp_error *err);
/* Puts a folder before the names of all files from `first` on. Errors: MEMORY. */
int dcp_hf_trainer_nest(struct dcp_catalog *catalog, size_t first, const char *folder,
                        struct dcp_error *err);

/* -- what lies beside them (trainer_state.c) -------------------------------------- */

/* Adds the optimizer and the rest, once the weights are there. */
int dcp_hf_trainer_state(const struct dcp_source *source, bool ordered,
                         struct dcp_catalog *catalog, struct dcp_error *err);

#endif
