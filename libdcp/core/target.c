#include "target.h"
#include "balance.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

static bool selected(const struct dcp_tensor *tensor,
                     const struct dcp_reshard_options *options)
{
    bool optim = dcp_role_is_optim(tensor->role);

    if ((options->only == DCP_ONLY_MODEL && optim) ||
        (options->only == DCP_ONLY_OPTIM && !optim))
        return false;
    if (!options->select || !options->select[0])
        return true;
    for (size_t i = 0; options->select[i]; i++)
        if (dcp_str_glob(options->select[i], tensor->name))
            return true;
    return false;
}

static int add_tensors(const struct dcp_catalog *src, const struct dcp_format *format,
                       const struct dcp_reshard_options *options,
                       struct dcp_catalog *target, int *src_tensor, struct dcp_error *err)
{
    char name[160];
    int rc = DCP_OK;

    for (size_t t = 0; t < src->n_tensors && !rc; t++) {
        struct dcp_tensor tensor = src->tensors[t];
        if (!selected(&tensor, options))
            continue;
        if (dcp_role_is_optim(tensor.role) && !(format->flags & DCP_FORMAT_OPTIM)) {
            dcp_error_set(
                err, DCP_E_MISMATCH,
                "a target of format %s cannot hold: the optimizer's tensors ('%s')",
                format->name, dcp_str_escape(name, sizeof name, tensor.name));
            dcp_error_hint(err, "add --only model");
            return DCP_E_MISMATCH;
        }
        if (options->dtype >= 0 && dcp_dtype_is_float(tensor.dtype))
            tensor.dtype = (enum dcp_dtype)options->dtype;
        tensor.has_fingerprint = false;
        src_tensor[target->n_tensors] = (int)t;
        rc = dcp_catalog_add_tensor(target, &tensor, NULL, err);
    }
    if (!rc && target->n_tensors == 0)
        rc = dcp_error_set(err, DCP_E_MISMATCH, "none of the %zu tensors is selected",
                           src->n_tensors);
    return rc;
}

static int add_pieces(const struct dcp_catalog *src, const struct dcp_format *format,
                      const struct dcp_reshard_options *options,
                      struct dcp_catalog *target, struct dcp_error *err)
{
    const char *layout = options->layout  ? options->layout
                         : src->layout[0] ? src->layout
                                          : "zero3";
    int world = options->world ? options->world : src->world;
    int rc = DCP_OK;

    if (!(format->flags & DCP_FORMAT_SHARDED)) {
        if (options->world > 1)
            return dcp_error_set(
                err, DCP_E_MISMATCH,
                "a target of format %s has no ranks: --world %d does not fit",
                format->name, options->world);
        target->world = 1;
        for (size_t t = 0; t < target->n_tensors && !rc; t++)
            rc = dcp_catalog_add_piece(
                target, &(struct dcp_piece){ .tensor = (int)t, .file = -1 }, err);
        return rc ? rc : dcp_catalog_sort(target, err);
    }
    rc = dcp_layout_apply(target, layout, world, err);
    if (!rc)
        rc = dcp_balance(target, err);
    for (size_t p = 0; p < target->n_pieces && !rc; p++)
        target->pieces[p].codec = options->codec;
    return rc;
}

int dcp_target_new(const struct dcp_catalog *src, const struct dcp_format *format,
                   const struct dcp_reshard_options *options,
                   struct dcp_catalog **out_target, int **out_src_tensor,
                   struct dcp_error *err)
{
    struct dcp_catalog *target = NULL;
    int *src_tensor = dcp_mem_calloc(src->n_tensors, sizeof *src_tensor);
    int rc =
        src_tensor ? dcp_catalog_new(&target, err) : dcp_error_memory(err, "a target");

    *out_target = NULL;
    *out_src_tensor = NULL;
    if (!rc && options->codec != DCP_CODEC_NONE && !(format->flags & DCP_FORMAT_CODECS))
        rc = dcp_error_set(err, DCP_E_MISMATCH,
                           "a target of format %s cannot be compressed", format->name);
    if (!rc)
        rc = add_tensors(src, format, options, target, src_tensor, err);
    if (!rc)
        rc = add_pieces(src, format, options, target, err);
    for (size_t o = 0; o < src->n_objects && !rc; o++)
        rc = dcp_catalog_add_object(target, &src->objects[o], err);
    if (rc) {
        dcp_catalog_free(target);
        free(src_tensor);
        return rc;
    }
    target->step = src->step;
    target->format = format->name;
    *out_target = target;
    *out_src_tensor = src_tensor;
    return DCP_OK;
}
