/* Targets that share blocks with their source are the bytes that they are else, and prove
 * as much. The file system here has none of that: an ioctl of the test copies bytes, and
 * its blocks are small, so that the sample has many. The real ones: tests/fault/reflinks.
 */
#include "lib/reshard_folder.h"
#include "lib/step_files.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { TINY_BLOCK = 64 };
#define EXPORT __attribute__((visibility("default")))

static struct {
    int why;         /* errno of the calls from number `at` on; 0: they succeed */
    uint64_t at, n;  /* calls, the first of them is 1 */
    bool flips;      /* a bit of what is shared becomes another */
    bool interrupts; /* a signal comes at every other call */
    bool named;      /* there are no files without a name */
    uint64_t shared; /* bytes */
    uint64_t free;   /* blocks of the file system */
} fake;

EXPORT int openat(int dir_fd, const char *name, int flags, ...)
{
    bool nameless = (flags & O_TMPFILE) == O_TMPFILE;
    va_list args;

    va_start(args, flags);
    mode_t mode = nameless || flags & O_CREAT ? (mode_t)va_arg(args, int) : 0;
    va_end(args);
    if (!nameless || !fake.named)
        return (int)syscall(SYS_openat, dir_fd, name, flags, mode);
    errno = EOPNOTSUPP;
    return -1;
}

EXPORT int fstatvfs(int fd, struct statvfs *out)
{
    (void)fd;
    *out = (struct statvfs){ .f_frsize = TINY_BLOCK, .f_bavail = 1 << 24 };
    return 0;
}

EXPORT int statvfs(const char *path, struct statvfs *out)
{
    (void)path;
    *out = (struct statvfs){ .f_frsize = TINY_BLOCK, .f_bavail = fake.free };
    return 0;
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
    va_list args;

    va_start(args, request);
    const struct file_clone_range *range = va_arg(args, void *);
    va_end(args);
    if (request != FICLONERANGE)
        return (int)syscall(SYS_ioctl, fd, request, range);
    if (fake.why && ++fake.n >= fake.at) {
        errno = fake.why;
        return -1;
    }
    if (fake.interrupts && ++fake.n % 2) {
        errno = EINTR;
        return -1;
    }
    struct stat st;
    size_t n = (size_t)range->src_length;
    char *data = calloc(n + 1, 1);
    assert_non_null(data);
    assert_true(range->src_offset % TINY_BLOCK == 0 && n % TINY_BLOCK == 0 &&
                range->dest_offset % TINY_BLOCK == 0);
    assert_int_equal(syscall(SYS_pread64, range->src_fd, data, n, range->src_offset), n);
    data[n / 2] ^= fake.flips;
    assert_int_equal(syscall(SYS_pwrite64, fd, data, n, range->dest_offset), n);
    if (!fstat(fd, &st) && st.st_nlink) /* no trial */
        fake.shared += n;
    free(data);
    return 0;
}

static int setup(void **state)
{
    memset(&fake, 0, sizeof fake);
    fake.free = 1 << 24;
    return reshard_folder_setup(state);
}

/* Shares blocks; *out_shared is what is told of it. */
static int run(const char *source, const char *target,
               const struct dcp_reshard_options *given, uint64_t *out_shared,
               struct dcp_error *err)
{
    struct dcp_reshard_options options = *given;
    struct dcp_location location;
    struct dcp_reshard *reshard;

    options.reflink = true;
    fake.shared = 0;
    assert_int_equal(dcp_location_open(source, &location, NULL), 0);
    int rc = dcp_reshard_plan(&location, target, &options, &reshard, err);
    if (!rc) {
        rc = dcp_reshard_run(reshard, err);
        *out_shared = dcp_reshard_shared(reshard);
        dcp_reshard_free(reshard);
    }
    dcp_location_close(&location);
    return rc;
}

/* `target` in one folder is, file by file, what it is in another. */
static void must_equal(const char *folder, const char *other)
{
    struct dcp_store a, b;
    struct step_files files;

    assert_int_equal(dcp_store_dir(&a, folder, false, NULL), 0);
    assert_int_equal(dcp_store_dir(&b, other, false, NULL), 0);
    step_files_read(&files, &a, "target");
    assert_true(files.n > 1);
    files.store = &b;
    assert_true(step_files_same(&files));
    step_files_free(&files);
    dcp_store_free(&a);
    dcp_store_free(&b);
}

/* -- the same bytes ------------------------------------------------------------------ */

static const struct dcp_reshard_options kinds[] = {
    { .dtype = -1 },
    { .dtype = -1, .world_size = 1 },
    { .dtype = -1, .world_size = 3 },
    { .dtype = -1, .layout = "dim0", .world_size = 4 },
    { .dtype = -1, .only = DCP_ONLY_MODEL },
    { .dtype = -1, .parity = 1 },
    { .dtype = -1, .threads = 1 },
    { .dtype = -1, .no_verify = true },
    { .dtype = DCP_F16 },
    { .dtype = -1, .format = "torch-dist" },
};

static void same_bytes(void **state)
{
    const struct reshard_folder *folder = *state;
    char plain_folder[600], plain[700];
    uint64_t all = 0;

    snprintf(plain_folder, sizeof plain_folder, "%s/plain", folder->path);
    snprintf(plain, sizeof plain, "%s/target", plain_folder);
    reshard_folder_save(folder->source, "zero3", 2, DCP_CODEC_NONE);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct dcp_reshard_options options = kinds[i];
        struct dcp_error err = { 0 };
        uint64_t shared = 0;
        options.force = true;
        reshard_folder_must_run(folder->source, plain, &options);
        int rc = run(folder->source, folder->target, &options, &shared, &err);
        assert_string_equal(err.message, "");
        assert_int_equal(rc, 0);
        assert_int_equal(shared, fake.shared);
        all += shared;
        must_equal(folder->path, plain_folder);
    }
    assert_true(all > 5u << 20);
}

static void in_parts(void **state)
{
    const struct reshard_folder *folder = *state;
    struct dcp_reshard_options options = { .dtype = -1, .n_parts = 3 };
    char plain_folder[600], plain[700];
    uint64_t shared = 0, sum = 0;

    snprintf(plain_folder, sizeof plain_folder, "%s/plain", folder->path);
    snprintf(plain, sizeof plain, "%s/target", plain_folder);
    reshard_folder_save(folder->source, "zero3", 4, DCP_CODEC_NONE);
    reshard_folder_must_run(folder->source, plain,
                            &(struct dcp_reshard_options){ .dtype = -1 });
    for (options.part = 1; options.part <= 3; options.part++) {
        assert_int_equal(run(folder->source, folder->target, &options, &shared, NULL), 0);
        assert_int_equal(shared, fake.shared);
        sum += shared;
    }
    options = (struct dcp_reshard_options){ .dtype = -1, .finish = true };
    assert_int_equal(run(folder->source, folder->target, &options, &shared, NULL), 0);
    assert_int_equal(shared, sum);
    assert_true(sum > 1u << 20);
    must_equal(folder->path, plain_folder);
}

/* Of what is shared nobody needs to have room; a signal ends nothing. */
static void a_full_disk(void **state)
{
    const struct reshard_folder *folder = *state;
    const struct dcp_reshard_options options = { .dtype = -1 };
    char first[600];
    uint64_t shared = 0;

    snprintf(first, sizeof first, "%s/first", folder->path);
    reshard_folder_save(folder->source, "zero3", 2, DCP_CODEC_NONE);
    reshard_folder_must_run(folder->source, first, &options);
    fake.free = (16 << 10) / TINY_BLOCK;
    fake.interrupts = true;
    assert_int_equal(reshard_folder_run(first, folder->target, &options, NULL),
                     DCP_E_NO_SPACE);
    assert_int_equal(run(first, folder->target, &options, &shared, NULL), 0);
    assert_true(shared > 1u << 20);
}

/* Where no file is without a name, one with a name is tried, which may be there already.
 */
static void tried_by_name(void **state)
{
    const struct reshard_folder *folder = *state;
    const struct dcp_reshard_options options = { .dtype = -1 };
    char left[600];
    uint64_t shared = 0;

    snprintf(left, sizeof left, "%s/.dcp-clone.tmp", folder->path);
    reshard_folder_save(folder->source, "zero3", 2, DCP_CODEC_NONE);
    assert_int_equal(close(open(left, O_CREAT | O_WRONLY, 0600)), 0);
    fake.named = true;
    assert_int_equal(run(folder->source, folder->target, &options, &shared, NULL), 0);
    assert_true(shared > 1u << 20);
    assert_int_equal(reshard_folder_count(folder->path, ".dcp-clone"), 0);
}

/* The data of a file begins where a block does, behind blanks. */
static void a_file_is_aligned(void **state)
{
    const struct reshard_folder *folder = *state;
    const struct dcp_reshard_options options = { .dtype = -1,
                                                 .format = "safetensors",
                                                 .only = DCP_ONLY_MODEL };
    char one[600], plain[600];
    uint64_t shared = 0;

    snprintf(one, sizeof one, "%s/one", folder->path);
    snprintf(plain, sizeof plain, "%s/plain", folder->path);
    reshard_folder_save(folder->source, "zero3", 2, DCP_CODEC_NONE);
    reshard_folder_must_run(folder->source, one,
                            &(struct dcp_reshard_options){
                                .dtype = -1, .world_size = 1, .only = DCP_ONLY_MODEL });
    reshard_folder_must_run(one, plain, &options);
    assert_int_equal(run(one, folder->target, &options, &shared, NULL), 0);
    struct stat a, b;
    assert_true(!stat(folder->target, &a) && !stat(plain, &b));
    assert_in_range(a.st_size - b.st_size, 0, TINY_BLOCK - 1);
    assert_true(shared > (uint64_t)b.st_size / 10 * 9);
}

/* -- what is proved ------------------------------------------------------------------ */

/* A shard of two: some bytes in the middle become others. */
static void flip(const char *folder, const char *step)
{
    char path[1000];
    struct stat st;

    snprintf(path, sizeof path, "%s/%s/shard-00000-of-00002.safetensors", folder, step);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0 && !fstat(fd, &st));
    assert_int_equal(pwrite(fd, "flipped!", 8, st.st_size / 2), 8);
    assert_int_equal(close(fd), 0);
}

static void the_source_is_read(void **state)
{
    const struct reshard_folder *folder = *state;
    struct dcp_reshard_options options = { .dtype = -1 };
    struct dcp_error with = { 0 }, without = { 0 };
    uint64_t shared;

    reshard_folder_save(folder->source, "zero3", 2, DCP_CODEC_NONE);
    flip(folder->source, "step-00000005");
    assert_int_equal(run(folder->source, folder->target, &options, &shared, &with),
                     DCP_E_CORRUPT);
    assert_int_equal(
        reshard_folder_run(folder->source, folder->target, &options, &without),
        DCP_E_CORRUPT);
    assert_string_equal(with.message, without.message);
    assert_int_equal(access(folder->target, F_OK), -1);
}

static void the_target_is_read_back(void **state)
{
    const struct reshard_folder *folder = *state;
    struct dcp_error err = { 0 };
    uint64_t shared;

    reshard_folder_save(folder->source, "zero3", 2, DCP_CODEC_NONE);
    for (int parity = 0; parity < 2; parity++) {
        struct dcp_reshard_options options = { .dtype = -1, .parity = parity };
        fake.flips = true;
        assert_int_equal(run(folder->source, folder->target, &options, &shared, &err),
                         DCP_E_CORRUPT);
        assert_int_equal(access(folder->target, F_OK), -1);
    }
}

/* What is corrupt is not shared; what is read through parity is written. */
static void reconstructed(void **state)
{
    const struct reshard_folder *folder = *state;
    struct dcp_reshard_options options = { .dtype = -1, .parity = 1 };
    char safe[600], safe_step[700], plain_folder[600], plain[700];
    struct dcp_error err = { 0 };
    uint64_t whole = 0, shared = 0;

    snprintf(safe, sizeof safe, "%s/safe", folder->path);
    snprintf(safe_step, sizeof safe_step, "%s/target", safe);
    snprintf(plain_folder, sizeof plain_folder, "%s/plain", folder->path);
    snprintf(plain, sizeof plain, "%s/target", plain_folder);
    reshard_folder_save(folder->source, "zero3", 2, DCP_CODEC_NONE);
    reshard_folder_must_run(folder->source, safe_step, &options);
    reshard_folder_must_run(safe_step, plain, &options);
    assert_int_equal(run(safe_step, folder->target, &options, &whole, NULL), 0);
    flip(safe, "target");
    options.force = true;
    int rc = run(safe_step, folder->target, &options, &shared, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(rc, 0);
    assert_in_range(shared, 1, whole - 1);
    must_equal(folder->path, plain_folder);
}

/* -- what is refused ----------------------------------------------------------------- */

static void where_it_cannot_be(void **state)
{
    const struct reshard_folder *folder = *state;
    static const struct {
        int why, code;
        const char *says;
    } cases[] = {
        { EXDEV, DCP_E_UNSUPPORTED, "on another file system" },
        { EOPNOTSUPP, DCP_E_UNSUPPORTED, "has no reflinks" },
        { ENOTTY, DCP_E_UNSUPPORTED, "has no reflinks" },
        { EINVAL, DCP_E_UNSUPPORTED, "has no reflinks" },
        { ENOSPC, DCP_E_NO_SPACE, "No space left" },
        { EIO, DCP_E_IO, "cannot share blocks in" },
    };
    const struct dcp_reshard_options options = { .dtype = -1 };
    uint64_t shared;
    char deep[600];

    snprintf(deep, sizeof deep, "%s/new/deep/target", folder->path);
    reshard_folder_save(folder->source, "zero3", 2, DCP_CODEC_NONE);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        /* Before anything is made, and of the first blocks that are to be shared. */
        for (uint64_t at = 1; at <= 3; at += 2) {
            struct dcp_error err = { 0 };
            bool early = at == 1;
            fake.why = cases[i].why;
            fake.at = at;
            fake.n = 0;
            int rc = run(folder->source, deep, &options, &shared, &err);
            assert_int_equal(rc, early                    ? cases[i].code
                                 : cases[i].why == ENOSPC ? DCP_E_NO_SPACE
                                                          : DCP_E_IO);
            if (early)
                assert_non_null(strstr(err.message, cases[i].says));
            if (rc == DCP_E_UNSUPPORTED)
                assert_non_null(strstr(err.hint, "--reflink"));
            assert_int_equal(reshard_folder_count(folder->path, "new"), 0);
        }
    }
}

static void of_what_has_no_blocks(void **state)
{
    const struct reshard_folder *folder = *state;
    struct dcp_reshard_options options = { .dtype = -1, .codec = DCP_CODEC_SPLIT };
    char packed[600];
    uint64_t shared;
    struct dcp_error err = { 0 };

    snprintf(packed, sizeof packed, "%s/packed.tar.zst", folder->path);
    reshard_folder_save(folder->source, "zero3", 2, DCP_CODEC_NONE);
    assert_int_equal(run(folder->source, folder->target, &options, &shared, NULL),
                     DCP_E_USAGE);
    options = (struct dcp_reshard_options){ .dtype = -1, .format = "bundle" };
    assert_int_equal(run(folder->source, folder->target, &options, &shared, NULL),
                     DCP_E_USAGE);
    reshard_folder_must_run(folder->source, packed, &options);
    options.format = NULL;
    assert_int_equal(run(packed, folder->target, &options, &shared, &err),
                     DCP_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "it is an archive"));
    assert_int_equal(reshard_folder_count(folder->path, "target"), 0);
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, reshard_folder_teardown)
    const struct CMUnitTest tests[] = {
        EACH(same_bytes),
        EACH(in_parts),
        EACH(a_full_disk),
        EACH(tried_by_name),
        EACH(a_file_is_aligned),
        EACH(the_source_is_read),
        EACH(the_target_is_read_back),
        EACH(reconstructed),
        EACH(where_it_cannot_be),
        EACH(of_what_has_no_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
