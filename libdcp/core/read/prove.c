#include "prove.h"
#include "base/mem.h"
#include "core/collective/await.h"
#include "core/collective/fold.h"

struct rest {
    struct dcp_blocks *const *blocks;
    int n_blocks;
    size_t *records; /* of this rank */
    size_t n;
};

static int read_here(void *arg, struct dcp_error *err)
{
    struct rest *rest = arg;
    struct dcp_pool *pool = NULL;
    int rc = rest->n_blocks > 1 ? dcp_pool_new(rest->n_blocks - 1, &pool, err) : DCP_OK;

    if (!rc)
        rc = dcp_blocks_read_rests(rest->blocks, pool, rest->records, rest->n, err);
    dcp_pool_free(pool);
    return rc;
}

/* Deals out the records that any rank names: each to one rank, in turn. Indices of those
 * of this rank replace its own list, which has room for all n_records. */
static int deal(struct dcp_comm *comm, struct rest *rest, size_t n_records,
                struct dcp_error *err)
{
    size_t n_bytes = n_records / 8 + 1, dealt = 0;
    DCP_CLEANUP_FREE unsigned char *any = dcp_mem_calloc(n_bytes, 1);
    int rc = any ? DCP_OK : dcp_error_memory(err, "the checksums of a load");

    rc = dcp_agree(comm, rc, err);
    for (size_t i = 0; i < rest->n && !rc; i++)
        any[rest->records[i] / 8] |= (unsigned char)(1 << rest->records[i] % 8);
    if (!rc)
        rc = dcp_fold(comm, DCP_FOLD_OR, any, n_bytes, err);
    rest->n = 0;
    for (size_t r = 0; r < n_records && !rc; r++)
        if (any[r / 8] >> r % 8 & 1 &&
            dealt++ % (size_t)comm->world_size == (size_t)comm->rank)
            rest->records[rest->n++] = r;
    return rc;
}

int dcp_prove(struct dcp_comm *comm, const struct dcp_proof *proof, size_t n_records,
              struct dcp_blocks *const *blocks, int n, struct dcp_error *err)
{
    struct rest rest = { blocks, n, NULL, 0 };
    int rc = dcp_proof_open(proof, false, &rest.records, &rest.n, err);

    rc = dcp_agree(comm, rc, err);
    if (!rc && comm->world_size > 1)
        rc = deal(comm, &rest, n_records, err);
    if (!rc)
        rc = dcp_await(comm, read_here, &rest, err);
    free(rest.records);
    return rc;
}
