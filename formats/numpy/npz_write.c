/* npz_write: the archive that numpy.savez writes with Python's zipfile: records are
 * stored, sizes stand in a zip64 field of their local headers whatever they are, and the
 * date is the first that zip knows. The checksum stands in front of a record, so that
 * headers are written when the tensors are. Source: numpy/lib/_npyio_impl.py and
 * Lib/zipfile of CPython 3.11 and later. */
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/archive/zip.h"
#include "formats/common/literals.h"
#include "npy.h"
#include "npz.h"
#include <string.h>

#define DEFAULT_NAME "tensors.npz"
#define LIMIT_ZIP64 0x7fffffffu /* Python's, not the format's */

enum {
    LOCAL_BYTES = 30,
    LOCAL_EXTRA_BYTES = 20,
    ENTRY_BYTES = 46,
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    VERSION_ZIP64 = 45,
    MADE_BY_UNIX = 3,
    FLAG_UTF8 = 1 << 11,
    DATE_1980 = 1 << 5 | 1, /* the first of January */
    ATTRIBUTES = 0600,      /* of a Unix file */
    MAX_COUNT = 0xffff,
};

/* A record: a tensor, the header of its array, and where it lies. */
struct record {
    const char *name; /* with the suffix; belongs to the catalog */
    const struct dcp_tensor *tensor;
    struct dcp_buf head;
    uint64_t offset;     /* of the local header */
    uint64_t size_bytes; /* of the array file */
    uint32_t crc32;
};

/* The state of a target. */
struct records {
    struct record *items;
    size_t n;
    int file;
    uint64_t directory; /* where it begins */
};

int dcp_npz_open(struct dcp_target *target, struct dcp_error *err)
{
    target->state = calloc(1, sizeof(struct records));
    return target->state ? DCP_OK : dcp_error_memory(err, "a NumPy archive");
}

void dcp_npz_close(struct dcp_target *target)
{
    struct records *records = target->state;

    for (size_t i = 0; records && i < records->n; i++)
        dcp_buf_fini(&records->items[i].head);
    if (records)
        free(records->items);
    free(records);
}

static uint64_t begin_of(const struct record *r)
{
    return r->offset + LOCAL_BYTES + strlen(r->name) + LOCAL_EXTRA_BYTES;
}

static int make_name(struct dcp_catalog *catalog, const struct dcp_tensor *tensor,
                     const char **out, struct dcp_error *err)
{
    size_t n = strlen(tensor->name);
    char *name = dcp_catalog_alloc(catalog, n + sizeof DCP_NPZ_SUFFIX, 1);

    if (!name)
        return dcp_error_memory(err, "a NumPy archive");
    memcpy(name, tensor->name, n);
    memcpy(name + n, DCP_NPZ_SUFFIX, sizeof DCP_NPZ_SUFFIX);
    *out = name;
    if (dcp_zip_name_ok(name, strlen(name)))
        return DCP_OK;
    dcp_error_of_tensor(err, DCP_E_MISMATCH, tensor->name,
                        "a NumPy archive cannot hold: the name '%s'",
                        DCP_SHOWN(tensor->name));
    dcp_error_hint(err, "--rename gives it another one");
    return DCP_E_MISMATCH;
}

/* Decides all records and where they lie. */
static int plan(struct dcp_catalog *catalog, struct records *out, struct dcp_error *err)
{
    uint64_t at = 0;
    int rc = DCP_OK;

    out->items = dcp_mem_calloc(catalog->n_tensors, sizeof *out->items);
    if (!out->items)
        return dcp_error_memory(err, "a NumPy archive");
    for (size_t i = 0; i < catalog->n_tensors && !rc; i++) {
        struct record *r = &out->items[out->n++];
        r->tensor = &catalog->tensors[i];
        r->offset = at;
        rc = make_name(catalog, r->tensor, &r->name, err);
        if (!rc)
            rc = dcp_npy_write(r->tensor, "a NumPy archive", &r->head, err);
        if (rc)
            break;
        r->size_bytes = r->head.size_bytes + dcp_tensor_bytes(r->tensor);
        at = begin_of(r) + r->size_bytes;
    }
    out->directory = at;
    return rc;
}

/* -- the bytes ----------------------------------------------------------------------- */

static unsigned flags_of(const struct record *r)
{
    for (const char *c = r->name; *c; c++)
        if ((unsigned char)*c >= 0x80)
            return FLAG_UTF8;
    return 0;
}

static void put_local(struct dcp_buf *buf, const struct record *r)
{
    dcp_buf_add(buf, "PK\3\4", 4);
    dcp_buf_add_le16(buf, VERSION_ZIP64);
    dcp_buf_add_le16(buf, (uint16_t)flags_of(r));
    dcp_buf_add_le16(buf, 0); /* stored */
    dcp_buf_add_le16(buf, 0); /* midnight */
    dcp_buf_add_le16(buf, DATE_1980);
    dcp_buf_add_le32(buf, r->crc32);
    dcp_buf_add_le32(buf, UINT32_MAX); /* the sizes are in the field */
    dcp_buf_add_le32(buf, UINT32_MAX);
    dcp_buf_add_le16(buf, (uint16_t)strlen(r->name));
    dcp_buf_add_le16(buf, LOCAL_EXTRA_BYTES);
    dcp_buf_add_text(buf, r->name);
    dcp_buf_add_le16(buf, 1);
    dcp_buf_add_le16(buf, LOCAL_EXTRA_BYTES - 4);
    dcp_buf_add_le64(buf, r->size_bytes);
    dcp_buf_add_le64(buf, r->size_bytes);
}

static void put_entry(struct dcp_buf *buf, const struct record *r)
{
    bool big = r->size_bytes > LIMIT_ZIP64, far = r->offset > LIMIT_ZIP64;
    unsigned n_extra = (big ? 16u : 0u) + (far ? 8u : 0u);
    uint32_t size = big ? UINT32_MAX : (uint32_t)r->size_bytes;

    dcp_buf_add(buf, "PK\1\2", 4);
    dcp_buf_add_u8(buf, VERSION_ZIP64);
    dcp_buf_add_u8(buf, MADE_BY_UNIX);
    dcp_buf_add_le16(buf, VERSION_ZIP64);
    dcp_buf_add_le16(buf, (uint16_t)flags_of(r));
    dcp_buf_add_le16(buf, 0);
    dcp_buf_add_le16(buf, 0);
    dcp_buf_add_le16(buf, DATE_1980);
    dcp_buf_add_le32(buf, r->crc32);
    dcp_buf_add_le32(buf, size);
    dcp_buf_add_le32(buf, size);
    dcp_buf_add_le16(buf, (uint16_t)strlen(r->name));
    dcp_buf_add_le16(buf, (uint16_t)(n_extra ? n_extra + 4 : 0));
    dcp_buf_add_fill(buf, 0, 6); /* comment, disk, kind of text */
    dcp_buf_add_le32(buf, (uint32_t)ATTRIBUTES << 16);
    dcp_buf_add_le32(buf, far ? UINT32_MAX : (uint32_t)r->offset);
    dcp_buf_add_text(buf, r->name);
    if (!n_extra)
        return;
    dcp_buf_add_le16(buf, 1);
    dcp_buf_add_le16(buf, (uint16_t)n_extra);
    if (big) {
        dcp_buf_add_le64(buf, r->size_bytes);
        dcp_buf_add_le64(buf, r->size_bytes);
    }
    if (far)
        dcp_buf_add_le64(buf, r->offset);
}

static void put_end64(struct dcp_buf *buf, const struct records *records, uint64_t size)
{
    dcp_buf_add(buf, "PK\6\6", 4);
    dcp_buf_add_le64(buf, END64_BYTES - 12);
    dcp_buf_add_le16(buf, VERSION_ZIP64);
    dcp_buf_add_le16(buf, VERSION_ZIP64);
    dcp_buf_add_le64(buf, 0); /* disks */
    dcp_buf_add_le64(buf, records->n);
    dcp_buf_add_le64(buf, records->n);
    dcp_buf_add_le64(buf, size);
    dcp_buf_add_le64(buf, records->directory);
    dcp_buf_add(buf, "PK\6\7", 4);
    dcp_buf_add_le32(buf, 0);
    dcp_buf_add_le64(buf, records->directory + size);
    dcp_buf_add_le32(buf, 1);
}

static uint32_t clip32(uint64_t v)
{
    return v < UINT32_MAX ? (uint32_t)v : UINT32_MAX;
}

/* The directory and the end of the archive. */
static void put_tail(struct dcp_buf *buf, const struct records *records)
{
    uint16_t count = records->n < MAX_COUNT ? (uint16_t)records->n : MAX_COUNT;

    for (size_t i = 0; i < records->n; i++)
        put_entry(buf, &records->items[i]);
    uint64_t size = buf->size_bytes;
    if (records->n > MAX_COUNT || records->directory > LIMIT_ZIP64 || size > LIMIT_ZIP64)
        put_end64(buf, records, size);
    dcp_buf_add(buf, "PK\5\6", 4);
    dcp_buf_add_le32(buf, 0); /* disks */
    dcp_buf_add_le16(buf, count);
    dcp_buf_add_le16(buf, count);
    dcp_buf_add_le32(buf, clip32(size));
    dcp_buf_add_le32(buf, clip32(records->directory));
    dcp_buf_add_le16(buf, 0); /* comment */
}

/* -- the seam ------------------------------------------------------------------------ */

int dcp_npz_assign(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    struct records *records = target->state;
    DCP_CLEANUP_BUF struct dcp_buf tail = { 0 };

    DCP_TRY(plan(catalog, records, err));
    put_tail(&tail, records); /* for its length */
    DCP_TRY(dcp_buf_check(&tail, err));
    const struct dcp_file entry = { .name = target->options->name ? target->options->name
                                                                  : DEFAULT_NAME,
                                    .size_bytes = records->directory + tail.size_bytes };
    DCP_TRY(dcp_catalog_add_file(catalog, &entry, &records->file, err));
    for (size_t i = 0; i < records->n; i++) {
        const struct record *r = &records->items[i];
        struct dcp_piece *piece = &catalog->pieces[r->tensor->first_piece];
        piece->file = records->file;
        piece->offset = begin_of(r) + r->head.size_bytes;
        piece->stored_size = dcp_tensor_bytes(r->tensor);
        DCP_TRY(dcp_literals_take(target, records->file, begin_of(r), &r->head, err));
    }
    return DCP_OK;
}

int dcp_npz_finalize(struct dcp_target *target, int rank, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = target->catalog;
    struct records *records = target->state;
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };

    (void)rank; /* there is one */
    for (size_t i = 0; i < records->n; i++) {
        struct record *r = &records->items[i];
        const struct dcp_piece *piece = &catalog->pieces[r->tensor->first_piece];
        r->crc32 =
            dcp_hash_crc32_combine(dcp_hash_crc32(0, r->head.data, r->head.size_bytes),
                                   piece->crc32, piece->stored_size);
        buf.size_bytes = 0;
        put_local(&buf, r);
        DCP_TRY(dcp_literals_take(target, records->file, r->offset, &buf, err));
    }
    buf.size_bytes = 0;
    put_tail(&buf, records);
    return dcp_literals_take(target, records->file, records->directory, &buf, err);
}
