#include "parity.h"
#include "base/arena.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FORMAT "libdcp-parity"
#define VERSION 1
#define HEAD_FRONT 16u /* length and digest */
#define MAX_TEXT ((size_t)1 << 30)
#define MAX_COLUMNS (1 << 20)
#define WORD 8u

static int n_groups_of(int columns)
{
    return (columns + DCP_PARITY_GROUP - 1) / DCP_PARITY_GROUP;
}

static uint64_t units_of(uint64_t bytes)
{
    return bytes / DCP_PARITY_UNIT + (bytes % DCP_PARITY_UNIT != 0);
}

static size_t trailer_bytes(int columns, int rows)
{
    return ((size_t)columns + (size_t)rows + 1) * WORD;
}

static void add_file(struct dcp_buf *buf, const struct dcp_file *file)
{
    DCP_CLEANUP_JSON json_t *name = json_string(file->name);
    DCP_CLEANUP_FREE char *text = name ? dcp_json_text(name, 0) : NULL;

    buf->failed |= !text;
    dcp_buf_add_fmt(buf, "[%s,%" PRIu64 ",\"%016" PRIx64 "\"]", text ? text : "",
                    file->size_bytes, file->crc);
}

int dcp_parity_describe(const struct dcp_catalog *catalog, int rows,
                        struct dcp_parity **out, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };

    *out = NULL;
    dcp_buf_add_fmt(&buf,
                    "{\"format\":\"" FORMAT "\",\"version\":%d,\"step\":%" PRId64
                    ",\"rows\":%d,\"unit_bytes\":%u,\"columns\":[",
                    VERSION, catalog->step, rows, DCP_PARITY_UNIT);
    for (int r = 0; r < catalog->world_size; r++) {
        const char *before = "";
        dcp_buf_add_text(&buf, r ? ",[" : "[");
        for (size_t f = 0; f < catalog->n_files; f++) {
            const struct dcp_file *file = &catalog->files[f];
            if (file->rank != r)
                continue;
            if (!file->has_crc)
                return dcp_error_set(err, DCP_E_MISMATCH, "'%s' was not written",
                                     file->name);
            dcp_buf_add_text(&buf, before);
            add_file(&buf, file);
            before = ",";
        }
        dcp_buf_add_u8(&buf, ']');
    }
    dcp_buf_add_text(&buf, "]}");
    DCP_TRY(dcp_buf_check(&buf, err));
    return dcp_parity_parse((const char *)buf.data, buf.size_bytes, out, err);
}

static int parse_file(struct dcp_parity *p, const json_t *entry, int column,
                      uint64_t *unit, struct dcp_error *err)
{
    const char *name = json_string_value(json_array_get(entry, 0));
    const json_t *size = json_array_get(entry, 1);
    const char *crc = json_string_value(json_array_get(entry, 2));
    struct dcp_parity_file *file = &p->files[p->n_files];
    uint64_t digest;

    if (!name || !json_is_integer(size) || json_integer_value(size) < 0 || !crc ||
        !dcp_str_parse_hex64(crc, &digest) || !dcp_store_name_ok(name) ||
        strchr(name, '/'))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the description of the parity names an invalid file");
    *file = (struct dcp_parity_file){ .name = dcp_arena_text(p->arena, name),
                                      .size_bytes = (uint64_t)json_integer_value(size),
                                      .crc = digest,
                                      .column = column,
                                      .first_unit = *unit };
    if (!file->name)
        return dcp_error_memory(err, "a description of parity");
    p->n_files++;
    if (!dcp_add_u64(*unit, units_of(file->size_bytes), unit))
        return dcp_error_set(err, DCP_E_CORRUPT, "the files under parity are too large");
    return DCP_OK;
}

static int parse_columns(struct dcp_parity *p, const json_t *columns,
                         struct dcp_error *err)
{
    size_t n_files = 0;
    int rc = DCP_OK;

    for (int c = 0; c < p->n_columns; c++)
        n_files += json_array_size(json_array_get(columns, (size_t)c));
    p->files = dcp_arena_alloc(p->arena, n_files, sizeof *p->files);
    p->column_first =
        dcp_arena_alloc(p->arena, (size_t)p->n_columns + 1, sizeof *p->column_first);
    if (!p->files || !p->column_first)
        return dcp_error_memory(err, "a description of parity");
    for (int g = 0, c = 0; g < p->n_groups && !rc; g++)
        for (; c < p->groups[g].first + p->groups[g].n && !rc; c++) {
            const json_t *column = json_array_get(columns, (size_t)c);
            uint64_t units = 0;
            p->column_first[c] = p->n_files;
            for (size_t f = 0; f < json_array_size(column) && !rc; f++)
                rc = parse_file(p, json_array_get(column, f), c, &units, err);
            if (units > p->groups[g].n_stripes)
                p->groups[g].n_stripes = units;
        }
    p->column_first[p->n_columns] = p->n_files;
    return rc;
}

static int make_groups(struct dcp_parity *p, struct dcp_error *err)
{
    int rc = DCP_OK;

    p->groups = dcp_arena_alloc(p->arena, (size_t)p->n_groups, sizeof *p->groups);
    if (!p->groups)
        return dcp_error_memory(err, "a description of parity");
    for (int g = 0; g < p->n_groups && !rc; g++) {
        int64_t w = p->n_columns, n = p->n_groups;
        struct dcp_parity_group *group = &p->groups[g];
        group->first = (int)(g * w / n);
        group->n = (int)((g + 1) * w / n) - group->first;
        group->trailer_bytes = trailer_bytes(group->n, p->rows);
        group->record_bytes = DCP_PARITY_UNIT + group->trailer_bytes;
        struct dcp_erasure **code = &p->codes[group->n - p->n_columns / p->n_groups];
        if (!*code)
            rc = dcp_erasure_new(group->n, p->rows, code, err);
        group->code = *code;
    }
    return rc;
}

/* Names, sizes and numbers are taken as a stranger's; what is too large for a file is
 * refused when the file is not so large. */
static int check_sizes(const struct dcp_parity *p, struct dcp_error *err)
{
    for (int g = 0; g < p->n_groups; g++) {
        uint64_t bytes;
        if (!dcp_mul_u64(p->groups[g].n_stripes, p->groups[g].record_bytes, &bytes) ||
            bytes > INT64_MAX / 2)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "the files under parity are too large");
    }
    return DCP_OK;
}

static int parse(struct dcp_parity *p, const json_t *root, struct dcp_error *err)
{
    static const char what[] = "the description of the parity";
    int64_t version = 0, rows = 0, unit = 0;
    const char *format = NULL;
    json_t *columns = NULL;

    DCP_TRY(dcp_json_get_text(root, "format", what, &format, err));
    if (strcmp(format, FORMAT))
        return dcp_error_set(err, DCP_E_CORRUPT, "%s is invalid", what);
    DCP_TRY(dcp_json_get_i64(root, "version", what, &version, err));
    if (version != VERSION)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "the parity has format version %" PRId64
                             "; this program reads version %d",
                             version, VERSION);
    DCP_TRY(dcp_json_get_i64(root, "step", what, &p->step, err));
    DCP_TRY(dcp_json_get_i64(root, "rows", what, &rows, err));
    DCP_TRY(dcp_json_get_i64(root, "unit_bytes", what, &unit, err));
    DCP_TRY(dcp_json_get_array(root, "columns", what, &columns, err));
    if (json_array_size(columns) < 1 || json_array_size(columns) > MAX_COLUMNS ||
        rows < 1 || rows > DCP_PARITY_MAX_ROWS || unit != DCP_PARITY_UNIT)
        return dcp_error_set(err, DCP_E_CORRUPT, "%s has impossible numbers", what);
    p->rows = (int)rows;
    p->n_columns = (int)json_array_size(columns);
    p->n_groups = n_groups_of(p->n_columns);
    DCP_TRY(make_groups(p, err));
    DCP_TRY(parse_columns(p, columns, err));
    return check_sizes(p, err);
}

int dcp_parity_parse(const char *text, size_t n, struct dcp_parity **out,
                     struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *root = NULL;
    struct dcp_parity *p = calloc(1, sizeof *p);

    *out = NULL;
    if (!p)
        return dcp_error_memory(err, "a description of parity");
    p->arena = dcp_arena_new();
    p->text = malloc(n + 1);
    int rc =
        p->arena && p->text ? DCP_OK : dcp_error_memory(err, "a description of parity");
    if (!rc) {
        memcpy(p->text, text, n);
        p->text[n] = '\0';
        p->text_bytes = n;
        p->identity = dcp_hash_crc64(0, text, n);
        size_t whole = HEAD_FRONT + n + DCP_PARITY_ALIGN - 1;
        p->head_bytes = whole - whole % DCP_PARITY_ALIGN;
        rc = dcp_json_parse(text, n, "the description of the parity", &root, err);
    }
    if (!rc)
        rc = parse(p, root, err);
    if (rc) {
        dcp_parity_free(p);
        return rc;
    }
    *out = p;
    return DCP_OK;
}

int dcp_parity_facts(const struct dcp_catalog *catalog, struct dcp_parity_facts *out,
                     struct dcp_error *err)
{
    struct dcp_parity *p;

    *out = (struct dcp_parity_facts){ 0 };
    if (!catalog->parity)
        return DCP_OK;
    DCP_TRY(dcp_parity_parse(catalog->parity, strlen(catalog->parity), &p, err));
    *out = (struct dcp_parity_facts){ .rows = p->rows, .n_groups = p->n_groups };
    for (int g = 0; g < p->n_groups; g++)
        out->size_bytes += (uint64_t)p->rows * dcp_parity_bytes(p, g);
    dcp_parity_free(p);
    return DCP_OK;
}

void dcp_parity_free(struct dcp_parity *p)
{
    if (!p)
        return;
    dcp_erasure_free(p->codes[0]);
    dcp_erasure_free(p->codes[1]);
    dcp_arena_free(p->arena);
    free(p->text);
    free(p);
}

int dcp_parity_tell(const struct dcp_parity *p, struct dcp_catalog *catalog,
                    struct dcp_error *err)
{
    catalog->parity = dcp_catalog_text(catalog, p->text);
    return catalog->parity ? DCP_OK : dcp_error_memory(err, "a catalog");
}

size_t dcp_parity_n_rows(const struct dcp_parity *p)
{
    return (size_t)(p->n_groups * p->rows);
}

void dcp_parity_name(const struct dcp_parity *p, int group, int row, char out[64])
{
    snprintf(out, 64, "parity-%05d-of-%05d.bin", group * p->rows + row,
             p->n_groups * p->rows);
}

uint64_t dcp_parity_record_at(const struct dcp_parity *p, int group, uint64_t stripe)
{
    return p->head_bytes + stripe * p->groups[group].record_bytes;
}

uint64_t dcp_parity_bytes(const struct dcp_parity *p, int group)
{
    return dcp_parity_record_at(p, group, p->groups[group].n_stripes);
}

/* As long as the longest shard; what its manifest takes is a small part of it. */
uint64_t dcp_parity_expect(int world_size, uint64_t longest_bytes, int rows)
{
    int groups = n_groups_of(world_size);
    uint64_t record = DCP_PARITY_UNIT + trailer_bytes(world_size / groups + 1, rows);

    return (uint64_t)groups * (uint64_t)rows *
           (units_of(longest_bytes + longest_bytes / 1024) + 2) * record;
}

void dcp_parity_head(const struct dcp_parity *p, struct dcp_buf *buf)
{
    DCP_CLEANUP_BUF struct dcp_buf body = { 0 };

    dcp_buf_add(&body, p->text, p->text_bytes);
    dcp_buf_add_fill(&body, ' ', p->head_bytes - HEAD_FRONT - p->text_bytes);
    buf->failed |= body.failed;
    dcp_buf_add_le64(buf, body.size_bytes);
    dcp_buf_add_le64(buf, dcp_hash_crc64(0, body.data, body.size_bytes));
    dcp_buf_add(buf, body.data, body.size_bytes);
}

/* The head behind its first 16 bytes. */
static int read_text(const struct dcp_store *store, struct dcp_store_file *file,
                     const char *name, uint64_t size_bytes, char **out, size_t *out_n,
                     struct dcp_error *err)
{
    unsigned char front[HEAD_FRONT];

    DCP_TRY(store->ops->read_at(store->self, file, 0, front, sizeof front, err));
    uint64_t n = dcp_le64(front);
    if (n > size_bytes || n > MAX_TEXT || (n + HEAD_FRONT) % DCP_PARITY_ALIGN)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' has no head of a parity file",
                             name);
    char *text = malloc((size_t)n + 1);
    if (!text)
        return dcp_error_memory(err, "a description of parity");
    *out = text;
    int rc = store->ops->read_at(store->self, file, HEAD_FRONT, text, (size_t)n, err);
    if (!rc && dcp_hash_crc64(0, text, (size_t)n) != dcp_le64(front + WORD))
        rc = dcp_error_set(err, DCP_E_CORRUPT, "the head of '%s' is corrupt", name);
    while (!rc && n && text[n - 1] == ' ')
        n--;
    *out_n = (size_t)n;
    return rc;
}

int dcp_parity_open(const struct dcp_store *store, const char *name,
                    struct dcp_store_file **out, uint64_t *out_size_bytes,
                    struct dcp_error *err)
{
    bool is_dir;

    DCP_TRY(store->ops->stat(store->self, name, &is_dir, out_size_bytes, err));
    return store->ops->open(store->self, name, out, err);
}

int dcp_parity_read_head(const struct dcp_store *store, const char *name,
                         struct dcp_parity **out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *text = NULL;
    struct dcp_store_file *file;
    uint64_t size = 0;
    size_t n = 0;
    int rc = dcp_parity_open(store, name, &file, &size, err);

    *out = NULL;
    if (rc)
        return rc;
    rc = read_text(store, file, name, size, &text, &n, err);
    store->ops->close(store->self, file, NULL);
    return rc ? rc : dcp_parity_parse(text, n, out, err);
}

const struct dcp_parity_file *dcp_parity_unit(const struct dcp_parity *p, int column,
                                              uint64_t unit, uint64_t *out_file_unit)
{
    for (size_t f = p->column_first[column]; f < p->column_first[column + 1]; f++) {
        const struct dcp_parity_file *file = &p->files[f];
        if (unit - file->first_unit < units_of(file->size_bytes)) {
            *out_file_unit = unit - file->first_unit;
            return file;
        }
    }
    return NULL;
}

/* The digest of a trailer counts where it stands, so that one of another place, file or
 * step is none. */
static uint64_t trailer_digest(const struct dcp_parity *p, int group, int row,
                               uint64_t stripe, const unsigned char *trailer, size_t n)
{
    unsigned char place[5 * WORD];

    dcp_put_le64(place, p->identity);
    dcp_put_le64(place + WORD, (uint64_t)group);
    dcp_put_le64(place + 2 * WORD, (uint64_t)row);
    dcp_put_le64(place + 3 * WORD, stripe);
    dcp_put_le64(place + 4 * WORD, dcp_hash_xxh3(trailer, n));
    return dcp_hash_xxh3(place, sizeof place);
}

void dcp_parity_seal(const struct dcp_parity *p, int group, int row, uint64_t stripe,
                     const uint64_t *digests, unsigned char *out)
{
    size_t n = p->groups[group].trailer_bytes - WORD;

    for (size_t i = 0; i < n / WORD; i++)
        dcp_put_le64(out + i * WORD, digests[i]);
    dcp_put_le64(out + n, trailer_digest(p, group, row, stripe, out, n));
}

bool dcp_parity_unseal(const struct dcp_parity *p, int group, int row, uint64_t stripe,
                       const unsigned char *trailer, uint64_t *out_digests)
{
    size_t n = p->groups[group].trailer_bytes - WORD;

    if (dcp_le64(trailer + n) != trailer_digest(p, group, row, stripe, trailer, n))
        return false;
    for (size_t i = 0; i < n / WORD; i++)
        out_digests[i] = dcp_le64(trailer + i * WORD);
    return true;
}
