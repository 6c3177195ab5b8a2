/* A small file of which a bit flips on the way to the kernel is not kept. */
#include "base/mem.h"
#include "lib/acts.h"
#include <dcp/store.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

static bool flips;

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    unsigned char copy[64];

    if (!flips || n == 0 || n > sizeof copy)
        return syscall(SYS_pwrite64, fd, data, n, offset);
    memcpy(copy, data, n);
    copy[n / 2] ^= 0x20;
    return syscall(SYS_pwrite64, fd, copy, n, offset);
}

static void a_flip_is_found(void **state)
{
    DCP_CLEANUP_FREE void *text = NULL;
    char folder[256];
    struct dcp_store store;
    struct dcp_error err = { 0 };
    size_t n;

    (void)state;
    acts_folder(folder);
    assert_int_equal(dcp_store_dir(&store, folder, false, NULL), 0);
    assert_int_equal(store.ops->replace(store.self, "latest", "one", 3, NULL), 0);
    flips = true;
    assert_int_equal(store.ops->replace(store.self, "latest", "two", 3, &err),
                     DCP_E_CORRUPT);
    assert_non_null(strstr(err.message, "read back is not what was written"));
    assert_int_equal(dcp_store_write_file(&store, "file", "two", 3, NULL), DCP_E_CORRUPT);
    flips = false;
    assert_int_equal(dcp_store_read_file(&store, "latest", 99, &text, &n, NULL), 0);
    assert_string_equal(text, "one");
    assert_int_equal(
        store.ops->open(store.self, "file", &(struct dcp_store_file *){ 0 }, NULL),
        DCP_E_NOT_FOUND);
    dcp_store_free(&store);
    acts_folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flip_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
