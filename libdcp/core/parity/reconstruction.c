#include "reconstruction.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/index.h"
#include "reconstruction_find.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct dcp_reconstruction {
    const struct dcp_store *inner;
    struct dcp_store store;
    char *prefix; /* "step-00001200/" */
    struct dcp_parity *parity;
    struct dcp_reconstruction_manifest manifest;
    pthread_mutex_t lock;         /* of what is opened when it is needed: */
    struct dcp_store_file **open; /* column files, then parity files */
    bool *tried;
    _Atomic bool no_memory; /* what could not be read may well be good */
};

struct dcp_store_file {
    struct dcp_store_file *inner;       /* of a file that is not protected */
    const struct dcp_parity_file *file; /* or one that is; neither: the manifest */
};

const struct dcp_store *dcp_reconstruction_store(const struct dcp_reconstruction *rebuilt)
{
    return &rebuilt->store;
}

const struct dcp_parity *dcp_reconstruction_parity(
    const struct dcp_reconstruction *rebuilt)
{
    return rebuilt->parity;
}

const void *dcp_reconstruction_manifest(const struct dcp_reconstruction *rebuilt,
                                        size_t *out_n, bool *out_intact)
{
    *out_n = rebuilt->manifest.size_bytes;
    *out_intact = rebuilt->manifest.intact;
    return rebuilt->manifest.data;
}

/* -- reading what is there ----------------------------------------------------------- */

/* A file by its place in `open`; NULL when it cannot be opened. */
static struct dcp_store_file *opened(struct dcp_reconstruction *rebuilt, size_t i)
{
    const struct dcp_parity *parity = rebuilt->parity;
    char name[64];

    pthread_mutex_lock(&rebuilt->lock);
    if (!rebuilt->tried[i]) {
        const char *last = name;
        if (i < parity->n_files)
            last = parity->files[i].name;
        else
            dcp_parity_name(parity, (int)(i - parity->n_files) / parity->rows,
                            (int)(i - parity->n_files) % parity->rows, name);
        rebuilt->tried[i] = true;
        DCP_CLEANUP_FREE char *path = dcp_str_join(rebuilt->prefix, last, "");
        int rc = path ? rebuilt->inner->ops->open(rebuilt->inner->self, path,
                                                  &rebuilt->open[i], NULL)
                      : DCP_E_MEMORY;
        if (rc)
            rebuilt->open[i] = NULL;
        if (rc == DCP_E_MEMORY)
            rebuilt->no_memory = true;
    }
    struct dcp_store_file *file = rebuilt->open[i];
    pthread_mutex_unlock(&rebuilt->lock);
    return file;
}

static bool read_at(struct dcp_reconstruction *rebuilt, size_t i, uint64_t at, void *out,
                    size_t n)
{
    struct dcp_store_file *file = opened(rebuilt, i);

    int rc =
        file ? rebuilt->inner->ops->read_at(rebuilt->inner->self, file, at, out, n, NULL)
             : DCP_E_NOT_FOUND;

    if (rc == DCP_E_MEMORY)
        rebuilt->no_memory = true;
    return !rc;
}

/* A unit of a column, with zeros behind the end of its file; false: it cannot be read. */
static bool read_unit(struct dcp_reconstruction *rebuilt, int column, uint64_t stripe,
                      unsigned char *out)
{
    uint64_t unit;
    const struct dcp_parity_file *file =
        dcp_parity_unit(rebuilt->parity, column, stripe, &unit);

    memset(out, 0, DCP_PARITY_UNIT);
    if (!file)
        return true;
    uint64_t at = unit * DCP_PARITY_UNIT, left = file->size_bytes - at;
    size_t n = left < DCP_PARITY_UNIT ? (size_t)left : DCP_PARITY_UNIT;
    return read_at(rebuilt, (size_t)(file - rebuilt->parity->files), at, out, n);
}

static size_t row_index(const struct dcp_reconstruction *rebuilt, int group, int row)
{
    return rebuilt->parity->n_files + (size_t)(group * rebuilt->parity->rows + row);
}

static bool read_trailer(struct dcp_reconstruction *rebuilt, int group, int row,
                         uint64_t stripe, uint64_t *digests)
{
    unsigned char trailer[(DCP_ERASURE_MAX_UNITS + 1) * sizeof(uint64_t)];
    uint64_t at = dcp_parity_record_at(rebuilt->parity, group, stripe) + DCP_PARITY_UNIT;

    return read_at(rebuilt, row_index(rebuilt, group, row), at, trailer,
                   rebuilt->parity->groups[group].trailer_bytes) &&
           dcp_parity_unseal(rebuilt->parity, group, row, stripe, trailer, digests);
}

int dcp_reconstruction_stripe(struct dcp_reconstruction *rebuilt, int group,
                              uint64_t stripe, struct dcp_reconstruction_stripe *at,
                              struct dcp_error *err)
{
    const struct dcp_parity *parity = rebuilt->parity;
    const struct dcp_parity_group *g = &parity->groups[group];
    int k = g->n, n = k + parity->rows, n_bad = 0;
    bool sealed[DCP_PARITY_MAX_ROWS];

    at->proved = false;
    for (int row = 0; row < parity->rows; row++) {
        uint64_t digests[DCP_ERASURE_MAX_UNITS];
        sealed[row] = read_trailer(rebuilt, group, row, stripe, digests);
        if (sealed[row] && !at->proved)
            memcpy(at->digests, digests, (size_t)n * sizeof *digests);
        at->proved |= sealed[row];
    }
    for (int i = 0; i < n; i++) {
        bool read = i < k ? read_unit(rebuilt, g->first + i, stripe, at->units[i])
                          : read_at(rebuilt, row_index(rebuilt, group, i - k),
                                    dcp_parity_record_at(parity, group, stripe),
                                    at->units[i], DCP_PARITY_UNIT);
        uint64_t digest = read ? dcp_hash_xxh3(at->units[i], DCP_PARITY_UNIT) : 0;
        at->good[i] = read && (at->proved ? digest == at->digests[i] : i < k);
        n_bad += !at->good[i];
    }
    int rc = dcp_erasure_rebuild(g->code, DCP_PARITY_UNIT, at->units, at->good, NULL);
    if (rc == DCP_E_CORRUPT && !rebuilt->no_memory)
        return dcp_error_set(
            err, DCP_E_CORRUPT,
            "%d of the %d files of a stripe are lost or corrupt at stripe %" PRIu64
            "; parity can reconstruct %d",
            n_bad, n, stripe, parity->rows);
    if (rc)
        return dcp_error_memory(err, "a repair");
    for (int i = 0; i < n && !at->proved; i++)
        at->digests[i] = dcp_hash_xxh3(at->units[i], DCP_PARITY_UNIT);
    for (int row = 0; row < parity->rows; row++)
        at->good[k + row] = at->good[k + row] && sealed[row];
    return DCP_OK;
}

/* -- the store ----------------------------------------------------------------------- */

/* The unit of a column as it was written. */
static int good_unit(struct dcp_reconstruction *rebuilt, int column, uint64_t stripe,
                     unsigned char *out, struct dcp_error *err)
{
    const struct dcp_parity *parity = rebuilt->parity;
    uint64_t digests[DCP_ERASURE_MAX_UNITS];
    struct dcp_reconstruction_stripe at;
    int group = 0;

    while (column >= parity->groups[group].first + parity->groups[group].n)
        group++;
    int k = parity->groups[group].n, i = column - parity->groups[group].first;
    bool sealed = false, read = read_unit(rebuilt, column, stripe, out);
    for (int row = 0; row < parity->rows && !sealed; row++)
        sealed = read_trailer(rebuilt, group, row, stripe, digests);
    if (read && (!sealed || dcp_hash_xxh3(out, DCP_PARITY_UNIT) == digests[i]))
        return DCP_OK;
    size_t n = (size_t)(k + parity->rows);
    DCP_CLEANUP_FREE unsigned char *memory = dcp_mem_aligned(64, n * DCP_PARITY_UNIT);
    if (!memory)
        return dcp_error_memory(err, "a repair");
    for (size_t u = 0; u < n; u++)
        at.units[u] = memory + u * DCP_PARITY_UNIT;
    DCP_TRY(dcp_reconstruction_stripe(rebuilt, group, stripe, &at, err));
    memcpy(out, at.units[i], DCP_PARITY_UNIT);
    return DCP_OK;
}

static int reconstruction_read_at(void *self, struct dcp_store_file *open,
                                  uint64_t offset, void *out, size_t size_bytes,
                                  struct dcp_error *err)
{
    struct dcp_reconstruction *rebuilt = self;
    const struct dcp_parity_file *file = open->file;
    uint64_t end = file ? file->size_bytes : rebuilt->manifest.size_bytes;
    unsigned char *to = out;
    int rc = DCP_OK;

    if (open->inner)
        return rebuilt->inner->ops->read_at(rebuilt->inner->self, open->inner, offset,
                                            out, size_bytes, err);
    if (offset > end || size_bytes > end - offset)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s/%s' ends before byte %" PRIu64,
                             rebuilt->store.root, file ? file->name : DCP_PARITY_MANIFEST,
                             offset + size_bytes);
    if (!file) {
        memcpy(out, (unsigned char *)rebuilt->manifest.data + offset, size_bytes);
        return DCP_OK;
    }
    DCP_CLEANUP_FREE unsigned char *unit = malloc(DCP_PARITY_UNIT);
    if (!unit)
        return dcp_error_memory(err, "a repair");
    while (size_bytes && !rc) {
        uint64_t at = offset % DCP_PARITY_UNIT;
        size_t n = (size_t)(DCP_PARITY_UNIT - at);
        n = n < size_bytes ? n : size_bytes;
        rc = good_unit(rebuilt, file->column, file->first_unit + offset / DCP_PARITY_UNIT,
                       unit, err);
        memcpy(to, unit + at, n);
        to += n;
        offset += n;
        size_bytes -= n;
    }
    return rc;
}

/* The protected file of a name, with *out_manifest for the manifest; NULL: none. */
static const struct dcp_parity_file *find(const struct dcp_reconstruction *rebuilt,
                                          const char *name, bool *out_manifest)
{
    const char *last = name + strlen(rebuilt->prefix);

    *out_manifest = false;
    if (!dcp_str_starts(name, rebuilt->prefix))
        return NULL;
    *out_manifest = !strcmp(last, DCP_PARITY_MANIFEST);
    for (size_t f = 0; f < rebuilt->parity->n_files; f++)
        if (!strcmp(rebuilt->parity->files[f].name, last))
            return &rebuilt->parity->files[f];
    return NULL;
}

static int reconstruction_open_file(void *self, const char *name,
                                    struct dcp_store_file **out, struct dcp_error *err)
{
    struct dcp_reconstruction *rebuilt = self;
    struct dcp_store_file *open = calloc(1, sizeof *open);
    bool manifest;
    int rc = DCP_OK;

    *out = NULL;
    if (!open)
        return dcp_error_memory(err, name);
    open->file = find(rebuilt, name, &manifest);
    if (!open->file && !manifest)
        rc = rebuilt->inner->ops->open(rebuilt->inner->self, name, &open->inner, err);
    if (rc)
        free(open);
    else
        *out = open;
    return rc;
}

static int reconstruction_close(void *self, struct dcp_store_file *open,
                                struct dcp_error *err)
{
    const struct dcp_reconstruction *rebuilt = self;
    int rc = open->inner
                 ? rebuilt->inner->ops->close(rebuilt->inner->self, open->inner, err)
                 : DCP_OK;

    free(open);
    return rc;
}

static int reconstruction_stat(void *self, const char *name, bool *out_is_dir,
                               uint64_t *out_size_bytes, struct dcp_error *err)
{
    const struct dcp_reconstruction *rebuilt = self;
    bool manifest;
    const struct dcp_parity_file *file = find(rebuilt, name, &manifest);

    if (!file && !manifest)
        return rebuilt->inner->ops->stat(rebuilt->inner->self, name, out_is_dir,
                                         out_size_bytes, err);
    *out_is_dir = false;
    *out_size_bytes = file ? file->size_bytes : rebuilt->manifest.size_bytes;
    return DCP_OK;
}

static int reconstruction_list(void *self, const char *dir, struct dcp_store_entry **out,
                               size_t *out_n, struct dcp_error *err)
{
    const struct dcp_reconstruction *rebuilt = self;
    return rebuilt->inner->ops->list(rebuilt->inner->self, dir, out, out_n, err);
}

static const struct dcp_store_ops reconstruction_ops = {
    .list = reconstruction_list,
    .stat = reconstruction_stat,
    .open = reconstruction_open_file,
    .read_at = reconstruction_read_at,
    .close = reconstruction_close,
};

/* -- the whole ----------------------------------------------------------------------- */

int dcp_reconstruction_open(const struct dcp_store *store, const char *folder,
                            struct dcp_reconstruction **out, struct dcp_error *err)
{
    struct dcp_reconstruction *rebuilt = calloc(1, sizeof *rebuilt);

    *out = NULL;
    if (!rebuilt)
        return dcp_error_memory(err, "a repair");
    pthread_mutex_init(&rebuilt->lock, NULL);
    rebuilt->inner = store;
    rebuilt->prefix = dcp_str_join(folder, folder[0] ? "/" : "", "");
    int rc = rebuilt->prefix ? DCP_OK : dcp_error_memory(err, "a repair");
    if (!rc)
        rc = dcp_reconstruction_find_parity(store, folder, rebuilt->prefix,
                                            &rebuilt->parity, err);
    if (!rc)
        rc = dcp_reconstruction_find_manifest(store, rebuilt->prefix, rebuilt->parity,
                                              &rebuilt->manifest, err);
    if (!rc) {
        size_t n = rebuilt->parity->n_files + dcp_parity_n_rows(rebuilt->parity);
        rebuilt->open = dcp_mem_calloc(n, sizeof *rebuilt->open);
        rebuilt->tried = dcp_mem_calloc(n, sizeof *rebuilt->tried);
        rc = rebuilt->open && rebuilt->tried ? DCP_OK : dcp_error_memory(err, "a repair");
    }
    if (rc) {
        dcp_reconstruction_free(rebuilt);
        return rc;
    }
    rebuilt->store = *store;
    rebuilt->store.ops = &reconstruction_ops;
    rebuilt->store.self = rebuilt;
    *out = rebuilt;
    return DCP_OK;
}

void dcp_reconstruction_free(struct dcp_reconstruction *rebuilt)
{
    if (!rebuilt)
        return;
    size_t n = rebuilt->parity && rebuilt->open
                   ? rebuilt->parity->n_files + dcp_parity_n_rows(rebuilt->parity)
                   : 0;
    for (size_t i = 0; i < n; i++)
        if (rebuilt->open[i])
            rebuilt->inner->ops->close(rebuilt->inner->self, rebuilt->open[i], NULL);
    pthread_mutex_destroy(&rebuilt->lock);
    dcp_parity_free(rebuilt->parity);
    free(rebuilt->open);
    free(rebuilt->tried);
    free(rebuilt->manifest.data);
    free(rebuilt->prefix);
    free(rebuilt);
}

static int index_source(const struct dcp_source *source, const struct dcp_format *format,
                        bool head, struct dcp_catalog **out, struct dcp_error *err)
{
    return head ? dcp_index_head(source, format, out, err)
                : dcp_index(source, format, false, out, err);
}

int dcp_reconstruction_index(const struct dcp_source *source,
                             const struct dcp_format *format, bool head,
                             struct dcp_catalog **out,
                             struct dcp_reconstruction **out_rebuilt,
                             struct dcp_error *out_why, struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    struct dcp_reconstruction *rebuilt;
    int rc = index_source(source, format, head, out, &why);

    *out_rebuilt = NULL;
    *out_why = (struct dcp_error){ 0 };
    if (!rc)
        return DCP_OK;
    if (dcp_is_broken(rc) && (format->flags & DCP_FORMAT_STEPS)) {
        int reconstructed =
            dcp_reconstruction_open(source->store, source->name, &rebuilt, NULL);
        if (!reconstructed) {
            struct dcp_source through = { dcp_reconstruction_store(rebuilt), source->name,
                                          true };
            reconstructed = index_source(&through, format, head, out, NULL);
            if (reconstructed)
                dcp_reconstruction_free(rebuilt);
        }
        if (reconstructed == DCP_E_MEMORY)
            return dcp_error_memory(err, "a repair");
        if (!reconstructed) {
            *out_rebuilt = rebuilt;
            *out_why = why;
            return DCP_OK;
        }
    }
    if (err)
        *err = why;
    return rc;
}
