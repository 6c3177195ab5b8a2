#include "choose.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/packed.h"
#include "core/catalog/rename.h"
#include "core/catalog/scales.h"
#include <string.h>

/* What a choice works with. */
struct choice {
    const struct dcp_catalog *src;
    const struct dcp_format *format;
    const struct dcp_reshard_options *options;
    struct dcp_catalog *target;
    struct dcp_identity *of_src;
    struct dcp_packed packed; /* of the source, where a dtype was asked for */
    bool from_masters; /* weights without an optimizer, of no dtype that was asked for */
    int *src_tensor;
    size_t cap;
};

bool dcp_choose_selected(const struct dcp_tensor *tensor,
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

bool dcp_choose_is_beside(const struct dcp_catalog *src, const struct dcp_tensor *tensor,
                          const struct dcp_reshard_options *options)
{
    if (tensor->role != DCP_ROLE_OTHER || options->only != DCP_ONLY_MODEL ||
        (options->select && options->select[0]))
        return false;
    for (size_t t = 0; t < src->n_tensors; t++)
        if (src->tensors[t].role == DCP_ROLE_MODEL ||
            src->tensors[t].role == DCP_ROLE_MASTER)
            return true;
    return false;
}

/* Whether there is nothing to fill it with. */
static bool is_empty(const struct dcp_tensor *tensor)
{
    return tensor->is_meta && tensor->n_elems;
}

/* A moment of nobody knows which weight: an optimizer that counts its parameters, beside
 * weights that have lost their order. Where the source's own tree goes along it stays
 * what it is. */
static bool is_orphan(const struct dcp_catalog *src, const struct dcp_identity *of_src,
                      const struct dcp_tensor *tensor)
{
    bool moment = tensor->role == DCP_ROLE_EXP_AVG || tensor->role == DCP_ROLE_EXP_AVG_SQ;

    if (!moment || strcmp(tensor->param, tensor->name) != 0)
        return false;
    for (size_t o = 0; o < src->n_objects; o++)
        if (dcp_object_is_spelling(src->objects[o].name))
            return false;
    return dcp_identity_find(of_src, DCP_ROLE_MODEL, NULL) >= 0;
}

enum dcp_disposition dcp_choose_disposition(const struct dcp_catalog *src,
                                            const struct dcp_identity *of_src,
                                            const struct dcp_format *format,
                                            const struct dcp_catalog *target,
                                            const struct dcp_tensor *tensor)
{
    if (is_empty(tensor) || is_orphan(src, of_src, tensor) ||
        (dcp_role_is_optim(tensor->role) && !(format->flags & DCP_FORMAT_OPTIM)))
        return DCP_DISPOSITION_UNSUPPORTED;
    return format->disposition ? format->disposition(src, of_src, target, tensor)
                               : DCP_DISPOSITION_STORED;
}

static bool has(const struct choice *choice, enum dcp_role role, const char *param)
{
    return dcp_identity_find(choice->of_src, role, param) >= 0;
}

/* -- weights of masters -------------------------------------------------------------- */

static bool is_alone(const struct choice *choice)
{
    return choice->options->only == DCP_ONLY_MODEL ||
           !(choice->format->flags & DCP_FORMAT_OPTIM);
}

/* The master of a weight of the source, of a second name that of the first; -1: none. */
static int master_of(const struct choice *choice, size_t t)
{
    const struct dcp_catalog *src = choice->src;
    const struct dcp_tensor *weight = &src->tensors[t];
    int kept = weight->tied_to ? dcp_catalog_find(src, weight->tied_to) : (int)t;

    if (kept < 0 || weight->role != DCP_ROLE_MODEL)
        return -1;
    int master =
        dcp_identity_find(choice->of_src, DCP_ROLE_MASTER, src->tensors[kept].param);
    bool fits = master >= 0 && src->tensors[master].ndim == weight->ndim &&
                !memcmp(src->tensors[master].shape, weight->shape,
                        (size_t)weight->ndim * sizeof *weight->shape);
    return fits ? master : -1;
}

/* What a weight is made of: itself, or its master, where that is more than the weight. Of
 * the weight's own dtype both give the same. */
static size_t made_of(const struct choice *choice, size_t t)
{
    const struct dcp_reshard_options *options = choice->options;
    const struct dcp_tensor *weight = &choice->src->tensors[t];
    bool wanted = options->weights == DCP_WEIGHTS_MASTER ||
                  (options->weights == DCP_WEIGHTS_AUTO &&
                   (options->dtype >= 0 ? options->dtype != (int)weight->dtype
                                        : choice->from_masters));
    int master = wanted ? master_of(choice, t) : -1;
    bool more = master >= 0 && dcp_dtype_size(choice->src->tensors[master].dtype) >
                                   dcp_dtype_size(weight->dtype);

    return more || (master >= 0 && options->weights == DCP_WEIGHTS_MASTER)
               ? (size_t)master
               : t;
}

/* -- one tensor ---------------------------------------------------------------------- */

/* Whether its name, "optimizer.master.<param>" or "P.state.<param>.master", says to who
 * reads the target that it is a master, which it is not: an optimizer may call so what is
 * older than the weight, or something else. */
static bool passes_for_master(const struct choice *choice,
                              const struct dcp_tensor *tensor)
{
    static const char ours[] = "optimizer.master.", key[] = ".master";
    const char *name = tensor->name, *param = tensor->param;
    size_t n = strlen(name), tail = strlen(param) + sizeof key - 1;

    if (tensor->role != DCP_ROLE_OPTIM || choice->format->flags & DCP_FORMAT_ROLES)
        return false;
    return (dcp_str_starts(name, ours) && !strcmp(name + sizeof ours - 1, param)) ||
           (n > tail && dcp_str_ends(name, key) &&
            dcp_str_starts(name + n - tail, param));
}

/* What a tensor of a target is called; NULL: out of memory. Where there is only the
 * model, it is called what the model calls it: the container it was saved in means
 * nothing any more. */
static const char *name_of(const struct choice *choice, const struct dcp_tensor *tensor)
{
    bool alone = is_alone(choice) && !tensor->tied_to && !dcp_role_is_optim(tensor->role);

    if (passes_for_master(choice, tensor))
        return dcp_tensor_default_name(choice->target, tensor->role, tensor->param);
    return alone && dcp_catalog_find(choice->target, tensor->param) < 0 ? tensor->param
                                                                        : tensor->name;
}

int dcp_quantized_refuse(const struct dcp_tensor *tensor, struct dcp_error *err)
{
    dcp_error_of_tensor(err, DCP_E_UNSUPPORTED, tensor->name,
                        "tensor '%s' is quantized (%s): its numbers are not read",
                        DCP_SHOWN(tensor->name), tensor->quantized);
    dcp_error_hint(err, "take the F32, F16 or BF16 file of the same model");
    return DCP_E_UNSUPPORTED;
}

static int refuse(const struct choice *choice, const struct dcp_tensor *tensor,
                  struct dcp_error *err)
{
    bool optim = dcp_role_is_optim(tensor->role);

    if (tensor->quantized)
        return dcp_quantized_refuse(tensor, err);
    if (is_empty(tensor)) {
        dcp_error_of_tensor(
            err, DCP_E_UNSUPPORTED, tensor->name,
            "tensor '%s' was saved on the meta device: there is no data of it",
            DCP_SHOWN(tensor->name));
        dcp_error_hint(err, "--select takes others, --lossy leaves it out");
        return DCP_E_UNSUPPORTED;
    }
    if (is_orphan(choice->src, choice->of_src, tensor)) {
        dcp_error_of_tensor(
            err, DCP_E_MISMATCH, tensor->name,
            "the weight of '%s' is unknown: the optimizer counts its "
            "parameters, and the file of the weights does not keep their order",
            DCP_SHOWN(tensor->name));
        dcp_error_hint(err, "--only model leaves the optimizer out");
        return DCP_E_MISMATCH;
    }
    dcp_error_of_tensor(
        err, DCP_E_MISMATCH, tensor->name, "a target of format %s cannot hold: %s ('%s')",
        choice->format->name, optim ? "the optimizer's tensors" : "a tensor of this kind",
        DCP_SHOWN(tensor->name));
    dcp_error_hint(err, optim
                            ? "--only model leaves them out; --lossy leaves out whatever "
                              "does not fit"
                            : "--lossy leaves out whatever does not fit");
    return DCP_E_MISMATCH;
}

static int refuse_name(const struct dcp_tensor *tensor, struct dcp_error *err)
{
    dcp_error_set(err, DCP_E_MISMATCH, "two tensors would be named '%s'",
                  DCP_SHOWN(tensor->name));
    dcp_error_hint(err, "--select takes one of them, --rename gives them other names");
    return DCP_E_MISMATCH;
}

/* Adds a tensor made of tensor t of the source, if it has a place. */
static int place(struct choice *choice, struct dcp_tensor tensor, size_t t,
                 struct dcp_error *err)
{
    const struct dcp_reshard_options *options = choice->options;
    enum dcp_disposition disposition = dcp_choose_disposition(
        choice->src, choice->of_src, choice->format, choice->target, &tensor);
    if (disposition == DCP_DISPOSITION_UNSUPPORTED && !options->lossy)
        return refuse(choice, &tensor, err);
    if (disposition != DCP_DISPOSITION_STORED)
        return DCP_OK;
    bool cast = options->dtype >= 0 && dcp_dtype_is_float(tensor.dtype) &&
                !dcp_packed_needs(&choice->packed, &choice->src->tensors[t]),
         scale = false;
    if (cast)
        DCP_TRY(dcp_scale_check(choice->src, &choice->src->tensors[t], &scale, err));
    if (scale && !dcp_scale_is_f8((enum dcp_dtype)options->dtype))
        return DCP_OK; /* numbers that are not scaled any more need no scales */
    if (cast && !scale)
        tensor.dtype = (enum dcp_dtype)options->dtype;
    tensor.has_fingerprint = false;
    tensor.name = name_of(choice, &tensor);
    if (!tensor.name)
        return dcp_error_memory(err, "a target");
    if (options->rename)
        DCP_TRY(dcp_rename_tensor(options->rename, choice->target, &tensor, err));
    if (dcp_catalog_find(choice->target, tensor.name) >= 0)
        return refuse_name(&tensor, err);
    int *src_tensor = dcp_mem_grow(choice->src_tensor, &choice->cap,
                                   choice->target->n_tensors + 1, sizeof *src_tensor);
    if (!src_tensor)
        return dcp_error_memory(err, "a target");
    choice->src_tensor = src_tensor;
    src_tensor[choice->target->n_tensors] = (int)t;
    return dcp_catalog_add_tensor(choice->target, &tensor, NULL, err);
}

/* The same, if it was asked for. */
static int take(struct choice *choice, struct dcp_tensor tensor, size_t t,
                struct dcp_error *err)
{
    size_t from = made_of(choice, t);

    if (!dcp_choose_selected(&tensor, choice->options) ||
        dcp_choose_is_beside(choice->src, &tensor, choice->options))
        return DCP_OK;
    tensor.dtype = from == t ? tensor.dtype : choice->src->tensors[from].dtype;
    return place(choice, tensor, from, err);
}

/* -- what the source does not have --------------------------------------------------- */

/* The weight of a master, where only masters are stored. */
static int take_weight(struct choice *choice, size_t master, struct dcp_error *err)
{
    struct dcp_tensor weight = choice->src->tensors[master];
    bool masters_too = choice->options->only == DCP_ONLY_ALL &&
                       (choice->format->flags & DCP_FORMAT_OPTIM);

    weight.name = weight.param;
    weight.role = DCP_ROLE_MODEL;
    if ((masters_too || choice->options->weights == DCP_WEIGHTS_MODEL) &&
        choice->src->weights_dtype >= 0)
        weight.dtype = (enum dcp_dtype)choice->src->weights_dtype;
    return take(choice, weight, master, err);
}

/* The master of a weight that was asked for, for a format that has one for every weight
 * it trains. */
static int take_master(struct choice *choice, size_t weight, struct dcp_error *err)
{
    struct dcp_tensor master = choice->src->tensors[weight];

    if (choice->options->only != DCP_ONLY_OPTIM &&
        !dcp_choose_selected(&master, choice->options))
        return DCP_OK;

    master.role = DCP_ROLE_MASTER;
    master.dtype = DCP_F32;
    master.name = dcp_tensor_default_name(choice->target, DCP_ROLE_MASTER, master.param);
    return master.name ? place(choice, master, weight, err)
                       : dcp_error_memory(err, "a target");
}

static int take_weights(struct choice *choice, struct dcp_error *err)
{
    for (size_t t = 0; t < choice->src->n_tensors; t++) {
        const struct dcp_tensor *tensor = &choice->src->tensors[t];
        if (tensor->role == DCP_ROLE_MASTER &&
            !has(choice, DCP_ROLE_MODEL, tensor->param))
            DCP_TRY(take_weight(choice, t, err));
    }
    return DCP_OK;
}

static int take_masters(struct choice *choice, struct dcp_error *err)
{
    bool alone = choice->options->only == DCP_ONLY_MODEL;

    for (size_t t = 0; t < choice->src->n_tensors; t++) {
        const struct dcp_tensor *tensor = &choice->src->tensors[t];
        if (tensor->role == DCP_ROLE_MODEL && !tensor->tied_to &&
            dcp_identity_is_trained(choice->of_src, tensor->param) &&
            dcp_dtype_is_float(tensor->dtype) &&
            (alone || !has(choice, DCP_ROLE_MASTER, tensor->param)))
            DCP_TRY(take_master(choice, t, err));
    }
    return DCP_OK;
}

/* -- second names -------------------------------------------------------------------- */

/* The tensor of the target that has the bytes of the source's tensor `kept` for a second
 * name of that role: of the same role, or the master where a target has no weights. -1:
 * none. */
static int find_first(const struct choice *choice, int kept, enum dcp_role role)
{
    const struct dcp_catalog *src = choice->src;
    int master = -1;

    for (size_t i = 0; i < choice->target->n_tensors; i++) {
        enum dcp_role of = choice->target->tensors[i].role;
        int from = choice->src_tensor[i];
        if (from != kept && strcmp(src->tensors[from].param, src->tensors[kept].param))
            continue;
        if (of == role)
            return (int)i;
        if (of == DCP_ROLE_MASTER && role == DCP_ROLE_MODEL)
            master = (int)i;
    }
    return master;
}

/* Second names, once the first ones are there: a tie where the format can say so, the
 * bytes once more where it cannot. */
static int take_ties(struct choice *choice, struct dcp_error *err)
{
    bool says =
        (choice->format->flags & DCP_FORMAT_TIES) && !choice->options->target.untie;

    for (size_t t = 0; t < choice->src->n_tensors; t++) {
        struct dcp_tensor tensor = choice->src->tensors[t];
        if (!tensor.tied_to)
            continue;
        int kept = dcp_catalog_find(choice->src, tensor.tied_to);
        int first = kept < 0 ? -1 : find_first(choice, kept, tensor.role);
        if (first >= 0 && choice->target->tensors[first].role == tensor.role)
            tensor.dtype = choice->target->tensors[first].dtype;
        tensor.tied_to = says && first >= 0 ? choice->target->tensors[first].name : NULL;
        DCP_TRY(take(choice, tensor, t, err));
    }
    return DCP_OK;
}

static int refuse_masters(struct dcp_error *err)
{
    dcp_error_set(err, DCP_E_MISMATCH, "the source holds no master weights");
    dcp_error_hint(err, "without --weights master the weights are taken as they are");
    return DCP_E_MISMATCH;
}

static int take_all(struct choice *choice, struct dcp_error *err)
{
    const struct dcp_format *from = dcp_format_find(choice->src->format);

    choice->from_masters = is_alone(choice) && from && from->flags & DCP_FORMAT_MASTERS;
    if (choice->options->weights == DCP_WEIGHTS_MASTER &&
        dcp_identity_find(choice->of_src, DCP_ROLE_MASTER, NULL) < 0)
        return refuse_masters(err);

    for (size_t t = 0; t < choice->src->n_tensors; t++)
        if (!choice->src->tensors[t].tied_to)
            DCP_TRY(take(choice, choice->src->tensors[t], t, err));
    DCP_TRY(take_weights(choice, err));
    if (choice->format->flags & DCP_FORMAT_MASTERS)
        DCP_TRY(take_masters(choice, err));
    DCP_TRY(take_ties(choice, err));
    if (choice->target->n_tensors == 0)
        return choice->src->n_tensors
                   ? dcp_error_set(err, DCP_E_MISMATCH,
                                   "none of the %zu tensors is selected",
                                   choice->src->n_tensors)
                   : dcp_error_set(err, DCP_E_MISMATCH, "the source holds no tensors");
    return DCP_OK;
}

int dcp_choose(const struct dcp_catalog *src, const struct dcp_format *format,
               const struct dcp_reshard_options *options, struct dcp_catalog *target,
               int **out_src_tensor, struct dcp_error *err)
{
    struct choice choice = {
        .src = src, .format = format, .options = options, .target = target
    };

    int rc = dcp_identity_new(src, &choice.of_src, err);
    if (!rc && options->dtype >= 0)
        rc = dcp_packed_find(src, &choice.packed, err);
    if (!rc)
        rc = take_all(&choice, err);
    dcp_packed_fini(&choice.packed);
    dcp_identity_free(choice.of_src);
    if (rc)
        free(choice.src_tensor);
    *out_src_tensor = rc ? NULL : choice.src_tensor;
    return rc;
}
