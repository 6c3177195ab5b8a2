/* delta_meter: what a delta would take, of arrays in memory. */
#include "core/delta/block.h"
#include "core/delta/table.h"
#include <dcp/delta.h>
#include <stdlib.h>

struct dcp_delta_meter {
    struct dcp_delta_coder *coder;
};

int dcp_delta_meter_new(struct dcp_delta_meter **out, struct dcp_error *err)
{
    struct dcp_delta_meter *meter = calloc(1, sizeof *meter);
    int rc = meter ? dcp_delta_coder_new(&meter->coder, err)
                   : dcp_error_memory(err, "a measurement");

    if (rc)
        free(meter);
    *out = rc ? NULL : meter;
    return rc;
}

int dcp_delta_measure(struct dcp_delta_meter *meter, const void *base, const void *target,
                      size_t n, int width, uint64_t *out_bytes, struct dcp_error *err)
{
    const unsigned char *a = base, *b = target;

    *out_bytes = 0;
    while (n) {
        size_t some = n < DCP_DELTA_BLOCK_BYTES ? n : DCP_DELTA_BLOCK_BYTES;
        struct dcp_delta_coded coded;
        int rc = dcp_delta_encode(meter->coder, a, b, some, width, &coded, err);
        if (rc)
            return rc;
        *out_bytes += coded.size_bytes + DCP_DELTA_ENTRY_BYTES;
        a += some;
        b += some;
        n -= some;
    }
    return DCP_OK;
}

void dcp_delta_meter_free(struct dcp_delta_meter *meter)
{
    if (!meter)
        return;
    dcp_delta_coder_free(meter->coder);
    free(meter);
}
