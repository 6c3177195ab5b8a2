/* The writer's files as one archive. They are written in order, by one thread that reads
 * and digests; the archive's threads compress behind it. */
#include "base/mem.h"
#include "base/str.h"
#include "core/run/steps.h"
#include "stream.h"
#include <stdio.h>
#include <string.h>

#define UNNUMBERED "checkpoint"

/* The folder in the archive: unpacked in a run folder, it is a step of that run. */
static void name_folder(char out[64], int64_t step)
{
    if (step >= 0)
        dcp_step_name(out, step);
    else
        snprintf(out, 64, UNNUMBERED);
}

int dcp_stream_pack(const struct dcp_stream_setup *setup, const char *name,
                    uint64_t *out_bytes, struct dcp_error *err)
{
    struct dcp_stream_setup inside = *setup;
    uint64_t waiting = setup->memory_bytes / 4;
    DCP_CLEANUP_FREE char *path = dcp_str_join(setup->prefix, name, "");
    struct dcp_store archive = { 0 };
    char folder[64];

    *out_bytes = 0;
    if (!path)
        return dcp_error_memory(err, "a file name");
    name_folder(folder, setup->target->catalog->step);
    DCP_TRY(dcp_store_bundle_new(&archive, setup->store, path, folder, setup->threads,
                                 waiting, err));
    inside.store = &archive;
    inside.prefix = "";
    inside.threads = 1;
    inside.in_order = true;
    inside.read_back = DCP_READ_BACK_NOT; /* all of the archive is, at its end */
    inside.memory_bytes -= waiting;
    int rc = dcp_stream_run(&inside, err);
    if (!rc)
        rc = dcp_store_bundle_finish(&archive, out_bytes, err);
    dcp_store_free(&archive);
    return rc;
}
