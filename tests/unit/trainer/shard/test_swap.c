/* labels: tsan */
/* swap: arrays keep what was written to them, whatever was put away meanwhile; a disk
 * that fails is told. */
#include "base/mem.h"
#include "lib/acts.h"
#include "trainer/shard/swap.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[256];

static int make_folder(void **state)
{
    (void)state;
    acts_folder(folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    if (access(folder, F_OK) == 0)
        acts_folder_remove(folder);
    return 0;
}

static void arrays_keep_their_values(void **state)
{
    enum { N = 300000, STEP = 7001 };
    struct swap *swap;
    uint32_t *arrays[3];
    (void)state;
    assert_int_equal(swap_new(folder, 50000, &swap, NULL), 0);
    for (int a = 0; a < 3; a++) {
        void *data;
        assert_int_equal(swap_alloc(swap, N * 4, "a test", &data, NULL), 0);
        arrays[a] = data;
        for (int i = 0; i < N; i++)
            assert_int_equal(arrays[a][i], 0);
    }
    for (uint32_t turn = 1; turn < 4; turn++)
        for (int a = 0; a < 3; a++)
            for (int i = 0; i < N; i += STEP) {
                int n = N - i < STEP ? N - i : STEP;
                swap_want(swap, arrays[a] + i + n, (uint64_t)(i + n < N ? STEP : 0) * 4);
                for (int k = i; k < i + n; k++)
                    arrays[a][k] = arrays[a][k] * 3 + (uint32_t)(a + k) * turn;
                swap_leave(swap, arrays[a] + i, (uint64_t)n * 4);
            }
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t k = 0; k < N; k++)
            assert_int_equal(arrays[a][k], (a + k) * 9 + (a + k) * 6 + (a + k) * 3);
    assert_true(swap_drop(swap, arrays[1]));
    assert_false(swap_drop(swap, arrays[1]));
    assert_false(swap_drop(swap, NULL));
    assert_false(swap_drop(NULL, arrays[0]));
    swap_leave(swap, arrays[1], 4);
    swap_leave(NULL, arrays[0], 4);
    void *data;
    assert_int_equal(swap_alloc(swap, 1000, "a test", &data, NULL), 0);
    assert_int_equal(arrays[2][N - 1], (2 + N - 1) * 18);
    assert_int_equal(rmdir(folder), 0); /* the file has no name */
    swap_free(swap);
    swap_free(NULL);
}

static void too_much(void **state)
{
    struct swap *swap;
    struct dcp_error err = { 0 };
    void *data;
    (void)state;
    assert_int_equal(swap_new(folder, 1, &swap, NULL), 0);
    if (swap_alloc(swap, UINT64_C(1) << 58, "a test", &data, &err) != DCP_E_NO_SPACE)
        fail_msg("%s", err.message);
    assert_non_null(strstr(err.message, "has no room for a test"));
    assert_int_equal(swap_alloc(swap, UINT64_MAX, "a test", &data, &err), DCP_E_NO_SPACE);
    swap_free(swap);
    assert_true(swap_new("/proc/nowhere", 1, &swap, &err) < 0);
}

/* The only file without a name that is open below the folder loses its contents. */
static void spoil(void)
{
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[300], to[512] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        if (readlink(path, to, sizeof to - 1) > 0 && strstr(to, folder) &&
            strstr(to, "(deleted)") && truncate(path, 0))
            _exit(99);
    }
    closedir(dir);
}

static void a_disk_that_fails(void **state)
{
    int said[2], status;
    char line[200] = "";
    (void)state;
    assert_int_equal(pipe(said), 0);
    pid_t child = fork();
    if (child == 0) {
        struct swap *swap;
        void *data;
        dup2(said[1], STDERR_FILENO);
        if (swap_new(folder, 1, &swap, NULL) || swap_alloc(swap, 8192, "", &data, NULL))
            _exit(98);
        spoil();
        _exit(((volatile char *)data)[5000] ? 97 : 96);
    }
    close(said[1]);
    assert_true(read(said[0], line, sizeof line - 1) > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), dcp_error_exit(DCP_E_IO));
    assert_non_null(strstr(line, "nvme_path, failed"));
    close(said[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(arrays_keep_their_values, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(too_much, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_disk_that_fails, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
