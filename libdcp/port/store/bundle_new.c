/* A store that is a tar archive being written: what is created in it goes straight into
 * one file. */
#include <dcp/store.h>

#include "base/mem.h"
#include "base/str.h"
#include "refuse.h"
#include "sink.h"
#include "tar_header.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct packer {
    struct dcp_store_ops ops;
    struct dcp_sink *sink;
    char *folder;
    struct dcp_store_file *current; /* the one that is open */
    bool broken;                    /* a file was left half written */
};

struct dcp_store_file {
    uint64_t size_bytes, at;
};

static int put(struct packer *packer, const void *data, size_t n, struct dcp_error *err)
{
    int rc = dcp_sink_write(packer->sink, data, n, err);

    packer->broken |= rc != DCP_OK;
    return rc;
}

static int put_header(struct packer *packer, const char *name, bool is_dir,
                      uint64_t size_bytes, struct dcp_error *err)
{
    unsigned char header[TAR_MAX_HEADER];

    if (strlen(name) + is_dir > TAR_MAX_NAME)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' is too long for an archive",
                             DCP_SHOWN(name));
    size_t n = dcp_tar_header(header, name, is_dir, size_bytes);
    return put(packer, header, n, err);
}

static int packer_create(void *self, const char *name, uint64_t size_bytes,
                         struct dcp_store_file **out, struct dcp_error *err)
{
    struct packer *packer = self;
    size_t n = strlen(packer->folder) + strlen(name) + 2;
    DCP_CLEANUP_FREE char *path = malloc(n);
    DCP_CLEANUP_FREE struct dcp_store_file *file = calloc(1, sizeof *file);

    *out = NULL;
    if (!path || !file)
        return dcp_error_memory(err, name);
    snprintf(path, n, "%s/%s", packer->folder, name);
    file->size_bytes = size_bytes;
    if (packer->current || !dcp_store_name_ok(name) || size_bytes > INT64_MAX)
        return dcp_error_set(
            err, DCP_E_UNSUPPORTED,
            "an archive is written one file after the other; '%s' is out of order", name);
    DCP_TRY(put_header(packer, path, false, size_bytes, err));
    *out = packer->current = file;
    file = NULL;
    return DCP_OK;
}

static int packer_write_at(void *self, struct dcp_store_file *file, uint64_t offset,
                           const void *data, size_t size_bytes, struct dcp_error *err)
{
    if (offset != file->at || size_bytes > file->size_bytes - file->at)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "an archive is written from front to back: byte %" PRIu64
                             " comes next, not %" PRIu64,
                             file->at, offset);
    file->at += size_bytes;
    return put(self, data, size_bytes, err);
}

/* Nothing is durable before the archive is finished. */
static int packer_sync(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                       struct dcp_error *err)
{
    (void)self;
    if (size_bytes == file->size_bytes && file->at == size_bytes)
        return DCP_OK;
    return dcp_error_set(err, DCP_E_UNSUPPORTED,
                         "a file of an archive has %" PRIu64 " bytes, not the %" PRIu64
                         " it was created with",
                         file->at, file->size_bytes);
}

static int packer_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    static const unsigned char zeros[TAR_RECORD];
    struct packer *packer = self;
    int rc = DCP_OK;

    if (file->at == file->size_bytes)
        rc = put(packer, zeros, dcp_tar_padding(file->size_bytes), err);
    else
        packer->broken = true;
    packer->current = NULL;
    free(file);
    return rc;
}

static void packer_free(void *self)
{
    struct packer *packer = self;

    dcp_sink_free(packer->sink);
    free(packer->folder);
    free(packer);
}

int dcp_store_bundle_new(struct dcp_store *out_store, const struct dcp_store *inner,
                         const char *name, const char *folder, int threads,
                         uint64_t memory_bytes, struct dcp_error *err)
{
    struct packer *packer = calloc(1, sizeof *packer);
    int rc = packer ? DCP_OK : dcp_error_memory(err, "an archive");

    if (rc)
        return rc;
    packer->ops = dcp_store_refuse;
    packer->ops.create = packer_create;
    packer->ops.write_at = packer_write_at;
    packer->ops.sync = packer_sync;
    packer->ops.close = packer_close;
    packer->ops.free = packer_free;
    if (!(packer->folder = strdup(folder)))
        rc = dcp_error_memory(err, "an archive");
    if (!rc)
        rc = dcp_sink_new(inner, name, threads, memory_bytes, &packer->sink, err);
    if (!rc)
        rc = put_header(packer, folder, true, 0, err);
    if (rc) {
        packer_free(packer);
        return rc;
    }
    *out_store =
        (struct dcp_store){ .ops = &packer->ops, .self = packer, .root = packer->folder };
    return DCP_OK;
}

int dcp_store_bundle_finish(struct dcp_store *store, uint64_t *out_size_bytes,
                            struct dcp_error *err)
{
    static const unsigned char end[2 * TAR_RECORD];
    struct packer *packer = store->self;

    *out_size_bytes = 0;
    if (packer->broken || packer->current)
        return dcp_error_set(err, DCP_E_IO,
                             "an archive is lost: a file of it was not written to its"
                             " end");
    DCP_TRY(put(packer, end, sizeof end, err));
    return dcp_sink_finish(packer->sink, out_size_bytes, err);
}
