/* Element types: names, and casts against the definition of the formats: every code is
 * decoded exactly, and every rounding gives the nearest code, ties to even. */
#include "lib/acts.h"
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/tensor.h>

/* The small floats: their bits moved to those of a float with the same exponent width to
 * spare, then scaled by the difference of the biases. Exact, also for subnormals. */
static const struct small {
    enum dcp_dtype dtype;
    int bits, man_bits, bias;
    unsigned first_nan; /* of positive codes; larger ones are NaN too */
    bool has_inf, has_minus_zero;
} smalls[] = {
    { DCP_F16, 16, 10, 15, 0x7c01, true, true },
    { DCP_BF16, 16, 7, 127, 0x7f81, true, true },
    { DCP_F8_E5M2, 8, 2, 15, 0x7d, true, true },
    { DCP_F8_E4M3, 8, 3, 7, 0x7f, false, true },
    { DCP_F8_E4M3FNUZ, 8, 3, 8, 0x80, false, false },
    { DCP_F8_E5M2FNUZ, 8, 2, 16, 0x80, false, false },
};
enum { N_SMALLS = sizeof smalls / sizeof smalls[0] };

static double decode(const struct small *s, unsigned code)
{
    unsigned sign = code >> (s->bits - 1), rest = code & ((1u << (s->bits - 1)) - 1);
    uint64_t moved = (uint64_t)rest << (52 - s->man_bits);
    double v;

    if (rest >= s->first_nan || (sign && !rest && !s->has_minus_zero))
        return (double)NAN;
    if (s->has_inf && rest == s->first_nan - 1)
        v = (double)INFINITY;
    else {
        memcpy(&v, &moved, sizeof v); /* 11 bits of exponent: none of these overflow */
        v *= ldexp(1, 1023 - s->bias);
    }
    return sign ? -v : v;
}

static unsigned get_code(const struct small *s, const unsigned char *p)
{
    return s->bits == 8 ? p[0] : (unsigned)(p[0] | p[1] << 8);
}

static void put_code(const struct small *s, unsigned code, unsigned char *p)
{
    p[0] = (unsigned char)code;
    p[1] = (unsigned char)(s->bits == 8 ? 0 : code >> 8);
}

static unsigned cast_to(const struct small *s, enum dcp_dtype from, const void *v)
{
    unsigned char out[2] = { 0 };

    assert_int_equal(dcp_cast(from, s->dtype, v, out, 1, NULL), 0);
    return get_code(s, out);
}

static bool is_nan(const struct small *s, unsigned code)
{
    return isnan(decode(s, code));
}

static void every_code_is_decoded(void **state)
{
    (void)state;
    for (int i = 0; i < N_SMALLS; i++)
        for (unsigned code = 0; code < 1u << smalls[i].bits; code++) {
            unsigned char in[2];
            double wide, want = decode(&smalls[i], code);
            float narrow;
            put_code(&smalls[i], code, in);
            assert_int_equal(dcp_cast(smalls[i].dtype, DCP_F64, in, &wide, 1, NULL), 0);
            assert_int_equal(dcp_cast(smalls[i].dtype, DCP_F32, in, &narrow, 1, NULL), 0);
            if (isnan(want)) {
                assert_true(isnan(wide) && isnan(narrow));
                continue;
            }
            assert_memory_equal(&wide, &want, sizeof wide);
            assert_true((double)narrow == want && !signbit(narrow) == !signbit(want));
        }
}

static void every_code_comes_back(void **state)
{
    (void)state;
    for (int i = 0; i < N_SMALLS; i++)
        for (unsigned code = 0; code < 1u << smalls[i].bits; code++) {
            double wide = decode(&smalls[i], code);
            float narrow = (float)wide;
            unsigned a = cast_to(&smalls[i], DCP_F64, &wide);
            unsigned b = cast_to(&smalls[i], DCP_F32, &narrow);
            if (isnan(wide)) {
                assert_true(is_nan(&smalls[i], a) && is_nan(&smalls[i], b));
            } else {
                assert_int_equal(a, code);
                assert_int_equal(b, code);
            }
        }
}

/* --- rounding --- */

/* The code nearest to a magnitude by looking at all of them; ties to the even one. Half
 * a step above the largest finite value and more there is infinity, or NaN. */
static unsigned nearest(const struct small *s, double v)
{
    unsigned n_finite = s->first_nan - (s->has_inf ? 1 : 0), low = 0, high = n_finite - 1;
    unsigned sign = signbit(v) ? 1u << (s->bits - 1) : 0;
    double a = fabs(v);

    while (low < high) { /* the largest code not above a */
        unsigned mid = (low + high + 1) / 2;
        if (decode(s, mid) <= a)
            low = mid;
        else
            high = mid - 1;
    }
    double below = decode(s, low);
    double above = low + 1 < n_finite
                       ? decode(s, low + 1)
                       : 2 * below - decode(s, low - 1); /* what would be */
    unsigned code =
        a - below > above - a || (a - below == above - a && (low & 1)) ? low + 1 : low;
    if (code == 0 && !s->has_minus_zero)
        sign = 0;
    return code < n_finite ? sign | code : s->has_inf ? sign | n_finite : UINT32_MAX;
}

static void check_rounding(const struct small *s, double v)
{
    unsigned got = cast_to(s, DCP_F64, &v), want = nearest(s, v);

    if (isnan(v) || want == UINT32_MAX)
        assert_true(is_nan(s, got));
    else
        assert_int_equal(got, want);
    float f = (float)v;
    if ((double)f == v)
        assert_int_equal(cast_to(s, DCP_F32, &f), got);
}

/* Around every code and every middle between two. */
static void borders(void **state)
{
    (void)state;
    for (int i = 0; i < N_SMALLS; i++) {
        const struct small *s = &smalls[i];
        for (unsigned code = 0; code + 1 < s->first_nan; code++) {
            double v = decode(s, code), next = decode(s, code + 1);
            if (isinf(next) || isnan(next))
                next = 2 * v - decode(s, code - 1);
            double middle = v + (next - v) / 2;
            const double near[] = {
                v,      nextafter(v, 0),      nextafter(v, DBL_MAX),
                middle, nextafter(middle, 0), nextafter(middle, DBL_MAX)
            };
            for (int k = 0; k < 6; k++) {
                check_rounding(s, near[k]);
                check_rounding(s, -near[k]);
            }
        }
    }
}

static void random_and_special(void **state)
{
    (void)state;
    static const double specials[] = {
        0.0,
        -0.0,
        (double)INFINITY,
        -(double)INFINITY,
        (double)NAN,
        DBL_MAX,
        -DBL_MAX,
        DBL_MIN,
        DBL_TRUE_MIN,
        FLT_MAX,
        FLT_MIN,
        1e-40,
        65504,
        65519.999,
        65520,
        448,
        464,
        464.00001,
        480,
        57344,
        61439.99,
        61440,
        240,
        248,
        1e30,
    };
    uint64_t seed = 41;

    for (int i = 0; i < N_SMALLS; i++) {
        for (size_t k = 0; k < sizeof specials / sizeof specials[0]; k++) {
            double v = specials[k];
            if (isinf(v)) {
                unsigned got = cast_to(&smalls[i], DCP_F64, &v);
                double back = decode(&smalls[i], got);
                assert_true(smalls[i].has_inf ? back == v : isnan(back));
            } else {
                check_rounding(&smalls[i], v);
            }
        }
        for (int k = 0; k < 20000; k++) {
            uint32_t bits = (uint32_t)acts_random(&seed);
            float f;
            memcpy(&f, &bits, sizeof f);
            if (isfinite(f))
                check_rounding(&smalls[i], (double)f);
        }
    }
}

/* The rounding to float is the machine's own. */
static void to_float(void **state)
{
    (void)state;
    uint64_t seed = 42;

    for (int k = 0; k < 100000; k++) {
        uint64_t bits = acts_random(&seed);
        int64_t whole = (int64_t)(bits >> acts_pick(&seed, 64));
        uint64_t natural = (uint64_t)whole;
        double v;
        float got, want;
        memcpy(&v, &bits, sizeof v);
        assert_int_equal(dcp_cast(DCP_F64, DCP_F32, &v, &got, 1, NULL), 0);
        want = (float)v;
        if (isnan(v))
            assert_true(isnan(got));
        else
            assert_memory_equal(&got, &want, sizeof got);
        assert_int_equal(dcp_cast(DCP_I64, DCP_F32, &whole, &got, 1, NULL), 0);
        assert_true(got == (float)whole);
        assert_int_equal(dcp_cast(DCP_U64, DCP_F32, &natural, &got, 1, NULL), 0);
        assert_true(got == (float)natural);
        assert_int_equal(dcp_cast(DCP_I64, DCP_F64, &whole, &v, 1, NULL), 0);
        assert_true(v == (double)whole);
        assert_int_equal(dcp_cast(DCP_U64, DCP_F64, &natural, &v, 1, NULL), 0);
        assert_true(v == (double)natural);
    }
}

/* A whole number that lies just above the middle of two codes, and whose nearest double
 * is that middle, goes up: it is rounded once, not twice. */
static void whole_numbers_are_rounded_once(void **state)
{
    (void)state;
    const int64_t above = ((int64_t)1 << 62) + ((int64_t)1 << (62 - 8)) + 1;
    const uint64_t most = UINT64_MAX;

    assert_int_equal(cast_to(&smalls[1], DCP_I64, &above), ((127 + 62) << 7) + 1);
    int64_t below = -above;
    assert_int_equal(cast_to(&smalls[1], DCP_I64, &below),
                     0x8000 | (((127 + 62) << 7) + 1));
    float f;
    const int64_t float_above = ((int64_t)1 << 62) + ((int64_t)1 << (62 - 24)) + 1;
    assert_int_equal(dcp_cast(DCP_I64, DCP_F32, &float_above, &f, 1, NULL), 0);
    assert_true(f == (float)float_above);
    assert_int_equal(cast_to(&smalls[1], DCP_U64, &most), (127 + 64) << 7);
}

static void small_integers(void **state)
{
    (void)state;
    static const unsigned char bytes[] = { 0, 1, 2, 127, 128, 255 };
    static const double as_u8[] = { 0, 1, 2, 127, 128, 255 };
    static const double as_i8[] = { 0, 1, 2, 127, -128, -1 };
    static const double as_bool[] = { 0, 1, 1, 1, 1, 1 };
    const int16_t i16[] = { -32768, -1 };
    const uint16_t u16[] = { 65535, 1 };
    const int32_t i32[] = { INT32_MIN, INT32_MAX };
    const uint32_t u32[] = { UINT32_MAX, 7 };
    const unsigned char powers[] = { 0, 127, 254, 255 };
    double out[6];

    dcp_cast(DCP_U8, DCP_F64, bytes, out, 6, NULL);
    assert_memory_equal(out, as_u8, sizeof out);
    dcp_cast(DCP_I8, DCP_F64, bytes, out, 6, NULL);
    assert_memory_equal(out, as_i8, sizeof out);
    dcp_cast(DCP_BOOL, DCP_F64, bytes, out, 6, NULL);
    assert_memory_equal(out, as_bool, sizeof out);
    dcp_cast(DCP_I16, DCP_F64, i16, out, 2, NULL);
    assert_true(out[0] == -32768 && out[1] == -1);
    dcp_cast(DCP_U16, DCP_F64, u16, out, 2, NULL);
    assert_true(out[0] == 65535 && out[1] == 1);
    dcp_cast(DCP_I32, DCP_F64, i32, out, 2, NULL);
    assert_true(out[0] == INT32_MIN && out[1] == INT32_MAX);
    dcp_cast(DCP_U32, DCP_F64, u32, out, 2, NULL);
    assert_true(out[0] == UINT32_MAX && out[1] == 7);
    dcp_cast(DCP_F8_E8M0, DCP_F64, powers, out, 4, NULL);
    assert_true(out[0] == ldexp(1, -127) && out[1] == 1 && out[2] == ldexp(1, 127));
    assert_true(isnan(out[3]));
}

enum { MANY = (1 << 16) + 7 };

static bool holds_nan(enum dcp_dtype dtype, const void *number)
{
    double wide;

    dcp_cast(dtype, DCP_F64, number, &wide, 1, NULL);
    return isnan(wide);
}

/* Many at once, in vectors or by tables, are what each of them is by way of a double. A
 * NaN may be another one. */
static void check_many(enum dcp_dtype from, enum dcp_dtype to, const unsigned char *in,
                       unsigned char *out)
{
    size_t from_size = dcp_dtype_size(from), to_size = dcp_dtype_size(to);

    assert_int_equal(dcp_cast(from, to, in, out, MANY, NULL), 0);
    for (size_t k = 0; k < MANY; k++) {
        double wide;
        unsigned char one[8];
        dcp_cast(from, DCP_F64, in + k * from_size, &wide, 1, NULL);
        dcp_cast(DCP_F64, to, &wide, one, 1, NULL);
        if (memcmp(one, out + k * to_size, to_size) != 0 &&
            !(holds_nan(to, one) && holds_nan(to, out + k * to_size)))
            fail_msg("%s to %s, number %zu", dcp_dtype_name(from), dcp_dtype_name(to), k);
    }
}

static void many_at_once(void **state)
{
    (void)state;
    static const enum dcp_dtype kinds[] = { DCP_F32,         DCP_F16,     DCP_BF16,
                                            DCP_F8_E5M2,     DCP_F8_E4M3, DCP_F8_E4M3FNUZ,
                                            DCP_F8_E5M2FNUZ, DCP_F8_E8M0, DCP_BOOL,
                                            DCP_U8,          DCP_I8,      DCP_I16 };
    enum { N_KINDS = sizeof kinds / sizeof *kinds };
    static uint64_t in[MANY], out[MANY];
    uint64_t seed = 43;

    for (int f = 0; f < N_KINDS; f++) {
        size_t size = dcp_dtype_size(kinds[f]);
        for (size_t k = 0; k < MANY; k++) { /* all codes of 16 bits */
            uint64_t code = size > 2 ? acts_random(&seed) : k;
            memcpy((unsigned char *)in + k * size, &code, size);
        }
        for (int t = 0; t < N_KINDS; t++)
            if (kinds[t] != kinds[f] && dcp_dtype_is_float(kinds[t]) &&
                kinds[t] != DCP_F8_E8M0)
                check_many(kinds[f], kinds[t], (unsigned char *)in, (unsigned char *)out);
    }
}

#define FLUSH_TO_ZERO 0x8040u /* and take subnormal numbers for zero: of MXCSR */

static void set_otherwise(void)
{
    fesetround(FE_UPWARD);
#ifdef __x86_64__
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | FLUSH_TO_ZERO);
#endif
}

static bool is_set_otherwise(void)
{
#ifdef __x86_64__
    if ((__builtin_ia32_stmxcsr() & FLUSH_TO_ZERO) != FLUSH_TO_ZERO)
        return false;
#endif
    return fegetround() == FE_UPWARD;
}

/* PyTorch's set_flush_denormal sets it for the thread, and those that it starts. */
static void whatever_a_program_has_set(void **state)
{
    (void)state;
    static const struct {
        enum dcp_dtype from, to;
    } casts[] = { { DCP_F16, DCP_F32 }, { DCP_F16, DCP_BF16 }, { DCP_F16, DCP_F64 },
                  { DCP_F64, DCP_F32 }, { DCP_F64, DCP_F16 },  { DCP_F64, DCP_F8_E4M3 },
                  { DCP_F32, DCP_F16 }, { DCP_F32, DCP_F64 },  { DCP_F8_E5M2, DCP_F16 } };
    enum { N = 300 };
    double in[N], wanted[N], out[N];
    fenv_t before;

    for (size_t c = 0; c < sizeof casts / sizeof *casts; c++) {
        size_t from_size = dcp_dtype_size(casts[c].from);
        for (int k = 0; k < N; k++) {
            double number = ldexp(1 + k * 0x1p-12, k % 160 - 150);
            uint64_t code = (uint64_t)k + 1; /* the least there are */
            if (casts[c].from == DCP_F64 && k % 2)
                memcpy(&code, &number, sizeof code);
            memcpy((unsigned char *)in + (size_t)k * from_size, &code, from_size);
        }
        memset(wanted, 0, sizeof wanted);
        memset(out, 0, sizeof out);
        dcp_cast(casts[c].from, casts[c].to, in, wanted, N, NULL);
        fegetenv(&before);
        set_otherwise();
        dcp_cast(casts[c].from, casts[c].to, in, out, N, NULL);
        bool kept = is_set_otherwise();
        fesetenv(&before);
        assert_true(kept);
        if (memcmp(out, wanted, sizeof out) != 0)
            fail_msg("%s to %s", dcp_dtype_name(casts[c].from),
                     dcp_dtype_name(casts[c].to));
    }
}

/* The quick way to fp16 gives what the careful one gives, which takes doubles. */
static void quick_halves(void **state)
{
    (void)state;
    uint64_t seed = 44;

    for (int k = 0; k < 3000000; k++) {
        uint32_t bits = (uint32_t)acts_random(&seed);
        if (k % 2) /* near what fp16 has: halves of its last bit, and neighbours */
            bits = (bits & 0x80000000) | ((0x33000000 + (bits & 0x14ffffff)) & ~0xfffu) |
                   (bits % 3 == 0 ? 0x1000 : bits % 3);
        float value;
        memcpy(&value, &bits, sizeof value);
        double wide = value;
        uint16_t quick, careful;
        dcp_cast(DCP_F32, DCP_F16, &value, &quick, 1, NULL);
        dcp_cast(DCP_F64, DCP_F16, &wide, &careful, 1, NULL);
        assert_int_equal(quick, careful);
    }
}

static size_t overflows(enum dcp_dtype to, const float *in, size_t n)
{
    unsigned char out[64];

    assert_int_equal(dcp_cast(DCP_F32, to, in, out, n, NULL), 0);
    return dcp_cast_overflows(DCP_F32, to, in, out, n);
}

static void numbers_out_of_range(void **state)
{
    (void)state;
    const float in[] = { 1, 448, 470, 60000, 65519, 65520, -1e9f, INFINITY, NAN, 3e38f };
    enum { N = sizeof in / sizeof *in };

    assert_int_equal(overflows(DCP_F16, in, N), 3);
    assert_int_equal(overflows(DCP_F8_E4M3, in, N), 6);
    assert_int_equal(overflows(DCP_F8_E5M2, in, N), 4);
    assert_int_equal(overflows(DCP_BF16, in, N), 0);
    assert_int_equal(overflows(DCP_F16, in, 5), 0);
    const float large[] = { 3.3895e38f, 3.3962e38f, -3.4e38f, -INFINITY, NAN };
    assert_int_equal(overflows(DCP_BF16, large, 5), 2);
    assert_int_equal(overflows(DCP_BF16, large, 1), 0);
    float many[100] = { 0 };
    for (int k = 0; k < 100; k++) { /* wherever in a vector it stands */
        unsigned char out[200];
        many[k] = k % 2 ? -70000 : 65520;
        assert_int_equal(dcp_cast(DCP_F32, DCP_F16, many, out, 100, NULL), 0);
        assert_int_equal(dcp_cast_overflows(DCP_F32, DCP_F16, many, out, 100), 1);
        many[k] = 0;
    }
}

static void refusals_and_copies(void **state)
{
    (void)state;
    unsigned char in[64], out[64];
    struct dcp_error err = { 0 };

    for (int k = 0; k < 64; k++)
        in[k] = (unsigned char)(37 * k + 1);
    for (int from = 0; from < DCP_N_DTYPES; from++)
        for (int to = 0; to < DCP_N_DTYPES; to++) {
            int rc = dcp_cast((enum dcp_dtype)from, (enum dcp_dtype)to, in, out, 4, NULL);
            bool ok =
                from == to || (from != DCP_C64 && from != DCP_C128 && to != DCP_F8_E8M0 &&
                               dcp_dtype_is_float((enum dcp_dtype)to));
            assert_int_equal(rc, ok ? 0 : DCP_E_UNSUPPORTED);
            if (from == to)
                assert_memory_equal(in, out, 4 * dcp_dtype_size((enum dcp_dtype)to));
        }
    assert_int_equal(dcp_cast(DCP_C64, DCP_F32, in, out, 1, &err), DCP_E_UNSUPPORTED);
    assert_string_equal(err.message, "there is no cast from C64 to F32");
    assert_int_equal(dcp_cast(DCP_F32, DCP_F16, NULL, NULL, 0, NULL), 0);
    assert_int_equal(dcp_cast(DCP_F32, DCP_F32, NULL, NULL, 0, NULL), 0);
}

static void names(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int dtype;
    } words[] = {
        { "F32", DCP_F32 },
        { "float32", DCP_F32 },
        { "torch.bfloat16", DCP_BF16 },
        { "Bf16", DCP_BF16 },
        { "half", DCP_F16 },
        { "fp16", DCP_F16 },
        { "float", DCP_F32 },
        { "double", DCP_F64 },
        { "fp8_e4m3", DCP_F8_E4M3 },
        { "float8_e4m3fn", DCP_F8_E4M3 },
        { "", -1 },
        { "float33", -1 },
        { "torch.", -1 },
    };

    for (int d = 0; d < DCP_N_DTYPES; d++) {
        assert_int_equal(dcp_dtype_parse(dcp_dtype_name((enum dcp_dtype)d)), d);
        assert_int_equal(dcp_dtype_parse(dcp_dtype_torch_name((enum dcp_dtype)d)), d);
        assert_true(DCP_BLOCK_BYTES % dcp_dtype_size((enum dcp_dtype)d) == 0);
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        assert_int_equal(dcp_dtype_parse(words[i].text), words[i].dtype);
    for (int r = 0; r < DCP_N_ROLES; r++)
        assert_int_equal(dcp_role_parse(dcp_role_name((enum dcp_role)r)), r);
    assert_int_equal(dcp_role_parse("hero"), -1);
    for (int c = 0; c < DCP_N_CODECS; c++)
        assert_int_equal(dcp_codec_parse(dcp_codec_name((enum dcp_codec)c)), c);
    assert_int_equal(dcp_codec_parse("lzma"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_decoded),
        cmocka_unit_test(every_code_comes_back),
        cmocka_unit_test(borders),
        cmocka_unit_test(random_and_special),
        cmocka_unit_test(to_float),
        cmocka_unit_test(whole_numbers_are_rounded_once),
        cmocka_unit_test(small_integers),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(whatever_a_program_has_set),
        cmocka_unit_test(quick_halves),
        cmocka_unit_test(numbers_out_of_range),
        cmocka_unit_test(refusals_and_copies),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
