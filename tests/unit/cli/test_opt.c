#include "cli/opt.h"

#include "base/mem.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct settings {
    bool force;
    int verbose, sort;
    const char *layout;
    struct dcp_opt_list globs;
    int64_t limit, any;
    double rtol;
    uint64_t memory;
};

#define AT(field) .at = offsetof(struct settings, field)
static const struct dcp_opt opts[] = {
    { 'f', "force", NULL, "replace it", "First", DCP_OPT_FLAG, AT(force) },
    { 'v', "verbose", NULL, "say more", NULL, DCP_OPT_COUNT, AT(verbose) },
    { 's', "sort", "size|name|file", "by what", NULL, DCP_OPT_CHOICE, AT(sort) },
    { 0, "layout", "L", "how", NULL, DCP_OPT_TEXT, AT(layout) },
    { 't', "tensors", "GLOB", "which", "Second", DCP_OPT_LIST, AT(globs) },
    { 'n', "limit", "N", "how many", NULL, DCP_OPT_INT, AT(limit), .min = 1, .max = 9 },
    { 0, "any", "N", "a number", NULL, DCP_OPT_INT, AT(any) },
    { 0, "rtol", "X", "tolerance", NULL, DCP_OPT_REAL, AT(rtol) },
    { 'm', "memory", "SIZE", "buffers", NULL, DCP_OPT_SIZE, AT(memory) },
    { 0, "secret", NULL, "hidden", NULL, DCP_OPT_FLAG, AT(force), .hidden = true },
    { 0 },
};

/* What was read from words that are separated by blanks. */
struct parsed {
    struct settings settings;
    struct dcp_opt_list operands;
    struct dcp_error err;
    char text[256];
    char *words[32];
    int rc;
};

static void parse(struct parsed *p, const char *text)
{
    int n = 0;
    *p = (struct parsed){ .rc = 0 };
    assert_true(strlen(text) < sizeof p->text);
    memcpy(p->text, text, strlen(text) + 1);
    char *save = NULL;
    for (char *w = strtok_r(p->text, " ", &save); w; w = strtok_r(NULL, " ", &save))
        p->words[n++] = w;
    const struct dcp_opt_table tables[] = { { NULL, NULL }, { opts, &p->settings } };
    p->rc = dcp_opt_parse(tables, 2, n, p->words, &p->operands, &p->err);
}

static void fini(struct parsed *p)
{
    dcp_opt_free(opts, &p->settings);
    free(p->operands.items);
}

static void every_kind_is_read(void **state)
{
    (void)state;
    struct parsed p;
    parse(&p, "A -f -vv --sort name --layout=zero3 -tx --tensors y -n 3 B --any -7 "
              "--rtol 1e-3 -m1.5M -- --C");
    assert_int_equal(p.rc, 0);
    assert_true(p.settings.force);
    assert_int_equal(p.settings.verbose, 2);
    assert_int_equal(p.settings.sort, 1);
    assert_string_equal(p.settings.layout, "zero3");
    assert_int_equal(p.settings.globs.n, 2);
    assert_string_equal(p.settings.globs.items[0], "x");
    assert_string_equal(p.settings.globs.items[1], "y");
    assert_null(p.settings.globs.items[2]);
    assert_int_equal(p.settings.limit, 3);
    assert_int_equal(p.settings.any, -7);
    assert_true(p.settings.rtol == 1e-3);
    assert_int_equal(p.settings.memory, 1536 * 1024);
    assert_int_equal(p.operands.n, 3);
    assert_string_equal(p.operands.items[0], "A");
    assert_string_equal(p.operands.items[1], "B");
    assert_string_equal(p.operands.items[2], "--C");
    fini(&p);
}

static void letters_may_stand_together(void **state)
{
    (void)state;
    struct parsed p;
    parse(&p, "-fvn 4 -");
    assert_int_equal(p.rc, 0);
    assert_true(p.settings.force);
    assert_int_equal(p.settings.verbose, 1);
    assert_int_equal(p.settings.limit, 4);
    assert_string_equal(p.operands.items[0], "-");
    fini(&p);
}

static void mistakes_are_explained(void **state)
{
    (void)state;
    static const struct {
        const char *words, *message, *hint;
    } cases[] = {
        { "--forse", "unknown option '--forse'", "did you mean '--force'?" },
        { "--qqqqqqq", "unknown option '--qqqqqqq'", "" },
        { "--secre", "unknown option '--secre'", "" },
        { "-x", "unknown option '-x'", "" },
        { "--forc", "unknown option '--forc'", "did you mean '--force'?" },
        { "--force=1", "'--force' takes no value", "" },
        { "--layout", "'--layout' needs a value: --layout L", "" },
        { "-n", "'--limit' needs a value: --limit N", "" },
        { "-n 10", "'--limit' takes a whole number from 1 to 9, not '10'", "" },
        { "-n x", "'--limit' takes a whole number from 1 to 9, not 'x'", "" },
        { "--any 1.5", "'--any' takes a whole number, not '1.5'", "" },
        { "--rtol abc", "'--rtol' takes a number, not 'abc'", "" },
        { "--memory 5Q", "'--memory' takes a size such as 256M or 1.5GiB, not '5Q'", "" },
        { "--sort siz", "'--sort' takes size, name or file, not 'siz'",
          "did you mean '--sort size'?" },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        struct parsed p;
        parse(&p, cases[i].words);
        assert_int_equal(p.rc, DCP_E_USAGE);
        assert_string_equal(p.err.message, cases[i].message);
        assert_string_equal(p.err.hint, cases[i].hint);
        fini(&p);
    }
}

static void choices_are_whole_words(void **state)
{
    (void)state;
    assert_int_equal(dcp_opt_choice("a|bc|d", "a"), 0);
    assert_int_equal(dcp_opt_choice("a|bc|d", "bc"), 1);
    assert_int_equal(dcp_opt_choice("a|bc|d", "d"), 2);
    assert_int_equal(dcp_opt_choice("a|bc|d", "b"), -1);
    assert_int_equal(dcp_opt_choice("a|bc|d", "a|bc"), -1);
    assert_int_equal(dcp_opt_choice("a|bc|d", ""), -1);
}

static void help_has_every_option_but_hidden_ones(void **state)
{
    (void)state;
    static const struct dcp_exit exits[] = { { 0, "done" }, { 0 } };
    static const struct dcp_command command = { .name = "do",
                                                .operands = "PATH",
                                                .purpose = "does it",
                                                .opts = opts,
                                                .exits = exits };
    static const struct dcp_command *const commands[] = { &command, NULL };
    static const struct dcp_program program = { .name = "it", .commands = commands };
    const struct dcp_help_style plain = { "", "", "" };
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    dcp_help(&text, &program, &command, NULL, &plain);
    assert_false(text.failed);
    const char *help = (const char *)text.data;
    assert_non_null(strstr(help, "it do: does it\n"));
    assert_non_null(strstr(help, "Usage: it do [OPTION]... PATH\n"));
    assert_non_null(strstr(help, "\nFirst:\n  -f, --force"));
    assert_non_null(strstr(help, "\nSecond:\n  -t, --tensors GLOB"));
    assert_non_null(strstr(help, "\nExit status:\n    0  done\n"));
    for (size_t i = 0; opts[i].name; i++) {
        char name[32];
        snprintf(name, sizeof name, "--%s", opts[i].name);
        assert_int_equal(strstr(help, name) != NULL, !opts[i].hidden);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_read),
        cmocka_unit_test(letters_may_stand_together),
        cmocka_unit_test(mistakes_are_explained),
        cmocka_unit_test(choices_are_whole_words),
        cmocka_unit_test(help_has_every_option_but_hidden_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
