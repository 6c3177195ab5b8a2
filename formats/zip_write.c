/* zip: writing the archive that torch writes (miniz with aligned contents): stored
 * records, crc and sizes only behind the content and in the directory, zip64 end records
 * always. */
#include "base/bytes.h"
#include "base/mem.h"
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

/* A pen over memory whose size was computed before. */
struct pen {
    unsigned char *at;
};

static void put16(struct pen *pen, unsigned v)
{
    dcp_put_le16(pen->at, (uint16_t)v);
    pen->at += 2;
}

static void put32(struct pen *pen, uint32_t v)
{
    dcp_put_le32(pen->at, v);
    pen->at += 4;
}

static void put64(struct pen *pen, uint64_t v)
{
    dcp_put_le64(pen->at, v);
    pen->at += 8;
}

static void put_bytes(struct pen *pen, const void *data, size_t n)
{
    memcpy(pen->at, data, n);
    pen->at += n;
}

static int write_header(const struct dcp_zip_out *r, int file,
                        struct dcp_catalog *catalog, struct dcp_literals *literals,
                        struct dcp_error *err)
{
    size_t size = (size_t)(r->offset - r->header_offset), name_len = strlen(r->name);
    size_t zip64 = local_zip64(r), padding = size - LOCAL_BYTES - name_len - zip64 - 4;
    unsigned char *data = dcp_catalog_alloc(catalog, size, 1);
    struct pen pen = { data };

    if (!data)
        return dcp_error_memory(err, "a zip header");
    put_bytes(&pen, "PK\3\4", 4);
    put16(&pen, 0);
    put16(&pen, flags_of(r));
    memset(pen.at, 0, 18); /* method, time, date, crc, sizes */
    pen.at += 18;
    put16(&pen, (unsigned)name_len);
    put16(&pen, (unsigned)(zip64 + 4 + padding));
    put_bytes(&pen, r->name, name_len);
    if (zip64) {
        put16(&pen, 1);
        put16(&pen, (unsigned)zip64 - 4);
        if (r->size_bytes >= UINT32_MAX) {
            put64(&pen, r->size_bytes);
            put64(&pen, 0);
        }
        if (r->header_offset >= UINT32_MAX)
            put64(&pen, r->header_offset);
    }
    put_bytes(&pen, "FB", 2);
    put16(&pen, (unsigned)padding);
    memset(pen.at, 'Z', padding);
    return dcp_literals_add(literals, catalog, file, r->header_offset, data, size, err);
}

int dcp_zip_write_headers(const struct dcp_zip_out *records, size_t n, int file,
                          struct dcp_catalog *catalog, struct dcp_literals *literals,
                          struct dcp_error *err)
{
    int rc = DCP_OK;

    for (size_t i = 0; i < n && !rc; i++) {
        rc = write_header(&records[i], file, catalog, literals, err);
        if (!rc && records[i].data && records[i].size_bytes)
            rc = dcp_literals_add(literals, catalog, file, records[i].offset,
                                  records[i].data, (size_t)records[i].size_bytes, err);
    }
    return rc;
}

static int write_descriptor(const struct dcp_zip_out *r, int file,
                            struct dcp_catalog *catalog, struct dcp_literals *literals,
                            struct dcp_error *err)
{
    size_t size = descriptor_bytes(r);
    unsigned char *data = dcp_catalog_alloc(catalog, size, 1);
    struct pen pen = { data };

    if (!data)
        return dcp_error_memory(err, "a zip descriptor");
    put_bytes(&pen, "PK\7\10", 4);
    put32(&pen, r->crc32);
    for (int twice = 0; twice < 2; twice++) {
        if (size == 24)
            put64(&pen, r->size_bytes);
        else
            put32(&pen, (uint32_t)r->size_bytes);
    }
    return dcp_literals_add(literals, catalog, file, r->offset + r->size_bytes, data,
                            size, err);
}

static void put_entry(struct pen *pen, const struct dcp_zip_out *r)
{
    size_t zip64 = entry_zip64(r);

    put_bytes(pen, "PK\1\2", 4);
    put32(pen, 0); /* versions */
    put16(pen, flags_of(r));
    put16(pen, 0); /* stored */
    put32(pen, 0); /* time, date */
    put32(pen, r->crc32);
    put32(pen, clip32(r->size_bytes));
    put32(pen, clip32(r->size_bytes));
    put16(pen, (unsigned)strlen(r->name));
    put16(pen, (unsigned)zip64);
    memset(pen->at, 0, 10); /* comment, disk, attributes */
    pen->at += 10;
    put32(pen, clip32(r->header_offset));
    put_bytes(pen, r->name, strlen(r->name));
    if (!zip64)
        return;
    put16(pen, 1);
    put16(pen, (unsigned)zip64 - 4);
    if (r->size_bytes >= UINT32_MAX) {
        put64(pen, r->size_bytes);
        put64(pen, r->size_bytes);
    }
    if (r->header_offset >= UINT32_MAX)
        put64(pen, r->header_offset);
}

static void put_ends(struct pen *pen, size_t n, uint64_t directory, uint64_t size_bytes)
{
    uint64_t end64 = directory + size_bytes;
    unsigned count = n >= UINT16_MAX ? UINT16_MAX : (unsigned)n;

    put_bytes(pen, "PK\6\6", 4);
    put64(pen, 44);
    put16(pen, MADE_BY);
    put16(pen, NEEDED_ZIP64);
    put64(pen, 0); /* disks */
    put64(pen, n);
    put64(pen, n);
    put64(pen, size_bytes);
    put64(pen, directory);
    put_bytes(pen, "PK\6\7", 4);
    put32(pen, 0);
    put64(pen, end64);
    put32(pen, 1);
    put_bytes(pen, "PK\5\6", 4);
    put32(pen, 0);
    put16(pen, count);
    put16(pen, count);
    put32(pen, clip32(size_bytes));
    put32(pen, clip32(directory));
    put16(pen, 0);
}

int dcp_zip_write_tail(const struct dcp_zip_out *records, size_t n, uint64_t directory,
                       int file, struct dcp_catalog *catalog,
                       struct dcp_literals *literals, struct dcp_error *err)
{
    size_t size = 0;

    for (size_t i = 0; i < n; i++) {
        size += ENTRY_BYTES + strlen(records[i].name) + entry_zip64(&records[i]);
        int rc = records[i].size_bytes
                     ? write_descriptor(&records[i], file, catalog, literals, err)
                     : DCP_OK;
        if (rc)
            return rc;
    }
    unsigned char *data = dcp_catalog_alloc(catalog, size + ENDS_BYTES, 1);
    struct pen pen = { data };
    if (!data)
        return dcp_error_memory(err, "a zip directory");
    for (size_t i = 0; i < n; i++)
        put_entry(&pen, &records[i]);
    put_ends(&pen, n, directory, size);
    return dcp_literals_add(literals, catalog, file, directory, data, size + ENDS_BYTES,
                            err);
}
