/* metrics: every line is one JSON object, whatever happened to the line before. */
#include "base/fs.h"
#include "base/json.h"
#include "trainer/run/metrics.h"
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct folder {
    char dir[64], file[96];
};

static int setup(void **state)
{
    struct folder *folder = calloc(1, sizeof *folder);
    snprintf(folder->dir, sizeof folder->dir, "metrics.XXXXXX");
    if (!mkdtemp(folder->dir))
        return -1;
    snprintf(folder->file, sizeof folder->file, "%s/metrics.jsonl", folder->dir);
    *state = folder;
    return 0;
}

static int teardown(void **state)
{
    struct folder *folder = *state;
    int rc = dcp_fs_remove_all(folder->dir, NULL);
    free(folder);
    return rc;
}

static void append(const struct folder *folder, const char *text)
{
    FILE *file = fopen(folder->file, "a");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static char *read_all(const struct folder *folder)
{
    void *text;
    size_t size;
    struct dcp_error err = { 0 };
    assert_int_equal(dcp_fs_read_file(folder->file, 1 << 20, &text, &size, &err), 0);
    return text;
}

static void write_step(struct metrics *metrics, int64_t number)
{
    struct dcp_error err = { 0 };
    struct metrics_step step = { .step = number,
                                 .samples = 8 * number,
                                 .tokens = 1024 * number,
                                 .loss = 1.0 / 3,
                                 .grad_norm = 0.5,
                                 .lr = 0.003,
                                 .val_loss = NAN,
                                 .step_s = 0.1 + 0.2,
                                 .loss_scale = 1,
                                 .state_bytes = UINT64_C(1) << 40,
                                 .world_size = 8,
                                 .stage = 3 };
    assert_int_equal(metrics_write(metrics, &step, &err), 0);
}

static void write_steps(const struct folder *folder, int64_t first, int64_t last)
{
    struct dcp_error err = { 0 };
    struct metrics *metrics;
    assert_int_equal(metrics_open(folder->dir, &metrics, &err), 0);
    for (int64_t step = first; step <= last; step++)
        write_step(metrics, step);
    metrics_close(metrics);
}

static void test_a_line_is_an_object_with_all_fields(void **state)
{
    write_steps(*state, 3, 3);
    char *text = read_all(*state);
    assert_non_null(strstr(text, "\"loss\":0.333333333,"));
    assert_non_null(strstr(text, "\"lr\":0.003,"));
    assert_non_null(strstr(text, "\"step_s\":0.30000000000000004,"));
    json_t *line = NULL;
    assert_int_equal(dcp_json_parse(text, strlen(text), "line", &line, NULL), 0);
    static const char *const fields[] = { "step",           "loss",
                                          "grad_norm",      "lr",
                                          "val_loss",       "samples",
                                          "tokens",         "step_s",
                                          "save_stall_s",   "loss_scale",
                                          "state_bytes",    "weight_bytes",
                                          "gradient_bytes", "optimizer_bytes",
                                          "peak_rss_bytes", "received_bytes",
                                          "world",          "stage" };
    assert_int_equal(json_object_size(line), sizeof fields / sizeof *fields);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        assert_non_null(json_object_get(line, fields[i]));
    assert_true(json_real_value(json_object_get(line, "lr")) == 0.003);
    assert_true(json_is_null(json_object_get(line, "val_loss")));
    assert_int_equal(json_integer_value(json_object_get(line, "state_bytes")), INT64_C(1)
                                                                                   << 40);
    json_decref(line);
    free(text);
}

static void test_infinity_is_null_too(void **state)
{
    const struct folder *folder = *state;
    struct metrics *metrics;
    struct dcp_error err = { 0 };
    struct metrics_step step = { .loss = INFINITY, .grad_norm = -INFINITY };
    assert_int_equal(metrics_open(folder->dir, &metrics, &err), 0);
    assert_int_equal(metrics_write(metrics, &step, &err), 0);
    metrics_close(metrics);
    char *text = read_all(folder);
    assert_non_null(strstr(text, "\"loss\":null,\"grad_norm\":null,"));
    free(text);
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        n++;
    return n;
}

static void test_a_resumed_run_appends(void **state)
{
    write_steps(*state, 1, 2);
    write_steps(*state, 2, 4);
    char *text = read_all(*state);
    assert_int_equal(count(text, "\n"), 5);
    assert_int_equal(count(text, "\"step\":2,"), 2);
    free(text);
}

static void test_an_incomplete_line_is_closed(void **state)
{
    write_steps(*state, 1, 1);
    append(*state, "{\"step\":2,\"lo");
    write_steps(*state, 2, 2);
    char *text = read_all(*state);
    assert_non_null(strstr(text, "\"lo\n{\"step\":2,"));
    assert_int_equal(count(text, "\n"), 3);
    free(text);
}

/* A line that the file system cut short is closed before the next one. */
static void test_a_full_disk_is_an_error_and_not_the_end(void **state)
{
    const struct folder *folder = *state;
    struct metrics *metrics;
    struct dcp_error err = { 0 };
    struct metrics_step step = { .step = 2 };
    struct rlimit old, small;
    assert_int_equal(metrics_open(folder->dir, &metrics, &err), 0);
    write_step(metrics, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 400;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(metrics_write(metrics, &step, &err), DCP_E_IO);
    assert_non_null(strstr(err.message, folder->file));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    write_step(metrics, 3);
    metrics_close(metrics);
    char *text = read_all(folder);
    assert_int_equal(count(text, "\n"), 3);
    assert_int_equal(count(text, "\n{"), 2);
    free(text);
}

/* Who may write in the run folder cannot have another file appended to, nor hold the run
 * up with a pipe. */
static void test_a_link_or_pipe_is_refused(void **state)
{
    const struct folder *folder = *state;
    struct metrics *metrics;
    char other[400];
    snprintf(other, sizeof other, "%s/other", folder->dir);
    FILE *file = fopen(other, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    for (int i = 0; i < 3; i++) {
        struct dcp_error err = { 0 };
        if (i < 2)
            assert_int_equal(symlink(i ? "nowhere" : "other", folder->file), 0);
        else
            assert_int_equal(mkfifo(folder->file, 0600), 0);
        assert_int_equal(metrics_open(folder->dir, &metrics, &err), DCP_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, folder->file));
        assert_int_equal(unlink(folder->file), 0);
    }
    struct stat st;
    assert_int_equal(stat(other, &st), 0);
    assert_int_equal(st.st_size, 0);
}

static void test_a_missing_folder_is_told(void **state)
{
    struct metrics *metrics;
    struct dcp_error err = { 0 };
    (void)state;
    assert_int_equal(metrics_open("no/such/folder", &metrics, &err), DCP_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "no/such/folder"));
}

static void test_peak_rss_grows_with_what_is_touched(void **state)
{
    const size_t size = (size_t)48 << 20;
    (void)state;
    uint64_t before = metrics_peak_rss();
    assert_true(before > 100 * 1024);
    volatile char *memory = malloc(size);
    assert_non_null(memory);
    for (size_t i = 0; i < size; i += 1024)
        memory[i] = 1;
    assert_true(metrics_peak_rss() >= before + size / 2);
    free((void *)memory);
    assert_true(metrics_peak_rss() >= before + size / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_line_is_an_object_with_all_fields, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_infinity_is_null_too, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_resumed_run_appends, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_incomplete_line_is_closed, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_full_disk_is_an_error_and_not_the_end,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_link_or_pipe_is_refused, setup, teardown),
        cmocka_unit_test(test_a_missing_folder_is_told),
        cmocka_unit_test(test_peak_rss_grows_with_what_is_touched),
    };
    signal(SIGXFSZ, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
