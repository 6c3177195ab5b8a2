#include "act.h"

#include <dcp/delta.h>

static void write_log(void *self, enum dcp_log_level level, const char *message)
{
    const struct dcp_flat_act_options *options = self;

    options->log(options->self, (int32_t)level, message);
}

int dcp_flat_act_begin(struct dcp_flat_act *act,
                       const struct dcp_flat_act_options *options, struct dcp_error *err)
{
    *act = (struct dcp_flat_act){ .options = *options };
    int rc = dcp_flat_talk_make(options->comm, &act->talk, err);
    if (rc) /* there is nobody to agree with */
        return rc;
    rc = options->path
             ? dcp_store_delta_dir(&act->store, options->path, options->create, err)
             : dcp_error_set(err, DCP_E_USAGE, "there is no folder of a run");
    act->log = (struct dcp_log){ write_log, &act->options, DCP_LOG_WARN };
    act->ctx = (struct dcp_context){ .comm = &act->talk.comm,
                                     .store = &act->store,
                                     .log = options->log ? &act->log : NULL,
                                     .threads = dcp_flat_threads(options->threads) };
    return rc;
}

int dcp_flat_act_agree(struct dcp_flat_act *act, int rc, struct dcp_error *err)
{
    return act->ctx.comm ? dcp_agree(act->ctx.comm, rc, err) : rc;
}

void dcp_flat_act_end(struct dcp_flat_act *act)
{
    dcp_store_free(&act->store);
}
