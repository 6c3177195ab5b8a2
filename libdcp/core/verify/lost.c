#include "lost.h"
#include "base/mem.h"
#include "core/catalog/index.h"
#include "core/catalog/region.h"
#include "core/files/files.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void dcp_verify_why(const struct dcp_error *why, char out[DCP_VERIFY_WHY_CAP])
{
    char buf[128];

    if (why->code == DCP_E_NOT_FOUND)
        snprintf(out, DCP_VERIFY_WHY_CAP, "the file is missing");
    else if (why->sys_errno)
        snprintf(out, DCP_VERIFY_WHY_CAP, "cannot be read: %s",
                 strerror_r(why->sys_errno, buf, sizeof buf));
    else
        snprintf(out, DCP_VERIFY_WHY_CAP, "%.255s", why->message);
}

/* Marks a file that is not there, or not as long as it was. */
static int mark(const struct dcp_source *source, struct dcp_catalog *catalog,
                struct dcp_file *file, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_source_file(source, file->name);
    const struct dcp_store *store = source->store;
    struct dcp_error why = { 0 };
    bool is_dir = false;
    uint64_t size = 0;
    char text[DCP_VERIFY_WHY_CAP];

    if (!path)
        return dcp_error_memory(err, "a file name");
    int rc = store->ops->stat(store->self, path, &is_dir, &size, &why);
    if (rc == DCP_E_MEMORY)
        return dcp_error_memory(err, "a verification");
    if (!rc && !is_dir && size == file->size_bytes)
        return DCP_OK;
    file->lost = rc ? rc : DCP_E_CORRUPT;
    if (rc)
        dcp_verify_why(&why, text);
    else
        snprintf(text, sizeof text, "it has %" PRIu64 " bytes, not %" PRIu64,
                 is_dir ? 0 : size, file->size_bytes);
    file->lost_why = dcp_catalog_text(catalog, text);
    return file->lost_why ? DCP_OK : dcp_error_memory(err, "a catalog");
}

int dcp_verify_index(const struct dcp_source *source, struct dcp_catalog **out,
                     struct dcp_reconstruction **out_rebuilt, struct dcp_error *err)
{
    const struct dcp_format *format = NULL;
    struct dcp_error why = { 0 }, first;

    DCP_TRY(dcp_format_probe(source, &format, err));
    int rc =
        dcp_reconstruction_index(source, format, false, out, out_rebuilt, &first, &why);
    bool step = format->flags & DCP_FORMAT_STEPS;
    if (step && (dcp_is_broken(rc) || rc == DCP_E_UNSUPPORTED) &&
        !dcp_index(source, format, true, out, NULL))
        rc = DCP_OK;
    bool lost = !rc && (*out_rebuilt || (*out)->partial);
    for (size_t f = 0; lost && !rc && f < (*out)->n_files; f++)
        rc = mark(source, *out, &(*out)->files[f], &why);
    if (rc) {
        dcp_catalog_free(*out);
        dcp_reconstruction_free(*out_rebuilt);
        *out = NULL;
        *out_rebuilt = NULL;
        if (err)
            *err = why;
    }
    return rc;
}

struct interval {
    int64_t begin, end;
};

static int by_begin(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* The runs of all pieces of a tensor, in order. */
static int collect(const struct dcp_catalog *catalog, const struct dcp_tensor *tensor,
                   struct interval **out, size_t *out_n, struct dcp_error *err)
{
    size_t cap = 0;

    for (size_t i = 0; i < tensor->n_pieces; i++) {
        const struct dcp_piece *piece = &catalog->pieces[tensor->first_piece + i];
        struct dcp_region_walk walk;
        int64_t flat, at, n;
        dcp_region_walk_init(&walk, tensor, &piece->region, 0);
        while (dcp_region_walk_next(&walk, INT64_MAX, &flat, &at, &n)) {
            struct interval *grown = dcp_mem_grow(*out, &cap, *out_n + 1, sizeof **out);
            if (!grown)
                return dcp_error_memory(err, "a verification");
            *out = grown;
            grown[(*out_n)++] = (struct interval){ flat, flat + n };
        }
    }
    if (*out_n)
        qsort(*out, *out_n, sizeof **out, by_begin);
    return DCP_OK;
}

/* From the first element that is in no interval to the last; begin == end: none. */
static struct interval gap(const struct interval *intervals, size_t n, int64_t n_elems)
{
    struct interval found = { n_elems, n_elems };
    int64_t at = 0;

    for (size_t i = 0; i <= n; i++) {
        int64_t begin = i < n ? intervals[i].begin : n_elems;
        if (begin > at) {
            found.begin = found.begin < at ? found.begin : at;
            found.end = begin;
        }
        if (i < n && intervals[i].end > at)
            at = intervals[i].end;
    }
    return found;
}

int dcp_verify_lost(const struct dcp_catalog *catalog, _Atomic bool *broken,
                    int (*add)(void *self, const struct dcp_finding *finding,
                               struct dcp_error *err),
                    void *self, struct dcp_error *err)
{
    int rc = DCP_OK;

    for (size_t t = 0; t < catalog->n_tensors && !rc; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        DCP_CLEANUP_FREE struct interval *intervals = NULL;
        struct dcp_finding finding = { .code = DCP_E_CORRUPT,
                                       .tensor = tensor->name,
                                       .what = "nothing says where it lies",
                                       .with_file = true };
        size_t n = 0;
        rc = collect(catalog, tensor, &intervals, &n, err);
        struct interval lost = gap(intervals, n, tensor->n_elems);
        if (rc || lost.begin >= lost.end)
            continue;
        finding.begin = lost.begin;
        finding.end = lost.end;
        broken[t] = true;
        rc = add(self, &finding, err);
    }
    return rc;
}
