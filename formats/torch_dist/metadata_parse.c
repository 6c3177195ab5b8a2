/* metadata_parse: the pickle of a Metadata: its attributes, and helpers for its parts. */
#include "base/hash.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/pickle/json.h"
#include "metadata_parser.h"
#include <string.h>

bool dcp_torch_dist_is(const struct dcp_pickle_node *node, const char *class)
{
    return node && node->kind == DCP_PICKLE_OBJECT &&
           node->object->cls->kind == DCP_PICKLE_GLOBAL &&
           !strcmp(node->object->cls->global.name, class) &&
           dcp_str_starts(node->object->cls->global.module, "torch.distributed.");
}

const struct dcp_pickle_node *dcp_torch_dist_field(const struct dcp_pickle_node *node,
                                                   const char *name)
{
    const struct dcp_pickle_node *state =
        node->kind == DCP_PICKLE_OBJECT ? node->object->state : NULL;
    const struct dcp_pickle_node *value = dcp_pickle_get(state, name);

    return value && value->kind != DCP_PICKLE_NONE ? value : NULL;
}

int dcp_torch_dist_malformed(struct dcp_torch_dist_parser *p, const char *name,
                             const char *what)
{
    return dcp_error_of_tensor(p->err, DCP_E_CORRUPT, name, "the entry of '%s' %s",
                               DCP_SHOWN(name), what);
}

int dcp_torch_dist_no_memory(struct dcp_torch_dist_parser *p)
{
    return dcp_error_memory(p->err, "the index of a checkpoint");
}

int dcp_torch_dist_text(struct dcp_torch_dist_parser *p,
                        const struct dcp_pickle_node *node, const char *what,
                        const char **out)
{
    if (!node || node->kind != DCP_PICKLE_STR)
        return dcp_error_set(p->err, DCP_E_CORRUPT, "%s is not a text", what);
    if (!node->text.size_bytes || memchr(node->text.data, '\0', node->text.size_bytes))
        return dcp_error_set(p->err, DCP_E_UNSUPPORTED,
                             "%s is empty or holds NUL, which is no name", what);
    *out = dcp_arena_text_n(p->meta->arena, node->text.data, node->text.size_bytes);
    return *out ? DCP_OK : dcp_torch_dist_no_memory(p);
}

bool dcp_torch_dist_u64(const struct dcp_pickle_node *node, uint64_t *out)
{
    if (!node || node->kind != DCP_PICKLE_INT || node->number < 0)
        return false;
    *out = (uint64_t)node->number;
    return true;
}

bool dcp_torch_dist_digest(const struct dcp_pickle_node *node, uint64_t *out)
{
    if (!node || node->kind != DCP_PICKLE_INT)
        return false;
    *out = (uint64_t)node->number;
    return true;
}

/* The dict of ours: all before its digest must be what was written. */
static int take_ours(struct dcp_torch_dist_parser *p, const struct dcp_pickle_node *dict)
{
    const struct dcp_pickle_node *digest = dcp_pickle_get(dict, DCP_TORCH_DIST_DIGEST);
    char text[17] = "";
    uint64_t want;

    if (p->meta->ours)
        return DCP_OK;
    if (!digest || digest->kind != DCP_PICKLE_STR || digest->text.size_bytes != 16)
        return dcp_error_set(p->err, DCP_E_CORRUPT, "its digest is missing");
    memcpy(text, digest->text.data, 16);
    size_t n = (size_t)((const unsigned char *)digest->text.data - p->data);
    if (!dcp_str_parse_hex64(text, &want) || dcp_hash_crc64(0, p->data, n) != want)
        return dcp_error_set(p->err, DCP_E_CORRUPT, "it is corrupt: its digest differs");
    return dcp_pickle_to_json(dict, p->scratch, NULL, &p->meta->ours, p->err);
}

/* An attribute that neither PyTorch nor this library makes, such as Megatron's: kept when
 * it has a JSON form. */
static int take_extra(struct dcp_torch_dist_parser *p, const struct dcp_pickle_node *key,
                      const struct dcp_pickle_node *value)
{
    DCP_CLEANUP_JSON json_t *json = NULL;
    char name[80] = "";

    if (key->kind != DCP_PICKLE_STR || key->text.size_bytes >= sizeof name ||
        dcp_pickle_to_json(value, p->scratch, NULL, &json, NULL))
        return DCP_OK;
    memcpy(name, key->text.data, key->text.size_bytes);
    if (!p->meta->extra)
        p->meta->extra = json_object();
    return json_object_set(p->meta->extra, name, json) ? dcp_torch_dist_no_memory(p)
                                                       : DCP_OK;
}

static int take_attributes(struct dcp_torch_dist_parser *p,
                           const struct dcp_pickle_node *root)
{
    static const char *const known[] = {
        "state_dict_metadata", "planner_data", "storage_data",
        "storage_meta",        "version",      DCP_TORCH_DIST_PLANS
    };
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(root->object->state);

    for (size_t i = 0; pairs && i + 1 < pairs->n; i += 2) {
        bool is_known = false;
        for (size_t k = 0; k < DCP_ARRAY_LEN(known); k++)
            is_known |= dcp_pickle_is_text(pairs->items[i], known[k]);
        if (dcp_pickle_is_text(pairs->items[i], DCP_TORCH_DIST_OURS))
            DCP_TRY(take_ours(p, pairs->items[i + 1]));
        else if (!is_known)
            DCP_TRY(take_extra(p, pairs->items[i], pairs->items[i + 1]));
    }
    return DCP_OK;
}

static int parse_root(struct dcp_torch_dist_parser *p, const struct dcp_pickle_node *root)
{
    const struct dcp_pickle_node *version;

    if (!dcp_torch_dist_is(root, "Metadata"))
        return dcp_error_set(p->err, DCP_E_CORRUPT,
                             "it is not the Metadata of a distributed checkpoint");
    int rc = take_attributes(p, root);
    if (!rc)
        rc = dcp_torch_dist_take_state_dict(
            p, dcp_torch_dist_field(root, "state_dict_metadata"));
    if (!rc)
        rc = dcp_torch_dist_take_storage_data(p,
                                              dcp_torch_dist_field(root, "storage_data"));
    if (!rc)
        rc = dcp_torch_dist_take_planner_data(p,
                                              dcp_torch_dist_field(root, "planner_data"));
    version = dcp_torch_dist_field(root, "version");
    if (!rc && version)
        rc = dcp_torch_dist_text(p, version, "the version", &p->meta->version);
    return rc;
}

int dcp_torch_dist_metadata_parse(const void *pickle, size_t size_bytes, int rank,
                                  struct dcp_torch_dist_metadata *meta,
                                  struct dcp_error *err)
{
    struct dcp_error own = { 0 };
    struct dcp_torch_dist_parser p = { .meta = meta,
                                       .data = pickle,
                                       .rank = rank,
                                       .err = err ? err : &own,
                                       .scratch = dcp_arena_new(),
                                       .first_part = meta->n_parts };
    struct dcp_pickle_node *root;

    if (!meta->arena)
        meta->arena = dcp_arena_new();
    int rc = p.scratch && meta->arena
                 ? dcp_pickle_parse(pickle, size_bytes, p.scratch, &root, NULL, p.err)
                 : dcp_torch_dist_no_memory(&p);
    if (!rc)
        rc = parse_root(&p, root);
    dcp_map_fini(&p.boxes);
    dcp_arena_free(p.scratch);
    return rc;
}
