#include "lib/archives.h"
#include "base/bytes.h"
#include "lib/must.h"
#include "port/store/tar_header.h"
#include <string.h>
#include <zstd.h>

unsigned char archive_byte(const struct archive_file *file, uint64_t at)
{
    uint64_t x = at * 0x9e3779b97f4a7c15u + file->size_bytes;

    return at / 70000 % 2 ? (unsigned char)(x >> 56) : (unsigned char)(at / 3000);
}

bool archive_is(const struct archive_file *file, uint64_t at, const void *from, size_t n)
{
    const unsigned char *bytes = from;
    size_t i = 0;

    while (i < n && bytes[i] == archive_byte(file, at + i))
        i++;
    return i == n;
}

static int pack_file(const struct dcp_store *bundle, const struct archive_file *file,
                     struct dcp_error *err)
{
    unsigned char data[5000];
    struct dcp_store_file *handle;
    uint64_t at = 0;

    int rc =
        bundle->ops->create(bundle->self, file->name, file->size_bytes, &handle, err);
    if (rc)
        return rc;
    while (at < file->size_bytes && !rc) {
        size_t left = file->size_bytes - at, n = 1 + at % sizeof data;
        n = n < left ? n : left;
        for (size_t i = 0; i < n; i++)
            data[i] = archive_byte(file, at + i);
        rc = bundle->ops->write_at(bundle->self, handle, at, data, n, err);
        at += n;
    }
    if (!rc)
        rc = bundle->ops->sync(bundle->self, handle, file->size_bytes, err);
    int closed = bundle->ops->close(bundle->self, handle, rc ? NULL : err);
    return rc ? rc : closed;
}

int archive_pack(const struct dcp_store *store, const struct archive_file *files,
                 size_t n, int threads, struct dcp_error *err)
{
    struct dcp_store bundle;
    uint64_t size;

    int rc = dcp_store_bundle_new(&bundle, store, "archive", "top", threads, 1, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < n && !rc; i++)
        rc = pack_file(&bundle, &files[i], err);
    if (!rc)
        rc = dcp_store_bundle_finish(&bundle, &size, err);
    dcp_store_free(&bundle);
    return rc;
}

void archive_take(const struct dcp_store *store, const char *name, struct dcp_buf *out)
{
    void *data;
    size_t n;

    must(!dcp_store_read_file(store, name, SIZE_MAX, &data, &n, NULL));
    dcp_buf_add(out, data, n);
    must(!out->failed);
    free(data);
}

void archive_put(const struct dcp_store *store, const char *name, const void *data,
                 size_t n)
{
    store->ops->remove(store->self, name, NULL);
    must(!dcp_store_write_file(store, name, n ? data : "", n, NULL));
}

void archive_decode(const struct dcp_buf *in, struct dcp_buf *out)
{
    static unsigned char piece[1 << 16];
    ZSTD_DCtx *zstd = ZSTD_createDCtx();
    ZSTD_inBuffer from = { in->data, in->size_bytes, 0 };

    must(zstd);
    while (from.pos < from.size) {
        ZSTD_outBuffer to = { piece, sizeof piece, 0 };
        must(!ZSTD_isError(ZSTD_decompressStream(zstd, &to, &from)));
        dcp_buf_add(out, piece, to.pos);
    }
    must(!out->failed);
    ZSTD_freeDCtx(zstd);
}

void archive_encode(const struct dcp_buf *in, size_t frame_bytes, struct dcp_buf *out)
{
    size_t most = frame_bytes ? frame_bytes : in->size_bytes;
    size_t cap = ZSTD_compressBound(most);
    unsigned char *frame = malloc(cap);
    ZSTD_CCtx *zstd = ZSTD_createCCtx();

    must(zstd && frame);
    ZSTD_CCtx_setParameter(zstd, ZSTD_c_contentSizeFlag, frame_bytes != 0);
    for (size_t at = 0; at < in->size_bytes; at += most) {
        size_t left = in->size_bytes - at;
        size_t n =
            ZSTD_compress2(zstd, frame, cap, in->data + at, left < most ? left : most);
        must(!ZSTD_isError(n));
        dcp_buf_add(out, frame, n);
    }
    must(!out->failed);
    ZSTD_freeCCtx(zstd);
    free(frame);
}

void archive_add(struct dcp_buf *tar, const struct archive_part *part)
{
    unsigned char header[TAR_MAX_HEADER];
    size_t data_bytes = part->data ? strlen(part->data) : 0;
    unsigned sum = 0;

    size_t n = dcp_tar_header(header, part->name, false, data_bytes);
    if (part->kind)
        header[156] = (unsigned char)part->kind;
    if (part->link)
        memcpy(header + 157, part->link, strlen(part->link));
    if (part->size)
        memcpy(header + 124, part->size, 12);
    memset(header + 148, ' ', 8);
    for (size_t i = 0; i < TAR_RECORD; i++)
        sum += header[i];
    snprintf((char *)header + 148, 8, "%06o", sum);
    dcp_buf_add(tar, header, n);
    if (part->no_data)
        return;
    dcp_buf_add(tar, part->data, data_bytes);
    dcp_buf_add_fill(tar, 0, dcp_tar_padding(data_bytes));
}

void archive_end(struct dcp_buf *tar)
{
    dcp_buf_add_fill(tar, 0, (size_t)2 * TAR_RECORD);
    must(!tar->failed);
}
