/* Digests, proofs and signatures, against the vectors of their standards. */
#include "base/sha256.h"

#include "base/ed25519.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* FIPS 180-4, and RFC 4231, case 2. */
static void digests_and_proofs(void **state)
{
    (void)state;
    static const char key[] = "Jefe", data[] = "what do ya want for nothing?";
    unsigned char out[DCP_SHA256_BYTES], other[DCP_SHA256_BYTES];
    char text[DCP_SHA256_HEX];
    struct dcp_sha256 *sha256 = dcp_sha256_new();
    assert_non_null(sha256);
    for (int i = 0; i < 2; i++) { /* it begins anew */
        dcp_sha256_add(sha256, "a", 1);
        dcp_sha256_add(sha256, "bc", 2);
        assert_true(dcp_sha256_end(sha256, out));
        dcp_sha256_text(out, text);
        assert_string_equal(
            text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
    dcp_sha256_free(sha256);
    dcp_sha256_free(NULL);
    assert_true(dcp_sha256_hmac(key, 4, data, strlen(data), other));
    dcp_sha256_text(other, text);
    assert_string_equal(
        text, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    assert_false(dcp_sha256_equal(out, other));
    memcpy(out, other, sizeof out);
    assert_true(dcp_sha256_equal(out, other));
    out[31] ^= 1;
    assert_false(dcp_sha256_equal(out, other));
    assert_int_equal(dcp_random(out, sizeof out, NULL), 0);
    assert_int_equal(dcp_random(other, sizeof other, NULL), 0);
    assert_false(dcp_sha256_equal(out, other));
}

/* RFC 8032, 7.1, test 2: one byte, 0x72. */
static void signatures(void **state)
{
    (void)state;
    static const unsigned char public[DCP_ED25519_KEY_BYTES] = {
        0x3d, 0x40, 0x17, 0xc3, 0xe8, 0x43, 0x89, 0x5a, 0x92, 0xb7, 0x0a,
        0xa7, 0x4d, 0x1b, 0x7e, 0xbc, 0x9c, 0x98, 0x2c, 0xcf, 0x2e, 0xc4,
        0x96, 0x8c, 0xc0, 0xcd, 0x55, 0xf1, 0x2a, 0xf4, 0x66, 0x0c
    };
    static const char text[] = "kqAJqfDUyrhyDoILX2QlQKKye1QWUD+Ps3YiI+vbadoIWsHkPhWZb"
                               "kWPNhPQ8R2MOHsurrQwKu6wDSkWErsMAA==";
    struct dcp_ed25519_key key;
    char cut[DCP_ED25519_TEXT];
    memcpy(key.bytes, public, sizeof public);
    assert_true(dcp_ed25519_check(&key, "\x72", 1, text));
    assert_false(dcp_ed25519_check(&key, "\x73", 1, text));
    assert_false(dcp_ed25519_check(&key, "\x72", 0, text));
    snprintf(cut, sizeof cut, "%s", text);
    cut[0] = 'l';
    assert_false(dcp_ed25519_check(&key, "\x72", 1, cut));
    cut[87] = '\0';
    assert_false(dcp_ed25519_check(&key, "\x72", 1, cut));
    assert_false(dcp_ed25519_check(&key, "\x72", 1, ""));
    key.bytes[0] ^= 1;
    assert_false(dcp_ed25519_check(&key, "\x72", 1, text));
}

static void keys_in_pem(void **state)
{
    (void)state;
    DCP_CLEANUP_BUF struct dcp_buf secret = { 0 }, public = { 0 }, both = { 0 };
    struct dcp_ed25519_key *keys, by;
    char text[DCP_ED25519_TEXT], id[DCP_ED25519_ID];
    size_t n;
    struct dcp_error err = { 0 };
    assert_int_equal(dcp_ed25519_make(&secret, &public, NULL), 0);
    const char *pem = (const char *)secret.data;
    assert_int_equal(
        dcp_ed25519_sign(pem, secret.size_bytes, "it", "data", 4, text, &by, NULL), 0);
    assert_true(dcp_ed25519_check(&by, "data", 4, text));
    assert_false(dcp_ed25519_check(&by, "Data", 4, text));
    dcp_ed25519_id(&by, id);
    assert_int_equal(strspn(id, "0123456789abcdef"), 16);
    dcp_buf_add_fmt(&both, "who this is\n%s\n%s", (char *)public.data,
                    (char *)public.data);
    pem = (const char *)both.data;
    assert_int_equal(dcp_ed25519_read(pem, both.size_bytes, "it", &keys, &n, NULL), 0);
    assert_int_equal(n, 2);
    assert_memory_equal(&keys[1], &by, sizeof by);
    free(keys);
    assert_int_equal(dcp_ed25519_read("x", 1, "it", &keys, &n, &err), DCP_E_USAGE);
    assert_null(keys);
    pem = (const char *)public.data;
    assert_int_equal(
        dcp_ed25519_sign(pem, public.size_bytes, "it", "data", 4, text, &by, NULL),
        DCP_E_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_and_proofs),
        cmocka_unit_test(signatures),
        cmocka_unit_test(keys_in_pem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
