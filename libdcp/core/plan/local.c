#include "local.h"
#include "balance.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/pack.h"
#include "core/catalog/region.h"
#include <string.h>

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

/* Every rank must list the same tensors; the lists are compared by their digests. */
static int exchange(struct dcp_comm *comm, struct dcp_catalog *mine,
                    struct dcp_catalog *merged, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf tensors = { 0 }, message = { 0 };
    DCP_CLEANUP_FREE size_t *sizes =
        dcp_mem_calloc((size_t)comm->world_size, sizeof *sizes);
    DCP_CLEANUP_FREE void *all = NULL;
    struct dcp_error failure = { 0 };
    uint64_t crc;

    dcp_pack_tensors(mine, &tensors);
    crc = dcp_hash_crc64(0, tensors.data, tensors.size_bytes);
    dcp_buf_add_le64(&message, crc);
    dcp_buf_add_le64(&message, mine->n_tensors);
    dcp_pack_pieces(mine, &message);
    int rc = sizes ? DCP_OK : dcp_error_memory(&failure, "an exchange");
    if (!rc)
        rc = dcp_buf_check(&message, &failure);
    rc = rc ? rc : dcp_buf_check(&tensors, &failure);
    rc = dcp_agree(comm, rc, &failure); /* nobody enters the exchange unless all can */
    if (!rc)
        rc = dcp_comm_allgatherv(comm, message.data, message.size_bytes, &all, sizes,
                                 &failure);
    const unsigned char *at = all;
    for (int r = 0; r < comm->world_size && !rc; r++) {
        struct dcp_cursor in = dcp_cursor_init(at, sizes[r]);
        uint64_t their_crc = dcp_cursor_le64(&in), their_n = dcp_cursor_le64(&in);
        if (their_crc != crc || their_n != mine->n_tensors)
            rc = dcp_error_set(&failure, DCP_E_MISMATCH,
                               "ranks %d and %d do not list the same tensors", comm->rank,
                               r);
        else
            rc = dcp_unpack_pieces(&in, merged, r, &failure);
        at += sizes[r];
    }
    if (rc && err)
        *err = failure;
    return rc;
}

/* Where the pieces that fell to this rank lie in the caller's memory. A piece may be a
 * part, by rows, of what the caller gave. */
static void find_data(const struct dcp_catalog *mine, struct dcp_catalog *merged,
                      int rank)
{
    for (size_t p = 0; p < merged->n_pieces; p++) {
        struct dcp_piece *piece = &merged->pieces[p];
        const struct dcp_tensor *tensor = &merged->tensors[piece->tensor];
        int64_t begin, end, my_begin, my_end;
        if (piece->rank != rank)
            continue;
        /* The local catalog is in the caller's order: one piece a tensor. */
        const struct dcp_piece *local = &mine->pieces[piece->tensor];
        size_t skip = 0;
        if (dcp_region_interval(tensor, &piece->region, &begin, &end) &&
            dcp_region_interval(tensor, &local->region, &my_begin, &my_end)) {
            skip = (size_t)(begin - my_begin);
        } else if (piece->region.kind == DCP_BOX && local->region.kind == DCP_BOX) {
            int64_t stride[DCP_MAX_NDIM];
            dcp_region_strides(local->region.size, tensor->ndim, stride);
            skip =
                (size_t)((piece->region.offset[0] - local->region.offset[0]) * stride[0]);
        }
        piece->data = (unsigned char *)local->data + skip * dcp_dtype_size(tensor->dtype);
    }
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

int dcp_local_merge(struct dcp_comm *comm, const struct dcp_state *state,
                    struct dcp_catalog **out_catalog, struct dcp_error *err)
{
    struct dcp_catalog *mine = NULL, *merged = NULL;
    int rc = check_state(state, comm->world_size, err);

    *out_catalog = NULL;
    if (!rc)
        rc = dcp_local_catalog(state, comm->rank, false, &mine, err);
    if (!rc)
        rc = dcp_catalog_new(&merged, err);
    for (size_t t = 0; !rc && t < mine->n_tensors; t++)
        rc = dcp_catalog_add_tensor(merged, &mine->tensors[t], NULL, err);
    for (size_t o = 0; !rc && o < state->n_objects; o++)
        rc = dcp_catalog_add_object(merged, &state->objects[o], err);
    if (rc == DCP_E_CORRUPT) { /* the caller's mistake, not a file's */
        rc = DCP_E_USAGE;
        if (err)
            err->code = rc;
    }
    rc = dcp_agree(comm, rc, err);
    if (!rc)
        rc = exchange(comm, mine, merged, err);
    if (!rc) {
        merged->world_size = comm->world_size;
        merged->mesh = state->mesh;
        merged->layout = dcp_catalog_text(merged, state->layout);
        rc = dcp_catalog_sort(merged, err);
    }
    if (!rc &&
        dcp_catalog_check(merged, err)) /* all ranks see the same catalog: no agreement */
        rc = DCP_E_MISMATCH;
    if (rc == DCP_E_MISMATCH && err)
        err->code = rc;
    if (!rc)
        rc = dcp_balance(merged, err);
    if (!rc)
        find_data(mine, merged, comm->rank);
    dcp_catalog_free(mine);
    if (rc) {
        dcp_catalog_free(merged);
        return rc;
    }
    *out_catalog = merged;
    return DCP_OK;
}
