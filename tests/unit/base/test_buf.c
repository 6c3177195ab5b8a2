#include "base/buf.h"

#include "base/arena.h"
#include "base/bytes.h"
#include "base/mem.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void grows_and_stays_terminated(void **state)
{
    (void)state;
    struct dcp_buf buf = { 0 };
    for (int i = 0; i < 10000; i++) {
        dcp_buf_add_fmt(&buf, "%d,", i);
        assert_int_equal(buf.data[buf.size_bytes], 0);
    }
    assert_int_equal(dcp_buf_check(&buf, NULL), DCP_OK);
    char *at = (char *)buf.data;
    for (long i = 0; i < 10000; i++) {
        assert_int_equal(strtol(at, &at, 10), i);
        assert_int_equal(*at++, ',');
    }
    assert_ptr_equal(at, buf.data + buf.size_bytes);
    dcp_buf_fini(&buf);
    assert_null(buf.data);
}

static void numbers_are_little_endian(void **state)
{
    (void)state;
    static const unsigned char wanted[] = {
        0xf1, 0x34, 0x12, 0x78, 0x56, 0x34, 0x12, 0xef, 0xcd,
        0xab, 0x90, 0x78, 0x56, 0x34, 0x12, 7,    7,    'x',
    };
    struct dcp_buf buf = { 0 };
    dcp_buf_add_u8(&buf, 0xf1);
    dcp_buf_add_le16(&buf, 0x1234);
    dcp_buf_add_le32(&buf, 0x12345678);
    dcp_buf_add_le64(&buf, UINT64_C(0x1234567890abcdef));
    dcp_buf_add_fill(&buf, 7, 2);
    dcp_buf_add_text(&buf, "x");
    assert_int_equal(buf.size_bytes, sizeof wanted);
    assert_memory_equal(buf.data, wanted, sizeof wanted);

    struct dcp_cursor c = dcp_cursor_init(buf.data, buf.size_bytes);
    assert_int_equal(dcp_cursor_u8(&c), 0xf1);
    assert_int_equal(dcp_cursor_le16(&c), 0x1234);
    assert_int_equal(dcp_cursor_le32(&c), 0x12345678);
    assert_true(dcp_cursor_le64(&c) == UINT64_C(0x1234567890abcdef));
    assert_int_equal(dcp_cursor_left(&c), 3);
    assert_int_equal(dcp_cursor_le32(&c), 0); /* behind the end */
    assert_true(c.bad);
    assert_int_equal(dcp_cursor_left(&c), 0);
    assert_int_equal(dcp_cursor_u8(&c), 0);
    dcp_buf_fini(&buf);
}

static void remembers_that_memory_ran_out(void **state)
{
    (void)state;
    struct dcp_buf buf = { 0 };
    dcp_buf_add_text(&buf, "abc");
    dcp_buf_add_fill(&buf, 0, SIZE_MAX - 2);
    dcp_buf_add_text(&buf, "def");
    struct dcp_error err = { 0 };
    assert_int_equal(dcp_buf_check(&buf, &err), DCP_E_MEMORY);
    assert_int_equal(err.code, DCP_E_MEMORY);
    assert_string_equal((char *)buf.data, "abc");
    dcp_buf_fini(&buf);
}

static void sizes_are_checked(void **state)
{
    (void)state;
    assert_null(dcp_mem_calloc(SIZE_MAX / 2, 3));
    void *p = dcp_mem_calloc(0, 8);
    assert_non_null(p);
    free(p);
    size_t cap = 0;
    int *items = dcp_mem_grow(NULL, &cap, 5, sizeof *items);
    assert_non_null(items);
    assert_true(cap >= 5);
    size_t before = cap;
    assert_null(dcp_mem_grow(items, &cap, SIZE_MAX / 2, sizeof *items));
    assert_int_equal(cap, before); /* and the old array is as it was */
    items[4] = 1;
    free(items);
    p = dcp_mem_aligned(4096, 1);
    assert_int_equal((uintptr_t)p % 4096, 0);
    free(p);
}

static void arena_gives_zeroed_aligned_memory(void **state)
{
    (void)state;
    struct dcp_arena *arena = dcp_arena_new();
    assert_non_null(arena);
    unsigned char *kept[400];
    for (size_t i = 0; i < 400; i++) {
        size_t n = i % 7 == 0 ? 30000 : i; /* small ones between large ones */
        kept[i] = dcp_arena_alloc(arena, n, 1);
        assert_non_null(kept[i]);
        assert_int_equal((uintptr_t)kept[i] % 16, 0);
        for (size_t j = 0; j < n; j++)
            assert_int_equal(kept[i][j], 0);
        memset(kept[i], (int)i, n);
    }
    for (size_t i = 0; i < 400; i++) {
        size_t n = i % 7 == 0 ? 30000 : i;
        for (size_t j = 0; j < n; j++)
            assert_int_equal(kept[i][j], (unsigned char)i);
    }
    assert_null(dcp_arena_alloc(arena, SIZE_MAX, 2));
    assert_null(dcp_arena_alloc(arena, SIZE_MAX - 4, 1));
    assert_string_equal(dcp_arena_text(arena, "name"), "name");
    assert_string_equal(dcp_arena_text_n(arena, "name", 2), "na");
    assert_memory_equal(dcp_arena_copy(arena, "xyz", 3), "xyz", 3);
    dcp_arena_free(arena);
    dcp_arena_free(NULL);
}

static void texts_are_as_printf_writes_them(void **state)
{
    (void)state;
    static const int64_t numbers[] = {
        0, 9, 10, -1, 1234567890123, INT64_MAX, INT64_MIN
    };
    char wanted[1000];

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct dcp_buf buf = { 0 };
        dcp_buf_add_i64(&buf, numbers[i]);
        dcp_buf_add_u8(&buf, ' ');
        dcp_buf_add_hex64(&buf, (uint64_t)numbers[i]);
        snprintf(wanted, sizeof wanted, "%" PRId64 " %016" PRIx64, numbers[i],
                 (uint64_t)numbers[i]);
        assert_string_equal((const char *)buf.data, wanted);
        dcp_buf_fini(&buf);
    }
    for (int n = 100; n < 600; n += 7) { /* longer than what is tried at first */
        struct dcp_buf buf = { 0 };
        snprintf(wanted, sizeof wanted, "a%*db", n, n);
        dcp_buf_add_fmt(&buf, "a%*db", n, n);
        assert_int_equal(buf.size_bytes, n + 2);
        assert_string_equal((const char *)buf.data, wanted);
        dcp_buf_fini(&buf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_and_stays_terminated),
        cmocka_unit_test(texts_are_as_printf_writes_them),
        cmocka_unit_test(numbers_are_little_endian),
        cmocka_unit_test(remembers_that_memory_ran_out),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(arena_gives_zeroed_aligned_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
