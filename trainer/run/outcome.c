#include "outcome.h"

#include "cli/doc.h"
#include <math.h>

static json_t *step_json(int64_t step)
{
    return step < 0 ? json_null() : json_integer(step);
}

int outcome_print(const struct outcome *outcome, struct dcp_error *err)
{
    const struct run *run = outcome->run;
    if (run->join->rank || !run->main->json)
        return DCP_OK;
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("train");
    int rc = dcp_doc_set(doc, "dir", dcp_doc_text(run->settings.checkpoint_dir));
    rc |= dcp_doc_set(doc, "world", json_integer(run->join->world_size));
    rc |=
        dcp_doc_set(doc, "parameters", dcp_doc_u64((uint64_t)shard_n_elems(run->shard)));
    rc |= dcp_doc_set(doc, "resume_step",
                      step_json(outcome->resumed->resumed ? outcome->resumed->step : -1));
    rc |= dcp_doc_set(doc, "step", json_integer(run->at.step));
    rc |= dcp_doc_set(doc, "saved_step", step_json(outcome->saved_step));
    rc |= dcp_doc_set(doc, "loss",
                      isnan(outcome->loss) ? json_null() : dcp_doc_real(outcome->loss));
    rc |= dcp_doc_set(doc, "seconds", dcp_doc_real(outcome->seconds));
    return dcp_doc_print(run->main->out.file, rc ? NULL : doc, err);
}
