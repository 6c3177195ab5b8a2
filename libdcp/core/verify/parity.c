#include "parity.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/parity/code.h"
#include <string.h>

struct check {
    const struct dcp_parity *parity;
    const struct dcp_store *store;
    const char *prefix;
    const struct dcp_verify_options *options;
    struct dcp_catalog *catalog; /* keeps the names of findings */
    int (*add)(void *self, const struct dcp_finding *finding, struct dcp_error *err);
    void *self;
    uint64_t read_bytes;
};

static char *row_path(const struct dcp_parity *parity, const char *prefix, int group,
                      int row)
{
    char name[64];

    dcp_parity_name(parity, group, row, name);
    return dcp_str_join(prefix, name, "");
}

static int open_row(const struct dcp_parity *parity, const struct dcp_store *store,
                    const char *prefix, int group, int row, struct dcp_store_file **out,
                    struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = row_path(parity, prefix, group, row);

    if (!path)
        return dcp_error_memory(err, "a file name");
    return store->ops->open(store->self, path, out, err);
}

/* DCP_OK, CORRUPT or MEMORY. */
static int check_head(const struct dcp_parity *parity, const struct dcp_store *store,
                      struct dcp_store_file *file)
{
    DCP_CLEANUP_BUF struct dcp_buf head = { 0 };
    DCP_CLEANUP_FREE unsigned char *there = malloc(parity->head_bytes);

    dcp_parity_head(parity, &head);
    if (!there || head.failed)
        return DCP_E_MEMORY;
    int rc = store->ops->read_at(store->self, file, 0, there, head.size_bytes, NULL);
    if (rc == DCP_E_MEMORY)
        return rc;
    return rc || memcmp(there, head.data, head.size_bytes) ? DCP_E_CORRUPT : DCP_OK;
}

static int check_tail(const struct dcp_reconstruction *rebuilt,
                      const struct dcp_store *store, const char *prefix, int group,
                      int row)
{
    const struct dcp_parity *parity = dcp_reconstruction_parity(rebuilt);
    DCP_CLEANUP_FREE void *tail = NULL;
    size_t n = 0, manifest_n;
    uint64_t at = 0;
    bool intact;
    const void *manifest = dcp_reconstruction_manifest(rebuilt, &manifest_n, &intact);
    DCP_CLEANUP_FREE char *path = row_path(parity, prefix, group, row);
    int rc =
        path ? dcp_parity_read_tail(store, path, &tail, &n, &at, NULL) : DCP_E_MEMORY;

    if (rc == DCP_E_MEMORY)
        return rc;
    bool good = !rc && at == dcp_parity_bytes(parity, group) && n == manifest_n &&
                !memcmp(tail, manifest, n);
    return good ? DCP_OK : DCP_E_CORRUPT;
}

int dcp_parity_check_ends(const struct dcp_reconstruction *rebuilt,
                          const struct dcp_store *store, const char *prefix, int group,
                          int row)
{
    struct dcp_store_file *file;
    int rc = open_row(dcp_reconstruction_parity(rebuilt), store, prefix, group, row,
                      &file, NULL);

    if (rc)
        return rc == DCP_E_MEMORY ? rc : DCP_E_CORRUPT;
    rc = check_head(dcp_reconstruction_parity(rebuilt), store, file);
    store->ops->close(store->self, file, NULL);
    return rc ? rc : check_tail(rebuilt, store, prefix, group, row);
}

static int add(const struct check *c, int group, int row, int code, uint64_t offset,
               uint64_t size_bytes, const char *what, struct dcp_error *err)
{
    char name[64];

    dcp_parity_name(c->parity, group, row, name);
    const char *kept = dcp_catalog_text(c->catalog, name);
    return kept ? c->add(c->self,
                         &(struct dcp_finding){ .code = code,
                                                .file = kept,
                                                .offset = offset,
                                                .size_bytes = size_bytes,
                                                .what = what },
                         err)
                : dcp_error_memory(err, "a verification");
}

/* The records of an open parity file; corrupt ones that follow each other are one place.
 */
static int check_records(struct check *c, struct dcp_store_file *file, int group, int row,
                         unsigned char *record, struct dcp_error *err)
{
    const struct dcp_parity_group *g = &c->parity->groups[group];
    uint64_t digests[DCP_ERASURE_MAX_UNITS], run = 0;
    bool part = c->options->to > 0;
    double n = (double)g->n_stripes;
    uint64_t first = part ? (uint64_t)(n * c->options->from) : 0;
    uint64_t last =
        part && c->options->to < 1 ? (uint64_t)(n * c->options->to) : g->n_stripes;

    c->read_bytes += (last - first) * g->record_bytes;
    for (uint64_t s = first; s <= last; s++) {
        uint64_t at = dcp_parity_record_at(c->parity, group, s);
        bool good =
            s == last || (!c->store->ops->read_at(c->store->self, file, at, record,
                                                  g->record_bytes, NULL) &&
                          dcp_parity_unseal(c->parity, group, row, s,
                                            record + DCP_PARITY_UNIT, digests) &&
                          dcp_hash_xxh3(record, DCP_PARITY_UNIT) == digests[g->n + row]);
        if (good && run)
            DCP_TRY(add(c, group, row, DCP_E_CORRUPT, at - run, run,
                        "the digest of the parity differs", err));
        run = good ? 0 : run + g->record_bytes;
    }
    return DCP_OK;
}

static int check_row(struct check *c, const struct dcp_reconstruction *rebuilt, int group,
                     int row, unsigned char *record, struct dcp_error *err)
{
    struct dcp_store_file *file;
    struct dcp_error why = { 0 };
    uint64_t end = dcp_parity_bytes(c->parity, group);
    int rc = open_row(c->parity, c->store, c->prefix, group, row, &file, &why);

    if (rc == DCP_E_MEMORY)
        return dcp_error_memory(err, "a verification");
    if (rc)
        return add(c, group, row, rc, 0, 0,
                   rc == DCP_E_NOT_FOUND ? "the file is missing" : "it cannot be read",
                   err);
    int head = check_head(c->parity, c->store, file), tail;
    if (head == DCP_E_CORRUPT)
        rc = add(c, group, row, DCP_E_CORRUPT, 0, c->parity->head_bytes,
                 "the head of the parity differs", err);
    if (!rc)
        rc = check_records(c, file, group, row, record, err);
    tail = check_tail(rebuilt, c->store, c->prefix, group, row);
    if (!rc && tail == DCP_E_CORRUPT)
        rc = add(c, group, row, DCP_E_CORRUPT, end, 0, "its copy of the manifest differs",
                 err);
    if (!rc && (head == DCP_E_MEMORY || tail == DCP_E_MEMORY))
        rc = dcp_error_memory(err, "a verification");
    c->store->ops->close(c->store->self, file, NULL);
    return rc;
}

int dcp_verify_parity(const struct dcp_source *source, const struct dcp_catalog *catalog,
                      const struct dcp_verify_options *options,
                      int (*add_finding)(void *self, const struct dcp_finding *finding,
                                         struct dcp_error *err),
                      void *self, uint64_t *out_bytes, struct dcp_error *err)
{
    struct dcp_reconstruction *rebuilt;
    size_t most = 0;
    DCP_CLEANUP_FREE char *prefix =
        dcp_str_join(source->name, source->name[0] ? "/" : "", "");
    struct check c = { .store = source->store,
                       .options = options,
                       .prefix = prefix,
                       .catalog = (struct dcp_catalog *)catalog,
                       .add = add_finding,
                       .self = self };
    *out_bytes = 0;
    if (!catalog->parity)
        return DCP_OK;
    if (!prefix)
        return dcp_error_memory(err, "a verification");
    struct dcp_error why = { 0 };
    int rc = dcp_reconstruction_open(source->store, source->name, &rebuilt, &why);
    if (rc == DCP_E_MEMORY)
        return dcp_error_memory(err, "a verification");
    if (rc)
        return add_finding(self,
                           &(struct dcp_finding){ .code = DCP_E_CORRUPT,
                                                  .what = "the parity cannot be read" },
                           err);
    c.parity = dcp_reconstruction_parity(rebuilt);
    for (int g = 0; g < c.parity->n_groups; g++)
        if (c.parity->groups[g].record_bytes > most)
            most = c.parity->groups[g].record_bytes;
    DCP_CLEANUP_FREE unsigned char *record = malloc(most);
    if (!record)
        rc = dcp_error_memory(err, "a verification");
    for (size_t i = 0; i < dcp_parity_n_rows(c.parity) && !rc; i++)
        rc = check_row(&c, rebuilt, (int)i / c.parity->rows, (int)i % c.parity->rows,
                       record, err);
    *out_bytes = c.read_bytes;
    dcp_reconstruction_free(rebuilt);
    return rc;
}
