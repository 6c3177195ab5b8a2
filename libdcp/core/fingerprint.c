#include "fingerprint.h"
#include "base/hash.h"
#include "region.h"

uint64_t dcp_fingerprint_part(const struct dcp_tensor *tensor,
                              const struct dcp_region *region, int64_t at, int64_t n,
                              const void *data, uint64_t crc)
{
    uint64_t elem = dcp_dtype_size(tensor->dtype), total = dcp_tensor_bytes(tensor),
             part = 0;
    const unsigned char *bytes = data;
    struct dcp_region_walk walk;
    int64_t flat, run_at, run, left = n;

    dcp_region_walk_init(&walk, tensor, region, at);
    while (dcp_region_walk_next(&walk, left, &flat, &run_at, &run)) {
        uint64_t run_bytes = (uint64_t)run * elem;
        uint64_t after = total - (uint64_t)(flat + run) * elem;
        uint64_t reg = run == n ? dcp_hash_crc64_to_raw(crc, run_bytes)
                                : dcp_hash_crc64_raw(0, bytes, run_bytes);
        part ^= dcp_hash_crc64_shift(reg, after);
        bytes += run_bytes;
        left -= run;
    }
    return part;
}

uint64_t dcp_fingerprint_whole(const struct dcp_tensor *tensor, uint64_t parts)
{
    return dcp_hash_crc64_from_raw(parts, dcp_tensor_bytes(tensor));
}
