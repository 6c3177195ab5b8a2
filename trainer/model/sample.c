/* sample: softmax, cut, one random number; and the loop around the model. */
#include "sample.h"
#include "base/mem.h"
#include "trainer/ops/rng.h"
#include <math.h>
#include <string.h>

#define STREAM UINT64_C(0x73616d706c65) /* of random numbers; "sample" */

struct candidate {
    double weight; /* its probability, but for a factor */
    int32_t token;
};

struct sampler {
    struct sample_params params;
    int vocab_size;
    struct candidate candidates[]; /* vocab_size */
};

int sampler_new(const struct sample_params *params, int vocab_size,
                struct sampler **out_sampler, struct dcp_error *err)
{
    if (!(params->temperature >= 0) || isinf(params->temperature))
        return dcp_error_set(err, DCP_E_USAGE,
                             "the temperature is %g; it must be 0 or more",
                             params->temperature);
    if (params->top_k < 0)
        return dcp_error_set(err, DCP_E_USAGE, "top_k is %d; it must be 0 or more",
                             params->top_k);
    if (!(params->top_p >= 0 && params->top_p <= 1))
        return dcp_error_set(err, DCP_E_USAGE, "top_p is %g; it must be 0 to 1",
                             params->top_p);
    struct sampler *sampler = dcp_mem_calloc(
        1, sizeof *sampler + (size_t)vocab_size * sizeof sampler->candidates[0]);
    if (!sampler)
        return dcp_error_memory(err, "the choice of a token");
    sampler->params = *params;
    sampler->vocab_size = vocab_size;
    *out_sampler = sampler;
    return DCP_OK;
}

void sampler_free(struct sampler *sampler)
{
    free(sampler);
}

static int by_weight(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

/* Sorts, and gives how many candidates are kept. */
static int cut(struct sampler *s)
{
    const struct sample_params *p = &s->params;
    int n = s->vocab_size;
    bool by_k = p->top_k > 0 && p->top_k<n, by_p = p->top_p> 0 && p->top_p < 1;
    if (!by_k && !by_p)
        return n;
    qsort(s->candidates, (size_t)n, sizeof s->candidates[0], by_weight);
    n = by_k ? p->top_k : n;
    if (!by_p)
        return n;
    double total = 0, sum = 0;
    for (int i = 0; i < n; i++)
        total += s->candidates[i].weight;
    for (int i = 0; i < n; i++) {
        sum += s->candidates[i].weight;
        if (sum >= p->top_p * total)
            return i + 1;
    }
    return n;
}

int sampler_pick(struct sampler *s, const float *logits, uint64_t draw,
                 int32_t *out_token, struct dcp_error *err)
{
    int32_t best = 0;
    for (int32_t i = 0; i < s->vocab_size; i++) {
        if (!(logits[i] < INFINITY))
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "the model gives token %d the logit %g: its weights are "
                                 "corrupt, or training diverged",
                                 i, (double)logits[i]);
        if (logits[i] > logits[best])
            best = i;
    }
    *out_token = best;
    if (s->params.temperature == 0)
        return DCP_OK;

    double max = (double)logits[best];
    for (int32_t i = 0; i < s->vocab_size; i++)
        s->candidates[i] =
            (struct candidate){ exp(((double)logits[i] - max) / s->params.temperature),
                                i };
    s->candidates[best].weight = 1; /* also where all are minus infinity */
    int n = cut(s);
    double total = 0, sum = 0;
    for (int i = 0; i < n; i++)
        total += s->candidates[i].weight;
    double goal = total * rng_uniform(s->params.seed, STREAM, draw);
    for (int i = 0; i < n; i++) {
        sum += s->candidates[i].weight;
        if (sum > goal) {
            *out_token = s->candidates[i].token;
            return DCP_OK;
        }
    }
    return DCP_OK; /* rounding at the very end: the largest */
}

/* The text so far, and what the model says of it. */
struct text {
    int32_t *tokens;
    float *logits;
    int n;
};

/* Chooses the next token. kept: the model holds the keys and values of all tokens but
 * the last. */
static int extend(struct text *text, bool kept, struct model *model,
                  const struct model_hooks *hooks, struct sampler *sampler,
                  struct dcp_error *err)
{
    int32_t *end = text->tokens + text->n;
    int rc = kept ? model_logits_next(model, hooks, end[-1], text->logits, err)
                  : model_logits(model, hooks, text->tokens, text->n, text->logits, err);
    if (!rc)
        rc = sampler_pick(sampler, text->logits, (uint64_t)text->n, end, err);
    text->n += !rc;
    return rc;
}

int sample_generate(struct model *model, const struct model_hooks *hooks,
                    const struct sample_params *params, const int32_t *prompt,
                    int n_prompt, int n_new, bool (*each)(void *self, int32_t token),
                    void *self, struct dcp_error *err)
{
    int vocab_size = model_config(model)->vocab_size;
    struct sampler *sampler = NULL;
    int rc = sampler_new(params, vocab_size, &sampler, err);
    if (rc)
        return rc;
    struct text text = { .n = n_prompt };
    text.tokens = dcp_mem_calloc((size_t)n_prompt + (size_t)n_new, sizeof *text.tokens);
    text.logits = dcp_mem_calloc((size_t)vocab_size, sizeof *text.logits);
    if (text.tokens && text.logits)
        memcpy(text.tokens, prompt, (size_t)n_prompt * sizeof *prompt);
    else
        rc = dcp_error_memory(err, "the text to be made");

    bool kept = false;
    for (int i = 0; i < n_new && !rc; i++) {
        rc = extend(&text, kept, model, hooks, sampler, err);
        kept = text.n <= model_seq_len(model);
        if (!rc && each && !each(self, text.tokens[text.n - 1]))
            break;
    }
    free(text.tokens);
    free(text.logits);
    sampler_free(sampler);
    return rc;
}
