/* zip: writing the archive that torch writes (miniz with aligned contents): stored
 * records, crc and sizes only behind the content and in the directory, zip64 end records
 * always. */
#include "base/buf.h"
#include "base/mem.h"
#include "formats/common/literals.h"
#include "zip.h"
#include <string.h>

enum {
    LOCAL_BYTES = 30,
    ENTRY_BYTES = 46,
    ENDS_BYTES = 56 + 20 + 22,
    FLAG_DESCRIPTOR = 1 << 3,
    FLAG_UTF8 = 1 << 11,
    MADE_BY = 0x031e, /* of the zip64 end record: Unix, 3.0 */
    NEEDED_ZIP64 = 45,
};

static unsigned flags_of(const struct dcp_zip_out *r)
{
    return r->size_bytes ? FLAG_UTF8 | FLAG_DESCRIPTOR : FLAG_UTF8;
}

/* Bytes of a local header's zip64 field. Both sizes stand in it when one is too large. */
static size_t local_zip64(const struct dcp_zip_out *r)
{
    bool big = r->size_bytes >= UINT32_MAX, far = r->header_offset >= UINT32_MAX;

    return big || far ? 4u + (big ? 16u : 0u) + (far ? 8u : 0u) : 0;
}

static size_t descriptor_bytes(const struct dcp_zip_out *r)
{
    return !r->size_bytes ? 0 : local_zip64(r) ? 24 : 16;
}

static size_t entry_zip64(const struct dcp_zip_out *r)
{
    size_t n = (r->size_bytes >= UINT32_MAX ? 16u : 0u) +
               (r->header_offset >= UINT32_MAX ? 8u : 0u);

    return n ? n + 4 : 0;
}

static uint32_t clip32(uint64_t v)
{
    return v >= UINT32_MAX ? UINT32_MAX : (uint32_t)v;
}

void dcp_zip_plan(struct dcp_zip_out *records, size_t n, uint64_t align,
                  uint64_t *out_directory, uint64_t *out_size_bytes)
{
    uint64_t at = 0, directory_bytes = 0;

    for (size_t i = 0; i < n; i++) {
        struct dcp_zip_out *r = &records[i];
        r->header_offset = at;
        at += LOCAL_BYTES + strlen(r->name) + local_zip64(r) + 4;
        at += (align - at % align) % align;
        r->offset = at;
        at += r->size_bytes + descriptor_bytes(r);
        directory_bytes += ENTRY_BYTES + strlen(r->name) + entry_zip64(r);
    }
    *out_directory = at;
    *out_size_bytes = at + directory_bytes + ENDS_BYTES;
}

void dcp_zip_put_header(struct dcp_buf *out, const struct dcp_zip_out *r)
{
    size_t size = (size_t)(r->offset - r->header_offset), name_len = strlen(r->name);
    size_t zip64 = local_zip64(r), padding = size - LOCAL_BYTES - name_len - zip64 - 4;

    dcp_buf_add(out, "PK\3\4", 4);
    dcp_buf_add_le16(out, 0);
    dcp_buf_add_le16(out, (uint16_t)flags_of(r));
    dcp_buf_add_fill(out, 0, 18); /* method, time, date, crc, sizes */
    dcp_buf_add_le16(out, (uint16_t)name_len);
    dcp_buf_add_le16(out, (uint16_t)(zip64 + 4 + padding));
    dcp_buf_add(out, r->name, name_len);
    if (zip64) {
        dcp_buf_add_le16(out, 1);
        dcp_buf_add_le16(out, (uint16_t)(zip64 - 4));
        if (r->size_bytes >= UINT32_MAX) {
            dcp_buf_add_le64(out, r->size_bytes);
            dcp_buf_add_le64(out, 0);
        }
        if (r->header_offset >= UINT32_MAX)
            dcp_buf_add_le64(out, r->header_offset);
    }
    dcp_buf_add(out, "FB", 2);
    dcp_buf_add_le16(out, (uint16_t)padding);
    dcp_buf_add_fill(out, 'Z', padding);
}

void dcp_zip_put_descriptor(struct dcp_buf *out, const struct dcp_zip_out *r)
{
    if (!r->size_bytes)
        return;
    dcp_buf_add(out, "PK\7\10", 4);
    dcp_buf_add_le32(out, r->crc32);
    for (int twice = 0; twice < 2; twice++) {
        if (descriptor_bytes(r) == 24)
            dcp_buf_add_le64(out, r->size_bytes);
        else
            dcp_buf_add_le32(out, (uint32_t)r->size_bytes);
    }
}

static void put_entry(struct dcp_buf *out, const struct dcp_zip_out *r)
{
    size_t zip64 = entry_zip64(r), name_len = strlen(r->name);

    dcp_buf_add(out, "PK\1\2", 4);
    dcp_buf_add_le32(out, 0); /* versions */
    dcp_buf_add_le16(out, (uint16_t)flags_of(r));
    dcp_buf_add_le16(out, 0); /* stored */
    dcp_buf_add_le32(out, 0); /* time, date */
    dcp_buf_add_le32(out, r->crc32);
    dcp_buf_add_le32(out, clip32(r->size_bytes));
    dcp_buf_add_le32(out, clip32(r->size_bytes));
    dcp_buf_add_le16(out, (uint16_t)name_len);
    dcp_buf_add_le16(out, (uint16_t)zip64);
    dcp_buf_add_fill(out, 0, 10); /* comment, disk, attributes */
    dcp_buf_add_le32(out, clip32(r->header_offset));
    dcp_buf_add(out, r->name, name_len);
    if (!zip64)
        return;
    dcp_buf_add_le16(out, 1);
    dcp_buf_add_le16(out, (uint16_t)(zip64 - 4));
    if (r->size_bytes >= UINT32_MAX) {
        dcp_buf_add_le64(out, r->size_bytes);
        dcp_buf_add_le64(out, r->size_bytes);
    }
    if (r->header_offset >= UINT32_MAX)
        dcp_buf_add_le64(out, r->header_offset);
}

void dcp_zip_put_directory(struct dcp_buf *out, const struct dcp_zip_out *records,
                           size_t n, uint64_t directory)
{
    size_t before = out->size_bytes;
    uint16_t count = n >= UINT16_MAX ? UINT16_MAX : (uint16_t)n;

    for (size_t i = 0; i < n; i++)
        put_entry(out, &records[i]);
    uint64_t size_bytes = out->size_bytes - before;
    dcp_buf_add(out, "PK\6\6", 4);
    dcp_buf_add_le64(out, 44);
    dcp_buf_add_le16(out, MADE_BY);
    dcp_buf_add_le16(out, NEEDED_ZIP64);
    dcp_buf_add_le64(out, 0); /* disks */
    dcp_buf_add_le64(out, n);
    dcp_buf_add_le64(out, n);
    dcp_buf_add_le64(out, size_bytes);
    dcp_buf_add_le64(out, directory);
    dcp_buf_add(out, "PK\6\7", 4);
    dcp_buf_add_le32(out, 0);
    dcp_buf_add_le64(out, directory + size_bytes);
    dcp_buf_add_le32(out, 1);
    dcp_buf_add(out, "PK\5\6", 4);
    dcp_buf_add_le32(out, 0);
    dcp_buf_add_le16(out, count);
    dcp_buf_add_le16(out, count);
    dcp_buf_add_le32(out, clip32(size_bytes));
    dcp_buf_add_le32(out, clip32(directory));
    dcp_buf_add_le16(out, 0);
}

int dcp_zip_write_headers(const struct dcp_zip_out *records, size_t n, int file,
                          struct dcp_target *target, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };

    for (size_t i = 0; i < n; i++) {
        buf.size_bytes = 0;
        dcp_zip_put_header(&buf, &records[i]);
        DCP_TRY(dcp_literals_take(target, file, records[i].header_offset, &buf, err));
        if (records[i].data && records[i].size_bytes)
            DCP_TRY(dcp_target_literal(target, file, records[i].offset, records[i].data,
                                       (size_t)records[i].size_bytes, err));
    }
    return DCP_OK;
}

int dcp_zip_write_tail(const struct dcp_zip_out *records, size_t n, uint64_t directory,
                       int file, struct dcp_target *target, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };

    for (size_t i = 0; i < n; i++) {
        buf.size_bytes = 0;
        dcp_zip_put_descriptor(&buf, &records[i]);
        DCP_TRY(dcp_literals_take(target, file, records[i].offset + records[i].size_bytes,
                                  &buf, err));
    }
    buf.size_bytes = 0;
    dcp_zip_put_directory(&buf, records, n, directory);
    return dcp_literals_take(target, file, directory, &buf, err);
}
