/* What pickles name is told worst first, or it is told that memory ran out: no verdict is
 * hidden by an allocation that fails. */
#include "inspect/globals.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    puts("skipped: a sanitizer brings an allocator of its own");
    return 77;
}

#else

/* --- an allocator that fails when told; it takes the place of libc's --- */

static long fail_at, n_calls; /* the n-th allocation from now, 0: none */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);

static bool fails(void)
{
    bool now = ++n_calls == fail_at;
    if (now)
        errno = ENOMEM;
    return now;
}

#define EXPORT __attribute__((visibility("default")))

EXPORT void *malloc(size_t size)
{
    return fails() ? NULL : __libc_malloc(size);
}

EXPORT void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}

EXPORT void *realloc(void *old, size_t size)
{
    return fails() ? NULL : __libc_realloc(old, size);
}

/* --- objects that name what is safe, unknown, dangerous, and again safe --- */

/* The names are short: jansson drops a byte of a longer one when it cannot grow. */

static void make(struct dcp_object objects[4], struct dcp_catalog *catalog)
{
    static const char *const names[] = { "builtins.set", "my.Config", "os.system",
                                         "builtins.int" };
    static char texts[4][80];
    for (size_t i = 0; i < 4; i++) {
        int n = snprintf(texts[i], sizeof texts[i], "{\"$object\": \"%s\"}", names[i]);
        objects[i] = (struct dcp_object){ .name = "x",
                                          .kind = DCP_OBJECT_JSON,
                                          .data = texts[i],
                                          .size_bytes = (size_t)n };
    }
    *catalog = (struct dcp_catalog){ .objects = objects, .n_objects = 4 };
}

static void test_worst_first(void **state)
{
    (void)state;
    struct dcp_object objects[4];
    struct dcp_catalog catalog;
    make(objects, &catalog);
    bool reached = true;
    for (long n = 0; reached; n++) { /* 0: none fails */
        struct inspect_globals found;
        struct dcp_error err = { 0 };
        char text[160];
        n_calls = 0;
        fail_at = n;
        int rc = inspect_globals_of_catalog(&catalog, &found, &err);
        reached = n_calls >= n;
        fail_at = 0;
        if (rc) {
            assert_int_equal(rc, DCP_E_MEMORY);
            assert_int_equal(err.code, DCP_E_MEMORY);
            inspect_globals_fini(&found);
            continue;
        }
        assert_int_equal(found.n, 4);
        assert_string_equal(found.items[0].name, "os.system");
        assert_string_equal(found.items[1].name, "my.Config");
        assert_string_equal(found.items[2].name, "builtins.set");
        assert_string_equal(found.items[3].name, "builtins.int");
        inspect_globals_text(&found, text, sizeof text);
        assert_string_equal(text, "2 names are not known to be safe to load "
                                  "('os.system' is dangerous)");
        inspect_globals_fini(&found);
    }
}

enum { LINES_CAP = 400 };

static void take_line(void *self, enum dcp_log_level level, const char *text)
{
    assert_int_equal(level, DCP_LOG_WARN);
    size_t n = strlen(self);
    snprintf((char *)self + n, LINES_CAP - n, "%s\n", text);
}

static void test_warning(void **state)
{
    (void)state;
    struct dcp_object objects[4];
    struct dcp_catalog catalog;
    char line[LINES_CAP];
    struct dcp_main m = { .log = { take_line, line, DCP_LOG_WARN } };
    bool reached = true;
    make(objects, &catalog);
    for (long n = 0; reached; n++) {
        line[0] = '\0';
        n_calls = 0;
        fail_at = n;
        inspect_globals_warn(&m, &catalog);
        reached = n_calls >= n;
        fail_at = 0;
        bool told = strstr(line, "2 names are not known to be safe") != NULL;
        assert_true(told || (n && strstr(line, "out of memory")));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worst_first),
        cmocka_unit_test(test_warning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
