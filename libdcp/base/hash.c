#include "hash.h"

#include "gf64.h"
#include <isa-l/crc.h>
#include <isa-l/crc64.h>
#include <xxhash.h>

/* Where libxxhash is built to choose by the CPU at run time, these functions are several
 * times as fast as those its headers name. */
__attribute__((weak)) XXH64_hash_t XXH3_64bits_dispatch(const void *data, size_t len);
__attribute__((weak)) XXH_errorcode XXH3_64bits_update_dispatch(XXH3_state_t *state,
                                                                const void *data,
                                                                size_t len);

uint64_t dcp_hash_xxh3(const void *data, size_t size_bytes)
{
    return XXH3_64bits_dispatch ? XXH3_64bits_dispatch(data, size_bytes)
                                : XXH3_64bits(data, size_bytes);
}

/* A state of the xxHash library by another name. */
static XXH3_state_t *state_of(struct dcp_xxh3 *hash)
{
    return (XXH3_state_t *)(void *)hash;
}

struct dcp_xxh3 *dcp_hash_xxh3_new(void)
{
    XXH3_state_t *state = XXH3_createState();

    if (state)
        XXH3_64bits_reset(state);
    return (struct dcp_xxh3 *)(void *)state;
}

void dcp_hash_xxh3_add(struct dcp_xxh3 *hash, const void *data, size_t size_bytes)
{
    if (XXH3_64bits_update_dispatch)
        XXH3_64bits_update_dispatch(state_of(hash), data, size_bytes);
    else
        XXH3_64bits_update(state_of(hash), data, size_bytes);
}

uint64_t dcp_hash_xxh3_end(struct dcp_xxh3 *hash)
{
    uint64_t digest = XXH3_64bits_digest(state_of(hash));

    XXH3_64bits_reset(state_of(hash));
    return digest;
}

void dcp_hash_xxh3_free(struct dcp_xxh3 *hash)
{
    XXH3_freeState(state_of(hash));
}

/* ISA-L's function inverts the register on the way in and out, so its value is that of
 * CRC-64/XZ and continues itself. */
uint64_t dcp_hash_crc64(uint64_t crc, const void *data, size_t size_bytes)
{
    return size_bytes ? crc64_ecma_refl(crc, data, size_bytes) : crc;
}

uint64_t dcp_hash_crc64_raw(uint64_t reg, const void *data, size_t size_bytes)
{
    return ~dcp_hash_crc64(~reg, data, size_bytes);
}

uint64_t dcp_hash_crc64_shift(uint64_t reg, uint64_t n)
{
    return dcp_gf64_shift_bytes(reg, n);
}

/* crc(A) = raw(A) ^ ~0·x^(8·size_a) ^ ~0, so the constants of A and AB cancel and
 * crc(AB) = crc(A)·x^(8·size_b) ^ crc(B). */
uint64_t dcp_hash_crc64_combine(uint64_t crc_a, uint64_t crc_b, uint64_t size_b)
{
    return dcp_gf64_shift_bytes(crc_a, size_b) ^ crc_b;
}

uint64_t dcp_hash_crc64_zeros(uint64_t n)
{
    return ~dcp_gf64_shift_bytes(~UINT64_C(0), n);
}

uint64_t dcp_hash_crc64_to_raw(uint64_t crc, uint64_t n)
{
    return crc ^ dcp_hash_crc64_zeros(n);
}

uint64_t dcp_hash_crc64_from_raw(uint64_t reg, uint64_t n)
{
    return reg ^ dcp_hash_crc64_zeros(n);
}

uint32_t dcp_hash_crc32(uint32_t crc, const void *data, size_t size_bytes)
{
    return size_bytes ? crc32_gzip_refl(crc, data, size_bytes) : crc;
}

/* a·b modulo the polynomial of CRC-32, reflected: bit 31 is x^0. */
static uint32_t mul_crc32(uint32_t a, uint32_t b)
{
    uint32_t r = 0;
    for (uint32_t bit = UINT32_C(1) << 31; bit; bit >>= 1) {
        if (b & bit)
            r ^= a;
        a = (a >> 1) ^ (UINT32_C(0xedb88320) & (0 - (a & 1)));
    }
    return r;
}

uint32_t dcp_hash_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b)
{
    uint32_t power = UINT32_C(1) << 23; /* x^8: one byte */
    for (; size_b; size_b >>= 1, power = mul_crc32(power, power))
        if (size_b & 1)
            crc_a = mul_crc32(crc_a, power);
    return crc_a ^ crc_b;
}
