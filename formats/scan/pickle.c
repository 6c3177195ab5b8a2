/* pickle: one pickle, the records of a zip archive, the bytes of an object. */
#include "formats/pickle/pickle.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/archive/zip.h"
#include "scan.h"
#include <string.h>
#include <strings.h>

#define ITEM "item"

enum {
    HEAD_BYTES = DCP_SCAN_NPY_BYTES,
    SHORTEST_ZIP = 22,
    MAX_PROTOCOL = 5,
    FIRST_READ = 64 << 10 /* of a pickle whose end is not known */
};

int dcp_scan_unreadable(struct dcp_scan *scan, const char *where, struct dcp_error *err)
{
    const struct dcp_global global = { .file = scan->file,
                                       .where = where,
                                       .name = DCP_GLOBAL_UNREADABLE,
                                       .kind = DCP_GLOBAL_DANGEROUS };

    scan->n_pickles++;
    return scan->visit->take(scan->visit->self, &global, err);
}

/* -- one pickle ---------------------------------------------------------------------- */

static int keep(void *self, const char *name, struct dcp_error *err)
{
    struct dcp_buf *names = self;

    dcp_buf_add(names, name, strlen(name) + 1);
    return dcp_buf_check(names, err);
}

/* The names of a pickle that was read, or read in part; each ends with NUL. */
static int tell(struct dcp_scan *scan, const char *where, const struct dcp_buf *names,
                bool whole, struct dcp_error *err)
{
    int rc = DCP_OK;

    for (size_t at = 0; at < names->size_bytes && !rc;) {
        const char *name = (const char *)names->data + at;
        const struct dcp_global global = { .file = scan->file,
                                           .where = where,
                                           .name = name,
                                           .kind = dcp_global_judge(name) };
        rc = scan->visit->take(scan->visit->self, &global, err);
        at += strlen(name) + 1;
    }
    if (!rc && !whole)
        return dcp_scan_unreadable(scan, where, err);
    scan->n_pickles++;
    return rc;
}

int dcp_scan_pickle(struct dcp_scan *scan, const char *where, const void *data,
                    size_t size_bytes, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf names = { 0 };
    const struct dcp_pickle_names keeper = { .take = keep, .self = &names };
    size_t used;
    int rc = dcp_pickle_names(data, size_bytes, &keeper, &used, NULL);

    return rc == DCP_E_MEMORY ? dcp_error_memory(err, "a pickle")
                              : tell(scan, where, &names, !rc, err);
}

/* Where it ends is found by reading more and more of it. */
int dcp_scan_pickle_at(struct dcp_scan *scan, const char *where,
                       const struct dcp_input *in, uint64_t at, bool is_sure,
                       size_t *out_used, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf names = { 0 };
    const struct dcp_pickle_names keeper = { .take = keep, .self = &names };
    uint64_t left = in->size_bytes - at;
    size_t room = left < DCP_PICKLE_MAX_BYTES ? (size_t)left : DCP_PICKLE_MAX_BYTES,
           used = 0, n = FIRST_READ;
    int rc;

    *out_used = 0;
    do {
        DCP_CLEANUP_FREE void *data = NULL;
        names.size_bytes = 0;
        n = n < room ? n : room;
        rc = dcp_input_read_new(in, at, n, &data, err);
        if (rc)
            return rc;
        rc = dcp_pickle_names(data, n, &keeper, &used, NULL);
        n *= 2;
    } while (rc == DCP_E_CORRUPT && used == n / 2 && n < 2 * room);
    if (rc == DCP_E_MEMORY)
        return dcp_error_memory(err, "a pickle");
    bool is_none = rc == DCP_E_CORRUPT && (used < room || room == left);
    if (is_none && !is_sure && !names.size_bytes)
        return DCP_OK;
    *out_used = rc ? 0 : used;
    return tell(scan, where, &names, !rc, err);
}

/* -- archives ------------------------------------------------------------------------ */

static bool ends(const char *name, const char *suffix)
{
    size_t n = strlen(name), k = strlen(suffix);

    return n >= k && !strcasecmp(name + n - k, suffix);
}

/* <root>/data/<number>: bytes of tensors, whatever they look like. */
static bool is_storage(const char *name)
{
    const char *slash = strchr(name, '/');

    return slash && dcp_str_starts(slash, "/data/") && slash[6] &&
           strspn(slash + 6, "0123456789") == strlen(slash + 6);
}

static bool begins_pickle(const unsigned char *head, size_t n)
{
    return n >= 2 && head[0] == 0x80 && head[1] <= MAX_PROTOCOL;
}

/* Where the pickle of an array of objects begins, behind its header; 0: it holds none. */
static int objects_begin(const struct dcp_input *in, const struct dcp_zip_record *record,
                         const unsigned char *start, size_t n_start, size_t *out,
                         struct dcp_error *err)
{
    uint64_t head_bytes = dcp_scan_npy_head(start, n_start);
    size_t n = (size_t)head_bytes;

    *out = 0;
    if (!head_bytes || head_bytes >= record->size_bytes)
        return DCP_OK;
    if (head_bytes > DCP_SCAN_MAX_HEAD)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "a NumPy header is too long");
    DCP_CLEANUP_FREE unsigned char *head = malloc(n);
    int rc = head ? dcp_zip_read_head(in, record, n, head, &n, err)
                  : dcp_error_memory(err, "a header of NumPy");
    if (!rc && dcp_scan_npy_objects(head, n))
        *out = n;
    return rc;
}

/* A pickle by its name or its beginning, or an array of objects: NumPy goes by how a
 * record begins, whatever its name is. */
static int read_record(const struct dcp_input *in, const struct dcp_zip_record *record,
                       void **out, size_t *out_begin, size_t *out_n, bool *out_packed,
                       struct dcp_error *err)
{
    unsigned char head[HEAD_BYTES];
    size_t n;

    DCP_TRY(dcp_zip_read_head(in, record, sizeof head, head, &n, err));
    DCP_TRY(objects_begin(in, record, head, n, out_begin, err));
    if (!*out_begin && is_storage(record->name))
        return DCP_OK;
    if (!*out_begin && !begins_pickle(head, n)) {
        *out_packed = dcp_scan_is_packed(head, n, record->name);
        if (*out_packed || !ends(record->name, ".pkl"))
            return DCP_OK;
    }
    return dcp_zip_read(in, record, DCP_PICKLE_MAX_BYTES, out, out_n, err);
}

static int scan_record(struct dcp_scan *scan, const char *where,
                       const struct dcp_input *in, const struct dcp_zip_record *record,
                       struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *data = NULL;
    struct dcp_error why = { 0 };
    size_t begin = 0, n;
    bool packed = false;
    int rc = read_record(in, record, &data, &begin, &n, &packed, &why);

    if (rc == DCP_E_CORRUPT || rc == DCP_E_UNSUPPORTED)
        return dcp_scan_unreadable(scan, where, err);
    if (packed)
        return dcp_scan_pass_over(scan, where, err);
    if (rc && err)
        *err = why;
    return rc || !data
               ? rc
               : dcp_scan_pickle(scan, where, (char *)data + begin, n - begin, err);
}

int dcp_scan_zip(struct dcp_scan *scan, const char *where, const struct dcp_input *in,
                 uint64_t begin, uint64_t end, struct dcp_error *err)
{
    struct dcp_arena *arena = dcp_arena_new();
    struct dcp_error why = { 0 };
    struct dcp_zip zip;

    if (!arena)
        return dcp_error_memory(err, "a zip archive");
    int rc = dcp_zip_open(in, begin, end, arena, &zip, &why);
    bool unreadable = rc == DCP_E_CORRUPT || rc == DCP_E_UNSUPPORTED;
    if (rc && !unreadable && err)
        *err = why;
    if (unreadable) {
        rc = dcp_scan_unreadable(scan, where, err);
    } else if (!rc) {
        for (size_t i = 0; i < zip.n_records && !rc; i++) {
            char *name = dcp_str_join(where, where[0] ? ":" : "", zip.records[i].name);
            rc = name ? scan_record(scan, name, in, &zip.records[i], err)
                      : dcp_error_memory(err, "a zip archive");
            free(name);
        }
    }
    dcp_arena_free(arena);
    return rc;
}

int dcp_scan_memory(struct dcp_scan *scan, const void *data, size_t size_bytes,
                    struct dcp_error *err)
{
    struct dcp_input in = { 0 };
    struct dcp_store store;
    const struct dcp_source whole = { .store = &store, .name = ITEM };

    if (size_bytes < SHORTEST_ZIP || memcmp(data, "PK\3\4", 4) != 0)
        return DCP_OK;
    int rc = dcp_store_mem(&store, err);
    if (rc)
        return rc;
    rc = dcp_store_write_file(&store, ITEM, data, size_bytes, err);
    if (!rc)
        rc = dcp_input_open(&in, &whole, NULL, err);
    if (!rc)
        rc = dcp_scan_zip(scan, "", &in, 0, size_bytes, err);
    dcp_input_close(&in);
    dcp_store_free(&store);
    return rc;
}
