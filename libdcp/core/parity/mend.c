#include "mend.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/index.h"
#include "mend_find.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct dcp_mend {
    const struct dcp_store *inner;
    struct dcp_store store;
    char *prefix; /* "step-00001200/" */
    struct dcp_parity *parity;
    struct dcp_mend_manifest manifest;
    pthread_mutex_t lock;         /* of what is opened when it is needed: */
    struct dcp_store_file **open; /* column files, then parity files */
    bool *tried;
    _Atomic bool no_memory; /* what could not be read may well be good */
};

struct dcp_store_file {
    struct dcp_store_file *inner;       /* of a file that is not protected */
    const struct dcp_parity_file *file; /* or one that is; neither: the manifest */
};

const struct dcp_store *dcp_mend_store(const struct dcp_mend *mend)
{
    return &mend->store;
}

const struct dcp_parity *dcp_mend_parity(const struct dcp_mend *mend)
{
    return mend->parity;
}

const void *dcp_mend_manifest(const struct dcp_mend *mend, size_t *out_n,
                              bool *out_intact)
{
    *out_n = mend->manifest.size_bytes;
    *out_intact = mend->manifest.intact;
    return mend->manifest.data;
}

/* -- reading what is there ----------------------------------------------------------- */

/* A file by its place in `open`; NULL when it cannot be opened. */
static struct dcp_store_file *opened(struct dcp_mend *mend, size_t i)
{
    const struct dcp_parity *parity = mend->parity;
    char name[64];

    pthread_mutex_lock(&mend->lock);
    if (!mend->tried[i]) {
        const char *last = name;
        if (i < parity->n_files)
            last = parity->files[i].name;
        else
            dcp_parity_name(parity, (int)(i - parity->n_files) / parity->rows,
                            (int)(i - parity->n_files) % parity->rows, name);
        mend->tried[i] = true;
        DCP_CLEANUP_FREE char *path = dcp_str_join(mend->prefix, last, "");
        int rc =
            path ? mend->inner->ops->open(mend->inner->self, path, &mend->open[i], NULL)
                 : DCP_E_MEMORY;
        if (rc)
            mend->open[i] = NULL;
        if (rc == DCP_E_MEMORY)
            mend->no_memory = true;
    }
    struct dcp_store_file *file = mend->open[i];
    pthread_mutex_unlock(&mend->lock);
    return file;
}

static bool read_at(struct dcp_mend *mend, size_t i, uint64_t at, void *out, size_t n)
{
    struct dcp_store_file *file = opened(mend, i);

    int rc = file ? mend->inner->ops->read_at(mend->inner->self, file, at, out, n, NULL)
                  : DCP_E_NOT_FOUND;

    if (rc == DCP_E_MEMORY)
        mend->no_memory = true;
    return !rc;
}

/* A unit of a column, with zeros behind the end of its file; false: it cannot be read. */
static bool read_unit(struct dcp_mend *mend, int column, uint64_t stripe,
                      unsigned char *out)
{
    uint64_t unit;
    const struct dcp_parity_file *file =
        dcp_parity_unit(mend->parity, column, stripe, &unit);

    memset(out, 0, DCP_PARITY_UNIT);
    if (!file)
        return true;
    uint64_t at = unit * DCP_PARITY_UNIT, left = file->size_bytes - at;
    size_t n = left < DCP_PARITY_UNIT ? (size_t)left : DCP_PARITY_UNIT;
    return read_at(mend, (size_t)(file - mend->parity->files), at, out, n);
}

static size_t row_index(const struct dcp_mend *mend, int group, int row)
{
    return mend->parity->n_files + (size_t)(group * mend->parity->rows + row);
}

static bool read_trailer(struct dcp_mend *mend, int group, int row, uint64_t stripe,
                         uint64_t *digests)
{
    unsigned char trailer[(DCP_ERASURE_MAX_UNITS + 1) * sizeof(uint64_t)];
    uint64_t at = dcp_parity_record_at(mend->parity, group, stripe) + DCP_PARITY_UNIT;

    return read_at(mend, row_index(mend, group, row), at, trailer,
                   mend->parity->groups[group].trailer_bytes) &&
           dcp_parity_unseal(mend->parity, group, row, stripe, trailer, digests);
}

int dcp_mend_stripe(struct dcp_mend *mend, int group, uint64_t stripe,
                    struct dcp_mend_stripe *at, struct dcp_error *err)
{
    const struct dcp_parity *parity = mend->parity;
    const struct dcp_parity_group *g = &parity->groups[group];
    int k = g->n, n = k + parity->rows, n_bad = 0;
    bool sealed[DCP_PARITY_MAX_ROWS];

    at->proved = false;
    for (int row = 0; row < parity->rows; row++) {
        uint64_t digests[DCP_ERASURE_MAX_UNITS];
        sealed[row] = read_trailer(mend, group, row, stripe, digests);
        if (sealed[row] && !at->proved)
            memcpy(at->digests, digests, (size_t)n * sizeof *digests);
        at->proved |= sealed[row];
    }
    for (int i = 0; i < n; i++) {
        bool read = i < k ? read_unit(mend, g->first + i, stripe, at->units[i])
                          : read_at(mend, row_index(mend, group, i - k),
                                    dcp_parity_record_at(parity, group, stripe),
                                    at->units[i], DCP_PARITY_UNIT);
        uint64_t digest = read ? dcp_hash_xxh3(at->units[i], DCP_PARITY_UNIT) : 0;
        at->good[i] = read && (at->proved ? digest == at->digests[i] : i < k);
        n_bad += !at->good[i];
    }
    int rc = dcp_erasure_rebuild(g->code, DCP_PARITY_UNIT, at->units, at->good, NULL);
    if (rc == DCP_E_CORRUPT && !mend->no_memory)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "%d of the %d files of a stripe are lost or damaged at "
                             "stripe %" PRIu64 "; parity mends %d",
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
static int good_unit(struct dcp_mend *mend, int column, uint64_t stripe,
                     unsigned char *out, struct dcp_error *err)
{
    const struct dcp_parity *parity = mend->parity;
    uint64_t digests[DCP_ERASURE_MAX_UNITS];
    struct dcp_mend_stripe at;
    int group = 0;

    while (column >= parity->groups[group].first + parity->groups[group].n)
        group++;
    int k = parity->groups[group].n, i = column - parity->groups[group].first;
    bool sealed = false, read = read_unit(mend, column, stripe, out);
    for (int row = 0; row < parity->rows && !sealed; row++)
        sealed = read_trailer(mend, group, row, stripe, digests);
    if (read && (!sealed || dcp_hash_xxh3(out, DCP_PARITY_UNIT) == digests[i]))
        return DCP_OK;
    size_t n = (size_t)(k + parity->rows);
    DCP_CLEANUP_FREE unsigned char *memory = dcp_mem_aligned(64, n * DCP_PARITY_UNIT);
    if (!memory)
        return dcp_error_memory(err, "a repair");
    for (size_t u = 0; u < n; u++)
        at.units[u] = memory + u * DCP_PARITY_UNIT;
    DCP_TRY(dcp_mend_stripe(mend, group, stripe, &at, err));
    memcpy(out, at.units[i], DCP_PARITY_UNIT);
    return DCP_OK;
}

static int mend_read_at(void *self, struct dcp_store_file *open, uint64_t offset,
                        void *out, size_t size_bytes, struct dcp_error *err)
{
    struct dcp_mend *mend = self;
    const struct dcp_parity_file *file = open->file;
    uint64_t end = file ? file->size_bytes : mend->manifest.size_bytes;
    unsigned char *to = out;
    int rc = DCP_OK;

    if (open->inner)
        return mend->inner->ops->read_at(mend->inner->self, open->inner, offset, out,
                                         size_bytes, err);
    if (offset > end || size_bytes > end - offset)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s/%s' ends before byte %" PRIu64,
                             mend->store.root, file ? file->name : DCP_PARITY_MANIFEST,
                             offset + size_bytes);
    if (!file) {
        memcpy(out, (unsigned char *)mend->manifest.data + offset, size_bytes);
        return DCP_OK;
    }
    DCP_CLEANUP_FREE unsigned char *unit = malloc(DCP_PARITY_UNIT);
    if (!unit)
        return dcp_error_memory(err, "a repair");
    while (size_bytes && !rc) {
        uint64_t at = offset % DCP_PARITY_UNIT;
        size_t n = (size_t)(DCP_PARITY_UNIT - at);
        n = n < size_bytes ? n : size_bytes;
        rc = good_unit(mend, file->column, file->first_unit + offset / DCP_PARITY_UNIT,
                       unit, err);
        memcpy(to, unit + at, n);
        to += n;
        offset += n;
        size_bytes -= n;
    }
    return rc;
}

/* The protected file of a name, with *out_manifest for the manifest; NULL: none. */
static const struct dcp_parity_file *find(const struct dcp_mend *mend, const char *name,
                                          bool *out_manifest)
{
    const char *last = name + strlen(mend->prefix);

    *out_manifest = false;
    if (!dcp_str_starts(name, mend->prefix))
        return NULL;
    *out_manifest = !strcmp(last, DCP_PARITY_MANIFEST);
    for (size_t f = 0; f < mend->parity->n_files; f++)
        if (!strcmp(mend->parity->files[f].name, last))
            return &mend->parity->files[f];
    return NULL;
}

static int mend_open_file(void *self, const char *name, struct dcp_store_file **out,
                          struct dcp_error *err)
{
    struct dcp_mend *mend = self;
    struct dcp_store_file *open = calloc(1, sizeof *open);
    bool manifest;
    int rc = DCP_OK;

    *out = NULL;
    if (!open)
        return dcp_error_memory(err, name);
    open->file = find(mend, name, &manifest);
    if (!open->file && !manifest)
        rc = mend->inner->ops->open(mend->inner->self, name, &open->inner, err);
    if (rc)
        free(open);
    else
        *out = open;
    return rc;
}

static int mend_close(void *self, struct dcp_store_file *open, struct dcp_error *err)
{
    const struct dcp_mend *mend = self;
    int rc = open->inner ? mend->inner->ops->close(mend->inner->self, open->inner, err)
                         : DCP_OK;

    free(open);
    return rc;
}

static int mend_stat(void *self, const char *name, bool *out_is_dir,
                     uint64_t *out_size_bytes, struct dcp_error *err)
{
    const struct dcp_mend *mend = self;
    bool manifest;
    const struct dcp_parity_file *file = find(mend, name, &manifest);

    if (!file && !manifest)
        return mend->inner->ops->stat(mend->inner->self, name, out_is_dir, out_size_bytes,
                                      err);
    *out_is_dir = false;
    *out_size_bytes = file ? file->size_bytes : mend->manifest.size_bytes;
    return DCP_OK;
}

static int mend_list(void *self, const char *dir, struct dcp_store_entry **out,
                     size_t *out_n, struct dcp_error *err)
{
    const struct dcp_mend *mend = self;
    return mend->inner->ops->list(mend->inner->self, dir, out, out_n, err);
}

static const struct dcp_store_ops mend_ops = {
    .list = mend_list,
    .stat = mend_stat,
    .open = mend_open_file,
    .read_at = mend_read_at,
    .close = mend_close,
};

/* -- the whole ----------------------------------------------------------------------- */

int dcp_mend_open(const struct dcp_store *store, const char *folder,
                  struct dcp_mend **out, struct dcp_error *err)
{
    struct dcp_mend *mend = calloc(1, sizeof *mend);

    *out = NULL;
    if (!mend)
        return dcp_error_memory(err, "a repair");
    pthread_mutex_init(&mend->lock, NULL);
    mend->inner = store;
    mend->prefix = dcp_str_join(folder, folder[0] ? "/" : "", "");
    int rc = mend->prefix ? DCP_OK : dcp_error_memory(err, "a repair");
    if (!rc)
        rc = dcp_mend_find_parity(store, folder, mend->prefix, &mend->parity, err);
    if (!rc)
        rc = dcp_mend_find_manifest(store, mend->prefix, mend->parity, &mend->manifest,
                                    err);
    if (!rc) {
        size_t n = mend->parity->n_files + dcp_parity_n_rows(mend->parity);
        mend->open = dcp_mem_calloc(n, sizeof *mend->open);
        mend->tried = dcp_mem_calloc(n, sizeof *mend->tried);
        rc = mend->open && mend->tried ? DCP_OK : dcp_error_memory(err, "a repair");
    }
    if (rc) {
        dcp_mend_free(mend);
        return rc;
    }
    mend->store = *store;
    mend->store.ops = &mend_ops;
    mend->store.self = mend;
    *out = mend;
    return DCP_OK;
}

void dcp_mend_free(struct dcp_mend *mend)
{
    if (!mend)
        return;
    size_t n = mend->parity && mend->open
                   ? mend->parity->n_files + dcp_parity_n_rows(mend->parity)
                   : 0;
    for (size_t i = 0; i < n; i++)
        if (mend->open[i])
            mend->inner->ops->close(mend->inner->self, mend->open[i], NULL);
    pthread_mutex_destroy(&mend->lock);
    dcp_parity_free(mend->parity);
    free(mend->open);
    free(mend->tried);
    free(mend->manifest.data);
    free(mend->prefix);
    free(mend);
}

int dcp_mend_index(const struct dcp_source *source, const struct dcp_format *format,
                   struct dcp_catalog **out, struct dcp_mend **out_mend,
                   struct dcp_error *out_why, struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    struct dcp_mend *mend;
    int rc = dcp_index(source, format, false, out, &why);

    *out_mend = NULL;
    *out_why = (struct dcp_error){ 0 };
    if (!rc)
        return DCP_OK;
    if (dcp_is_broken(rc) && (format->flags & DCP_FORMAT_STEPS)) {
        int mended = dcp_mend_open(source->store, source->name, &mend, NULL);
        if (!mended) {
            struct dcp_source through = { dcp_mend_store(mend), source->name, true };
            mended = dcp_index(&through, format, false, out, NULL);
            if (mended)
                dcp_mend_free(mend);
        }
        if (mended == DCP_E_MEMORY)
            return dcp_error_memory(err, "a repair");
        if (!mended) {
            *out_mend = mend;
            *out_why = why;
            return DCP_OK;
        }
    }
    if (err)
        *err = why;
    return rc;
}
