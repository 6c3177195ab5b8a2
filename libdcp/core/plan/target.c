#include "target.h"
#include "balance.h"
#include "base/mem.h"
#include "base/str.h"
#include "small.h"
#include <dcp/reshard.h>
#include <string.h>

int dcp_partition_whole(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;

    for (size_t t = 0; t < catalog->n_tensors; t++)
        if (!catalog->tensors[t].tied_to)
            DCP_TRY(dcp_catalog_add_piece(
                catalog, &(struct dcp_piece){ .tensor = (int)t, .file = -1 }, err));
    return dcp_catalog_sort(catalog, err);
}

int dcp_partition_by_layout(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;

    DCP_TRY(dcp_layout_apply(catalog, catalog->layout, catalog->world_size, err));
    DCP_TRY(dcp_small_join(catalog, err));
    return dcp_balance(catalog, err);
}

static int open_state(struct dcp_target *target, struct dcp_error *err)
{
    return target->format->open ? target->format->open(target, err) : DCP_OK;
}

static int assign(struct dcp_target *target, struct dcp_error *err)
{
    DCP_TRY(target->format->assign(target, err));
    return dcp_catalog_sort(target->catalog, err);
}

int dcp_target_open_cut(struct dcp_target *target, struct dcp_error *err)
{
    DCP_TRY(open_state(target, err));
    return assign(target, err);
}

int dcp_target_open(struct dcp_target *target, enum dcp_codec codec,
                    struct dcp_error *err)
{
    const struct dcp_format *format = target->format;

    DCP_TRY(open_state(target, err));
    if (format->partition)
        DCP_TRY(format->partition(target, err));
    for (size_t p = 0; p < target->catalog->n_pieces; p++)
        target->catalog->pieces[p].codec = codec;
    return assign(target, err);
}

int dcp_target_finalize(struct dcp_target *target, int rank, struct dcp_error *err)
{
    return target->format->finalize ? target->format->finalize(target, rank, err)
                                    : DCP_OK;
}

int dcp_target_finish(struct dcp_target *target, struct dcp_error *err)
{
    return target->format->finish ? target->format->finish(target, err) : DCP_OK;
}

void dcp_target_close(struct dcp_target *target)
{
    if (target->format && target->format->close)
        target->format->close(target);
    *target = (struct dcp_target){ 0 };
}

int dcp_target_literal(struct dcp_target *target, int file, uint64_t offset,
                       const void *data, size_t size_bytes, struct dcp_error *err)
{
    struct dcp_literals *literals = &target->literals;

    if (literals->n == literals->cap) { /* an arena cannot grow in place */
        size_t cap = literals->cap ? 2 * literals->cap : 16;
        struct dcp_literal *items =
            dcp_catalog_alloc(target->catalog, cap, sizeof *items);
        if (!items)
            return dcp_error_memory(err, "the literals of a target");
        if (literals->n)
            memcpy(items, literals->items, literals->n * sizeof *items);
        literals->items = items;
        literals->cap = cap;
    }
    literals->items[literals->n++] =
        (struct dcp_literal){ file, offset, data, size_bytes };
    return DCP_OK;
}

int dcp_target_literal_copy(struct dcp_target *target, int file, uint64_t offset,
                            const void *data, size_t size_bytes, struct dcp_error *err)
{
    void *copy = dcp_catalog_alloc(target->catalog, size_bytes, 1);

    if (!copy)
        return dcp_error_memory(err, "the literals of a target");
    if (size_bytes)
        memcpy(copy, data, size_bytes);
    /* Its digest will be that of the copy: nothing later would see a bit that flipped. */
    if (size_bytes && memcmp(copy, data, size_bytes))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "%zu bytes of '%s' changed while they were copied: the "
                             "memory of this machine may be faulty",
                             size_bytes, DCP_SHOWN(target->catalog->files[file].name));
    return dcp_target_literal(target, file, offset, copy, size_bytes, err);
}
