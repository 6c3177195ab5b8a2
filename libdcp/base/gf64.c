#include "gf64.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* x^(8 · 2^k) mod P, each the square of the one before. */
static const uint64_t power_table[64] = {
    0x0080000000000000, 0x0000800000000000, 0x0000000080000000, 0xc96c5795d7870f42,
    0x6d5f4ad7e3c3afa0, 0xd49f7e445077d8ea, 0x040fb02a53c216fa, 0x6bec35957b9ef3a0,
    0xb0e3bb0658964afe, 0x218578c7a2dff638, 0x6dbb920f24dd5cf2, 0x7a140cfcdb4d5eb5,
    0x41b3705ecbc4057b, 0xd46ab656accac1ea, 0x329beda6fc34fb73, 0x51a4fcd4350b9797,
    0x314fa85637efae9d, 0xacf27e9a1518d512, 0xffe2a3388a4d8ce7, 0x48b9697e60cc2e4e,
    0xada73cb78dd62460, 0x3ea5454d8ce5c1bb, 0x5e84e3a6c70feaf1, 0x90fd49b66cbd81d1,
    0xe2943e0c1db254e8, 0xecfa6adeca8834a1, 0xf513e212593ee321, 0xf36ae57331040916,
    0x63fbd333b87b6717, 0xbd60f8e152f50b8b, 0xa5ce4a8299c1567d, 0x0bd445f0cbdb55ee,
    0xfdd6824e20134285, 0xcead8b6ebda2227a, 0xe44b17e4f5d4fb5c, 0x9b29c81ad01ca7c5,
    0x1b4366e40fea4055, 0x27bca1551aae167b, 0xaa57bcd1b39a5690, 0xd7fce83fa1234db9,
    0xcce4986efea3ff8e, 0x3602a4d9e65341f1, 0x722b1da2df516145, 0xecfc3ddd3a08da83,
    0x0fb96dcca83507e6, 0x125f2fe78d70f080, 0x842f50b7651aa516, 0x09bc34188cd9836f,
    0xf43666c84196d909, 0xb56feb30c0df6ccb, 0xaa66e04ce7f30958, 0xb7b1187e9af29547,
    0x113255f8476495de, 0x8fb19f783095d77e, 0xaec4aacc7c82b133, 0xf64e6d09218428cf,
    0x036a72ea5ac258a0, 0x5235ef12eb7aaa6a, 0x2fed7b1685657853, 0x8ef8951d46606fb5,
    0x9d58c1090f034d14, 0x36f6c59a9fdaa97b, 0xbe2d517d98682592, 0x7bcd738fef5729f1,
};

/* a·x mod P. */
static uint64_t times_x(uint64_t a)
{
    return (a >> 1) ^ (DCP_GF64_POLY & (0 - (a & 1)));
}

/* Four bits of b at a time, from its highest powers down (Horner's rule). */
uint64_t dcp_gf64_mul_portable(uint64_t a, uint64_t b)
{
    uint64_t multiple[16] = { 0 }; /* a · the polynomial whose four bits are the index */
    uint64_t overflow[16] = { 0 }; /* what the four bits shifted out come back as */
    multiple[8] = a;
    overflow[8] = times_x(times_x(times_x(times_x(8)))); /* the lowest power of four */
    for (unsigned i = 8; i > 1; i /= 2) {
        multiple[i / 2] = times_x(multiple[i]);
        overflow[i / 2] = times_x(times_x(times_x(times_x(i / 2))));
    }
    for (unsigned i = 3; i < 16; i++) {
        unsigned low = i & (0 - i);
        multiple[i] = multiple[low] ^ multiple[i ^ low];
        overflow[i] = overflow[low] ^ overflow[i ^ low];
    }
    uint64_t r = 0;
    for (unsigned shift = 0; shift < 64; shift += 4)
        r = (r >> 4) ^ overflow[r & 15] ^ multiple[b >> shift & 15];
    return r;
}

#if defined(__x86_64__)

/* The reflected form of Barrett's reduction: V. Gopal et al., "Fast CRC Computation for
 * Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009. With M = P reflected in
 * 65 bits, whose lowest bit is 1, the product is made divisible by x^64 by adding t·M. */
__attribute__((target("pclmul"))) static uint64_t mul_pclmul(uint64_t a, uint64_t b)
{
    const long long m_low = (long long)(DCP_GF64_POLY << 1); /* | 1, see below */
    const long long inverse =
        (long long)UINT64_C(0x9c3e466c172963d5); /* M·it = 1 + x^64… */
    __m128i p = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)a),
                                     _mm_cvtsi64_si128((long long)b), 0);
    /* Reflected factors of 64 bits give a product of 127: one up, to have x^0 at bit 127.
     */
    uint64_t low = (uint64_t)_mm_cvtsi128_si64(p);
    uint64_t high = (uint64_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(p, p));
    high = high << 1 | low >> 63;
    low <<= 1;
    __m128i t = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)low),
                                     _mm_cvtsi64_si128(inverse), 0);
    __m128i q = _mm_clmulepi64_si128(t, _mm_cvtsi64_si128(m_low | 1), 0);
    return high ^ (uint64_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(q, q)) ^
           (uint64_t)_mm_cvtsi128_si64(t); /* M's bit 64 times t */
}

uint64_t dcp_gf64_mul(uint64_t a, uint64_t b)
{
    return __builtin_cpu_supports("pclmul") ? mul_pclmul(a, b)
                                            : dcp_gf64_mul_portable(a, b);
}

#else

uint64_t dcp_gf64_mul(uint64_t a, uint64_t b)
{
    return dcp_gf64_mul_portable(a, b);
}

#endif

uint64_t dcp_gf64_shift_bytes(uint64_t a, uint64_t n)
{
    for (unsigned k = 0; n; n >>= 1, k++)
        if (n & 1)
            a = dcp_gf64_mul(a, power_table[k]);
    return a;
}
