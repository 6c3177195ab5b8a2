#include "value.h"

#include "base/bytes.h"
#include "cli/doc.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

size_t inspect_value_parts(enum dcp_dtype dtype)
{
    return dtype == DCP_C64 || dtype == DCP_C128 ? 2 : 1;
}

enum dcp_dtype inspect_value_part(enum dcp_dtype dtype)
{
    return dtype == DCP_C64 ? DCP_F32 : dtype == DCP_C128 ? DCP_F64 : dtype;
}

int inspect_value_read(enum dcp_dtype dtype, const void *data, size_t n, double *out,
                       struct dcp_error *err)
{
    return dcp_cast(inspect_value_part(dtype), DCP_F64, data, out,
                    n * inspect_value_parts(dtype), err);
}

/* Integers do not go through a double: it cannot hold 2^53 + 1. */
static bool format_integer(enum dcp_dtype dtype, const void *element, char *out,
                           size_t cap)
{
    const unsigned char *p = element;
    long long v = 0;
    switch (dtype) {
    case DCP_BOOL:
        snprintf(out, cap, "%s", *p ? "True" : "False");
        return true;
    case DCP_U64:
        snprintf(out, cap, "%llu", (unsigned long long)dcp_le64(p));
        return true;
    case DCP_U8:
        v = *p;
        break;
    case DCP_I8:
        v = (int8_t)*p;
        break;
    case DCP_U16:
        v = dcp_le16(p);
        break;
    case DCP_I16:
        v = (int16_t)dcp_le16(p);
        break;
    case DCP_U32:
        v = dcp_le32(p);
        break;
    case DCP_I32:
        v = (int32_t)dcp_le32(p);
        break;
    case DCP_I64:
        v = (int64_t)dcp_le64(p);
        break;
    default:
        return false;
    }
    snprintf(out, cap, "%lld", v);
    return true;
}

/* Whether the text of `digits` digits of v reads back to the same element. */
static bool reads_back(enum dcp_dtype dtype, const void *element, const char *text)
{
    unsigned char back[8];
    double v = strtod(text, NULL);
    return dcp_cast(DCP_F64, dtype, &v, back, 1, NULL) == DCP_OK &&
           memcmp(back, element, dcp_dtype_size(dtype)) == 0;
}

static void format_real(enum dcp_dtype dtype, const void *element, int digits, char *out,
                        size_t cap)
{
    double v = 0;
    if (dcp_cast(dtype, DCP_F64, element, &v, 1, NULL))
        v = NAN;
    if (isnan(v) || isinf(v)) {
        snprintf(out, cap, "%s", isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
        return;
    }
    if (digits > 0) {
        snprintf(out, cap, "%.*g", digits, v);
        return;
    }
    for (digits = 1; digits <= 17; digits++) {
        snprintf(out, cap, "%.*g", digits, v);
        if (reads_back(dtype, element, out))
            return;
    }
}

struct inspect_value inspect_value_format(enum dcp_dtype dtype, const void *element,
                                          int digits)
{
    struct inspect_value out;
    enum dcp_dtype part = inspect_value_part(dtype);
    if (format_integer(dtype, element, out.text, sizeof out.text))
        return out;
    if (part == dtype) {
        format_real(dtype, element, digits, out.text, sizeof out.text);
        return out;
    }
    char re[30], im[30];
    const char *imaginary = (const char *)element + dcp_dtype_size(part);
    format_real(part, element, digits, re, sizeof re);
    format_real(part, imaginary, digits, im, sizeof im);
    snprintf(out.text, sizeof out.text, "%s%s%sj", re, im[0] == '-' ? "" : "+", im);
    return out;
}

json_t *inspect_value_json(enum dcp_dtype dtype, const void *element)
{
    char text[32];
    double v[2] = { 0 };
    if (dtype == DCP_BOOL)
        return json_boolean(*(const unsigned char *)element != 0);
    if (dtype == DCP_U64)
        return dcp_doc_u64(dcp_le64(element));
    if (format_integer(dtype, element, text, sizeof text))
        return json_integer(strtoll(text, NULL, 10));
    if (inspect_value_read(dtype, element, 1, v, NULL))
        return json_null();
    if (inspect_value_parts(dtype) == 2)
        return json_pack("[o, o]", dcp_doc_real(v[0]), dcp_doc_real(v[1]));
    return dcp_doc_real(v[0]);
}

double inspect_value_ulp(enum dcp_dtype dtype, double x)
{
    /* Bits of the significand with the hidden one, and the least exponent of a normal
     * number: IEEE 754, bfloat16, and the OCP 8-bit formats. */
    static const struct {
        int bits, least;
    } kinds[DCP_N_DTYPES] = {
        [DCP_F64] = { 53, -1022 },      [DCP_F32] = { 24, -126 },
        [DCP_BF16] = { 8, -126 },       [DCP_F16] = { 11, -14 },
        [DCP_F8_E5M2] = { 3, -14 },     [DCP_F8_E4M3] = { 4, -6 },
        [DCP_F8_E5M2FNUZ] = { 3, -15 }, [DCP_F8_E4M3FNUZ] = { 4, -7 },
        [DCP_F8_E8M0] = { 1, -127 },
    };
    dtype = inspect_value_part(dtype);
    if (!kinds[dtype].bits || !isfinite(x))
        return 0;
    int exponent = x == 0 ? kinds[dtype].least : ilogb(x);
    if (exponent < kinds[dtype].least)
        exponent = kinds[dtype].least;
    return ldexp(1, exponent - kinds[dtype].bits + 1);
}
