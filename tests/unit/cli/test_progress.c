#include "cli/progress.h"

#include "base/clock.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SECOND UINT64_C(1000000000)
#define MB UINT64_C(1000000)

/* What stands on the terminal at a time after the beginning. */
static char *shown(struct dcp_progress_bar *bar, double seconds, uint64_t done,
                   uint64_t total)
{
    static char text[500];
    long from = ftell(bar->term->file);

    dcp_progress_show_at(bar, bar->begin_ns + (uint64_t)(seconds * (double)SECOND), done,
                         total);
    fflush(bar->term->file);
    fseek(bar->term->file, from, SEEK_SET);
    size_t n = fread(text, 1, sizeof text - 1, bar->term->file);
    text[n] = '\0';
    return text;
}

static void the_end_is_told_once_it_is_known(void **state)
{
    struct dcp_term term = { .file = tmpfile(), .tty = true, .width = 100 };
    struct dcp_progress_bar bar;

    (void)state;
    assert_non_null(term.file);
    dcp_progress_begin(&bar, &term, DCP_WHEN_ALWAYS, "resharding");
    /* A minute of planning, then the first bytes of 100 GB. */
    assert_null(strstr(shown(&bar, 30, 0, 100000 * MB), "left"));
    assert_null(strstr(shown(&bar, 60, 1, 100000 * MB), "left"));
    assert_null(strstr(shown(&bar, 61, 1000 * MB, 100000 * MB), "left"));
    char *line = shown(&bar, 62.5, 2500 * MB, 100000 * MB);
    assert_non_null(strstr(line, "resharding"));
    assert_non_null(strstr(line, "  0:01:38 left")); /* 1 GB/s */
    assert_non_null(strstr(shown(&bar, 70, 10000 * MB, 100000 * MB), "  0:01:3"));
    assert_null(strstr(shown(&bar, 160, 100000 * MB, 100000 * MB), "left"));
    fclose(term.file);
}

/* So slow that nobody can tell. */
static void an_end_that_is_too_far_is_not_told(void **state)
{
    struct dcp_term term = { .file = tmpfile(), .tty = true, .width = 100 };
    struct dcp_progress_bar bar;

    (void)state;
    assert_non_null(term.file);
    dcp_progress_begin(&bar, &term, DCP_WHEN_ALWAYS, "resharding");
    shown(&bar, 1, 1, 100000 * MB);
    assert_null(strstr(shown(&bar, 10, 1000, 100000 * MB), "left"));
    fclose(term.file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_is_told_once_it_is_known),
        cmocka_unit_test(an_end_that_is_too_far_is_not_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
