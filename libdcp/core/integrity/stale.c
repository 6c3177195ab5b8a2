#include "stale.h"
#include "finite.h"
#include <inttypes.h>

static bool has_moments(const struct dcp_catalog *catalog)
{
    for (size_t t = 0; t < catalog->n_tensors; t++)
        if (dcp_finite_is_moment(&catalog->tensors[t]) && catalog->tensors[t].n_elems)
            return true;
    return false;
}

bool dcp_stale_check(struct dcp_last_step *last, const struct dcp_catalog *catalog,
                     bool trains, bool learned, const struct dcp_log *log)
{
    uint64_t weights = dcp_weights_fingerprint(catalog);
    int64_t step = catalog->step;
    bool same = trains && weights && weights == last->weights && step != last->step;
    bool unlearned = trains && !learned && has_moments(catalog);

    if (same)
        dcp_log_write(log, DCP_LOG_WARN,
                      "the weights of step %" PRId64 " are those of step %" PRId64
                      ", bit for bit: was something else trained than saved?",
                      step, last->step);
    if (unlearned)
        dcp_log_write(log, DCP_LOG_WARN,
                      "the optimizer's moments in step %" PRId64
                      " are all zero: was something else trained than saved?",
                      step);
    *last = (struct dcp_last_step){ step, weights };
    return same || unlearned;
}
