/* scan_pickle: one pickle, the records of a zip archive, the bytes of an object. */
#include "base/mem.h"
#include "base/str.h"
#include "npy.h"
#include "pickle.h"
#include "scan.h"
#include "zip.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define ITEM "item"

enum { HEAD_BYTES = 512, SHORTEST_ZIP = 22, MAX_PROTOCOL = 5 };

struct pickle {
    struct dcp_scan *scan;
    const char *where;
    int rc; /* of the visitor */
};

static int visit(const struct pickle *p, const char *name, struct dcp_error *err)
{
    const struct dcp_global global = { .file = p->scan->file,
                                       .where = p->where,
                                       .name = name,
                                       .kind = dcp_global_judge(name) };

    return p->scan->visit->take(p->scan->visit->self, &global, err);
}

static int take(void *self, const char *name, struct dcp_error *err)
{
    struct pickle *p = self;

    p->rc = visit(p, name, err);
    return p->rc;
}

int dcp_scan_pickle(struct dcp_scan *scan, const char *where, const void *data,
                    size_t size_bytes, size_t *out_used, struct dcp_error *err)
{
    struct pickle p = { scan, where, DCP_OK };
    const struct dcp_pickle_names names = { .take = take, .self = &p };
    struct dcp_error why = { 0 };
    size_t used;
    int rc = dcp_pickle_names(data, size_bytes, &names, &used, &why);

    scan->n_pickles++;
    if (out_used)
        *out_used = rc ? 0 : used;
    if (rc == DCP_E_MEMORY || p.rc) {
        if (err)
            *err = why;
        return rc;
    }
    return rc ? visit(&p, DCP_GLOBAL_UNREADABLE, err) : DCP_OK;
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
static size_t objects_begin(const unsigned char *data, size_t n)
{
    if (n < 10 || memcmp(data, DCP_NPY_MAGIC, DCP_NPY_MAGIC_BYTES) != 0)
        return 0;
    size_t begin = data[6] == 1 ? 10 : 12;
    size_t text = data[8] | (size_t)data[9] << 8;
    if (begin == 12 && n >= 12)
        text |= (size_t)data[10] << 16 | (size_t)data[11] << 24;
    if (text > n || begin > n - text)
        return 0;
    return memchr(data + begin, 'O', text) && begin + text < n ? begin + text : 0;
}

static int scan_record(struct dcp_scan *scan, const char *where,
                       const struct dcp_input *in, const struct dcp_zip_record *record,
                       struct dcp_error *err)
{
    unsigned char head[HEAD_BYTES];
    DCP_CLEANUP_FREE void *data = NULL;
    bool npy = ends(record->name, ".npy");
    size_t n;

    if (is_storage(record->name))
        return DCP_OK;
    int rc = dcp_zip_read_head(in, record, sizeof head, head, &n, err);
    if (!rc && !npy && !begins_pickle(head, n) &&
        dcp_scan_is_packed(head, n, record->name))
        return dcp_scan_pass_over(scan, where, err);
    if (!rc && !npy && !begins_pickle(head, n) && !ends(record->name, ".pkl"))
        return DCP_OK;
    if (!rc)
        rc = dcp_zip_read(in, record, DCP_PICKLE_MAX_BYTES, &data, &n, err);
    if (rc && rc != DCP_E_CORRUPT && rc != DCP_E_UNSUPPORTED)
        return rc;
    struct pickle p = { scan, where, DCP_OK };
    if (rc) {
        scan->n_pickles++;
        return visit(&p, DCP_GLOBAL_UNREADABLE, NULL);
    }
    size_t begin = npy ? objects_begin(data, n) : 0;
    return npy && !begin
               ? DCP_OK
               : dcp_scan_pickle(scan, where, (char *)data + begin, n - begin, NULL, err);
}

int dcp_scan_zip(struct dcp_scan *scan, const char *where, const struct dcp_input *in,
                 uint64_t begin, uint64_t end, struct dcp_error *err)
{
    struct dcp_arena *arena = dcp_arena_new();
    struct pickle p = { scan, where, DCP_OK };
    struct dcp_error why = { 0 };
    struct dcp_zip zip;

    if (!arena)
        return dcp_error_memory(err, "a zip archive");
    int rc = dcp_zip_open(in, begin, end, arena, &zip, &why);
    bool unreadable = rc == DCP_E_CORRUPT || rc == DCP_E_UNSUPPORTED;
    if (rc && !unreadable && err)
        *err = why;
    if (unreadable) {
        scan->n_pickles++;
        rc = visit(&p, DCP_GLOBAL_UNREADABLE, err);
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

int dcp_scan_memory(const void *data, size_t size_bytes,
                    const struct dcp_global_visit *take_global, struct dcp_error *err)
{
    struct dcp_scan scan = { .visit = take_global };
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
        rc = dcp_scan_zip(&scan, "", &in, 0, size_bytes, err);
    dcp_input_close(&in);
    dcp_store_free(&store);
    return rc;
}
