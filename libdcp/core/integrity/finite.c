#include "finite.h"
#include <string.h>

bool dcp_finite_matters(const struct dcp_tensor *tensor)
{
    return tensor->role == DCP_ROLE_MODEL || tensor->role == DCP_ROLE_MASTER ||
           tensor->role == DCP_ROLE_EXP_AVG || tensor->role == DCP_ROLE_EXP_AVG_SQ;
}

/* All elements of one width whose bits `at` are all set are none that count. No
 * branch, so that it runs as fast as memory. */
#define ANY_WITH(type)                                                   \
    static bool any_##type(const unsigned char *data, size_t n, type at) \
    {                                                                    \
        unsigned found = 0;                                              \
        for (size_t i = 0; i < n; i++) {                                 \
            type v;                                                      \
            memcpy(&v, data + i * sizeof v, sizeof v);                   \
            found |= (v & at) == at;                                     \
        }                                                                \
        return found;                                                    \
    }
ANY_WITH(uint8_t)
ANY_WITH(uint16_t)
ANY_WITH(uint32_t)
ANY_WITH(uint64_t)

static bool any_equal(const unsigned char *data, size_t n, unsigned char bits)
{
    return memchr(data, bits, n) != NULL;
}

bool dcp_finite_all(enum dcp_dtype dtype, const void *data, size_t n)
{
    switch (dtype) {
    case DCP_F64:
    case DCP_C128:
        return !any_uint64_t(data, n / 8, UINT64_C(0x7ff0000000000000));
    case DCP_F32:
    case DCP_C64:
        return !any_uint32_t(data, n / 4, 0x7f800000u);
    case DCP_BF16:
        return !any_uint16_t(data, n / 2, 0x7f80u);
    case DCP_F16:
        return !any_uint16_t(data, n / 2, 0x7c00u);
    case DCP_F8_E5M2:
        return !any_uint8_t(data, n, 0x7c);
    case DCP_F8_E4M3:
        return !any_uint8_t(data, n, 0x7f);
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
