/* Native files to catalog. Nothing read is trusted: the manifest's own digest first, then
 * each shard manifest's, then every number. */
#include "base/hash.h"
#include "base/json_walk.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/ties.h"
#include "native.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int check_digest(const char *text, size_t n, struct dcp_error *err)
{
    char want[NATIVE_DIGEST_BYTES + 1];

    if (n > NATIVE_DIGEST_BYTES) {
        snprintf(want, sizeof want, NATIVE_DIGEST_FORMAT,
                 dcp_hash_crc64(0, text, n - NATIVE_DIGEST_BYTES));
        if (!memcmp(text + n - NATIVE_DIGEST_BYTES, want, NATIVE_DIGEST_BYTES))
            return DCP_OK;
    }
    return dcp_error_set(err, DCP_E_CORRUPT,
                         NATIVE_MANIFEST " is corrupt: its digest differs");
}

static int index_other_file(const struct dcp_source *source, const json_t *entry,
                            struct dcp_catalog *catalog, struct dcp_error *err)
{
    static const char what[] = "a file of " NATIVE_MANIFEST;
    struct dcp_file file = { .has_crc = true };

    DCP_TRY(dcp_json_get_text(entry, "name", what, &file.name, err));
    DCP_TRY(dcp_json_get_u64(entry, "size_bytes", what, &file.size_bytes, err));
    DCP_TRY(dcp_json_get_hex64(entry, "crc64", what, &file.crc, err));
    if (!dcp_store_name_ok(file.name))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the manifest names a file that is not one of a step");
    struct dcp_error why = { 0 };
    int rc = dcp_native_check_file(source, file.name, file.size_bytes, &why);
    return dcp_native_add_file(catalog, file, rc, &why, NULL, err);
}

/* Refuses what this version must not ignore. *out_tables: shard manifests are tables. */
static int index_requires(const json_t *root, bool *out_tables, struct dcp_error *err)
{
    json_t *requires;
    char shown[80];
    DCP_TRY(dcp_json_get_array(root, "requires", NATIVE_MANIFEST, &requires, err));

    const char *feature = NULL;
    json_t *name;
    size_t i;
    *out_tables = false;
    json_array_foreach(requires, i, name)
    {
        const char *text = json_is_string(name) ? json_string_value(name) : "?";
        if (!strcmp(text, NATIVE_TABLES))
            *out_tables = true;
        else if (strcmp(text, NATIVE_COMPLEX128))
            feature = text;
    }
    if (!feature)
        return DCP_OK;
    dcp_str_escape(shown, sizeof shown, feature);
    dcp_error_set(err, DCP_E_UNSUPPORTED,
                  "the step needs the feature '%s', which this version does not have",
                  shown);
    dcp_error_hint(err, "a newer libdcp wrote it; read it with that version");
    return DCP_E_UNSUPPORTED;
}

/* Keeps the members that this version does not know. */
static int index_extra(const json_t *root, struct dcp_catalog *catalog,
                       struct dcp_error *err)
{
    static const char *const known[] = { "format", "version", "requires", "step",
                                         "world",  "layout",  "mesh",     "tensors",
                                         "shards", "files",   "objects",  "ties",
                                         "parity", "finite",  "digest",   NULL };
    DCP_CLEANUP_JSON json_t *extra = json_object();
    const char *key;
    json_t *value;

    if (!extra)
        return dcp_error_memory(err, "a manifest");
    json_object_foreach((json_t *)root, key, value)
    {
        bool is_known = false;
        for (int k = 0; known[k]; k++)
            is_known |= !strcmp(key, known[k]);
        if (!is_known && json_object_set(extra, key, value))
            return dcp_error_memory(err, "a manifest");
    }
    if (json_object_size(extra) == 0)
        return DCP_OK;
    DCP_CLEANUP_FREE char *text = dcp_json_text(extra, 0);
    if (!text)
        return dcp_error_memory(err, "a manifest");
    return dcp_catalog_add_object(catalog,
                                  &(struct dcp_object){ .name = NATIVE_EXTRA,
                                                        .data = text,
                                                        .size_bytes = strlen(text) },
                                  err);
}

static int index_head(const json_t *root, struct dcp_catalog *catalog, bool *out_tables,
                      struct dcp_error *err)
{
    int64_t version = 0, world_size = 0, dp = 1, tp = 1, pp = 1;
    const char *format, *layout;
    json_t *mesh;

    DCP_TRY(dcp_json_get_text(root, "format", NATIVE_MANIFEST, &format, err));
    if (strcmp(format, NATIVE_FORMAT))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             NATIVE_MANIFEST " is not that of a native step");
    DCP_TRY(dcp_json_get_i64(root, "version", NATIVE_MANIFEST, &version, err));
    if (version != NATIVE_VERSION)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "the step has format version %" PRId64
                             "; this program reads version %d",
                             version, NATIVE_VERSION);
    DCP_TRY(index_requires(root, out_tables, err));
    DCP_TRY(dcp_json_get_i64(root, "step", NATIVE_MANIFEST, &catalog->step, err));
    DCP_TRY(dcp_json_get_i64(root, "world", NATIVE_MANIFEST, &world_size, err));
    DCP_TRY(dcp_json_get_text(root, "layout", NATIVE_MANIFEST, &layout, err));
    DCP_TRY(dcp_json_get_object(root, "mesh", NATIVE_MANIFEST, &mesh, err));
    DCP_TRY(dcp_json_get_i64(mesh, "dp", "mesh", &dp, err));
    DCP_TRY(dcp_json_get_i64(mesh, "tp", "mesh", &tp, err));
    DCP_TRY(dcp_json_get_i64(mesh, "pp", "mesh", &pp, err));
    if (catalog->step < -1)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the manifest gives %" PRId64 " as the number of the step",
                             catalog->step);
    if (world_size < 1 || world_size > NATIVE_MAX_WORLD_SIZE || dp < 1 || tp < 1 ||
        pp < 1 || dp > world_size || tp > world_size || pp > world_size)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the manifest has no valid world size or mesh");
    catalog->world_size = (int)world_size;
    catalog->mesh = (struct dcp_mesh){ (int)dp, (int)tp, (int)pp };
    catalog->format = "native";
    catalog->version = "v1";
    catalog->layout = dcp_catalog_text(catalog, layout);
    return catalog->layout ? DCP_OK : dcp_error_memory(err, "a catalog");
}

/* Second names of tensors; a step without any does not have the member. */
static int index_ties(const json_t *root, struct dcp_catalog *catalog,
                      struct dcp_error *err)
{
    json_t *ties = json_object_get(root, "ties");

    if (!ties)
        return DCP_OK;
    int rc = dcp_ties_index(catalog, ties, err);
    if (!rc && (!json_is_object(ties) || json_object_size(ties) > 0))
        rc = dcp_error_set(err, DCP_E_CORRUPT,
                           NATIVE_MANIFEST ": 'ties' must give names to its tensors");
    return rc;
}

/* Whether training had diverged when it was saved. */
static int index_finite(const json_t *root, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    const json_t *finite = json_object_get(root, "finite");

    if (finite && !json_is_boolean(finite))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             NATIVE_MANIFEST ": 'finite' must be true or false");
    catalog->diverged = json_is_false(finite);
    return DCP_OK;
}

/* What protects the files, as the manifest has it; read by what reconstructs. */
static int index_parity(const json_t *root, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    const json_t *parity = json_object_get(root, "parity");

    if (!parity)
        return DCP_OK;
    DCP_CLEANUP_FREE char *text = dcp_json_text(parity, 0);
    catalog->parity = text ? dcp_catalog_text(catalog, text) : NULL;
    return catalog->parity ? DCP_OK : dcp_error_memory(err, "a catalog");
}

/* The lists of the manifest, in the order in which they are read: tensors are named by
 * pieces. */
enum list { TENSORS, SHARDS, FILES, OBJECTS, N_LISTS };
static const char *const lists[] = { "tensors", "shards", "files", "objects", NULL };

/* What is read. */
struct reading {
    const struct dcp_source *source;
    struct dcp_catalog *catalog;
    bool tables;
    bool head; /* not the pieces */
};

static int index_entry(const struct reading *reading, enum list list, const json_t *entry,
                       size_t i, struct dcp_error *err)
{
    switch (list) {
    case SHARDS:
        if (reading->head)
            return dcp_native_index_pair(reading->source, entry, (int)i, reading->tables,
                                         reading->catalog, err);
        return dcp_native_index_shard(reading->source, entry, (int)i, reading->tables,
                                      reading->catalog, err);
    case FILES:
        return index_other_file(reading->source, entry, reading->catalog, err);
    default:
        return dcp_native_index_object(entry, reading->catalog, err);
    }
}

/* A manifest has tens of thousands of them. */
static int index_tensor(const struct reading *reading, struct dcp_json_walk *walk,
                        struct dcp_buf *texts, struct dcp_error *err)
{
    const struct dcp_json_span left = { walk->at, (size_t)(walk->end - walk->at) };
    DCP_CLEANUP_JSON json_t *entry = NULL;
    struct dcp_native_told told;
    const char *end = dcp_native_scan_tensor(left, texts, &told);

    walk->at = end ? end : walk->at;
    if (!end) {
        DCP_TRY(dcp_json_walk_find(walk, err));
        DCP_TRY(dcp_json_walk_parse(walk, &entry, err));
        DCP_TRY(dcp_native_parse_tensor(entry, &told, err));
    }
    return dcp_native_add_told(&told, reading->catalog, err);
}

static int index_list(const struct reading *reading, enum list list,
                      struct dcp_json_span doc, struct dcp_json_span part,
                      struct dcp_error *err)
{
    DCP_CLEANUP_WALK struct dcp_json_walk walk;
    DCP_CLEANUP_BUF struct dcp_buf texts = { 0 };
    DCP_TRY(
        dcp_json_walk_member(&walk, doc, part, '[', lists[list], NATIVE_MANIFEST, err));
    size_t i = 0, world_size = (size_t)reading->catalog->world_size;

    while (list == TENSORS && dcp_json_walk_begin(&walk, err))
        DCP_TRY(index_tensor(reading, &walk, &texts, err));
    for (; list != TENSORS && dcp_json_walk_next(&walk, err) &&
           !(list == SHARDS && i >= world_size);
         i++) {
        DCP_CLEANUP_JSON json_t *entry = NULL;
        DCP_TRY(dcp_json_walk_parse(&walk, &entry, err));
        DCP_TRY(index_entry(reading, list, entry, i, err));
    }
    DCP_TRY(walk.rc);
    if (list == SHARDS && (i != world_size || walk.at < walk.end))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the manifest does not name a shard a rank");
    return DCP_OK;
}

static int index_manifest(const struct dcp_source *source, bool head,
                          struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *text = NULL;
    DCP_CLEANUP_JSON json_t *root = NULL;
    struct dcp_json_span parts[N_LISTS];
    struct reading reading = { source, catalog, false, head };
    size_t n = 0;

    DCP_TRY(dcp_native_read(source, NATIVE_MANIFEST, &text, &n, err));
    DCP_TRY(check_digest(text, n, err));
    const struct dcp_json_span doc = { text, n };
    DCP_TRY(dcp_json_walk_root(doc, NATIVE_MANIFEST, lists, parts, &root, err));
    DCP_TRY(index_head(root, catalog, &reading.tables, err));
    DCP_TRY(index_parity(root, catalog, err));
    DCP_TRY(index_finite(root, catalog, err));
    DCP_TRY(index_extra(root, catalog, err));
    for (int i = 0; i < N_LISTS; i++)
        DCP_TRY(index_list(&reading, (enum list)i, doc, parts[i], err));
    return index_ties(root, catalog, err);
}

int dcp_native_index(const struct dcp_source *source, struct dcp_catalog *catalog,
                     struct dcp_error *err)
{
    return index_manifest(source, false, catalog, err);
}

int dcp_native_index_head(const struct dcp_source *source, struct dcp_catalog *catalog,
                          struct dcp_error *err)
{
    catalog->head = true;
    return index_manifest(source, true, catalog, err);
}
