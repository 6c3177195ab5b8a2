/* roles_buffers: which tensors of a model are trained, and which are buffers. What an
 * optimizer keeps state for is trained; integers are not, nor is what known modules keep
 * as buffers; of the rest names tell, and whether a rank has it whole. */
#include "base/buf.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "roles.h"
#include "training.h"
#include <string.h>

/* torch.nn, transformers, timm, nanoGPT. */
static const char *const buffers[] = {
    "running_mean",
    "running_var",
    "num_batches_tracked",
    "position_ids",
    "token_type_ids",
    "inv_freq",
    "original_inv_freq",
    "masked_bias",
    "cos_cached",
    "sin_cached",
    "freqs_cis",
    "rope_freqs",
    "attn_mask",
    "causal_mask",
    "relative_position_index",
    "relative_coords_table",
    "e_score_correction_bias",
};

/* How names of parameters end, and what else is in them. */
static const char *const ends[] = { "weight",    "bias",       "scale",  "_token",
                                    "embed",     "embedding",  "_proj",  "gamma",
                                    "beta",      "embeddings", "A_log",  "alpha",
                                    "parameter", "param",      "params", "flat_param" };
static const char *const parts[] = { "weight_", "bias_", "lora_" };

static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot ? dot + 1 : name;
}

static bool is_complex(enum dcp_dtype dtype)
{
    return dtype == DCP_C64 || dtype == DCP_C128;
}

/* The causal mask of an attention, 1 × 1 × n × n, which is called bias. */
static bool is_mask(const struct dcp_tensor *t, const char *last)
{
    return !strcmp(last, "bias") && t->ndim == 4 && t->shape[0] == 1 &&
           t->shape[1] == 1 && t->shape[2] == t->shape[3] && t->shape[2] > 1;
}

bool dcp_roles_is_buffer(const struct dcp_tensor *tensor)
{
    const char *last = last_part(tensor->param ? tensor->param : tensor->name);

    for (size_t i = 0; i < DCP_ARRAY_LEN(buffers); i++)
        if (!strcmp(last, buffers[i]))
            return true;
    if (is_mask(tensor, last))
        return true;
    /* Quantized weights are frozen ones. */
    return !dcp_dtype_is_float(tensor->dtype) && !is_complex(tensor->dtype) &&
           strcmp(last, "weight") != 0;
}

static bool sounds_trained(const char *name)
{
    const char *last = last_part(name);

    for (size_t i = 0; i < DCP_ARRAY_LEN(ends); i++)
        if (dcp_str_ends(last, ends[i]))
            return true;
    for (size_t i = 0; i < DCP_ARRAY_LEN(parts); i++)
        if (strstr(name, parts[i]))
            return true;
    return false;
}

/* -- evidence ------------------------------------------------------------------------ */

struct finder {
    struct dcp_catalog *catalog;
    struct dcp_map trained; /* params that the optimizer knows */
    bool *is_cut;           /* of each tensor: it lies in several pieces */
    bool any_cut, any_trained;
    struct tally {
        size_t n;
        const char *first;
    } frozen, buffers, guessed;
};

static bool in_model(const struct dcp_tensor *t)
{
    return t->role == DCP_ROLE_MODEL || t->role == DCP_ROLE_BUFFER;
}

static bool is_trained(const struct finder *f, const struct dcp_tensor *t)
{
    return dcp_map_find(&f->trained, t->param, strlen(t->param)) >= 0;
}

/* What stands in the groups of the optimizer. `groups` stays with the caller. */
static bool add_groups(struct finder *f, json_t *groups)
{
    json_t *group, *param;
    size_t g, i;
    bool ok = true;

    json_array_foreach(groups, g, group)
    {
        json_array_foreach(json_object_get(group, "params"), i, param)
        {
            ok = ok && (!json_is_string(param) ||
                        dcp_map_set(&f->trained, json_string_value(param),
                                    json_string_length(param), 0));
        }
    }
    return ok;
}

static int find_trained(struct finder *f, json_t *groups, struct dcp_error *err)
{
    struct dcp_catalog *catalog = f->catalog;
    bool ok = add_groups(f, groups);

    for (size_t t = 0; t < catalog->n_tensors && ok; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (dcp_role_is_optim(tensor->role))
            ok = dcp_map_set(&f->trained, tensor->param, strlen(tensor->param), 0);
    }
    for (size_t t = 0; t < catalog->n_tensors && ok; t++)
        f->any_trained = f->any_trained || (in_model(&catalog->tensors[t]) &&
                                            is_trained(f, &catalog->tensors[t]));
    return ok ? DCP_OK : dcp_error_memory(err, "the roles of tensors");
}

static bool is_whole(const struct dcp_catalog *catalog, const struct dcp_piece *piece)
{
    return dcp_piece_elems(catalog, piece) == catalog->tensors[piece->tensor].n_elems;
}

static void find_cuts(struct finder *f)
{
    for (size_t p = 0; p < f->catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &f->catalog->pieces[p];
        if (is_whole(f->catalog, piece))
            continue;
        f->is_cut[piece->tensor] = true;
        f->any_cut = f->any_cut || in_model(&f->catalog->tensors[piece->tensor]);
    }
}

/* -- one tensor ---------------------------------------------------------------------- */

static void count(struct tally *tally, const struct dcp_tensor *tensor)
{
    if (!tally->n++)
        tally->first = tensor->name;
}

/* Rows are what sharding cuts; a scalar is no parameter in a sharded model. */
static bool can_be_cut(const struct dcp_tensor *tensor)
{
    return !tensor->ndim || tensor->shape[0] > 1;
}

static enum dcp_role role_of(struct finder *f, size_t t)
{
    const struct dcp_tensor *tensor = &f->catalog->tensors[t];

    if (f->any_trained && is_trained(f, tensor) && dcp_dtype_is_float(tensor->dtype))
        return DCP_ROLE_MODEL;
    if (tensor->role == DCP_ROLE_BUFFER || dcp_roles_is_buffer(tensor))
        return DCP_ROLE_BUFFER;
    if (!dcp_dtype_is_float(tensor->dtype))
        return DCP_ROLE_MODEL;
    if (f->is_cut[t] || sounds_trained(tensor->param)) {
        if (f->any_trained)
            count(&f->frozen, tensor);
        return DCP_ROLE_MODEL;
    }
    bool is_buffer = f->any_trained || (f->any_cut && can_be_cut(tensor));
    count(is_buffer ? &f->buffers : &f->guessed, tensor);
    return is_buffer ? DCP_ROLE_BUFFER : DCP_ROLE_MODEL;
}

/* Second names are what the first ones are. */
static void set_ties(struct dcp_catalog *catalog)
{
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const char *of = catalog->tensors[t].tied_to;
        int kept = of ? dcp_catalog_find(catalog, of) : -1;
        if (kept >= 0 && in_model(&catalog->tensors[t]))
            catalog->tensors[t].role = catalog->tensors[kept].role;
    }
}

/* -- what was assumed ---------------------------------------------------------------- */

static void say(struct dcp_buf *text, const struct tally *tally, const char *of,
                const char *one, const char *many)
{
    char shown[96];

    if (tally->n)
        dcp_buf_add_fmt(text, "%s%zu tensor%s%s %s ('%s'%s)",
                        text->size_bytes ? "; " : "", tally->n, tally->n > 1 ? "s" : "",
                        of, tally->n > 1 ? many : one,
                        dcp_str_escape(shown, sizeof shown, tally->first),
                        tally->n > 1 ? " and others" : "");
}

static int tell(struct finder *f, struct dcp_error *err)
{
    static const char unknown[] = " that the optimizer does not know",
                      whole[] = " that no rank shares",
                      untold[] = ", of which no optimizer tells,";
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };

    say(&text, &f->frozen, unknown, "is frozen", "are frozen");
    say(&text, &f->buffers, f->any_trained ? unknown : whole, "is a buffer",
        "are buffers");
    say(&text, &f->guessed, untold, "is trained", "are trained");
    if (!text.size_bytes)
        return dcp_buf_check(&text, err);
    f->catalog->assumed =
        text.failed ? NULL : dcp_catalog_text(f->catalog, (const char *)text.data);
    return f->catalog->assumed ? DCP_OK : dcp_error_memory(err, "the roles of tensors");
}

int dcp_roles_find_buffers(struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_FREE bool *is_cut = dcp_mem_calloc(catalog->n_tensors, sizeof *is_cut);
    struct finder f = { .catalog = catalog, .is_cut = is_cut };
    DCP_CLEANUP_JSON json_t *optimizer = NULL;

    if (!is_cut)
        return dcp_error_memory(err, "the roles of tensors");
    int rc = dcp_training_read(catalog, DCP_TRAINING_OPTIMIZER, &optimizer, err);
    if (!rc)
        rc = find_trained(&f, json_object_get(optimizer, "param_groups"), err);
    if (!rc) {
        find_cuts(&f);
        for (size_t t = 0; t < catalog->n_tensors; t++)
            if (in_model(&catalog->tensors[t]) && !catalog->tensors[t].tied_to)
                catalog->tensors[t].role = role_of(&f, t);
        set_ties(catalog);
        rc = tell(&f, err);
    }
    dcp_map_fini(&f.trained);
    return rc;
}
