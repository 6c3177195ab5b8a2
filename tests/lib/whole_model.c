/* cmocka wants these before it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "trainer/ops/ops.h"
#include "trainer/ops/rng.h"
#include "whole_model.h"
#include <string.h>

static int count(struct whole_model *w, struct dcp_error *err)
{
    if (++w->calls == w->fail_at)
        return dcp_error_set(err, DCP_E_COMM, "hook call %d fails", w->calls);
    return DCP_OK;
}

static int first_of(const struct whole_model *w, int unit)
{
    int i = 0;
    while (w->params[i].unit != unit)
        i++;
    return i;
}

static int acquire(void *self, int unit, const void **out_weights, struct dcp_error *err)
{
    struct whole_model *w = self;
    int rc = count(w, err);
    if (rc)
        return rc;
    w->acquired[unit]++;
    for (int i = first_of(w, unit); i < w->n_params && w->params[i].unit == unit; i++)
        *out_weights++ = w->compute[i];
    return DCP_OK;
}

static void release(void *self, int unit)
{
    struct whole_model *w = self;
    assert_true(w->acquired[unit]-- > 0);
}

static int grad_begin(void *self, int unit, float **out_grads, struct dcp_error *err)
{
    struct whole_model *w = self;
    int rc = count(w, err);
    if (rc)
        return rc;
    assert_int_equal(w->grads_open[unit]++, 0);
    for (int i = first_of(w, unit); i < w->n_params && w->params[i].unit == unit; i++)
        *out_grads++ = w->grads[i];
    return DCP_OK;
}

static int grad_end(void *self, int unit, struct dcp_error *err)
{
    struct whole_model *w = self;
    int rc = count(w, err);
    if (rc)
        return rc;
    assert_int_equal(w->grads_open[unit]--, 1);
    w->grads_done[unit]++;
    return DCP_OK;
}

void whole_model_make(struct whole_model *w, const struct model_config *config,
                      const struct model_options *options, const struct ops *ops)
{
    enum dcp_dtype dtype = options->dtype;
    *w = (struct whole_model){ .dtype = dtype };
    struct dcp_error err = { 0 };
    if (model_make(config, options, ops, &w->model, &err))
        fail_msg("%s", err.message);
    w->params = model_params(w->model, &w->n_params);
    size_t n = (size_t)w->n_params;
    w->weights = dcp_mem_calloc(n, sizeof *w->weights);
    w->grads = dcp_mem_calloc(n, sizeof *w->grads);
    w->compute = dcp_mem_calloc(n, sizeof *w->compute);
    assert_true(w->weights && w->grads && w->compute);
    for (int i = 0; i < w->n_params; i++) {
        size_t elems = (size_t)w->params[i].n_elems;
        w->weights[i] = dcp_mem_calloc(elems, sizeof(float));
        w->grads[i] = dcp_mem_calloc(elems, sizeof(float));
        w->compute[i] =
            dtype == DCP_F32 ? w->weights[i] : dcp_mem_calloc(elems, sizeof(uint16_t));
        assert_true(w->weights[i] && w->grads[i] && w->compute[i]);
        model_init_values(w->model, i, 1, 0, w->params[i].n_elems, w->weights[i]);
    }
    whole_model_sync(w);
    w->hooks = (struct model_hooks){
        .self = w,
        .acquire = acquire,
        .release = release,
        .grad_begin = grad_begin,
        .grad_end = grad_end,
    };
}

void whole_model_init_with(struct whole_model *w, const struct model_config *config,
                           enum dcp_dtype dtype, const struct ops *ops, int batch,
                           int seq_len)
{
    const struct model_options options = { .dtype = dtype,
                                           .batch = batch,
                                           .seq_len = seq_len };
    whole_model_make(w, config, &options, ops);
}

void whole_model_init(struct whole_model *w, const struct model_config *config,
                      enum dcp_dtype dtype, int batch, int seq_len)
{
    whole_model_init_with(w, config, dtype, ops_best(), batch, seq_len);
}

void whole_model_fini(struct whole_model *w)
{
    for (int i = 0; i < w->n_params; i++) {
        if (w->dtype != DCP_F32)
            free(w->compute[i]);
        free(w->weights[i]);
        free(w->grads[i]);
    }
    free(w->weights);
    free(w->grads);
    free(w->compute);
    model_free(w->model);
}

void whole_model_sync(struct whole_model *w)
{
    for (int i = 0; i < w->n_params && w->dtype != DCP_F32; i++) {
        ops_to_16bit(w->dtype, w->weights[i], w->compute[i], w->params[i].n_elems);
        ops_from_16bit(w->dtype, w->compute[i], w->weights[i], w->params[i].n_elems);
    }
}

void whole_model_zero_grads(struct whole_model *w)
{
    for (int i = 0; i < w->n_params; i++)
        memset(w->grads[i], 0, (size_t)w->params[i].n_elems * sizeof(float));
}

void whole_model_shake(struct whole_model *w, uint64_t seed, double std)
{
    for (int i = 0; i < w->n_params; i++)
        for (int64_t j = 0; j < w->params[i].n_elems; j++)
            w->weights[i][j] += (float)(std * rng_normal(seed, (uint64_t)i, (uint64_t)j));
    whole_model_sync(w);
}

int64_t whole_model_elems(const struct whole_model *w)
{
    int64_t sum = 0;
    for (int i = 0; i < w->n_params; i++)
        sum += w->params[i].n_elems;
    return sum;
}
