#include "base/hash.h"

#include "base/gf64.h"
#include "base/str.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

static uint64_t seed = 3;

static uint64_t next(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static void fill(unsigned char *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        data[i] = (unsigned char)next();
}

/* One bit at a time, straight from the definition: slow and plain. */
static uint64_t crc64_by_bits(uint64_t reg, const unsigned char *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        reg ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            reg = (reg >> 1) ^ (reg & 1 ? DCP_GF64_POLY : 0);
    }
    return reg;
}

static uint64_t mul_by_bits(uint64_t a, uint64_t b)
{
    uint64_t r = 0;
    for (uint64_t bit = DCP_GF64_ONE; bit; bit >>= 1) {
        if (b & bit)
            r ^= a;
        a = (a >> 1) ^ (a & 1 ? DCP_GF64_POLY : 0);
    }
    return r;
}

static void check_values(void **state)
{
    (void)state;
    assert_true(dcp_hash_crc64(0, "123456789", 9) == UINT64_C(0x995dc9bbdf1939fa));
    assert_int_equal(dcp_hash_crc32(0, "123456789", 9), 0xcbf43926);
    assert_true(dcp_hash_xxh3("", 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(dcp_hash_crc64(5, NULL, 0) == 5);
    assert_int_equal(dcp_hash_crc32(5, NULL, 0), 5);
}

/* The function chosen by the CPU and the library's plain one are the same hash. */
static void xxh3_is_the_standard_one(void **state)
{
    (void)state;
    unsigned char data[5000];
    fill(data, sizeof data);
    for (size_t n = 0; n <= sizeof data; n += n < 300 ? 1 : 97)
        assert_true(dcp_hash_xxh3(data, n) == XXH3_64bits(data, n));
}

static void crc64_is_the_definition(void **state)
{
    (void)state;
    unsigned char data[3000];
    fill(data, sizeof data);
    for (size_t n = 0; n < 600; n++) {
        size_t at = n % 17; /* any alignment */
        uint64_t crc = ~crc64_by_bits(~UINT64_C(0), data + at, n);
        assert_true(dcp_hash_crc64(0, data + at, n) == crc);
        uint64_t reg = next();
        assert_true(dcp_hash_crc64_raw(reg, data + at, n) ==
                    crc64_by_bits(reg, data + at, n));
        size_t cut = n ? next() % n : 0;
        uint64_t begun = dcp_hash_crc64(0, data + at, cut);
        assert_true(dcp_hash_crc64(begun, data + at + cut, n - cut) == crc);
    }
}

static void multiplication(void **state)
{
    (void)state;
    for (int i = 0; i < 3000; i++) {
        uint64_t a = next(), b = i < 64 ? UINT64_C(1) << i : next();
        uint64_t wanted = mul_by_bits(a, b);
        assert_true(dcp_gf64_mul(a, b) == wanted);
        assert_true(dcp_gf64_mul_portable(a, b) == wanted);
        assert_true(dcp_gf64_mul(a, DCP_GF64_ONE) == a);
    }
}

static void shifting_is_appending_zeros(void **state)
{
    (void)state;
    static const unsigned char zeros[4096];
    for (int i = 0; i < 300; i++) {
        uint64_t reg = next();
        size_t n = next() % (sizeof zeros + 1);
        assert_true(dcp_hash_crc64_shift(reg, n) == crc64_by_bits(reg, zeros, n));
        assert_true(dcp_hash_crc64_zeros(n) == dcp_hash_crc64(0, zeros, n));
        /* Lengths that cannot be walked: shifts add up. */
        uint64_t a = next() >> 4, b = next() >> 4;
        assert_true(dcp_hash_crc64_shift(dcp_hash_crc64_shift(reg, a), b) ==
                    dcp_hash_crc64_shift(reg, a + b));
    }
}

static void parts_combine_to_the_whole(void **state)
{
    (void)state;
    unsigned char data[5000];
    for (int i = 0; i < 300; i++) {
        size_t n = next() % sizeof data, cut = n ? next() % n : 0;
        fill(data, n);
        uint64_t whole = dcp_hash_crc64(0, data, n);
        uint64_t a = dcp_hash_crc64(0, data, cut);
        uint64_t b = dcp_hash_crc64(0, data + cut, n - cut);
        assert_true(dcp_hash_crc64_combine(a, b, n - cut) == whole);
        uint32_t a32 = dcp_hash_crc32(0, data, cut);
        uint32_t b32 = dcp_hash_crc32(0, data + cut, n - cut);
        assert_int_equal(dcp_hash_crc32_combine(a32, b32, n - cut),
                         dcp_hash_crc32(0, data, n));

        /* What scattered runs give adds up in any order, without initial values. */
        uint64_t raw = dcp_hash_crc64_raw(0, data + cut, n - cut);
        raw ^= dcp_hash_crc64_shift(dcp_hash_crc64_raw(0, data, cut), n - cut);
        assert_true(dcp_hash_crc64_from_raw(raw, n) == whole);
        assert_true(dcp_hash_crc64_to_raw(whole, n) == raw);
    }
}

/* The number that xz stores is ours: a peer that was not written here. */
static void xz_agrees(void **state)
{
    (void)state;
    if (access("/usr/bin/xz", X_OK) != 0)
        skip();
    unsigned char data[70001];
    fill(data, sizeof data);
    char path[] = "/tmp/dcp-test-hash-XXXXXX", command[128], line[512];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, sizeof data), sizeof data);
    close(fd);
    snprintf(command, sizeof command, "xz --check=crc64 -kf %s && xz --robot -lvv %s.xz",
             path, path);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    char wanted[17];
    dcp_str_hex64(wanted, dcp_hash_crc64(0, data, sizeof data));
    bool found = false;
    while (fgets(line, sizeof line, pipe))
        found = found || (strncmp(line, "block", 5) == 0 && strstr(line, wanted));
    assert_int_equal(pclose(pipe), 0);
    assert_true(found);
    unlink(path);
    snprintf(command, sizeof command, "%s.xz", path);
    unlink(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_values),
        cmocka_unit_test(xxh3_is_the_standard_one),
        cmocka_unit_test(crc64_is_the_definition),
        cmocka_unit_test(multiplication),
        cmocka_unit_test(shifting_is_appending_zeros),
        cmocka_unit_test(parts_combine_to_the_whole),
        cmocka_unit_test(xz_agrees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
