/* zip: reading the central directory, and nothing that contradicts it. */
#include "zip.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include <isa-l/igzip_lib.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
    LOCAL_MAGIC = 0x04034b50,
    ENTRY_MAGIC = 0x02014b50,
    END_MAGIC = 0x06054b50,
    END64_MAGIC = 0x06064b50,
    LOCATOR_MAGIC = 0x07064b50,
    LOCAL_BYTES = 30,
    ENTRY_BYTES = 46,
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    MAX_COMMENT = 65535,
    MAX_DEFLATE_RATIO = 1032, /* no deflated byte gives more */
    EXTRA_ZIP64 = 1,
    STORED = 0,
    DEFLATED = 8,
    FLAG_ENCRYPTED = 1 << 0,
    FLAGS_DEFLATE_LEVEL = 3 << 1,
    FLAG_DESCRIPTOR = 1 << 3,
    FLAG_UTF8 = 1 << 11,
};

/* Where the archive lies in the file, and its directory, as the end records say. */
struct archive {
    const struct dcp_input *in;
    uint64_t begin, end;                 /* in the file */
    uint64_t directory, directory_bytes; /* directory: in the file */
    uint64_t n_records;
};

static int corrupt(const struct dcp_input *in, struct dcp_error *err, const char *what)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "'%s' is not a valid zip archive: %s",
                         in->shown, what);
}

/* Reads the zip64 end record that lies right before `before`, when there is a locator. */
static int read_end64(struct archive *a, uint64_t before, uint64_t *out_tail,
                      struct dcp_error *err)
{
    unsigned char locator[LOCATOR_BYTES], end[END64_BYTES];

    *out_tail = before;
    if (before - a->begin < LOCATOR_BYTES + END64_BYTES)
        return DCP_OK;
    int rc = dcp_input_read(a->in, before - LOCATOR_BYTES, locator, sizeof locator, err);
    if (rc || dcp_le32(locator) != LOCATOR_MAGIC)
        return rc;
    uint64_t at = before - LOCATOR_BYTES - END64_BYTES;
    if (dcp_le32(locator + 4) != 0 || dcp_le32(locator + 16) > 1 ||
        dcp_le64(locator + 8) != at - a->begin)
        return corrupt(a->in, err, "the zip64 locator points elsewhere");
    DCP_TRY(dcp_input_read(a->in, at, end, sizeof end, err));
    if (dcp_le32(end) != END64_MAGIC || dcp_le64(end + 4) != END64_BYTES - 12)
        return corrupt(a->in, err, "the zip64 end record is corrupt");
    if (dcp_le32(end + 16) != 0 || dcp_le32(end + 20) != 0 ||
        dcp_le64(end + 24) != dcp_le64(end + 32))
        return corrupt(a->in, err, "it spans several disks");
    a->n_records = dcp_le64(end + 32);
    a->directory_bytes = dcp_le64(end + 40);
    a->directory = dcp_le64(end + 48);
    *out_tail = at;
    return DCP_OK;
}

/* The number in the old end record must be the zip64 one's, or say "look there". */
static bool agrees(uint64_t old, uint64_t limit, uint64_t value, bool has_end64)
{
    return old == value || (has_end64 && old == limit);
}

static int read_end(struct archive *a, struct dcp_error *err)
{
    uint64_t size = a->end - a->begin;
    size_t n = size < END_BYTES + MAX_COMMENT ? (size_t)size : END_BYTES + MAX_COMMENT;
    DCP_CLEANUP_FREE void *data = NULL;
    uint64_t tail;

    if (size < END_BYTES)
        return corrupt(a->in, err, "it is too short; the file may be incomplete");
    DCP_TRY(dcp_input_read_new(a->in, a->end - n, n, &data, err));
    const unsigned char *p = (const unsigned char *)data + (n - END_BYTES), *end = NULL;
    for (; p >= (const unsigned char *)data; p--)
        if (dcp_le32(p) == END_MAGIC) {
            end = p;
            break;
        }
    if (!end)
        return corrupt(a->in, err,
                       "its end record is missing; the file may be incomplete");
    size_t behind = n - (size_t)(end - (const unsigned char *)data) - END_BYTES;
    if (dcp_le16(end + 20) != behind)
        return corrupt(a->in, err, "bytes follow its end");
    if (dcp_le16(end + 4) != 0 || dcp_le16(end + 6) != 0 ||
        dcp_le16(end + 8) != dcp_le16(end + 10))
        return corrupt(a->in, err, "it spans several disks");
    a->n_records = dcp_le16(end + 10);
    a->directory_bytes = dcp_le32(end + 12);
    a->directory = dcp_le32(end + 16);
    uint64_t end_at = a->end - behind - END_BYTES;
    DCP_TRY(read_end64(a, end_at, &tail, err));
    bool has_end64 = tail != end_at;
    if (!agrees(dcp_le16(end + 10), 0xffff, a->n_records, has_end64) ||
        !agrees(dcp_le32(end + 12), 0xffffffff, a->directory_bytes, has_end64) ||
        !agrees(dcp_le32(end + 16), 0xffffffff, a->directory, has_end64))
        return corrupt(a->in, err, "its two end records differ");
    uint64_t tail_size = tail - a->begin;
    if (a->directory > tail_size || a->directory_bytes != tail_size - a->directory)
        return corrupt(a->in, err, "its directory does not end at its end record");
    if (a->directory_bytes > DCP_ZIP_MAX_DIRECTORY_BYTES ||
        a->n_records > DCP_ZIP_MAX_RECORDS ||
        a->n_records > a->directory_bytes / ENTRY_BYTES)
        return corrupt(a->in, err, "it declares more records than it can hold");
    a->directory += a->begin;
    return DCP_OK;
}

/* Plain parts joined by '/'; torch writes no folders, other writers may. */
bool dcp_zip_name_ok(const char *name, size_t n)
{
    if (!n || n > DCP_ZIP_MAX_NAME_BYTES || !dcp_str_utf8_ok(name, n) ||
        memchr(name, '\\', n))
        return false;
    if (name[n - 1] == '/')
        n--;
    for (size_t at = 0; at <= n;) {
        const char *slash = memchr(name + at, '/', n - at);
        size_t part = slash ? (size_t)(slash - name) - at : n - at;
        if (!part || (part == 1 && name[at] == '.') ||
            (part == 2 && name[at] == '.' && name[at + 1] == '.'))
            return false;
        at += part + 1;
    }
    return true;
}

/* Fills what the old fields could not hold. */
static bool apply_zip64(struct dcp_cursor extra, struct dcp_zip_record *record)
{
    bool need = record->size_bytes == UINT32_MAX || record->stored_size == UINT32_MAX ||
                record->header_offset == UINT32_MAX;

    while (dcp_cursor_left(&extra)) {
        unsigned id = dcp_cursor_le16(&extra);
        size_t n = dcp_cursor_le16(&extra);
        const void *data = dcp_cursor_take(&extra, n);
        if (extra.bad)
            return false;
        if (id != EXTRA_ZIP64 || !need)
            continue;
        struct dcp_cursor field = dcp_cursor_init(data, n);
        if (record->size_bytes == UINT32_MAX)
            record->size_bytes = dcp_cursor_le64(&field);
        if (record->stored_size == UINT32_MAX)
            record->stored_size = dcp_cursor_le64(&field);
        if (record->header_offset == UINT32_MAX)
            record->header_offset = dcp_cursor_le64(&field);
        if (field.bad)
            return false;
        need = false;
    }
    return !need;
}

/* One entry of the directory. *out_skip: a folder, which is no record. */
static int read_entry(const struct archive *a, struct dcp_cursor *c,
                      struct dcp_arena *arena, struct dcp_zip_record *out, bool *out_skip,
                      struct dcp_error *err)
{
    uint32_t magic = dcp_cursor_le32(c);
    dcp_cursor_take(c, 4);
    unsigned flags = dcp_cursor_le16(c), method = dcp_cursor_le16(c);
    dcp_cursor_take(c, 4);
    out->crc32 = dcp_cursor_le32(c);
    out->stored_size = dcp_cursor_le32(c);
    out->size_bytes = dcp_cursor_le32(c);
    size_t name_len = dcp_cursor_le16(c), extra_len = dcp_cursor_le16(c);
    size_t comment_len = dcp_cursor_le16(c);
    unsigned disk = dcp_cursor_le16(c);
    dcp_cursor_take(c, 6);
    out->header_offset = dcp_cursor_le32(c);
    const char *name = dcp_cursor_take(c, name_len);
    const void *extra = dcp_cursor_take(c, extra_len);
    dcp_cursor_take(c, comment_len);
    if (c->bad || magic != ENTRY_MAGIC)
        return corrupt(a->in, err, "an entry of its directory is corrupt");
    if (!dcp_zip_name_ok(name, name_len))
        return corrupt(a->in, err, "a record's name leads outside its folder");
    if (!apply_zip64(dcp_cursor_init(extra, extra_len), out))
        return corrupt(a->in, err, "the zip64 field of an entry is corrupt");
    if (disk != 0)
        return corrupt(a->in, err, "it spans several disks");
    if (flags & FLAG_ENCRYPTED)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' is an encrypted zip archive",
                             a->in->shown);
    unsigned allowed = FLAG_DESCRIPTOR | FLAG_UTF8;
    if (method == DEFLATED)
        allowed |= FLAGS_DEFLATE_LEVEL;
    if (method != STORED && method != DEFLATED)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' has a record with the compression method %u, which "
                             "PyTorch does not use",
                             a->in->shown, method);
    if (flags & ~allowed)
        return corrupt(a->in, err, "a record has flags that contradict its method");
    out->deflated = method == DEFLATED;
    if (!out->deflated && out->stored_size != out->size_bytes)
        return corrupt(a->in, err, "a stored record has two sizes");
    *out_skip = name[name_len - 1] == '/' && !out->size_bytes;
    out->name = dcp_arena_text_n(arena, name, name_len);
    return out->name ? DCP_OK : dcp_error_memory(err, "a zip directory");
}

/* Finds where the content begins; of the local header only the lengths are believed, and
 * its name must be the directory's. */
static int read_local(const struct archive *a, struct dcp_zip_record *r,
                      struct dcp_error *err)
{
    unsigned char head[LOCAL_BYTES + DCP_ZIP_MAX_NAME_BYTES];
    size_t name_len = strlen(r->name);
    uint64_t room = a->directory - a->begin;

    if (r->header_offset > room || room - r->header_offset < LOCAL_BYTES + name_len)
        return corrupt(a->in, err, "a record begins past its directory");
    r->header_offset += a->begin;
    DCP_TRY(dcp_input_read(a->in, r->header_offset, head, LOCAL_BYTES + name_len, err));
    if (dcp_le32(head) != LOCAL_MAGIC || dcp_le16(head + 26) != name_len ||
        memcmp(head + LOCAL_BYTES, r->name, name_len) != 0)
        return corrupt(a->in, err, "a record and its directory have different names");
    if (dcp_le16(head + 8) != (r->deflated ? DEFLATED : STORED))
        return corrupt(a->in, err, "a record and its directory have different methods");
    r->offset = r->header_offset + LOCAL_BYTES + name_len + dcp_le16(head + 28);
    if (r->offset > a->directory || r->stored_size > a->directory - r->offset)
        return corrupt(a->in, err, "a record reaches past its directory");
    if (r->deflated && r->size_bytes / MAX_DEFLATE_RATIO > r->stored_size)
        return corrupt(a->in, err,
                       "a compressed record declares more bytes than it can hold");
    return DCP_OK;
}

/* Names that are equal but for case stand side by side. */
static int compare_folded(const char *a, const char *b)
{
    int order = strcasecmp(a, b);

    return order ? order : strcmp(a, b);
}

static int by_name_fold(const void *p, const void *q, void *arg)
{
    const struct dcp_zip_record *records = arg;

    return compare_folded(records[*(const size_t *)p].name,
                          records[*(const size_t *)q].name);
}

static int by_offset(const void *p, const void *q, void *arg)
{
    const struct dcp_zip_record *records = arg;
    uint64_t a = records[*(const size_t *)p].header_offset,
             b = records[*(const size_t *)q].header_offset;

    return a < b ? -1 : a > b;
}

/* No byte belongs to two records, the first record is the file's first, no name is there
 * twice. Leaves by_name sorted by name. */
static int check_records(const struct archive *a, struct dcp_zip *zip,
                         struct dcp_error *err)
{
    uint64_t covered = a->begin;

    qsort_r(zip->by_offset, zip->n_records, sizeof *zip->by_offset, by_offset,
            zip->records);
    for (size_t i = 0; i < zip->n_records; i++) {
        const struct dcp_zip_record *r = &zip->records[zip->by_offset[i]];
        if (i == 0 && r->header_offset != a->begin)
            return corrupt(a->in, err, "there are bytes before its first record");
        if (r->header_offset < covered)
            return corrupt(a->in, err, "two records overlap");
        covered = r->offset + r->stored_size;
    }
    qsort_r(zip->by_name, zip->n_records, sizeof *zip->by_name, by_name_fold,
            zip->records);
    for (size_t i = 1; i < zip->n_records; i++) {
        const char *name = zip->records[zip->by_name[i]].name;
        const char *before = zip->records[zip->by_name[i - 1]].name;
        if (!strcmp(before, name))
            return corrupt(a->in, err, "two records have the same name");
        zip->folded_twice = zip->folded_twice || !strcasecmp(before, name);
    }
    return DCP_OK;
}

int dcp_zip_open(const struct dcp_input *in, uint64_t begin, uint64_t end,
                 struct dcp_arena *arena, struct dcp_zip *out, struct dcp_error *err)
{
    struct archive a = { .in = in, .begin = begin, .end = end };
    DCP_CLEANUP_FREE void *data = NULL;

    *out = (struct dcp_zip){ 0 };
    if (begin > end || end > in->size_bytes)
        return corrupt(in, err, "it reaches past the end of the file");
    DCP_TRY(read_end(&a, err));
    DCP_TRY(dcp_input_read_new(in, a.directory, (size_t)a.directory_bytes, &data, err));
    out->records = dcp_arena_alloc(arena, (size_t)a.n_records, sizeof *out->records);
    out->by_name = dcp_arena_alloc(arena, (size_t)a.n_records, sizeof *out->by_name);
    out->by_offset = dcp_arena_alloc(arena, (size_t)a.n_records, sizeof *out->by_offset);
    if (!out->records || !out->by_name || !out->by_offset)
        return dcp_error_memory(err, "a zip directory");
    struct dcp_cursor c = dcp_cursor_init(data, (size_t)a.directory_bytes);
    for (uint64_t i = 0; i < a.n_records; i++) {
        struct dcp_zip_record *r = &out->records[out->n_records];
        bool skip = false;
        DCP_TRY(read_entry(&a, &c, arena, r, &skip, err));
        DCP_TRY(read_local(&a, r, err));
        out->by_name[out->n_records] = out->by_offset[out->n_records] = out->n_records;
        out->n_records += !skip;
    }
    if (dcp_cursor_left(&c))
        return corrupt(in, err, "its directory holds more than its records");
    return check_records(&a, out, err);
}

const struct dcp_zip_record *dcp_zip_find(const struct dcp_zip *zip, const char *name)
{
    size_t lo = 0, hi = zip->n_records;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct dcp_zip_record *r = &zip->records[zip->by_name[mid]];
        int order = compare_folded(name, r->name);
        if (!order)
            return r;
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

static int inflate_record(const struct dcp_input *in, const void *stored,
                          size_t stored_size, void *out, size_t size_bytes,
                          struct dcp_error *err)
{
    struct inflate_state *state = malloc(sizeof *state); /* too large for a stack */

    if (!state)
        return dcp_error_memory(err, "a compressed record");
    isal_inflate_init(state);
    /* The interface takes the input as writable, and only reads it. */
    state->next_in = (uint8_t *)(uintptr_t)stored;
    state->avail_in = (uint32_t)stored_size;
    state->next_out = out;
    state->avail_out = (uint32_t)size_bytes;
    bool sound =
        isal_inflate_stateless(state) == ISAL_DECOMP_OK && state->total_out == size_bytes;
    free(state);
    return sound ? DCP_OK : corrupt(in, err, "a compressed record is corrupt");
}

int dcp_zip_read(const struct dcp_input *in, const struct dcp_zip_record *record,
                 size_t max_bytes, void **out, size_t *out_size_bytes,
                 struct dcp_error *err)
{
    void *stored = NULL;

    *out = NULL;
    *out_size_bytes = 0;
    if (max_bytes > UINT32_MAX / 2)
        max_bytes = UINT32_MAX / 2;
    if (record->size_bytes > max_bytes || record->stored_size > max_bytes)
        return corrupt(in, err, "a record of its description is too large");
    int rc =
        dcp_input_read_new(in, record->offset, (size_t)record->stored_size, &stored, err);
    if (rc)
        return rc;
    size_t n = (size_t)record->size_bytes;
    if (record->deflated) {
        char *data = malloc(n + 1);
        rc = data ? inflate_record(in, stored, (size_t)record->stored_size, data, n, err)
                  : dcp_error_memory(err, "a compressed record");
        free(stored);
        stored = data;
        if (!rc)
            data[n] = '\0';
    }
    if (!rc && record->crc32 && dcp_hash_crc32(0, stored, n) != record->crc32)
        rc = corrupt(in, err, "the checksum of a record is wrong");
    if (rc) {
        free(stored);
        return rc;
    }
    *out = stored;
    *out_size_bytes = n;
    return DCP_OK;
}

/* -- checksums --------------------------------------------------------------------- */

static int check_record(const struct dcp_input *in, struct dcp_zip_record *record,
                        struct dcp_error *err)
{
    char what[240];
    int rc;

    if (record->checked || !record->crc32)
        return DCP_OK;
    if (record->deflated) {
        DCP_CLEANUP_FREE void *data = NULL;
        size_t n;
        rc = dcp_zip_read(in, record, UINT32_MAX / 2, &data, &n, err);
        record->checked = !rc;
        return rc;
    }
    rc = dcp_input_crc32(in, record->offset, record->stored_size, record->crc32,
                         &record->checked, err);
    if (rc || record->checked)
        return rc;
    snprintf(what, sizeof what, "the CRC-32 of its record '%s' differs",
             DCP_SHOWN(record->name));
    return corrupt(in, err, what);
}

int dcp_zip_check(const struct dcp_input *in, struct dcp_zip *zip, struct dcp_error *err)
{
    for (size_t i = 0; i < zip->n_records; i++)
        DCP_TRY(check_record(in, &zip->records[zip->by_offset[i]], err));
    return DCP_OK;
}

struct dcp_zip_record *dcp_zip_at(const struct dcp_zip *zip, uint64_t offset, uint64_t n)
{
    size_t lo = 0, hi = zip->n_records;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (zip->records[zip->by_offset[mid]].offset <= offset)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == 0)
        return NULL;
    struct dcp_zip_record *r = &zip->records[zip->by_offset[lo - 1]];
    return n <= r->stored_size && offset - r->offset <= r->stored_size - n ? r : NULL;
}

int dcp_zip_read_at(const struct dcp_input *in, struct dcp_zip *zip, uint64_t offset,
                    void *out, size_t n, struct dcp_error *err)
{
    struct dcp_zip_record *record = dcp_zip_at(zip, offset, n);

    if (!record)
        return corrupt(in, err, "a read reaches past its record");
    DCP_TRY(check_record(in, record, err));
    return dcp_input_read(in, offset, out, n, err);
}

int dcp_zip_add_records(const struct dcp_zip *zip, struct dcp_catalog *catalog, int file,
                        struct dcp_error *err)
{
    for (size_t i = 0; i < zip->n_records; i++) {
        const struct dcp_zip_record *from = &zip->records[i];
        const struct dcp_record record = {
            .name = from->name,
            .file = file,
            .codec = from->deflated ? DCP_CODEC_DEFLATE_STREAM : DCP_CODEC_NONE,
            .offset = from->offset,
            .stored_size = from->stored_size,
            .size_bytes = from->size_bytes,
            .crc32 = from->crc32,
        };
        if (from->size_bytes && from->crc32) /* else it was not computed */
            DCP_TRY(dcp_catalog_add_record(catalog, &record, err));
    }
    return DCP_OK;
}

enum { READ_BYTES = 16384 };

/* Inflates into out until it is full; the state is too large for a stack. */
static int inflate_head(const struct dcp_input *in, const struct dcp_zip_record *record,
                        struct inflate_state *state, uint8_t *out, size_t n,
                        struct dcp_error *err)
{
    unsigned char stored[READ_BYTES];
    uint64_t at = 0;

    isal_inflate_init(state);
    state->next_out = out;
    state->avail_out = (uint32_t)n;
    while (state->avail_out) {
        uint64_t left = record->stored_size - at;
        size_t part = left < sizeof stored ? (size_t)left : sizeof stored;
        if (!part || state->block_state == ISAL_BLOCK_FINISH)
            return corrupt(in, err, "a compressed record ends before its content");
        DCP_TRY(dcp_input_read(in, record->offset + at, stored, part, err));
        state->next_in = stored;
        state->avail_in = (uint32_t)part;
        if (isal_inflate(state) != ISAL_DECOMP_OK)
            return corrupt(in, err, "a compressed record is corrupt");
        at += part;
    }
    return DCP_OK;
}

int dcp_zip_read_head(const struct dcp_input *in, const struct dcp_zip_record *record,
                      size_t cap, void *out, size_t *out_n, struct dcp_error *err)
{
    size_t n = record->size_bytes < cap ? (size_t)record->size_bytes : cap;

    *out_n = n;
    if (!record->deflated)
        return dcp_input_read(in, record->offset, out, n, err);
    struct inflate_state *state = malloc(sizeof *state);
    int rc = state ? inflate_head(in, record, state, out, n, err)
                   : dcp_error_memory(err, "a compressed record");
    free(state);
    return rc;
}
