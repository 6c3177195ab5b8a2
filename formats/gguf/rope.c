/* rope: the stretched rotation of Llama 3: four numbers in config.json, a factor for
 * each frequency in a GGUF file. */
#include "formats/models/config.h"
#include "gguf.h"
#include <math.h>
#include <string.h>

#define TOLERANCE 1e-4 /* the numbers were computed in 32 bits */

struct scaling {
    double factor, low, high, context; /* the context the model was trained with first */
};

/* Of every published model; a file has only their effect. */
static const struct scaling usual = { 0, 1, 4, 8192 };

static double factor_at(const struct scaling *s, double base, size_t i, size_t n)
{
    double wavelength = 2 * M_PI * pow(base, (double)i / (double)n);

    if (wavelength < s->context / s->high)
        return 1;
    if (wavelength > s->context / s->low)
        return s->factor;
    double smooth = (s->context / wavelength - s->low) / (s->high - s->low);
    return 1 / ((1 - smooth) / s->factor + smooth);
}

int dcp_gguf_rope_factors(const json_t *config, float **out, size_t *out_n,
                          struct dcp_error *err)
{
    const json_t *parameters = json_object_get(config, "rope_parameters");
    const json_t *member =
        parameters ? parameters : json_object_get(config, "rope_scaling");
    const char *type = json_string_value(json_object_get(member, "rope_type"));
    int64_t size, heads, hidden;
    struct scaling s;
    double base;

    *out = NULL;
    *out_n = 0;
    if (!type || strcmp(type, "llama3") != 0)
        return DCP_OK;
    if (!dcp_model_config_real(parameters, "rope_theta", &base) &&
        !dcp_model_config_real(config, "rope_theta", &base))
        base = 10000;
    if (!dcp_model_config_int(config, "head_dim", NULL, &size) &&
        dcp_model_config_int(config, "hidden_size", NULL, &hidden) &&
        dcp_model_config_int(config, "num_attention_heads", NULL, &heads))
        size = hidden / heads;
    if (!dcp_model_config_real(member, "factor", &s.factor) ||
        !dcp_model_config_real(member, "low_freq_factor", &s.low) ||
        !dcp_model_config_real(member, "high_freq_factor", &s.high) ||
        !dcp_model_config_real(member, "original_max_position_embeddings", &s.context) ||
        s.low >= s.high || s.low <= 0 || size < 2 || size > 1 << 16)
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "a GGUF file cannot hold: rope scaling 'llama3' without all "
                             "of its numbers");
    *out_n = (size_t)size / 2;
    *out = dcp_mem_calloc(*out_n, sizeof **out);
    if (!*out)
        return dcp_error_memory(err, "the factors of a rotation");
    for (size_t i = 0; i < *out_n; i++)
        (*out)[i] = (float)factor_at(&s, base, i, *out_n);
    return DCP_OK;
}

int dcp_gguf_rope_scaling(const float *factors, size_t n, double base, json_t **out,
                          struct dcp_error *err)
{
    struct scaling s = usual;

    *out = NULL;
    if (!n || !(base > 1))
        return DCP_OK;
    s.factor = (double)factors[n - 1]; /* of the longest wave */
    for (size_t i = 0; i < n; i++)
        if (!(fabs(factor_at(&s, base, i, n) - (double)factors[i]) <=
              TOLERANCE * s.factor))
            return DCP_OK;
    *out = json_pack("{s:s,s:f,s:f,s:f,s:i}", "rope_type", "llama3", "factor", s.factor,
                     "low_freq_factor", s.low, "high_freq_factor", s.high,
                     "original_max_position_embeddings", (int)s.context);
    return *out ? DCP_OK : dcp_error_memory(err, "a configuration");
}
