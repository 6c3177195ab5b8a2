/* layout: the rules that say which rank owns which part of a tensor. They cut the tensors
 * of the model and of the optimizer; every rank has all of any other.
 *
 * - flat: those of one role and group, one behind the other, padded to 2 x world_size and
 * cut evenly, boundaries inside tensors (DeepSpeed ZeRO-1 and 2; padding is never stored)
 * - zero1, zero2: weights replicated, the optimizer's tensors as flat
 * - zero3: each tensor cut alone: rank r has elements r·p .. (r+1)·p, p = ceil(n /
 * world_size)
 * - dim0: rows of dimension 0 as torch.chunk cuts them: ceil(rows / world_size) each, the
 * last ranks may have none (FSDP2, DTensor Shard(0))
 * - replicated: every rank has all */
#include "layout.h"
#include "base/mem.h"
#include "base/part.h"
#include "base/str.h"
#include <dcp/reshard.h>
#include <string.h>

static const char *const layout_names[] = { "flat", "zero1",      "zero2", "zero3",
                                            "dim0", "replicated", NULL };

const char *const *dcp_layout_names(void)
{
    return layout_names;
}

enum cut { CUT_NONE, CUT_FLAT, CUT_ALONE, CUT_ROWS };

static enum cut cut_of(const char *layout, const struct dcp_tensor *tensor)
{
    bool state = tensor->role == DCP_ROLE_MODEL || dcp_role_is_optim(tensor->role);

    if (!state || tensor->tied_to || tensor->n_elems == 0 ||
        !strcmp(layout, "replicated"))
        return CUT_NONE;
    if (!strcmp(layout, "flat"))
        return CUT_FLAT;
    if (!strcmp(layout, "zero3"))
        return CUT_ALONE;
    if (!strcmp(layout, "dim0"))
        return tensor->ndim > 0 ? CUT_ROWS : CUT_NONE;
    return dcp_role_is_optim(tensor->role) ? CUT_FLAT : CUT_NONE; /* zero1, zero2 */
}

static int add(struct dcp_catalog *catalog, int tensor, int rank,
               struct dcp_region region, struct dcp_error *err)
{
    struct dcp_piece piece = {
        .tensor = tensor, .rank = rank, .region = region, .file = -1
    };
    return dcp_catalog_add_piece(catalog, &piece, err);
}

/* The part of a tensor at flat_begin of its group that each rank's partition holds. */
static int cut_flat(struct dcp_catalog *catalog, int t, int64_t flat_begin, int64_t part,
                    int world_size, struct dcp_error *err)
{
    int64_t n = catalog->tensors[t].n_elems;

    for (int64_t r = flat_begin / part; r < world_size && r * part < flat_begin + n;
         r++) {
        struct dcp_part held = dcp_part_of(part, r, flat_begin, n);
        DCP_TRY(add(
            catalog, t, (int)r,
            (struct dcp_region){ .kind = DCP_FLAT, .begin = held.begin, .end = held.end },
            err));
    }
    return DCP_OK;
}

static int cut_rows(struct dcp_catalog *catalog, int t, int world_size,
                    struct dcp_error *err)
{
    int64_t offset[DCP_MAX_NDIM] = { 0 }, size[DCP_MAX_NDIM];
    int ndim = catalog->tensors[t].ndim;
    int64_t rows = catalog->tensors[t].shape[0], part = dcp_part_ceil(rows, world_size);

    memcpy(size, catalog->tensors[t].shape, (size_t)ndim * sizeof *size);
    for (int r = 0; r < world_size && r * part < rows; r++) {
        struct dcp_part held = dcp_part_of(part, r, 0, rows);
        offset[0] = held.begin;
        size[0] = held.end - held.begin;
        DCP_TRY(add(
            catalog, t, r,
            (struct dcp_region){ .kind = DCP_BOX, .offset = offset, .size = size }, err));
    }
    return DCP_OK;
}

/* Running place and partition size of each (role, group) of flat tensors. */
struct flat_group {
    int role, group;
    int64_t total, at, part;
};

static struct flat_group *group_of(struct flat_group **groups, size_t *n, size_t *cap,
                                   const struct dcp_tensor *tensor)
{
    for (size_t g = 0; g < *n; g++)
        if ((*groups)[g].role == (int)tensor->role && (*groups)[g].group == tensor->group)
            return &(*groups)[g];
    struct flat_group *grown = dcp_mem_grow(*groups, cap, *n + 1, sizeof *grown);
    if (!grown)
        return NULL;
    *groups = grown;
    grown[*n] = (struct flat_group){ .role = (int)tensor->role, .group = tensor->group };
    return &grown[(*n)++];
}

static int size_groups(const struct dcp_catalog *catalog, const char *layout,
                       int world_size, struct flat_group **groups, size_t *n, size_t *cap,
                       struct dcp_error *err)
{
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (cut_of(layout, tensor) != CUT_FLAT)
            continue;
        struct flat_group *group = group_of(groups, n, cap, tensor);
        if (!group)
            return dcp_error_memory(err, "a layout");
        if (!dcp_add_i64(group->total, tensor->n_elems, &group->total))
            return dcp_error_set(err, DCP_E_UNSUPPORTED, "a flat group overflows");
    }
    for (size_t g = 0; g < *n; g++)
        (*groups)[g].part = dcp_part_zero((*groups)[g].total, world_size);
    return DCP_OK;
}

int dcp_layout_check(const char *layout, int world_size, struct dcp_error *err)
{
    bool known = false;

    for (int i = 0; layout_names[i]; i++)
        known |= !strcmp(layout_names[i], layout);
    if (!known) {
        const char *near = dcp_str_nearest(layout, layout_names);
        dcp_error_set(err, DCP_E_USAGE, "there is no layout '%s'", layout);
        dcp_error_hint(err, near ? "did you mean '%s'?" : "see 'dcp-reshard --help'",
                       near);
        return DCP_E_USAGE;
    }
    return world_size >= 1 && world_size <= 1 << 20
               ? DCP_OK
               : dcp_error_set(err, DCP_E_USAGE,
                               "the world size must be 1 to 1048576 ranks, not %d",
                               world_size);
}

int dcp_layout_apply(struct dcp_catalog *catalog, const char *layout, int world_size,
                     struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct flat_group *groups = NULL;
    size_t n_groups = 0, cap = 0;

    int rc = dcp_layout_check(layout, world_size, err);
    if (!rc)
        rc = size_groups(catalog, layout, world_size, &groups, &n_groups, &cap, err);
    if (rc)
        return rc;
    catalog->n_pieces = 0;
    for (size_t t = 0; t < catalog->n_tensors && !rc; t++) {
        struct dcp_tensor *tensor = &catalog->tensors[t];
        if (tensor->tied_to)
            continue; /* its bytes are those of the other */
        enum cut cut = cut_of(layout, tensor);
        if (cut == CUT_FLAT) {
            struct flat_group *group = group_of(&groups, &n_groups, &cap, tensor);
            rc = cut_flat(catalog, (int)t, group->at, group->part, world_size, err);
            group->at += tensor->n_elems;
        } else if (cut == CUT_ALONE) {
            rc = cut_flat(catalog, (int)t, 0, dcp_part_ceil(tensor->n_elems, world_size),
                          world_size, err);
        } else if (cut == CUT_ROWS) {
            rc = cut_rows(catalog, (int)t, world_size, err);
        } else {
            for (int r = 0; r < world_size && !rc; r++)
                rc = add(catalog, (int)t, r, (struct dcp_region){ .kind = DCP_WHOLE },
                         err);
        }
    }
    catalog->world_size = world_size;
    catalog->mesh = (struct dcp_mesh){ world_size, 1, 1 };
    catalog->layout = dcp_catalog_text(catalog, layout);
    return rc ? rc : dcp_catalog_sort(catalog, err);
}
