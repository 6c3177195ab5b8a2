/* fingerprint: what a step of a state would be known by, without the step. */
#include "core/integrity/fingerprint.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/mem.h"
#include "core/collective/fold.h"
#include "core/plan/local.h"
#include <dcp/checkpoint.h>

#define BLOCK ((size_t)1 << 20) /* bytes that stay in the cache for both passes */

/* What this rank's piece gives to its tensor. */
static int add_piece(const struct dcp_device *device, const struct dcp_tensor *tensor,
                     const struct dcp_piece *piece, uint64_t size_bytes,
                     unsigned char *room, uint64_t *parts, struct dcp_error *err)
{
    size_t elem = dcp_dtype_size(tensor->dtype);

    for (uint64_t at = 0; at < size_bytes; at += BLOCK) {
        size_t n = size_bytes - at < BLOCK ? (size_t)(size_bytes - at) : BLOCK;
        const unsigned char *data = (const unsigned char *)piece->data + at;
        if (!piece->on_host && !dcp_device_reads(device, data)) {
            DCP_TRY(device->ops->to_host(device->self, room, data, n, err));
            data = room;
        }
        *parts ^=
            dcp_fingerprint_part(tensor, &piece->region, (int64_t)(at / elem),
                                 (int64_t)(n / elem), data, dcp_hash_crc64(0, data, n));
    }
    return DCP_OK;
}

static int add_pieces(const struct dcp_device *device, const struct dcp_catalog *catalog,
                      uint64_t *parts, struct dcp_error *err)
{
    DCP_CLEANUP_FREE unsigned char *room = malloc(BLOCK);

    if (!room)
        return dcp_error_memory(err, "fingerprints");
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        DCP_TRY(add_piece(device, &catalog->tensors[piece->tensor], piece,
                          dcp_piece_bytes(catalog, piece), room, &parts[piece->tensor],
                          err));
    }
    return DCP_OK;
}

/* The parts of all ranks make the fingerprints. */
static int combine(struct dcp_comm *comm, struct dcp_catalog *catalog, uint64_t *parts,
                   struct dcp_error *err)
{
    size_t n = catalog->n_tensors;
    int rc = dcp_fold(comm, DCP_FOLD_XOR, parts, n * sizeof *parts, err);

    for (size_t t = 0; t < n && !rc; t++) {
        catalog->tensors[t].fingerprint =
            dcp_fingerprint_whole(&catalog->tensors[t], parts[t]);
        catalog->tensors[t].has_fingerprint = true;
    }
    return rc;
}

int dcp_fingerprint(const struct dcp_context *ctx, const struct dcp_state *state,
                    struct dcp_catalog **out_catalog, struct dcp_error *err)
{
    struct dcp_comm self, *comm = ctx->comm;
    struct dcp_device host;
    struct dcp_catalog *catalog = NULL;

    *out_catalog = NULL;
    dcp_comm_self(&self);
    dcp_device_host(&host);
    comm = comm ? comm : &self;
    const struct dcp_device *device = ctx->device ? ctx->device : &host;
    int rc = dcp_local_merge(comm, device, state, DCP_OK, &catalog, err);
    DCP_CLEANUP_FREE uint64_t *parts =
        dcp_mem_calloc(catalog ? catalog->n_tensors : 0, sizeof *parts);
    if (!rc)
        rc = parts ? add_pieces(device, catalog, parts, err)
                   : dcp_error_memory(err, "fingerprints");
    rc = dcp_agree(comm, rc, err);
    if (!rc)
        rc = combine(comm, catalog, parts, err);
    if (rc)
        dcp_catalog_free(catalog);
    else
        *out_catalog = catalog;
    return rc;
}
