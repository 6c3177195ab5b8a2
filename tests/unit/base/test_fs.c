#include "base/fs.h"

#include "base/mem.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Each test runs in an empty working folder of its own. */
static int enter(void **state)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/dcp-test-fs-XXXXXX");
    *state = path;
    return mkdtemp(path) && chdir(path) == 0 ? 0 : -1;
}

static int leave(void **state)
{
    return chdir("/tmp") || dcp_fs_remove_all(*state, NULL);
}

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void check_text(const char *path, const char *wanted)
{
    void *text;
    size_t n;
    assert_int_equal(dcp_fs_read_file(path, 1000, &text, &n, NULL), 0);
    assert_int_equal(n, strlen(wanted));
    assert_string_equal(text, wanted);
    free(text);
}

static void reads_and_writes_at_offsets(void **state)
{
    (void)state;
    int fd = open("f", O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    char got[8] = "";
    assert_int_equal(dcp_fs_write_at(fd, "world", 5, 6), 0);
    assert_int_equal(dcp_fs_write_at(fd, "hello ", 6, 0), 0);
    assert_int_equal(dcp_fs_read_at(fd, got, 4, 3), 0);
    assert_string_equal(got, "lo w");
    errno = 0;
    assert_int_equal(dcp_fs_read_at(fd, got, 4, 9), -1);
    assert_int_equal(errno, ENODATA);
    assert_int_equal(dcp_fs_read_at(fd, got, 0, 1000), 0);
    close(fd);
    errno = 0;
    assert_int_equal(dcp_fs_write_at(fd, "x", 1, 0), -1);
    assert_int_equal(errno, EBADF);
}

static void reads_whole_files(void **state)
{
    (void)state;
    void *data = NULL;
    size_t n;
    struct dcp_error err = { 0 };
    put("f", "some text");
    put("empty", "");
    check_text("f", "some text");
    check_text("empty", "");
    assert_int_equal(dcp_fs_read_file("f", 9, &data, &n, NULL), 0);
    free(data);
    assert_int_equal(dcp_fs_read_file("f", 8, &data, &n, &err), DCP_E_CORRUPT);
    assert_int_equal(dcp_fs_read_file("absent", 8, &data, &n, NULL), DCP_E_NOT_FOUND);
    assert_int_equal(dcp_fs_read_file(".", 8, &data, &n, NULL), DCP_E_IO);
    /* A file that claims a size of 0. */
    assert_int_equal(dcp_fs_read_file("/proc/self/status", 1 << 20, &data, &n, NULL), 0);
    assert_true(n > 100 && strlen(data) == n);
    free(data);
}

static void makes_folders(void **state)
{
    (void)state;
    char cwd[256], path[512];
    assert_int_equal(dcp_fs_make_dirs("a/b//c/", NULL), 0);
    assert_true(dcp_fs_is_dir("a/b/c"));
    assert_int_equal(dcp_fs_make_dirs("a/b/c", NULL), 0); /* again */
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(path, sizeof path, "%s/x/y", cwd);
    assert_int_equal(dcp_fs_make_dirs(path, NULL), 0);
    assert_true(dcp_fs_is_dir("x/y"));
    put("f", "");
    struct dcp_error err = { 0 };
    assert_int_equal(dcp_fs_make_dirs("f/g", &err), DCP_E_IO);
    assert_non_null(strstr(err.message, "'f'"));
    assert_int_equal(dcp_fs_make_dirs("", NULL), DCP_E_NOT_FOUND);
    assert_int_equal(dcp_fs_make_dirs("s3://bucket/run", NULL), DCP_E_USAGE);
    assert_int_equal(dcp_fs_make_dirs("a/gs://bucket", NULL), DCP_E_USAGE);
    assert_int_equal(dcp_fs_make_dirs("a/b:/c://d", NULL), 0);
    assert_int_equal(dcp_fs_sync_dir("a", NULL), 0);
    assert_int_equal(dcp_fs_sync_dir("absent", NULL), DCP_E_NOT_FOUND);
    assert_true(dcp_fs_exists("f") && !dcp_fs_exists("g") && !dcp_fs_is_dir("f"));
    assert_true(dcp_fs_free_bytes(".") > 0);
    assert_true(dcp_fs_free_bytes("absent") == UINT64_MAX);
}

static void makes_what_is_missing(void **state)
{
    (void)state;
    char *first = NULL, cwd[256], want[300];
    assert_non_null(getcwd(cwd, sizeof cwd));
    assert_int_equal(dcp_fs_make_dirs("there", NULL), 0);
    assert_int_equal(dcp_fs_make_missing("there", &first, NULL), 0);
    assert_null(first);
    assert_int_equal(dcp_fs_make_missing("there/m1//m2/m3/", &first, NULL), 0);
    assert_string_equal(first, "there/m1");
    assert_true(dcp_fs_is_dir("there/m1/m2/m3"));
    put("there/m1/keep", "");
    dcp_fs_remove_made("there/m1//m2/m3/", first);
    assert_true(dcp_fs_is_dir("there/m1") && !dcp_fs_exists("there/m1/m2"));
    assert_int_equal(unlink("there/m1/keep"), 0);
    dcp_fs_remove_made("there/m1/m2/m3", first);
    assert_true(dcp_fs_is_dir("there") && !dcp_fs_exists("there/m1"));
    free(first);
    char *real = dcp_fs_real("there/./new/x");
    snprintf(want, sizeof want, "%s/there/new/x", cwd);
    assert_string_equal(real, want);
    free(real);
    assert_null(dcp_fs_real("nowhere/../x"));
}

/* What a link points to stays. */
static void removes_without_following(void **state)
{
    (void)state;
    assert_int_equal(dcp_fs_make_dirs("keep/deep", NULL), 0);
    put("keep/deep/f", "mine");
    assert_int_equal(dcp_fs_make_dirs("go/a/b", NULL), 0);
    put("go/a/f", "");
    assert_int_equal(symlink("../keep", "go/link"), 0);
    assert_int_equal(symlink("../../keep/deep/f", "go/a/file_link"), 0);
    assert_int_equal(symlink("keep", "link"), 0);
    assert_int_equal(mkfifo("go/pipe", 0600), 0);
    assert_int_equal(dcp_fs_remove_all("go/", NULL), 0);
    assert_false(dcp_fs_exists("go"));
    assert_int_equal(dcp_fs_remove_all("link", NULL), 0);
    check_text("keep/deep/f", "mine");
    assert_int_equal(dcp_fs_remove_all("go", NULL), DCP_E_NOT_FOUND);
    static const char *const refused[] = {
        ".", "..", "/", "", "keep/..", "keep/.", "//"
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(refused); i++)
        assert_int_equal(dcp_fs_remove_all(refused[i], NULL), DCP_E_USAGE);
    check_text("keep/deep/f", "mine");
}

static void renames_to_new_names_only(void **state)
{
    (void)state;
    int fd = open(".", O_RDONLY | O_DIRECTORY);
    put("a", "a");
    put("b", "b");
    assert_int_equal(mkdir("d", 0700), 0);
    assert_int_equal(mkdir("e", 0700), 0);
    assert_int_equal(dcp_fs_rename_new(fd, "a", fd, "b"), -1);
    assert_int_equal(errno, EEXIST);
    assert_int_equal(dcp_fs_rename_new(fd, "d", fd, "e"), -1); /* though it is empty */
    assert_int_equal(errno, EEXIST);
    check_text("b", "b");
    assert_int_equal(dcp_fs_rename_new(fd, "a", fd, "c"), 0);
    check_text("c", "a");
    assert_int_equal(dcp_fs_rename_new(fd, "absent", fd, "x"), -1);
    assert_int_equal(errno, ENOENT);
    put("left", "by a crash, and longer");
    assert_int_equal(dcp_fs_write_new(fd, "left", "new", 3), 0);
    check_text("left", "new");
    assert_int_equal(dcp_fs_write_new(fd, "d", "new", 3), -1);
    close(fd);
}

static void joins_and_splits(void **state)
{
    (void)state;
    static const struct {
        const char *path, *dir, *name;
    } cases[] = {
        { "x", ".", "x" },          { "a/x", "a", "x" },  { "/x", "/", "x" },
        { "a/b/x///", "a/b", "x" }, { "a//x", "a", "x" }, { "/", "/", "" },
        { "///", "/", "" },         { "", ".", "" },      { "//a//b//", "//a", "b" },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(cases); i++) {
        char *dir, *name;
        assert_true(dcp_fs_split(cases[i].path, &dir, &name));
        assert_string_equal(dir, cases[i].dir);
        assert_string_equal(name, cases[i].name);
        free(dir);
        free(name);
    }
    static const struct {
        const char *dir, *name, *path;
    } joins[] = { { "a", "b", "a/b" },
                  { "a/", "b", "a/b" },
                  { "/", "b", "/b" },
                  { "", "b", "b" },
                  { "a", "", "a" } };
    for (size_t i = 0; i < DCP_ARRAY_LEN(joins); i++) {
        char *path = dcp_fs_join(joins[i].dir, joins[i].name);
        assert_string_equal(path, joins[i].path);
        free(path);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(reads_and_writes_at_offsets),
        TEST(reads_whole_files),
        TEST(makes_folders),
        TEST(makes_what_is_missing),
        TEST(removes_without_following),
        TEST(renames_to_new_names_only),
        TEST(joins_and_splits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
