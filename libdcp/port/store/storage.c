#include "storage.h"

#include "base/fs.h"
#include "base/mem.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

/* By what statfs says (linux/magic.h, and the sources of those that are not there). */
static const struct {
    uint32_t type;
    struct dcp_storage storage;
} known[] = {
    { 0x01021994, { .name = "tmpfs", .in_memory = true } },
    { 0x858458f6, { .name = "ramfs", .in_memory = true } },
    { 0x0000ef53, { .name = "ext4" } },
    { 0x58465342, { .name = "XFS" } },
    { 0x9123683e, { .name = "Btrfs" } },
    { 0xf2f52010, { .name = "F2FS" } },
    { 0x2fc12fc1, { .name = "ZFS" } },
    { 0xca451a4e, { .name = "bcachefs" } },
    { 0x794c7630, { .name = "overlayfs" } },
    { 0x0bd00bd0,
      { .name = "Lustre",
        .shared = true,
        .advice =
            "stripe large files before the first save, one target for every 4 GiB "
            "of a shard (lfs setstripe -c N -S 4M FOLDER), and mount with flock" } },
    { 0x47504653,
      { .name = "GPFS",
        .shared = true,
        .advice = "it stripes by itself; many ranks that write one file wait for each "
                  "other, so that a shard of each rank is right" } },
    { 0x19830326,
      { .name = "BeeGFS",
        .shared = true,
        .advice = "stripe large files before the first save "
                  "(beegfs-ctl --setpattern --numtargets=4 --chunksize=4m FOLDER)" } },
    { 0x00c36400,
      { .name = "CephFS",
        .shared = true,
        .advice = "stripe large files before the first save "
                  "(setfattr -n ceph.dir.layout.stripe_count -v 4 FOLDER)" } },
    { 0x00006969,
      { .name = "NFS",
        .shared = true,
        .advice = "one server takes all: save few large files, mount with sync on the "
                  "server, and with nconnect=8,rsize=1048576,wsize=1048576 here" } },
    { 0xff534d42, { .name = "SMB", .shared = true, .advice = "one server takes all" } },
    { 0xfe534d42, { .name = "SMB", .shared = true, .advice = "one server takes all" } },
    { 0x01021997, { .name = "9P", .shared = true } },
    { 0x65735546,
      { .name = "FUSE",
        .shared = true,
        .advice = "what lies behind it is not known: with object storage a rename is a "
                  "copy, and a sync may promise nothing; save to a disk, and copy steps "
                  "that are complete" } },
};

struct dcp_storage dcp_storage_at(int fd)
{
    struct statfs fs;

    if (fstatfs(fd, &fs) == 0)
        for (size_t i = 0; i < DCP_ARRAY_LEN(known); i++)
            if (known[i].type == (uint32_t)fs.f_type)
                return known[i].storage;
    return (struct dcp_storage){ .name = "" };
}

struct dcp_storage dcp_storage_of(const char *path)
{
    DCP_CLEANUP_FREE char *at = strdup(path);
    int fd = -1;

    while (at && (fd = open(at, O_PATH | O_CLOEXEC)) < 0 && errno == ENOENT) {
        char *dir = NULL, *name = NULL;
        bool more = dcp_fs_split(at, &dir, &name) && strcmp(dir, at) != 0;
        free(name);
        free(at);
        at = more ? dir : NULL;
        if (!more)
            free(dir);
    }
    struct dcp_storage storage = dcp_storage_at(fd);
    if (fd >= 0)
        close(fd);
    return storage;
}
