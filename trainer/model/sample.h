/* sample: choosing tokens by a model's logits, and going on with a text. What is chosen
 * is a pure function of weights, tokens and seed. */
#ifndef TRAINER_MODEL_SAMPLE_H
#define TRAINER_MODEL_SAMPLE_H

#include "model.h"

/* Logits are divided by the temperature, then the top_k largest are kept, then of these
 * the fewest, largest first, whose probabilities reach top_p. Equal ones: the lower id
 * first. */
struct sample_params {
    double temperature; /* 0: always the largest */
    int top_k;          /* 0: all */
    double top_p;       /* 0: all, as 1 */
    uint64_t seed;
};

struct sampler;
/* Errors: USAGE (which number is impossible), MEMORY. Caller owns. */
int sampler_new(const struct sample_params *params, int vocab_size,
                struct sampler **out_sampler, struct dcp_error *err);
void sampler_free(struct sampler *sampler);
/* The choice number `draw` of this seed. Errors: CORRUPT (a logit is no number). */
int sampler_pick(struct sampler *sampler, const float *logits, uint64_t draw,
                 int32_t *out_token, struct dcp_error *err);

/* Chooses n_new tokens to follow the n_prompt >= 1 of the prompt. Each goes to `each` as
 * soon as it is known; when that returns false no more are made. The model sees its last
 * seq_len tokens. Errors: those of sampler_new, sampler_pick and model_logits. */
int sample_generate(struct model *model, const struct model_hooks *hooks,
                    const struct sample_params *params, const int32_t *prompt,
                    int n_prompt, int n_new, bool (*each)(void *self, int32_t token),
                    void *self, struct dcp_error *err);

#endif
