/* The loss scale's rule. With arguments, for tests/oracle/test_loss_scale_ds.py: initial
 * window hysteresis consecutive least, and a text of 0 and 1 (an overflow); prints the
 * scale and the hysteresis that is left after each, and "least" where it ends. */
#include "trainer/config/loss_scale.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct loss_scale_rule dynamic = {
    .scales = true, .initial = 1024, .window = 3, .tolerance = 2, .least = 128
};

/* Of DeepSpeed's class, for these overflows. */
static void follows_deepspeed(void **state)
{
    (void)state;
    static const char overflows[] = "0000110010000000111111";
    static const double want[] = { 1024, 1024, 1024, 2048, 2048, 1024, 1024, 1024,
                                   512,  512,  512,  512,  1024, 1024, 1024, 2048,
                                   2048, 1024, 512,  256,  128,  128 };
    struct loss_scale s;
    loss_scale_begin(&dynamic, &s);
    assert_true(loss_scale_is_dynamic(&dynamic));
    for (size_t i = 0; overflows[i]; i++) {
        bool goes_on = loss_scale_update(&dynamic, overflows[i] == '1', &s);
        if (s.scale < want[i] || s.scale > want[i])
            fail_msg("step %zu: %g, not %g", i, s.scale, want[i]);
        assert_int_equal(goes_on, overflows[i + 1] != '\0');
    }
}

static void others_stay(void **state)
{
    (void)state;
    const struct loss_scale_rule rules[] = {
        { .scales = true, .static_to = 77, .window = 1, .tolerance = 1, .least = 1 },
        { .initial = 1024, .window = 1, .tolerance = 1, .least = 1 }
    };
    for (int r = 0; r < 2; r++) {
        struct loss_scale s;
        loss_scale_begin(&rules[r], &s);
        double begin = s.scale;
        for (int i = 0; i < 10; i++)
            assert_true(loss_scale_update(&rules[r], i % 3 == 0, &s));
        assert_true(s.scale >= begin && s.scale <= begin);
        assert_true(begin >= (r ? 1 : 77) && begin <= (r ? 1 : 77));
    }
}

static int print(char **argv)
{
    const struct loss_scale_rule rule = { .scales = true,
                                          .initial = strtod(argv[1], NULL),
                                          .window = strtol(argv[2], NULL, 10),
                                          .tolerance = strtol(argv[3], NULL, 10),
                                          .refills = argv[4][0] == '1',
                                          .least = strtod(argv[5], NULL) };
    struct loss_scale s;
    loss_scale_begin(&rule, &s);
    for (const char *at = argv[6]; *at; at++) {
        if (!loss_scale_update(&rule, *at == '1', &s))
            return puts("least") < 0;
        printf("%.17g %lld\n", s.scale, (long long)s.tolerance);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_deepspeed),
        cmocka_unit_test(others_stay),
    };
    return argc == 7 ? print(argv) : cmocka_run_group_tests(tests, NULL, NULL);
}
