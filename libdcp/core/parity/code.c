#include "code.h"
#include "base/bytes.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

#define CHUNK_BYTES ((uint64_t)2 << 20) /* of all units of a job: what a cache holds */
#define TAIL_END 16u                    /* length and digest */

/* The share of one group: stripes begin .. end, in chunks. */
struct part {
    const struct dcp_parity_code *code;
    int g;
    const struct dcp_parity_group *group;
    uint64_t begin, end, chunk;  /* stripes */
    size_t first_file, n_files;  /* of the description */
    struct dcp_store_file **in;  /* by file */
    struct dcp_store_file **out; /* by row */
    unsigned char **scratch;     /* by worker */
    int n_workers;
    uint64_t *sums; /* by chunk, then file */
    size_t n_chunks;
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Bytes of a file that lie in units begin .. end of its column: from *out_at on. */
static uint64_t overlap(const struct dcp_parity_file *file, uint64_t begin, uint64_t end,
                        uint64_t *out_at)
{
    uint64_t from = begin > file->first_unit ? begin - file->first_unit : 0;
    uint64_t to = end > file->first_unit ? end - file->first_unit : 0;

    *out_at = least(from * DCP_PARITY_UNIT, file->size_bytes);
    return least(to * DCP_PARITY_UNIT, file->size_bytes) - *out_at;
}

/* The stripes of a group that a share has. */
static void stripes_of(const struct dcp_parity_group *group, int share, int n_shares,
                       uint64_t *out_begin, uint64_t *out_end)
{
    uint64_t n = (uint64_t)(n_shares == 1 ? 1 : group->n), i = 0;

    *out_begin = *out_end = 0;
    if (n_shares > 1) {
        if (share < group->first || share >= group->first + group->n)
            return;
        i = (uint64_t)(share - group->first);
    }
    *out_begin = group->n_stripes / n * i + least(i, group->n_stripes % n);
    *out_end = group->n_stripes / n * (i + 1) + least(i + 1, group->n_stripes % n);
}

int dcp_parity_create(const struct dcp_parity_code *code, struct dcp_error *err)
{
    const struct dcp_store *store = code->store;
    const struct dcp_parity *parity = code->parity;
    int rc = DCP_OK;

    for (int i = 0; i < (int)dcp_parity_n_rows(parity) && !rc; i++) {
        struct dcp_store_file *file;
        char name[64];
        int g = i / parity->rows;
        dcp_parity_name(parity, g, i % parity->rows, name);
        DCP_CLEANUP_FREE char *path = dcp_str_join(code->prefix, name, "");
        rc = path ? store->ops->create(store->self, path, dcp_parity_bytes(parity, g),
                                       &file, err)
                  : dcp_error_memory(err, "a file name");
        if (!rc)
            rc = store->ops->close(store->self, file, err);
    }
    return rc;
}

/* Units of a column that begin at stripe: as many as `n`, zeros where the files end. */
static int read_column(const struct part *part, size_t chunk, int column, uint64_t begin,
                       uint64_t end, unsigned char *to, struct dcp_error *err)
{
    const struct dcp_parity *parity = part->code->parity;
    const struct dcp_store *store = part->code->store;
    uint64_t *sums = part->sums + chunk * part->n_files;

    unsigned char *done = to, *all = to + (size_t)((end - begin) * DCP_PARITY_UNIT);

    for (size_t f = parity->column_first[column]; f < parity->column_first[column + 1];
         f++) {
        const struct dcp_parity_file *file = &parity->files[f];
        uint64_t at, n = overlap(file, begin, end, &at);
        if (!n)
            continue;
        unsigned char *here =
            to +
            (file->first_unit > begin ? file->first_unit - begin : 0) * DCP_PARITY_UNIT;
        size_t i = f - part->first_file;
        memset(done, 0, (size_t)(here - done));
        done = here + n;
        DCP_TRY(store->ops->read_at(store->self, part->in[i], at, here, (size_t)n, err));
        sums[i] = dcp_hash_crc64(0, here, (size_t)n);
    }
    memset(done, 0, (size_t)(all - done));
    return DCP_OK;
}

/* One stripe: the parity units and trailers of all rows. */
static void code_stripe(const struct part *part, uint64_t stripe,
                        const unsigned char *const *units, unsigned char *const *records)
{
    const struct dcp_parity *parity = part->code->parity;
    int k = part->group->n, m = parity->rows;
    uint64_t digests[DCP_ERASURE_MAX_UNITS];

    dcp_erasure_encode(part->group->code, DCP_PARITY_UNIT, units, records);
    for (int i = 0; i < k + m; i++)
        digests[i] = dcp_hash_xxh3(i < k ? units[i] : records[i - k], DCP_PARITY_UNIT);
    for (int row = 0; row < m; row++)
        dcp_parity_seal(parity, part->g, row, stripe, digests,
                        records[row] + DCP_PARITY_UNIT);
}

/* Writes records, and reads them back into the same memory. */
static int write_records(const struct part *part, int row, uint64_t at,
                         unsigned char *records, size_t n, struct dcp_error *err)
{
    const struct dcp_store *store = part->code->store;
    uint64_t digest = dcp_hash_xxh3(records, n);
    char name[64];

    DCP_TRY(store->ops->write_at(store->self, part->out[row], at, records, n, err));
    if (store->ops->flush_hint)
        store->ops->flush_hint(store->self, part->out[row], at, n);
    DCP_TRY(store->ops->read_at(store->self, part->out[row], at, records, n, err));
    if (dcp_hash_xxh3(records, n) == digest)
        return DCP_OK;
    dcp_parity_name(part->code->parity, part->g, row, name);
    return dcp_fs_not_written(name, err);
}

static int code_chunk(void *arg, int worker, size_t i, struct dcp_error *err)
{
    const struct part *part = arg;
    const struct dcp_parity *parity = part->code->parity;
    size_t record = part->group->record_bytes;
    uint64_t begin = part->begin + i * part->chunk;
    uint64_t end = least(begin + part->chunk, part->end);
    size_t column_bytes = (size_t)(part->chunk * DCP_PARITY_UNIT);
    unsigned char *columns = part->scratch[worker];
    unsigned char *rows = columns + (size_t)part->group->n * column_bytes;
    int k = part->group->n;

    for (int c = 0; c < k; c++)
        DCP_TRY(read_column(part, i, part->group->first + c, begin, end,
                            columns + (size_t)c * column_bytes, err));
    for (uint64_t s = begin; s < end; s++) {
        const unsigned char *units[DCP_ERASURE_MAX_UNITS];
        unsigned char *records[DCP_PARITY_MAX_ROWS];
        for (int c = 0; c < k; c++)
            units[c] = columns + (size_t)c * column_bytes +
                       (size_t)(s - begin) * DCP_PARITY_UNIT;
        for (int row = 0; row < parity->rows; row++)
            records[row] =
                rows + ((size_t)row * (size_t)part->chunk + (size_t)(s - begin)) * record;
        code_stripe(part, s, units, records);
    }
    for (int row = 0; row < parity->rows; row++) {
        uint64_t at = dcp_parity_record_at(parity, part->g, begin);
        size_t n = (size_t)(end - begin) * record;
        DCP_TRY(write_records(part, row, at,
                              rows + (size_t)row * (size_t)part->chunk * record, n, err));
    }
    return DCP_OK;
}

static int open_part(struct part *part, struct dcp_error *err)
{
    const struct dcp_parity *parity = part->code->parity;
    const struct dcp_store *store = part->code->store;

    part->in = dcp_mem_calloc(part->n_files, sizeof *part->in);
    part->out = dcp_mem_calloc((size_t)parity->rows, sizeof *part->out);
    part->scratch = dcp_mem_calloc((size_t)part->n_workers, sizeof *part->scratch);
    part->sums = dcp_mem_calloc(part->n_chunks * part->n_files, sizeof *part->sums);
    if (!part->in || !part->out || !part->scratch || !part->sums)
        return dcp_error_memory(err, "parity");
    for (size_t f = 0; f < part->n_files; f++) {
        DCP_CLEANUP_FREE char *path = dcp_str_join(
            part->code->prefix, parity->files[part->first_file + f].name, "");
        DCP_TRY(path ? store->ops->open(store->self, path, &part->in[f], err)
                     : dcp_error_memory(err, "a file name"));
    }
    for (int row = 0; row < parity->rows; row++) {
        char name[64];
        dcp_parity_name(parity, part->g, row, name);
        DCP_CLEANUP_FREE char *path = dcp_str_join(part->code->prefix, name, "");
        DCP_TRY(path ? store->ops->reopen(store->self, path, &part->out[row], err)
                     : dcp_error_memory(err, "a file name"));
    }
    size_t bytes =
        (size_t)part->chunk * ((size_t)part->group->n * DCP_PARITY_UNIT +
                               (size_t)parity->rows * part->group->record_bytes);
    for (int w = 0; w < part->n_workers; w++)
        if (!(part->scratch[w] = dcp_mem_aligned(64, bytes)))
            return dcp_error_memory(err, "parity");
    return DCP_OK;
}

static void close_part(struct part *part)
{
    const struct dcp_store *store = part->code->store;

    for (size_t f = 0; part->in && f < part->n_files; f++)
        if (part->in[f])
            store->ops->close(store->self, part->in[f], NULL);
    for (int row = 0; part->out && row < part->code->parity->rows; row++)
        if (part->out[row])
            store->ops->close(store->self, part->out[row], NULL);
    for (int w = 0; part->scratch && w < part->n_workers; w++)
        free(part->scratch[w]);
    free(part->in);
    free(part->out);
    free(part->scratch);
    free(part->sums);
}

static int sync_rows(struct part *part, struct dcp_error *err)
{
    const struct dcp_parity *parity = part->code->parity;
    const struct dcp_store *store = part->code->store;
    int rc = DCP_OK;

    for (int row = 0; row < parity->rows && !rc; row++) {
        rc = store->ops->sync(store->self, part->out[row],
                              dcp_parity_bytes(parity, part->g), err);
        int closed = store->ops->close(store->self, part->out[row], rc ? NULL : err);
        part->out[row] = NULL;
        rc = rc ? rc : closed;
    }
    return rc;
}

/* What the bytes of each chunk contribute to the digest of their file, by their place. */
static void add_sums(const struct part *part, uint64_t *sums)
{
    for (size_t i = 0; i < part->n_chunks; i++) {
        uint64_t begin = part->begin + i * part->chunk;
        uint64_t end = least(begin + part->chunk, part->end), at;
        for (size_t f = 0; f < part->n_files; f++) {
            const struct dcp_parity_file *file =
                &part->code->parity->files[part->first_file + f];
            uint64_t n = overlap(file, begin, end, &at);
            if (n)
                sums[part->first_file + f] ^= dcp_hash_crc64_combine(
                    part->sums[i * part->n_files + f], 0, file->size_bytes - at - n);
        }
    }
}

static int run_part(const struct dcp_parity_code *code, int g, uint64_t *sums,
                    struct dcp_error *err)
{
    const struct dcp_parity *parity = code->parity;
    const struct dcp_parity_group *group = &parity->groups[g];
    struct part part = { .code = code,
                         .g = g,
                         .group = group,
                         .first_file = parity->column_first[group->first],
                         .n_workers = dcp_pool_workers(code->pool) };
    uint64_t stripe = (uint64_t)(group->n + parity->rows) * DCP_PARITY_UNIT;
    uint64_t room = code->memory_bytes / (uint64_t)part.n_workers;

    stripes_of(group, code->share, code->n_shares, &part.begin, &part.end);
    if (part.begin == part.end)
        return DCP_OK;
    part.n_files = parity->column_first[group->first + group->n] - part.first_file;
    part.chunk = least(room, CHUNK_BYTES) / stripe;
    part.chunk = part.chunk ? part.chunk : 1;
    part.n_chunks = (size_t)((part.end - part.begin + part.chunk - 1) / part.chunk);
    int rc = open_part(&part, err);
    if (!rc)
        rc = dcp_pool_for(code->pool, part.n_chunks, code_chunk, &part, err);
    if (!rc)
        rc = sync_rows(&part, err);
    if (!rc)
        add_sums(&part, sums);
    close_part(&part);
    return rc;
}

int dcp_parity_run(const struct dcp_parity_code *code, uint64_t **out_sums,
                   struct dcp_error *err)
{
    uint64_t *sums = dcp_mem_calloc(code->parity->n_files, sizeof *sums);
    int rc = sums ? DCP_OK : dcp_error_memory(err, "parity");

    *out_sums = NULL;
    for (int g = 0; g < code->parity->n_groups && !rc; g++)
        rc = run_part(code, g, sums, err);
    if (rc)
        free(sums);
    else
        *out_sums = sums;
    return rc;
}

int dcp_parity_prove(const struct dcp_parity *parity, const uint64_t *sums,
                     struct dcp_error *err)
{
    for (size_t f = 0; f < parity->n_files; f++)
        if (sums[f] != parity->files[f].crc)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "'%s' read back is not what was written; nothing was "
                                 "published",
                                 parity->files[f].name);
    return DCP_OK;
}

int dcp_parity_write_ends(const struct dcp_parity *parity, const struct dcp_store *store,
                          struct dcp_store_file *file, int group, const void *data,
                          size_t n, uint64_t *out_size, struct dcp_error *err)
{
    uint64_t at = dcp_parity_bytes(parity, group);
    unsigned char end[TAIL_END];
    DCP_CLEANUP_BUF struct dcp_buf head = { 0 };

    dcp_parity_head(parity, &head);
    dcp_put_le64(end, n);
    dcp_put_le64(end + 8, dcp_hash_crc64(0, data, n));
    int rc = dcp_buf_check(&head, err);
    if (!rc)
        rc = store->ops->write_at(store->self, file, 0, head.data, head.size_bytes, err);
    if (!rc)
        rc = store->ops->write_at(store->self, file, at, data, n, err);
    if (!rc)
        rc = store->ops->write_at(store->self, file, at + n, end, sizeof end, err);
    *out_size = at + n + TAIL_END;
    return rc;
}

int dcp_parity_check_written(const struct dcp_parity *parity,
                             const struct dcp_store *store, const char *path,
                             const void *data, size_t n, struct dcp_error *err)
{
    struct dcp_parity *there = NULL;
    DCP_CLEANUP_FREE void *tail = NULL;
    uint64_t at;
    size_t tail_n = 0;
    int rc = dcp_parity_read_head(store, path, &there, err);
    bool same = !rc && there->identity == parity->identity;

    dcp_parity_free(there);
    if (!rc)
        rc = dcp_parity_read_tail(store, path, &tail, &tail_n, &at, err);
    same = same && !rc && tail_n == n && !memcmp(tail, data, n);
    return rc && rc != DCP_E_CORRUPT ? rc : same ? DCP_OK : dcp_fs_not_written(path, err);
}

/* The manifest as it was written. */
static int read_manifest(const struct dcp_parity_code *code,
                         const struct dcp_catalog *catalog, void **out, size_t *out_n,
                         struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(code->prefix, DCP_PARITY_MANIFEST, "");
    size_t f = 0;

    if (!path)
        return dcp_error_memory(err, "a file name");
    while (f < catalog->n_files && strcmp(catalog->files[f].name, DCP_PARITY_MANIFEST))
        f++;
    int rc =
        dcp_store_read_header(code->store, path, DCP_PARITY_MAX_TAIL, out, out_n, err);
    bool same = !rc && f < catalog->n_files &&
                dcp_hash_crc64(0, *out, *out_n) == catalog->files[f].crc;
    return rc || same ? rc : dcp_fs_not_written(path, err);
}

int dcp_parity_end(const struct dcp_parity_code *code, const struct dcp_catalog *catalog,
                   struct dcp_error *err)
{
    const struct dcp_store *store = code->store;
    const struct dcp_parity *parity = code->parity;
    DCP_CLEANUP_FREE void *data = NULL;
    size_t n = 0;
    int rc = read_manifest(code, catalog, &data, &n, err);

    for (int i = 0; i < (int)dcp_parity_n_rows(parity) && !rc; i++) {
        struct dcp_store_file *file;
        char to[64];
        int g = i / parity->rows;
        uint64_t size;
        dcp_parity_name(parity, g, i % parity->rows, to);
        DCP_CLEANUP_FREE char *to_path = dcp_str_join(code->prefix, to, "");
        rc = to_path ? store->ops->reopen(store->self, to_path, &file, err)
                     : dcp_error_memory(err, "a file name");
        if (rc)
            break;
        rc = dcp_parity_write_ends(parity, store, file, g, data, n, &size, err);
        if (!rc)
            rc = store->ops->sync(store->self, file, size, err);
        int closed = store->ops->close(store->self, file, rc ? NULL : err);
        rc = rc ? rc : closed;
        if (!rc)
            rc = dcp_parity_check_written(parity, store, to_path, data, n, err);
    }
    return rc;
}

int dcp_parity_read_tail(const struct dcp_store *store, const char *name, void **out,
                         size_t *out_n, uint64_t *out_at, struct dcp_error *err)
{
    unsigned char end[TAIL_END];
    struct dcp_store_file *file;
    uint64_t size = 0, n;
    int rc = dcp_parity_open(store, name, &file, &size, err);

    *out = NULL;
    if (rc)
        return rc;
    if (size < TAIL_END)
        rc = DCP_E_CORRUPT;
    if (!rc)
        rc =
            store->ops->read_at(store->self, file, size - TAIL_END, end, sizeof end, err);
    n = rc ? 0 : dcp_le64(end);
    if (!rc && (n > DCP_PARITY_MAX_TAIL || n > size - TAIL_END))
        rc = DCP_E_CORRUPT;
    char *data = rc ? NULL : malloc((size_t)n + 1);
    if (!rc && !data)
        rc = dcp_error_memory(err, "a manifest");
    *out_at = size - TAIL_END - n;
    if (!rc)
        rc = store->ops->read_at(store->self, file, *out_at, data, (size_t)n, err);
    if (!rc && dcp_hash_crc64(0, data, (size_t)n) != dcp_le64(end + 8))
        rc = DCP_E_CORRUPT;
    store->ops->close(store->self, file, NULL);
    if (rc) {
        free(data);
        return rc == DCP_E_CORRUPT
                   ? dcp_error_set(err, rc, "the tail of '%s' is corrupt", name)
                   : rc;
    }
    data[n] = '\0';
    *out = data;
    *out_n = (size_t)n;
    return DCP_OK;
}
