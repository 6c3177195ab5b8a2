/* What files lie on: by what the system says, which here says what it is told. */
#include <dcp/store.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cmocka.h>

static uint32_t pretended; /* 0: the truth */

__attribute__((visibility("default"))) int fstatfs(int fd, struct statfs *out)
{
    int rc = (int)syscall(SYS_fstatfs, fd, out);
    if (rc == 0 && pretended)
        out->f_type = (__fsword_t)pretended;
    return rc;
}

static void kinds(void **state)
{
    static const struct {
        uint32_t type;
        const char *name;
        bool shared, in_memory, advised;
    } all[] = {
        { 0xef53, "ext4", false, false, false },
        { 0x01021994, "tmpfs", false, true, false },
        { 0x0bd00bd0, "Lustre", true, false, true },
        { 0x6969, "NFS", true, false, true },
        { 0x47504653, "GPFS", true, false, true },
        { 0x65735546, "FUSE", true, false, true },
        { 0x9123683e, "Btrfs", false, false, false },
        { 0xff534d42, "SMB", true, false, true },
        { 0x12345678, "", false, false, false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        pretended = all[i].type;
        struct dcp_storage storage = dcp_storage_of("/");
        assert_string_equal(storage.name, all[i].name);
        assert_int_equal(storage.shared, all[i].shared);
        assert_int_equal(storage.in_memory, all[i].in_memory);
        assert_int_equal(storage.advice != NULL, all[i].advised);
    }
    pretended = 0;
}

/* What is not there yet lies where it will be made. */
static void places(void **state)
{
    (void)state;
    assert_string_equal(dcp_storage_of("/proc/self/none/of/these").name, "");
    assert_string_equal(dcp_storage_of("").name, dcp_storage_of(".").name);
    assert_string_equal(dcp_storage_of("none/of/these").name, dcp_storage_of(".").name);
    assert_string_equal(dcp_storage_of("/none/of/these").name, dcp_storage_of("/").name);
    struct stat st;
    if (stat("/dev/shm", &st) != 0)
        skip();
    assert_true(dcp_storage_of("/dev/shm/none/of/these").in_memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds),
        cmocka_unit_test(places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
