#include "batch.h"

#include "trainer/state/compare.h"
#include <inttypes.h>

int batch_keep(struct run *run, const struct dcp_catalog *catalog, int world_size,
               struct dcp_error *err)
{
    struct settings *s = &run->settings;
    int64_t saved = state_saved_batch(catalog), now = s->train_batch_size;
    struct dcp_error why = { 0 };
    if (!s->batch_inferred || saved < 1 || saved == now)
        return DCP_OK;
    int rc = settings_set_batch(s, saved, world_size, &why);
    if (rc == DCP_E_USAGE) {
        dcp_log_write(&run->log, DCP_LOG_WARN,
                      "the batch of %" PRId64 " samples cannot be kept: it is not a "
                      "multiple of train_micro_batch_size_per_gpu %d; it is %" PRId64
                      " now",
                      saved, s->micro_batch, now);
        return DCP_OK;
    }
    if (rc) {
        *err = why;
        return rc;
    }
    run_say(run,
            "train_batch_size %" PRId64
            " is kept from the checkpoint; %d rank%s would have "
            "made it %" PRId64,
            saved, world_size, world_size == 1 ? "" : "s", now);
    return run->shard ? shard_set_micros(run->shard, s->n_micros, err) : DCP_OK;
}
