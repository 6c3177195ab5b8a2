#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "folder.h"
#include <dcp/delta.h>

#define SMALL_BYTES ((uint64_t)1 << 20)

static int check(const struct dcp_store *store, const char *dir,
                 const struct dcp_delta_file *file, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(dir, *dir ? "/" : "", file->name);
    DCP_CLEANUP_FREE void *bytes = NULL;
    size_t n;

    if (!path)
        return dcp_error_memory(err, "a file name");
    DCP_TRY(dcp_store_read_file(store, path, SMALL_BYTES, &bytes, &n, err));
    return dcp_hash_crc64(0, bytes, n) == file->crc
               ? DCP_OK
               : dcp_error_set(err, DCP_E_CORRUPT, "'%s' is corrupt: its digest differs",
                               DCP_SHOWN(path));
}

int dcp_delta_check_small(const struct dcp_store *store, const char *dir,
                          struct dcp_error *err)
{
    struct dcp_delta_folder folder;
    struct dcp_error why = { 0 };
    int rc = dcp_delta_folder_read(store, dir, &folder, &why);
    bool none = rc == DCP_E_NOT_FOUND;

    for (size_t i = 0; i < folder.n_files && !rc; i++)
        if (folder.files[i].size_bytes <= SMALL_BYTES &&
            !dcp_delta_find(&folder, DCP_DELTA_IDENTITY))
            rc = check(store, dir, &folder.files[i], &why);
    dcp_delta_folder_fini(&folder);
    if (rc && !none && err)
        *err = why;
    return none ? DCP_OK : rc;
}
