/* Casts of numbers: those that move gigabytes in loops of their own, the others one by
 * one by way of double. */
#include "base/bytes.h"
#include "base/float_env.h"
#include "base/mem.h"
#include "base/vectors.h"
#include <dcp/tensor.h>
#include <math.h>
#include <string.h>

/* How a small float is laid out: sign, exponent, mantissa, and what its top codes mean.
 */
struct small_float {
    int exp_bits, man_bits, bias;
    enum {
        IEEE,
        FINITE,
        FNUZ
    } kind; /* FINITE: no infinity; FNUZ: also no negative zero */
};

static const struct small_float *small_float_of(enum dcp_dtype dtype)
{
    static const struct small_float f16 = { 5, 10, 15, IEEE }, bf16 = { 8, 7, 127, IEEE },
                                    e5m2 = { 5, 2, 15, IEEE }, e4m3 = { 4, 3, 7, FINITE },
                                    e4m3fnuz = { 4, 3, 8, FNUZ },
                                    e5m2fnuz = { 5, 2, 16, FNUZ };
    switch (dtype) {
    case DCP_F16:
        return &f16;
    case DCP_BF16:
        return &bf16;
    case DCP_F8_E5M2:
        return &e5m2;
    case DCP_F8_E4M3:
        return &e4m3;
    case DCP_F8_E4M3FNUZ:
        return &e4m3fnuz;
    case DCP_F8_E5M2FNUZ:
        return &e5m2fnuz;
    default:
        return NULL;
    }
}

static double small_decode(const struct small_float *f, unsigned bits)
{
    unsigned man = bits & ((1u << f->man_bits) - 1);
    unsigned exp = bits >> f->man_bits & ((1u << f->exp_bits) - 1);
    unsigned sign = bits >> (f->exp_bits + f->man_bits) & 1;
    unsigned top = (1u << f->exp_bits) - 1;
    double v;

    if (f->kind == FNUZ && sign && !exp && !man)
        return (double)NAN;
    if (f->kind == IEEE && exp == top)
        v = man ? (double)NAN : (double)INFINITY;
    else if (f->kind == FINITE && exp == top && man == (1u << f->man_bits) - 1)
        v = (double)NAN;
    else if (exp == 0)
        v = ldexp(man, 1 - f->bias - f->man_bits);
    else
        v = ldexp((1u << f->man_bits) + man, (int)exp - f->bias - f->man_bits);
    return sign ? -v : v;
}

/* Nearest code, ties to even. Overflow gives infinity, or NaN where there is none. */
static unsigned small_encode(const struct small_float *f, double v)
{
    unsigned sign = signbit(v) ? 1u << (f->exp_bits + f->man_bits) : 0;
    unsigned top = (1u << f->exp_bits) - 1, man_mask = (1u << f->man_bits) - 1;
    unsigned nan = f->kind == FNUZ ? 1u << (f->exp_bits + f->man_bits)
                   : f->kind == FINITE
                       ? sign | top << f->man_bits | man_mask
                       : sign | top << f->man_bits | 1u << (f->man_bits - 1);
    unsigned over = f->kind == IEEE ? sign | top << f->man_bits : nan;
    unsigned largest = f->kind == IEEE     ? (top << f->man_bits) - 1
                       : f->kind == FINITE ? (top << f->man_bits | man_mask) - 1
                                           : top << f->man_bits | man_mask;
    double a = fabs(v);
    int e;

    if (isnan(v))
        return nan;
    if (isinf(v))
        return over;
    if (a == 0)
        return f->kind == FNUZ ? 0 : sign;
    frexp(a, &e); /* a = m · 2^e, 0.5 <= m < 1 */
    int exp = e - 1 + f->bias;
    int unit = (exp < 1 ? 1 : exp) - f->bias - f->man_bits; /* exponent of the last bit */
    double q = ldexp(a, -unit);
    if (q > ldexp(1, f->man_bits + 2))
        return over;
    unsigned n = (unsigned)nearbyint(q); /* round to nearest even is the default mode */
    unsigned code =
        exp < 1 ? n : ((unsigned)exp << f->man_bits) + n - (1u << f->man_bits);
    if (exp > (int)top || code > largest)
        return over;
    if (code == 0 && f->kind == FNUZ)
        return 0;
    return sign | code;
}

static double get(enum dcp_dtype dtype, const unsigned char *p)
{
    const struct small_float *small = small_float_of(dtype);

    if (small)
        return small_decode(small,
                            small->exp_bits + small->man_bits == 7 ? p[0] : dcp_le16(p));
    switch (dtype) {
    case DCP_F32: {
        uint32_t bits = dcp_le32(p);
        float v;
        memcpy(&v, &bits, sizeof v);
        return (double)v;
    }
    case DCP_F64: {
        uint64_t bits = dcp_le64(p);
        double v;
        memcpy(&v, &bits, sizeof v);
        return v;
    }
    case DCP_F8_E8M0:
        return p[0] == 255 ? (double)NAN : ldexp(1, p[0] - 127);
    case DCP_BOOL:
        return p[0] != 0;
    case DCP_U8:
        return p[0];
    case DCP_I8:
        return (int8_t)p[0];
    case DCP_U16:
        return dcp_le16(p);
    case DCP_I16:
        return (int16_t)dcp_le16(p);
    case DCP_U32:
        return dcp_le32(p);
    case DCP_I32:
        return (int32_t)dcp_le32(p);
    case DCP_U64:
        return (double)dcp_le64(p);
    case DCP_I64:
        return (double)(int64_t)dcp_le64(p);
    default:
        return (double)NAN;
    }
}

/* A 64-bit whole number as a double rounded to odd: what it is rounded to afterwards is
 * then what the number itself would be rounded to. */
static double get_whole(enum dcp_dtype dtype, const unsigned char *p)
{
    uint64_t n = dcp_le64(p);
    bool negative = dtype == DCP_I64 && n >> 63;
    int drop = 0;

    if (negative)
        n = -n;
    while (n >> drop >= UINT64_C(1) << 53)
        drop++;
    uint64_t top = n >> drop;
    top |= top << drop != n;
    double v = ldexp((double)top, drop);
    return negative ? -v : v;
}

static void put(enum dcp_dtype dtype, unsigned char *p, double v)
{
    const struct small_float *small = small_float_of(dtype);

    if (small) {
        unsigned code = small_encode(small, v);
        if (small->exp_bits + small->man_bits == 7)
            p[0] = (unsigned char)code;
        else
            dcp_put_le16(p, (uint16_t)code);
    } else if (dtype == DCP_F32) {
        float x = (float)v;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        dcp_put_le32(p, bits);
    } else {
        uint64_t bits;
        memcpy(&bits, &v, sizeof bits);
        dcp_put_le64(p, bits);
    }
}

/* The casts that move gigabytes. NaN keeps its sign and stays quiet, as in
 * small_encode. */
DCP_VECTORS static void f32_to_bf16(const unsigned char *in, unsigned char *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, in + 4 * i, sizeof u);
        uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
        uint32_t nan = (u >> 16 & 0x8000) | 0x7fc0;
        uint16_t v = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
        memcpy(out + 2 * i, &v, sizeof v);
    }
}

DCP_VECTORS static void bf16_to_f32(const unsigned char *in, unsigned char *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, in + 2 * i, sizeof v);
        uint32_t u = (uint32_t)v << 16;
        memcpy(out + 4 * i, &u, sizeof u);
    }
}

static uint16_t f16_of(uint32_t u)
{
    uint32_t sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    float small, half = 0.5f;

    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude >= 0x38800000) {
        uint32_t odd = magnitude >> 13 & 1;
        return (uint16_t)(sign | (magnitude + 0xfff + odd - 0x38000000) >> 13);
    }
    /* Subnormal: added to 0.5 its last bit is where it is to be rounded. */
    memcpy(&small, &magnitude, sizeof small);
    small += half;
    memcpy(&magnitude, &small, sizeof magnitude);
    return (uint16_t)(sign | (magnitude - 0x3f000000));
}

DCP_VECTORS static void f32_to_f16(const unsigned char *in, unsigned char *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, in + 4 * i, sizeof u);
        uint16_t v = f16_of(u);
        memcpy(out + 2 * i, &v, sizeof v);
    }
}

/* A half's exponent is moved by a product, which also makes subnormal ones normal. */
static float f16_value(uint16_t half)
{
    uint32_t u = (uint32_t)(half & 0x7fff) << 13;
    float v;

    memcpy(&v, &u, sizeof v);
    v *= 0x1p112f;
    if ((half & 0x7c00) == 0x7c00) {
        u |= 0x7f800000;
        memcpy(&v, &u, sizeof v);
    }
    return half & 0x8000 ? -v : v;
}

DCP_VECTORS static void f16_to_f32(const unsigned char *in, unsigned char *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, in + 2 * i, sizeof half);
        float v = f16_value(half);
        memcpy(out + 4 * i, &v, sizeof v);
    }
}

DCP_VECTORS static void f32_to_f64(const unsigned char *in, unsigned char *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float v;
        memcpy(&v, in + 4 * i, sizeof v);
        double wide = (double)v;
        memcpy(out + 8 * i, &wide, sizeof wide);
    }
}

typedef void cast_fn(const unsigned char *in, unsigned char *out, size_t n);

/* From 16 bits by way of FP32, which holds all of them: what is rounded is rounded once.
 */
static void by_f32(cast_fn *to_f32, cast_fn *of_f32, size_t out_size,
                   const unsigned char *in, unsigned char *out, size_t n)
{
    unsigned char wide[4096];

    for (size_t at = 0, k; at < n; at += k) {
        k = n - at < sizeof wide / 4 ? n - at : sizeof wide / 4;
        to_f32(in + 2 * at, wide, k);
        of_f32(wide, out + out_size * at, k);
    }
}

static void bf16_to_f16(const unsigned char *in, unsigned char *out, size_t n)
{
    by_f32(bf16_to_f32, f32_to_f16, 2, in, out, n);
}

static void f16_to_bf16(const unsigned char *in, unsigned char *out, size_t n)
{
    by_f32(f16_to_f32, f32_to_bf16, 2, in, out, n);
}

static void bf16_to_f64(const unsigned char *in, unsigned char *out, size_t n)
{
    by_f32(bf16_to_f32, f32_to_f64, 8, in, out, n);
}

static void f16_to_f64(const unsigned char *in, unsigned char *out, size_t n)
{
    by_f32(f16_to_f32, f32_to_f64, 8, in, out, n);
}

static const struct {
    enum dcp_dtype from, to;
    cast_fn *cast;
} quick_casts[] = {
    { DCP_F32, DCP_BF16, f32_to_bf16 }, { DCP_F32, DCP_F16, f32_to_f16 },
    { DCP_BF16, DCP_F32, bf16_to_f32 }, { DCP_F16, DCP_F32, f16_to_f32 },
    { DCP_F32, DCP_F64, f32_to_f64 },   { DCP_BF16, DCP_F64, bf16_to_f64 },
    { DCP_F16, DCP_F64, f16_to_f64 },   { DCP_BF16, DCP_F16, bf16_to_f16 },
    { DCP_F16, DCP_BF16, f16_to_bf16 },
};

/* What has 256 values at most: each is cast once. */
static void cast_bytes(enum dcp_dtype from, enum dcp_dtype to, const unsigned char *in,
                       unsigned char *out, size_t n)
{
    size_t size = dcp_dtype_size(to);
    unsigned char table[256 * 8];

    for (int v = 0; v < 256; v++) {
        const unsigned char number[8] = { (unsigned char)v };
        put(to, table + (size_t)v * size, get(from, number));
    }
    for (size_t i = 0; i < n; i++) {
        const unsigned char *value = table + in[i] * size;
        switch (size) { /* so that compilers know it */
        case 1:
            out[i] = *value;
            break;
        case 2:
            memcpy(out + 2 * i, value, 2);
            break;
        case 4:
            memcpy(out + 4 * i, value, 4);
            break;
        default:
            memcpy(out + 8 * i, value, 8);
            break;
        }
    }
}

/* Not in line: what it computes belongs to the environment that it is called in. */
__attribute__((noinline)) static void cast_all(enum dcp_dtype from, enum dcp_dtype to,
                                               const unsigned char *in,
                                               unsigned char *out, size_t n)
{
    size_t from_size = dcp_dtype_size(from), to_size = dcp_dtype_size(to);
    double (*read)(enum dcp_dtype, const unsigned char *) =
        (from == DCP_I64 || from == DCP_U64) && to != DCP_F64 ? get_whole : get;

    for (size_t i = 0; i < DCP_ARRAY_LEN(quick_casts); i++)
        if (quick_casts[i].from == from && quick_casts[i].to == to) {
            quick_casts[i].cast(in, out, n);
            return;
        }
    if (from_size == 1 && n > 256) {
        cast_bytes(from, to, in, out, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        put(to, out + i * to_size, read(from, in + i * from_size));
}

int dcp_cast(enum dcp_dtype from, enum dcp_dtype to, const void *in, void *out, size_t n,
             struct dcp_error *err)
{
    fenv_t before;

    if (from == to) {
        if (n)
            memcpy(out, in, n * dcp_dtype_size(from));
        return DCP_OK;
    }
    if (from == DCP_C64 || from == DCP_C128 || !dcp_dtype_is_float(to) ||
        to == DCP_F8_E8M0)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "there is no cast from %s to %s",
                             dcp_dtype_name(from), dcp_dtype_name(to));
    dcp_float_env_begin(&before);
    cast_all(from, to, in, out, n);
    dcp_float_env_end(&before);
    return DCP_OK;
}

/* Types that hold less than bf16 and fp32. */
static bool is_narrow(enum dcp_dtype dtype)
{
    const struct small_float *small = small_float_of(dtype);

    return small && small->exp_bits < 8;
}

/* Of 16 bits each, with the exponent `exp`. */
DCP_VECTORS static bool halves_are_finite(const unsigned char *data, size_t n,
                                          uint16_t exp)
{
    uint16_t found = 0;

    for (size_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, data + 2 * i, sizeof v);
        found |= (uint16_t)((v & exp) == exp);
    }
    return !found;
}

size_t dcp_cast_overflows(enum dcp_dtype from, enum dcp_dtype to, const void *in,
                          const void *out, size_t n)
{
    size_t from_size = dcp_dtype_size(from), to_size = dcp_dtype_size(to), found = 0;
    const unsigned char *src = in, *dst = out;

    if (from == to || (!is_narrow(to) && from != DCP_F64 && from != DCP_F32))
        return 0;
    if ((to == DCP_F16 && halves_are_finite(dst, n, 0x7c00)) || /* as nearly all are */
        (to == DCP_BF16 && halves_are_finite(dst, n, 0x7f80)))
        return 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(get(to, dst + i * to_size)) &&
            isfinite(get(from, src + i * from_size)))
            found++;
    }
    return found;
}
