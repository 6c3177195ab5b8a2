#include "show.h"

#include "base/mem.h"
#include "cli/doc.h"
#include "globals.h"
#include <dcp/delta.h>
#include <string.h>

static json_t *groups_json(const struct inspect_facts *facts)
{
    json_t *list = json_array();
    for (size_t i = 0; i < facts->n_groups; i++) {
        const struct inspect_group *g = &facts->groups[i];
        if (dcp_doc_add(list,
                        json_pack("{s:s, s:s, s:o, s:o, s:o}", "role",
                                  dcp_role_name(g->role), "dtype",
                                  g->quantized ? "quantized" : dcp_dtype_name(g->dtype),
                                  "n_tensors", dcp_doc_u64(g->n_tensors), "n_elems",
                                  dcp_doc_u64(g->n_elems), "size_bytes",
                                  dcp_doc_u64(g->size_bytes)))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *objects_json(const struct dcp_catalog *catalog)
{
    json_t *list = json_array();
    for (size_t i = 0; i < catalog->n_objects; i++) {
        const struct dcp_object *o = &catalog->objects[i];
        if (dcp_doc_add(list,
                        json_pack("{s:o, s:s, s:o}", "name", dcp_doc_text(o->name),
                                  "kind", o->kind == DCP_OBJECT_JSON ? "json" : "bytes",
                                  "size_bytes", dcp_doc_u64(o->size_bytes)))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *steps_json(const struct inspect_shown *shown)
{
    json_t *list = json_array();
    for (size_t i = 0; i < shown->n_steps; i++) {
        const struct dcp_step *s = &shown->steps[i];
        if (dcp_doc_add(
                list,
                json_pack("{s:I, s:s, s:b, s:o, s:b, s:o}", "step", (json_int_t)s->step,
                          "name", s->name, "whole", (int)s->complete, "finite",
                          s->complete ? json_boolean(!s->diverged) : json_null(),
                          "mendable", (int)s->recoverable, "why",
                          s->complete ? json_null() : dcp_doc_text(s->why.message)))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *known(int64_t n)
{
    return n > 0 ? json_integer(n) : json_null();
}

/* What its objects name that is not known to be safe. */
static json_t *unsafe_json(const struct dcp_catalog *catalog)
{
    struct inspect_globals globals;
    json_t *list = json_array();
    int rc = inspect_globals_of_catalog(catalog, &globals, NULL);
    for (size_t i = 0; i < globals.n && !rc; i++)
        if (globals.items[i].kind != DCP_GLOBAL_SAFE)
            rc = dcp_doc_add(list, dcp_doc_text(globals.items[i].name));
    inspect_globals_fini(&globals);
    if (!rc)
        return list;
    json_decref(list);
    return NULL;
}

/* Keys that a step names; nothing is checked. */
static json_t *signers_json(const struct dcp_source *source)
{
    DCP_CLEANUP_FREE char *keys = dcp_signers(source);
    json_t *list = json_array();
    for (char *key = keys; list && key && *key;) {
        size_t n = strcspn(key, "\n");
        bool last = !key[n];
        key[n] = '\0';
        if (dcp_doc_add(list, dcp_doc_text(key))) {
            json_decref(list);
            return NULL;
        }
        key += n + !last;
    }
    return list;
}

/* Of what is stored as a delta: against what; else null. */
static json_t *delta_json(const struct dcp_source *source)
{
    DCP_CLEANUP_FREE char *base = NULL;
    uint64_t full, stored;
    int chain;
    if (!source->is_dir ||
        dcp_delta_base(source->store, source->name, &base, &chain, NULL) ||
        dcp_delta_sizes(source->store, source->name, &full, &stored, NULL))
        return json_null();
    return json_pack("{s:o, s:i, s:o, s:o}", "base", dcp_doc_text(base), "chain", chain,
                     "full_bytes", dcp_doc_u64(full), "stored_bytes",
                     dcp_doc_u64(stored));
}

static int add_catalog(json_t *doc, const struct inspect_shown *shown)
{
    const struct inspect_facts *f = &shown->facts;
    DCP_CLEANUP_JSON json_t *checkpoint = inspect_checkpoint_json(&shown->checkpoint);
    if (json_object_update(doc, checkpoint))
        return DCP_E_MEMORY;
    json_t *family = f->family.name[0] ? dcp_doc_text(f->family.name) : json_null();
    json_t *model =
        json_pack("{s:o, s:o, s:o, s:o, s:o}", "family", family, "n_params",
                  dcp_doc_u64(f->n_params), "n_layers", known(f->family.n_layers),
                  "n_vocab", known(f->family.n_vocab), "n_tied", dcp_doc_u64(f->n_tied));
    json_t *shards =
        json_pack("{s:o, s:o, s:o, s:o}", "n", dcp_doc_u64(f->n_shards), "size_bytes",
                  dcp_doc_u64(f->shard_bytes), "least_bytes", dcp_doc_u64(f->shard_least),
                  "most_bytes", dcp_doc_u64(f->shard_most));
    const struct dcp_error *why =
        shown->hole.code ? &shown->hole : &shown->checkpoint.location.corruption;
    struct dcp_parity_facts parity;
    if (dcp_parity_facts(shown->checkpoint.catalog, &parity, NULL))
        parity = (struct dcp_parity_facts){ 0 };
    bool complete = !why->code;
    json_t *resume =
        json_pack("{s:b, s:o}", "possible",
                  (int)(!shown->hole.code && f->n_params && !f->missing[0]), "missing",
                  f->missing[0] ? dcp_doc_text(f->missing) : json_null());
    int rc = dcp_doc_set(doc, "model", model);
    rc |= dcp_doc_set(doc, "holds", groups_json(f));
    rc |= dcp_doc_set(doc, "objects", objects_json(shown->checkpoint.catalog));
    rc |= dcp_doc_set(doc, "not_known_safe", unsafe_json(shown->checkpoint.catalog));
    rc |= dcp_doc_set(doc, "shards", shards);
    rc |= dcp_doc_set(doc, "has_digests", json_boolean(f->has_digests));
    rc |= dcp_doc_set(doc, "whole", json_boolean(complete));
    rc |= dcp_doc_set(doc, "why", complete ? json_null() : dcp_doc_text(why->message));
    rc |= dcp_doc_set(doc, "finite", json_boolean(!shown->checkpoint.catalog->diverged));
    rc |= dcp_doc_set(doc, "parity",
                      json_pack("{s:i, s:o}", "rows", parity.rows, "size_bytes",
                                dcp_doc_u64(parity.size_bytes)));
    rc |= dcp_doc_set(doc, "delta", delta_json(&shown->checkpoint.location.source));
    rc |= dcp_doc_set(doc, "resume", resume);
    rc |= dcp_doc_set(doc, "lineage", inspect_lineage_json(shown));
    rc |= dcp_doc_set(doc, "signed_by", signers_json(&shown->checkpoint.location.source));
    return rc ? DCP_E_MEMORY : DCP_OK;
}

int inspect_show_json(struct dcp_main *m, const struct inspect_shown *shown,
                      struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("show");
    int rc = DCP_OK;
    if (shown->checkpoint.catalog) {
        rc = add_catalog(doc, shown);
    } else {
        rc |= dcp_doc_set(doc, "path", dcp_doc_text(shown->path));
        rc |= dcp_doc_set(doc, "whole", json_false());
    }
    rc |= dcp_doc_set(doc, "steps", steps_json(shown));
    rc |= dcp_doc_set(doc, "n_unfinished", dcp_doc_u64(shown->n_unfinished));
    return rc ? dcp_error_memory(err, "the JSON document")
              : dcp_doc_print(m->out.file, doc, err);
}
