#include "base/hex.h"
#include "base/map.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 20000, KEY_BYTES = 24 };

/* Keys of 0 to 23 bytes, all different. */
static size_t key_of(size_t i, char *out)
{
    if (i == 0)
        return 0;
    return (size_t)snprintf(out, KEY_BYTES, "%zu%.*s", i, (int)(i % 18),
                            "------------------");
}

static void keys_have_their_numbers(void **state)
{
    struct dcp_map map = { 0 };
    char(*keys)[KEY_BYTES] = calloc(N, sizeof *keys), other[KEY_BYTES];

    (void)state;
    assert_non_null(keys);
    assert_int_equal(dcp_map_find(&map, "", 0), -1);
    for (size_t i = 0; i < N; i++) {
        size_t n = key_of(i, keys[i]);
        assert_int_equal(dcp_map_find(&map, keys[i], n), -1);
        assert_true(dcp_map_set(&map, keys[i], n, (int64_t)i * 3 - 1000000));
        assert_int_equal(map.n, i + 1);
    }
    for (size_t i = 0; i < N; i++) { /* by what they are, not by where they stand */
        size_t n = key_of(i, other);
        assert_int_equal(dcp_map_find(&map, other, n), (int64_t)i * 3 - 1000000);
    }
    assert_true(dcp_map_set(&map, keys[7], key_of(7, keys[7]), INT64_MAX - 1));
    assert_int_equal(dcp_map_find(&map, keys[7], key_of(7, keys[7])), INT64_MAX - 1);
    assert_int_equal(map.n, N);
    assert_int_equal(dcp_map_find(&map, "no such key", 11), -1);
    dcp_map_fini(&map);
    assert_int_equal(dcp_map_find(&map, "1", 1), -1);
    free(keys);
}

/* A key that is copied may change afterwards, and one key is no beginning of another. */
static void short_keys_are_copied(void **state)
{
    struct dcp_map map = { 0 };
    char key[] = "12345678";

    (void)state;
    for (size_t n = 9; n-- > 0;)
        assert_true(dcp_map_set(&map, key, n, (int64_t)n));
    memset(key, 'x', 8);
    for (size_t n = 0; n <= 8; n++)
        assert_int_equal(dcp_map_find(&map, "12345678", n), (int64_t)n);
    dcp_map_fini(&map);
}

static void hexadecimal(void **state)
{
    static const unsigned char bytes[] = { 0x00, 0x0f, 0xa5, 0xff };
    unsigned char back[4] = { 0 };
    char text[9];

    (void)state;
    dcp_hex(text, bytes, 4);
    assert_string_equal(text, "000fa5ff");
    assert_true(dcp_hex_parse("000fa5ffxx", back, 4));
    assert_memory_equal(back, bytes, 4);
    assert_false(dcp_hex_parse("000fa5f", back, 4));
    assert_false(dcp_hex_parse("000fa5fF", back, 4));
    assert_false(dcp_hex_parse("000fa5:0", back, 4));
    assert_false(dcp_hex_parse("", back, 1));
    assert_true(dcp_hex_parse("", back, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_have_their_numbers),
        cmocka_unit_test(short_keys_are_copied),
        cmocka_unit_test(hexadecimal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
