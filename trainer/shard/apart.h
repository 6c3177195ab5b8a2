/* apart: state that lies on the host, where the model's kernels do not work; for this
 * folder only. What crosses does so beside the kernels: the gradients of a unit while the
 * next one's are computed, new weights while the optimizer makes more of them, and this
 * rank's weights of a unit while the one before is computed with. Where nothing is apart
 * all of this does nothing, and names what lies where it is.
 *
 * Errors: those of kernels and of the ferry. */
#ifndef TRAINER_SHARD_APART_H
#define TRAINER_SHARD_APART_H

#include "own.h"

/* --- new weights, and masters ---
 *
 * Where the optimizer puts new weights of a run, no longer than shard_window: to where
 * weights lie, or to a room from which `end` takes them there. */
int shard_out_begin(struct shard *s, const struct shard_home *home,
                    const struct shard_run *run, void **out_weights,
                    struct dcp_error *err);
int shard_out_end(struct shard *s, const struct shard_home *home,
                  const struct shard_run *run, const void *weights,
                  struct dcp_error *err);
/* All new weights are where kernels and host look for them. */
int shard_out_settle(struct shard *s, struct dcp_error *err);
/* Masters of such a run from its weights. */
int shard_raise_run(struct shard *s, const struct shard_run *run, struct dcp_error *err);

/* --- gradients for the optimizer ---
 *
 * Those of a run as it takes them. Below stage 2 they are brought to the host first:
 * begun, and waited for. */
const void *shard_optim_grad(const struct shard *s, const struct shard_run *run);
int shard_bring_grads(struct shard *s, const struct shard_run *run, uint64_t *out_call,
                      struct dcp_error *err);
int shard_grads_brought(struct shard *s, uint64_t call, struct dcp_error *err);

/* --- gradients of a unit ---
 *
 * Room of the kernels for gradients or sums that are at home on the host, with what is
 * there if they are added to; NULL: none of the unit are. Closed, they go there. */
int shard_room_open(struct shard *s, int unit, struct shard_room **out,
                    struct dcp_error *err);
int shard_room_close(struct shard *s, struct shard_room *room, struct dcp_error *err);
/* A unit's gradients have ended: sums of the one that will come next are brought. */
int shard_room_ahead(struct shard *s, int unit, struct dcp_error *err);
/* Where a parameter's own item i goes, in a room or elsewhere; `first`: the number of its
 * first one among those that this rank owns of the unit. */
void *shard_room_at(const struct shard *s, const struct shard_room *room, int param,
                    int64_t first, int64_t i);
/* All of them are on the host. */
int shard_rooms_settle(struct shard *s, struct dcp_error *err);
/* n sums that are on the host, as many as a room holds, to the kernels and back. */
int shard_window_up(struct shard *s, const int64_t *sums, int64_t n, int64_t **out,
                    struct dcp_error *err);
int shard_window_down(struct shard *s, int64_t *sums, int64_t n, struct dcp_error *err);

/* --- weights of a unit ---
 *
 * What this rank owns of it, from the host: to the kernels' memory, or to a room where it
 * may be already, and which the caller gives the call of the coll that takes it. */
int shard_fetch(struct shard *s, int unit, void *to, uint64_t *out_up,
                struct dcp_error *err);
int shard_fetch_part(struct shard *s, int unit, struct shard_room **out,
                     struct dcp_error *err);

#endif
