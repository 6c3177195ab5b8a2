/* fsdp: the format fsdp-ranks, and the files of the model. */
#include "fsdp.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include "formats/common/roles.h"
#include "formats/common/training.h"
#include "formats/pickle/json.h"
#include <stdio.h>
#include <string.h>

enum {
    BID = 8 * 80 /* a name of many letters, and a PyTorch file under it */,
    MAX_DEPTH = 8
};

static int probe(const struct dcp_source *source)
{
    DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };
    char name[80];

    return dcp_fsdp_find(source, name) &&
                   !dcp_torch_open(&file, source, source->is_dir ? name : NULL, NULL)
               ? BID
               : 0;
}

int dcp_fsdp_open_name(struct dcp_fsdp_reader *r, const char *name, int rank,
                       struct dcp_torch_file *file, int *out_file, struct dcp_error *err)
{
    int rc = dcp_torch_open(file, &r->folder.source, name, err);

    file->takes_streams = true;
    if (!rc)
        rc = dcp_torch_read_tree(file, err);
    return rc ? rc : dcp_torch_add_file(file, name, rank, r->catalog, out_file, err);
}

int dcp_fsdp_open_file(struct dcp_fsdp_reader *r, enum dcp_fsdp_kind kind, int rank,
                       struct dcp_torch_file *file, int *out_file, struct dcp_error *err)
{
    char name[80];

    dcp_fsdp_name(name, kind, r->folder.world_size, rank);
    return dcp_fsdp_open_name(r, name, rank, file, out_file, err);
}

/* -- tensors ------------------------------------------------------------------------- */

static bool agrees(const struct dcp_tensor *tensor, const struct dcp_fsdp_piece *piece)
{
    if (tensor->dtype != piece->dtype || tensor->ndim != piece->ndim)
        return false;
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] != piece->shape[d])
            return false;
    return true;
}

static int add_piece(struct dcp_fsdp_reader *r, int file_index, int rank, int tensor,
                     const struct dcp_fsdp_piece *piece, struct dcp_error *err)
{
    struct dcp_piece p;
    int rc = dcp_torch_view_piece(&piece->view, file_index, r->catalog, &p, err);

    p.tensor = tensor;
    p.rank = rank;
    if (!piece->plain)
        p.region = (struct dcp_region){ .kind = DCP_BOX,
                                        .offset = piece->offset,
                                        .size = piece->view.shape };
    return rc ? rc : dcp_catalog_add_piece(r->catalog, &p, err);
}

static int add_tensor(struct dcp_fsdp_reader *r, const struct dcp_tensor *tensor,
                      const struct dcp_fsdp_piece *piece, int *out_index,
                      struct dcp_error *err)
{
    struct dcp_tensor t = *tensor;
    size_t n = r->catalog->n_tensors, old = r->cap_known;
    struct dcp_fsdp_known_tensor *known =
        dcp_mem_grow(r->known, &r->cap_known, n + 1, sizeof *known);

    if (!known)
        return dcp_error_memory(err, "a tensor");
    r->known = known;
    for (; old < r->cap_known; old++)
        known[old] = (struct dcp_fsdp_known_tensor){ .file = -1 };
    known[n].plain = piece->plain;
    t.dtype = piece->dtype;
    t.ndim = piece->ndim;
    t.shape = piece->shape;
    return dcp_catalog_add_tensor(r->catalog, &t, out_index, err);
}

/* "a.b", and "a" with "b" in it: one of them would be lost. */
static int same_name(const struct dcp_torch_file *file, const char *name,
                     struct dcp_error *err)
{
    return dcp_error_of_tensor(err, DCP_E_UNSUPPORTED, name,
                               "'%s': two keys give one name, '%s'", file->in.shown,
                               DCP_SHOWN(name));
}

int dcp_fsdp_add(struct dcp_fsdp_reader *r, const struct dcp_torch_file *file,
                 int file_index, int rank, const struct dcp_tensor *tensor,
                 const struct dcp_fsdp_piece *piece, struct dcp_error *err)
{
    int at = dcp_catalog_find(r->catalog, tensor->name), rc = DCP_OK;
    bool is_new = at < 0;

    if (is_new) {
        rc = add_tensor(r, tensor, piece, &at, err);
    } else if (!agrees(&r->catalog->tensors[at], piece)) {
        rc = dcp_error_of_tensor(
            err, DCP_E_CORRUPT, tensor->name,
            "the ranks do not agree on the dtype or shape of tensor '%s'",
            DCP_SHOWN(tensor->name));
    } else if ((size_t)at < r->cap_known && r->known[at].file == file_index) {
        return same_name(file, tensor->name, err);
    }
    if (!rc && (size_t)at < r->cap_known)
        r->known[at].file = file_index;
    /* what every rank has whole is taken from the first */
    if (!rc && !piece->is_empty && !piece->is_replica && (!piece->plain || is_new) &&
        (!piece->plain || piece->view.has_data))
        rc = add_piece(r, file_index, rank, at, piece, err);
    if (rc)
        dcp_error_prefix(err, "'%s'", file->in.shown);
    return rc;
}

const char *dcp_fsdp_param(struct dcp_catalog *catalog, const char *name)
{
    static const char *const words[] = { "_orig_mod.", "_fsdp_wrapped_module.",
                                         "_checkpoint_wrapped_module." };
    size_t n = strlen(name), at = 0;
    char *out = dcp_catalog_alloc(catalog, n + 1, 1);

    for (size_t i = 0; out && i < n;) {
        bool begins = i == 0 || name[i - 1] == '.';
        size_t skip = 0;
        for (size_t w = 0; begins && w < DCP_ARRAY_LEN(words); w++)
            if (dcp_str_starts(name + i, words[w]) && name[i + strlen(words[w])])
                skip = strlen(words[w]);
        if (!skip)
            out[at++] = name[i++];
        i += skip;
    }
    return out;
}

int dcp_fsdp_add_value(struct dcp_fsdp_reader *r, const struct dcp_torch_file *file,
                       const char *name, const struct dcp_pickle_node *node,
                       struct dcp_error *err)
{
    json_t *value = NULL;

    if (!name[0] || dcp_catalog_find_object(r->catalog, name) >= 0)
        return DCP_OK;
    int rc = dcp_pickle_to_json(node, file->arena, NULL, &value, err);
    if (!rc)
        return dcp_training_add(r->catalog, name, value, err);
    dcp_error_prefix(err, "'%s'", file->in.shown);
    return rc;
}

/* -- the model ----------------------------------------------------------------------- */

struct model {
    struct dcp_fsdp_reader *r;
    struct dcp_torch_file *file;
    int file_index, rank;
    struct dcp_error *err;
};

/* The name of a key below another; in the file's arena. NULL: it is no name, or out of
 * memory. */
static const char *join(struct model *m, const char *prefix,
                        const struct dcp_pickle_node *key)
{
    char number[32];
    const char *part = number;

    if (key->kind == DCP_PICKLE_STR && key->text.size_bytes &&
        !memchr(key->text.data, 0, key->text.size_bytes))
        part = dcp_arena_text_n(m->file->arena, key->text.data, key->text.size_bytes);
    else if (key->kind == DCP_PICKLE_INT)
        snprintf(number, sizeof number, "%lld", (long long)key->number);
    else
        return NULL;
    size_t n = part ? strlen(prefix) + strlen(part) + 2 : 0;
    char *name = part ? dcp_arena_alloc(m->file->arena, n, 1) : NULL;
    if (name)
        snprintf(name, n, "%s%s%s", prefix, prefix[0] ? "." : "", part);
    return name;
}

static int take_tensor(struct model *m, const char *name,
                       const struct dcp_fsdp_piece *piece)
{
    struct dcp_tensor tensor = { .name = name, .role = DCP_ROLE_MODEL };

    if (dcp_str_ends(name, "flat_param"))
        return dcp_error_set(m->err, DCP_E_UNSUPPORTED,
                             "'%s' was saved as LOCAL_STATE_DICT, with FSDP's own flat "
                             "parameters; save it as SHARDED_STATE_DICT",
                             m->file->in.shown);
    if (piece->plain && !dcp_dtype_is_float(piece->dtype))
        tensor.role = DCP_ROLE_BUFFER;
    tensor.param = dcp_fsdp_param(m->r->catalog, name);
    return tensor.param ? dcp_fsdp_add(m->r, m->file, m->file_index, m->rank, &tensor,
                                       piece, m->err)
                        : dcp_error_memory(m->err, "a model");
}

static int walk(struct model *m, const struct dcp_pickle_list *pairs, const char *prefix,
                int depth)
{
    for (size_t i = 0; i + 1 < pairs->n; i += 2) {
        const struct dcp_pickle_node *value = pairs->items[i + 1];
        const char *name = join(m, prefix, pairs->items[i]);
        struct dcp_fsdp_piece piece;
        bool found;
        if (!name)
            return dcp_error_set(m->err, DCP_E_UNSUPPORTED,
                                 "'%s' has a tensor under a key that is no name",
                                 m->file->in.shown);
        DCP_TRY(dcp_fsdp_view(m->file, value, m->rank, name, &found, &piece, m->err));
        if (found)
            DCP_TRY(take_tensor(m, name, &piece));
        else if (dcp_pickle_pairs(value) && depth < MAX_DEPTH)
            DCP_TRY(walk(m, dcp_pickle_pairs(value), name, depth + 1));
        else if (m->rank == 0 && dcp_catalog_find_object(m->r->catalog, name) >= 0)
            return same_name(m->file, name, m->err);
        else if (m->rank == 0)
            DCP_TRY(dcp_fsdp_add_value(m->r, m->file, name, value, m->err));
    }
    return DCP_OK;
}

static int index_model(struct dcp_fsdp_reader *r, struct dcp_error *err)
{
    for (int rank = 0; rank < r->folder.world_size && r->folder.has[DCP_FSDP_MODEL];
         rank++) {
        DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };
        struct model m = { .r = r, .file = &file, .rank = rank, .err = err };
        DCP_TRY(dcp_fsdp_open_file(r, DCP_FSDP_MODEL, rank, &file, &m.file_index, err));
        const struct dcp_pickle_list *pairs = dcp_pickle_pairs(file.tree);
        DCP_TRY(pairs ? walk(&m, pairs, "", 0)
                      : dcp_error_set(err, DCP_E_CORRUPT, "'%s' holds no state dict",
                                      file.in.shown));
    }
    return dcp_torch_tie_views(r->catalog, err);
}

/* In a model that is cut, what is whole and not optimized is no weight. */
static void find_buffers(struct dcp_fsdp_reader *r, size_t n_weights)
{
    bool any_cut = false;

    for (size_t t = 0; t < n_weights; t++)
        any_cut = any_cut || !r->known[t].plain;
    for (size_t t = 0; t < n_weights && any_cut; t++) {
        bool optimized = false;
        for (size_t i = 0; i < r->ids.n && r->known[t].plain; i++)
            optimized = optimized || r->ids.weight[i] == (int)t;
        if (r->known[t].plain && !optimized)
            r->catalog->tensors[t].role = DCP_ROLE_BUFFER;
    }
}

/* -- the folder ---------------------------------------------------------------------- */

/* Adds a JSON file of the folder as an object. */
static int add_json(struct dcp_fsdp_reader *r, const char *file, const char *name,
                    struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *text = NULL;
    json_t *value = NULL;
    size_t n;

    if (!dcp_source_has(&r->folder.source, file) ||
        dcp_catalog_find_object(r->catalog, name) >= 0)
        return DCP_OK;
    DCP_TRY(dcp_source_read(&r->folder.source, file, DCP_FORMAT_JSON_MAX_BYTES, &text, &n,
                            err));
    DCP_TRY(dcp_json_parse(text, n, file, &value, err));
    return dcp_training_add(r->catalog, name, value, err);
}

static int index_all(struct dcp_fsdp_reader *r, struct dcp_error *err)
{
    DCP_TRY(index_model(r, err));
    size_t n_weights = r->catalog->n_tensors;

    DCP_TRY(dcp_fsdp_index_optim(r, n_weights, err));
    find_buffers(r, n_weights);
    DCP_TRY(dcp_fsdp_index_extra(r, err));
    DCP_TRY(dcp_roles_find_buffers(r->catalog, err));
    DCP_TRY(add_json(r, "fsdp_config.json", "fsdp_config", err));
    DCP_TRY(add_json(r, "config.json", DCP_TRAINING_MODEL_CONFIG, err));
    return add_json(r, "huggingface/config.json", DCP_TRAINING_MODEL_CONFIG, err);
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    struct dcp_fsdp_reader r = { .catalog = catalog };

    catalog->format = dcp_format_fsdp_ranks.name;
    int rc = dcp_fsdp_open(&r.folder, source, err);
    catalog->world_size = r.folder.world_size ? r.folder.world_size : 1;
    if (!rc)
        rc = index_all(&r, err);
    free(r.known);
    dcp_optim_ids_fini(&r.ids);
    dcp_fsdp_close(&r.folder);
    return rc;
}

const struct dcp_format dcp_format_fsdp_ranks = {
    .name = "fsdp-ranks",
    .help = "files of the ranks of PyTorch's FSDP, each saved by itself",
    .suffixes = "",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_IS_DIR | DCP_FORMAT_OPTIM | DCP_FORMAT_OBJECTS,
    .probe = probe,
    .index = index_source,
};
