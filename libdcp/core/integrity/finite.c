#include "finite.h"

#include "base/vectors.h"
#include <string.h>

bool dcp_finite_matters(const struct dcp_tensor *tensor)
{
    return tensor->role == DCP_ROLE_MODEL || tensor->role == DCP_ROLE_MASTER ||
           tensor->role == DCP_ROLE_EXP_AVG || tensor->role == DCP_ROLE_EXP_AVG_SQ;
}

/* A one in each element of 8, 16, 32 or 64 bits of a word. */
#define ONES_8 UINT64_C(0x0101010101010101)
#define ONES_16 UINT64_C(0x0001000100010001)
#define ONES_32 UINT64_C(0x0000000100000001)
#define ONES_64 UINT64_C(1)

/* Whether some element has all of the bits `full`, which reach up to its sign: adding the
 * lowest of them carries into the sign then, and never further. A word at a time, without
 * a branch, so that it runs as fast as memory. */
DCP_VECTORS static bool any_full(const unsigned char *data, size_t n, uint64_t ones,
                                 uint64_t full)
{
    const uint64_t mask = ones * full, lowest = ones * (full & -full);
    uint64_t carried = 0, word;
    size_t i = 0;

    for (; i + sizeof word <= n; i += sizeof word) {
        memcpy(&word, data + i, sizeof word);
        carried |= (word & mask) + lowest;
    }
    word = 0;
    memcpy(&word, data + i, n - i);
    carried |= (word & mask) + lowest;
    return carried & (mask + lowest);
}

static bool any_equal(const unsigned char *data, size_t n, unsigned char bits)
{
    return memchr(data, bits, n) != NULL;
}

bool dcp_finite_all(enum dcp_dtype dtype, const void *data, size_t n)
{
    switch (dtype) {
    case DCP_F64:
    case DCP_C128:
        return !any_full(data, n, ONES_64, UINT64_C(0x7ff0000000000000));
    case DCP_F32:
    case DCP_C64:
        return !any_full(data, n, ONES_32, 0x7f800000);
    case DCP_BF16:
        return !any_full(data, n, ONES_16, 0x7f80);
    case DCP_F16:
        return !any_full(data, n, ONES_16, 0x7c00);
    case DCP_F8_E5M2:
        return !any_full(data, n, ONES_8, 0x7c);
    case DCP_F8_E4M3:
        return !any_full(data, n, ONES_8, 0x7f);
    case DCP_F8_E8M0:
        return !any_equal(data, n, 0xff);
    case DCP_F8_E4M3FNUZ:
    case DCP_F8_E5M2FNUZ:
        return !any_equal(data, n, 0x80);
    default:
        return true;
    }
}

bool dcp_finite_is_moment(const struct dcp_tensor *tensor)
{
    return tensor->role == DCP_ROLE_EXP_AVG || tensor->role == DCP_ROLE_EXP_AVG_SQ;
}

bool dcp_finite_is_zero(const void *data, size_t n)
{
    const unsigned char *bytes = data;

    return n == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0);
}
