#include "local.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/pack.h"
#include "core/collective/bcast.h"
#include "core/collective/gather.h"
#include "deals.h"
#include "holdings.h"
#include <string.h>

enum { DIGEST_BYTES = 8 };

static int add_local(struct dcp_catalog *catalog, const struct dcp_local_tensor *local,
                     int rank, struct dcp_error *err)
{
    struct dcp_tensor tensor = { .name = local->name,
                                 .param = local->param,
                                 .role = local->role,
                                 .dtype = local->dtype,
                                 .ndim = local->ndim,
                                 .shape = local->shape,
                                 .group = local->group };
    struct dcp_piece piece = {
        .rank = rank, .region = local->region, .file = -1, .data = local->data
    };
    int rc = dcp_catalog_add_tensor(catalog, &tensor, &piece.tensor, err);

    if (rc == DCP_OK)
        rc = dcp_catalog_add_piece(catalog, &piece, err);
    if (!rc && !piece.data &&
        dcp_piece_bytes(catalog, &catalog->pieces[catalog->n_pieces - 1]) > 0)
        rc = dcp_error_set(err, DCP_E_USAGE, "tensor '%s' is given without data",
                           DCP_SHOWN(local->name));
    if (rc == DCP_E_CORRUPT && err) /* the caller's mistake, not a file's */
        rc = err->code = DCP_E_USAGE;
    return rc;
}

int dcp_local_catalog(const struct dcp_state *state, int rank, bool model_only,
                      struct dcp_catalog **out_catalog, struct dcp_error *err)
{

    struct dcp_catalog *catalog;
    int rc = dcp_catalog_new(&catalog, err);

    *out_catalog = NULL;
    if (!rc)
        rc = dcp_catalog_reserve(catalog, state->n_locals, state->n_locals, err);
    for (size_t i = 0; i < state->n_locals && !rc; i++)
        if (!model_only || !dcp_role_is_optim(state->locals[i].role))
            rc = add_local(catalog, &state->locals[i], rank, err);
    if (rc) {
        dcp_catalog_free(catalog);
        return rc;
    }
    *out_catalog = catalog;
    return DCP_OK;
}

/* Every rank must list the same tensors; the lists are compared by their digests. What
 * rank 0 makes of the holdings behind them is in `deals`. A message has bytes of small
 * tensors, so it ends with its own digest. */
static int merge(uint64_t list, const unsigned char *all, const size_t *sizes,
                 struct dcp_catalog *deals, struct dcp_error *err)
{
    size_t world_size = (size_t)deals->world_size;
    DCP_CLEANUP_FREE struct dcp_cursor *holdings =
        dcp_mem_calloc(world_size, sizeof *holdings);

    if (!holdings)
        return dcp_error_memory(err, "an exchange");
    for (size_t r = 0; r < world_size; r++) {
        size_t n = sizes[r] - DIGEST_BYTES; /* every rank sends more */
        if (dcp_hash_crc64(0, all, n) != dcp_le64(all + n))
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "what rank %zu tells of its tensors is corrupt", r);
        holdings[r] = dcp_cursor_init(all, n);
        uint64_t theirs = dcp_cursor_le64(&holdings[r]);
        if (theirs != list || dcp_cursor_le64(&holdings[r]) != deals->n_tensors)
            return dcp_error_set(err, DCP_E_MISMATCH,
                                 "ranks 0 and %zu do not list the same tensors", r);
        all += sizes[r];
    }
    return dcp_deals_make(deals, holdings, err);
}

/* What rank 0 hears of a rank: the digest of its list of tensors, and what it holds. */
static int pack_message(const struct dcp_catalog *mine, const struct dcp_device *device,
                        struct dcp_buf *message, uint64_t *out_list,
                        struct dcp_error *err)
{
    DCP_TRY(dcp_pack_tensors_digest(mine, out_list, err));
    dcp_buf_add_le64(message, *out_list);
    dcp_buf_add_le64(message, mine->n_tensors);
    DCP_TRY(dcp_holdings_pack(mine, device, message, err));
    dcp_buf_add_le64(message, dcp_hash_crc64(0, message->data, message->size_bytes));
    return dcp_buf_check(message, err);
}

/* Collective. Rank 0 hears what all hold, and all hear what it deals. The pieces of the
 * catalog become *out_held; on rank 0 it has the deals then. rc and err: how this rank
 * came here, with a catalog or without. */
static int exchange(struct dcp_comm *comm, const struct dcp_device *device, int rc,
                    struct dcp_catalog *catalog, struct dcp_piece **out_held,
                    struct dcp_buf *out_deals, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf message = { 0 };
    DCP_CLEANUP_GATHERED struct dcp_gathered told = { 0 };
    uint64_t list = 0;

    if (!rc)
        rc = pack_message(catalog, device, &message, &list, err);
    if (!rc) {
        *out_held = catalog->pieces;
        catalog->pieces = NULL;
        catalog->n_pieces = catalog->cap_pieces = 0;
    }
    rc = dcp_gather_buf(comm, false, &message, rc, &told, err);
    if (!rc && comm->rank == 0) {
        rc = merge(list, told.all, told.sizes, catalog, err);
        if (!rc)
            dcp_deals_pack(catalog, out_deals);
    }
    return dcp_bcast_buf(comm, out_deals, rc, err);
}

/* This rank's part of the deals becomes the pieces of `merged`, which on rank 0 holds all
 * of them. */
static int take_own(const struct dcp_piece *held, const struct dcp_buf *deals, int rank,
                    struct dcp_catalog *merged, struct dcp_error *err)
{
    struct dcp_cursor in = dcp_cursor_init(deals->data, deals->size_bytes);
    DCP_CLEANUP_FREE void **joined = dcp_mem_calloc(merged->n_tensors, sizeof *joined);

    if (!joined)
        return dcp_error_memory(err, "a state");
    for (size_t p = 0; p < merged->n_pieces; p++)
        joined[merged->pieces[p].tensor] = merged->pieces[p].data;
    merged->n_pieces = 0;
    DCP_TRY(dcp_deals_take(&in, held, rank, merged, err));
    for (size_t p = 0; p < merged->n_pieces; p++) {
        struct dcp_piece *piece = &merged->pieces[p];
        piece->on_host = joined[piece->tensor] != NULL;
        if (piece->on_host)
            piece->data = joined[piece->tensor];
    }
    return dcp_catalog_sort(merged, err);
}

/* What a step could not be read back with is the caller's mistake: told before anything
 * is written. */
static int check_state(const struct dcp_state *state, int world_size,
                       struct dcp_error *err)
{
    const struct dcp_mesh *mesh = &state->mesh;
    char name[160];

    if (mesh->dp < 0 || mesh->tp < 0 || mesh->pp < 0 || mesh->dp > world_size ||
        mesh->tp > world_size || mesh->pp > world_size)
        return dcp_error_set(err, DCP_E_USAGE,
                             "a mesh of %d x %d x %d does not have %d ranks", mesh->dp,
                             mesh->tp, mesh->pp, world_size);
    if (state->layout && !dcp_str_utf8_ok(state->layout, strlen(state->layout)))
        return dcp_error_set(err, DCP_E_USAGE, "the layout's name is not UTF-8");
    for (size_t o = 0; o < state->n_objects; o++) {
        const struct dcp_object *object = &state->objects[o];
        DCP_CLEANUP_JSON json_t *value = NULL;
        if (!object->name || object->kind != DCP_OBJECT_JSON)
            continue;
        dcp_str_escape(name, sizeof name, object->name);
        int rc = dcp_json_parse(object->data, object->size_bytes, name, &value, err);
        if (rc == DCP_E_CORRUPT && err)
            err->code = DCP_E_USAGE;
        if (rc)
            return rc == DCP_E_CORRUPT ? DCP_E_USAGE : rc;
    }
    return DCP_OK;
}

/* What is no tensor of a state. */
static int add_rest(const struct dcp_state *state, int world_size,
                    struct dcp_catalog *catalog, struct dcp_error *err)
{
    catalog->world_size = world_size;
    catalog->mesh = state->mesh;
    catalog->layout = dcp_catalog_text(catalog, state->layout);
    if (!catalog->layout)
        return dcp_error_memory(err, "a state");
    for (size_t o = 0; o < state->n_objects; o++)
        DCP_TRY(dcp_catalog_add_object(catalog, &state->objects[o], err));
    return DCP_OK;
}

/* What this rank has, before it hears of the others. */
static int list_state(struct dcp_comm *comm, const struct dcp_state *state,
                      struct dcp_catalog **out_catalog, struct dcp_error *err)
{
    int rc = check_state(state, comm->world_size, err);

    if (!rc)
        rc = dcp_local_catalog(state, comm->rank, false, out_catalog, err);
    if (!rc)
        rc = add_rest(state, comm->world_size, *out_catalog, err);
    if (rc != DCP_E_CORRUPT)
        return rc;
    if (err)
        err->code = DCP_E_USAGE;
    return DCP_E_USAGE; /* the caller's mistake, not a file's */
}

int dcp_local_merge(struct dcp_comm *comm, const struct dcp_device *device,
                    const struct dcp_state *state, int rc,
                    struct dcp_catalog **out_catalog, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf deals = { 0 };
    DCP_CLEANUP_FREE struct dcp_piece *held = NULL;
    struct dcp_catalog *catalog = NULL;

    *out_catalog = NULL;
    if (!rc)
        rc = list_state(comm, state, &catalog, err);
    rc = exchange(comm, device, rc, catalog, &held, &deals, err);
    if (!rc)
        rc = take_own(held, &deals, comm->rank, catalog, err);
    if (rc) {
        dcp_catalog_free(catalog);
        return rc;
    }
    *out_catalog = catalog;
    return DCP_OK;
}
