#include "lease.h"

#include "base/clock.h"
#include "base/fs.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_US 2000 /* between two tries to take it */
enum { LOOKS = 50 };
#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"

static int refuse(int fd, const char *root, struct dcp_error *err)
{
    char text[512] = { 0 }, host[256] = "?", pid[32] = "?";
    if (pread(fd, text, sizeof text - 1, 0) > 0)
        sscanf(text, "%255s %31s", host, pid);
    dcp_error_set(err, DCP_E_BUSY, "'%s' is in use by process %s on host %s", root, pid,
                  host);
    dcp_error_hint(err, "wait for process %s on %s, or end it: the lease ends with it",
                   pid, host);
    return DCP_E_BUSY;
}

static int unable(int why, const char *root, struct dcp_error *err)
{
    bool no_locks = why == ENOSYS || why == EOPNOTSUPP || why == ENOLCK;
    int code = no_locks ? DCP_E_UNSUPPORTED : DCP_E_IO;
    code = dcp_error_sys(err, code, why, "cannot lock '%s/%s'", root, DCP_LEASE_NAME);
    if (no_locks)
        dcp_error_hint(err, "the file system must be mounted with locks (Lustre: flock)");
    return code;
}

/* "host pid bootid\n", for the message of the one who comes too late. */
static int sign(int fd)
{
    char host[256] = "?", text[512];
    void *boot_id = NULL;
    size_t n;
    gethostname(host, sizeof host - 1);
    if (dcp_fs_read_file(BOOT_ID_PATH, 64, &boot_id, &n, NULL) == 0)
        ((char *)boot_id)[strcspn(boot_id, "\n")] = '\0';
    snprintf(text, sizeof text, "%s %ld %s\n", host, (long)getpid(),
             boot_id ? (const char *)boot_id : "?");
    free(boot_id);
    return ftruncate(fd, 0) == 0 ? dcp_fs_write_at(fd, text, strlen(text), 0) : -1;
}

/* Who may read a file can lock it, so only those may read the lease who may write it: at
 * first the owner alone, so that there is no moment in between, then all whom the umask
 * lets write. One that is there already may be another user's, who alone can repair it.
 */
static int open_lease(int dir_fd)
{
    const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = openat(dir_fd, DCP_LEASE_NAME, flags, 0622);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0)
        return fd;
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        errno = ENXIO;
        return -1;
    }
    mode_t writers = st.st_mode & 0222, mode = writers | writers << 1;
    if ((st.st_mode & 0666) != mode)
        fchmod(fd, mode);
    return fd;
}

int dcp_lease_take(int dir_fd, const char *root, int *out_lease, struct dcp_error *err)
{
    int fd = open_lease(dir_fd);
    if (fd < 0)
        return dcp_error_sys(err, DCP_E_IO, errno, "cannot open '%s/%s'", root,
                             DCP_LEASE_NAME);
    int rc = DCP_OK, locked = flock(fd, LOCK_EX | LOCK_NB);
    /* Who only asks whether it is taken has it for a moment. */
    for (int i = 0; locked != 0 && errno == EWOULDBLOCK && i < LOOKS; i++) {
        dcp_clock_sleep_us(LOOK_US);
        locked = flock(fd, LOCK_EX | LOCK_NB);
    }
    if (locked != 0)
        rc = errno == EWOULDBLOCK ? refuse(fd, root, err) : unable(errno, root, err);
    else if (sign(fd) != 0)
        rc = dcp_error_sys(err, DCP_E_IO, errno, "cannot write '%s/%s'", root,
                           DCP_LEASE_NAME);
    if (rc)
        close(fd);
    else
        *out_lease = fd;
    return rc;
}

/* The file stays: were it removed, one process could lock a new file while another still
 * holds the old one. */
void dcp_lease_drop(int *lease)
{
    if (*lease >= 0)
        close(*lease);
    *lease = -1;
}
