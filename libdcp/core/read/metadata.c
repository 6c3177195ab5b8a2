#include "metadata.h"
#include "base/buf.h"
#include "base/mem.h"
#include "core/catalog/grid.h"
#include "core/catalog/index.h"
#include "core/catalog/order.h"
#include "core/catalog/pack.h"
#include "core/collective/await.h"
#include "core/collective/bcast.h"
#include <string.h>

struct reading {
    const struct dcp_source *source;
    const char *name; /* of the format; NULL: native; "auto" */
    const struct dcp_catalog *wanted;
    struct dcp_catalog *catalog;
};

/* Everything, or all but the pieces where the format can add them later. */
static int read_head(void *arg, struct dcp_error *err)
{
    struct reading *r = arg;
    if (r->catalog)
        return DCP_OK;

    bool probe = r->name && !strcmp(r->name, "auto");
    const struct dcp_format *format = dcp_format_of_steps();

    if (r->name)
        format = dcp_format_find(r->name);
    if (probe)
        DCP_TRY(dcp_format_probe(r->source, &format, err));
    if (!format)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "there is no format '%s'", r->name);
    if (!format->index_head) {
        DCP_TRY(dcp_index(r->source, format, false, &r->catalog, err));
        return dcp_catalog_check(r->catalog, err);
    }
    DCP_TRY(dcp_catalog_new(&r->catalog, err));
    return format->index_head(r->source, r->catalog, err);
}

/* Marks the ranks whose shards hold some of what is wanted; returns how many. */
static size_t mark(const struct reading *r, bool *ranks)
{
    size_t n_ranks = (size_t)r->catalog->world_size, n = 0;
    int found = -1;

    for (size_t p = 0; p < r->wanted->n_pieces; p++) {
        const struct dcp_piece *piece = &r->wanted->pieces[p];
        const struct dcp_tensor *to = &r->wanted->tensors[piece->tensor];
        found = dcp_catalog_find_after(r->catalog, to->name, found);
        if (found < 0)
            continue; /* the planner says so */
        const struct dcp_tensor *from = &r->catalog->tensors[found];
        bool same = from->ndim == to->ndim &&
                    !memcmp(from->shape, to->shape, (size_t)to->ndim * sizeof *to->shape);
        if (from->grid && same)
            dcp_grid_mark(from, from->grid, &piece->region, ranks);
        else if (same) /* it may lie anywhere */
            memset(ranks, true, n_ranks);
    }
    for (size_t i = 0; i < n_ranks; i++)
        n += ranks[i];
    return n;
}

static int read_pieces(void *arg, struct dcp_error *err)
{
    struct reading *r = arg;
    const struct dcp_format *format = dcp_format_find(r->catalog->format);
    size_t n = (size_t)r->catalog->world_size;
    DCP_CLEANUP_FREE bool *ranks = dcp_mem_calloc(n, sizeof *ranks);

    if (!ranks)
        return dcp_error_memory(err, "the ranks of a step");
    size_t needed = mark(r, ranks);
    DCP_TRY(format->index_ranks(r->source, ranks, r->catalog, err));
    DCP_TRY(dcp_catalog_sort(r->catalog, err));
    if (needed < n)
        return DCP_OK;
    DCP_TRY(dcp_grids_check(r->catalog, err));
    return dcp_catalog_check(r->catalog, err);
}

/* Collective. What rank 0 read goes to all. */
static int share(struct dcp_comm *comm, struct reading *r, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    int rc = dcp_await(comm, comm->rank == 0 ? read_head : NULL, r, err);

    if (rc || comm->world_size == 1)
        return rc;
    if (comm->rank == 0)
        rc = dcp_pack_catalog(r->catalog, &buf, err);
    rc = dcp_bcast_buf(comm, &buf, rc, err);
    if (!rc && comm->rank != 0)
        rc = dcp_unpack_catalog(buf.data, buf.size_bytes, &r->catalog, err);
    return dcp_agree(comm, rc, err);
}

int dcp_metadata_read(struct dcp_comm *comm, const struct dcp_source *source,
                      const char *format, const struct dcp_catalog *wanted,
                      struct dcp_catalog **head, struct dcp_catalog **out,
                      struct dcp_error *err)
{
    struct reading r = { source, format, wanted, head ? *head : NULL };

    if (head)
        *head = NULL;
    int rc = share(comm, &r, err);
    const struct dcp_format *found = rc ? NULL : dcp_format_find(r.catalog->format);

    if (found && found->index_head)
        rc = dcp_await(comm, read_pieces, &r, err);
    if (rc)
        dcp_catalog_free(r.catalog);
    *out = rc ? NULL : r.catalog;
    return rc;
}
