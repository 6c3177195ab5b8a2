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

/* The store's name of a file of the step. Caller frees. */
static char *path_of(const struct dcp_source *source, const char *file)
{
    size_t n = strlen(source->name) + strlen(file) + 2;
    char *path = malloc(n);

    if (path)
        snprintf(path, n, "%s%s%s", source->name, source->name[0] ? "/" : "", file);
    return path;
}

/* What the manifests name must be there. */
static int missing(const char *file, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "'%s' of the step is missing",
                         DCP_SHOWN(file));
}

static int read_text(const struct dcp_source *source, const char *file, char **out,
                     size_t *out_n, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = path_of(source, file);
    struct dcp_error why = { 0 };
    void *data = NULL;

    if (!path)
        return dcp_error_memory(err, "a file name");
    int rc = dcp_store_read_header(source->store, path, NATIVE_USUAL_MANIFEST_BYTES,
                                   &data, out_n, &why);
    *out = data;
    /* A folder without manifest and shards is no step, rather than a corrupt one. */
    if (rc == DCP_E_NOT_FOUND && dcp_native_probe(source))
        return missing(file, err);
    if (rc && err)
        *err = why;
    return rc;
}

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

/* A file the manifest names: there, a file, and of the size it says. */
static int check_file(const struct dcp_source *source, const char *name, uint64_t size,
                      struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = path_of(source, name);
    struct dcp_error why = { 0 };
    bool is_dir;
    uint64_t found;

    if (!path)
        return dcp_error_memory(err, "a file name");
    int rc = source->store->ops->stat(source->store->self, path, &is_dir, &found, &why);
    if (rc == DCP_E_NOT_FOUND)
        return missing(name, err);
    if (rc && err)
        *err = why;
    if (!rc && (is_dir || found != size))
        rc = dcp_error_set(err, DCP_E_CORRUPT,
                           "'%s' has %" PRIu64 " bytes, the manifest says %" PRIu64,
                           DCP_SHOWN(name), is_dir ? 0 : found, size);
    return rc;
}

/* In a partial catalog a file of the step may be lost: it is added, and marked. */
static int add_file(struct dcp_catalog *catalog, struct dcp_file file, int rc,
                    const struct dcp_error *why, int *out, struct dcp_error *err)
{
    bool broken = rc == DCP_E_CORRUPT || rc == DCP_E_NOT_FOUND || rc == DCP_E_IO ||
                  rc == DCP_E_UNSUPPORTED;

    if (rc && !(catalog->partial && broken)) {
        if (err)
            *err = *why;
        return rc;
    }
    file.lost = rc;
    if (rc && !(file.lost_why = dcp_catalog_text(catalog, why->message)))
        return dcp_error_memory(err, "a catalog");
    return dcp_catalog_add_file(catalog, &file, out, err);
}

/* The text of a shard manifest, when it is the one that the manifest means. */
static int read_shard_manifest(const struct dcp_source *source,
                               const struct dcp_file *file, char **out, size_t *out_n,
                               struct dcp_error *err)
{
    DCP_TRY(read_text(source, file->name, out, out_n, err));
    if (*out_n != file->size_bytes || dcp_hash_crc64(0, *out, *out_n) != file->crc)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' is corrupt or of another step: its digest differs",
                             file->name);
    return DCP_OK;
}

static int index_shard(const struct dcp_source *source, const json_t *entry, int rank,
                       struct dcp_catalog *catalog, struct dcp_error *err)
{
    static const char what[] = "a shard of " NATIVE_MANIFEST;
    char name[64], manifest_name[64];
    struct dcp_file shard = { .name = name, .rank = rank, .has_crc = true };
    struct dcp_file manifest = { .name = manifest_name, .rank = rank, .has_crc = true };
    struct dcp_error why = { 0 };
    static const char *const large[] = { "pieces", NULL };
    DCP_CLEANUP_FREE char *text = NULL;
    DCP_CLEANUP_JSON json_t *root = NULL;
    DCP_CLEANUP_WALK struct dcp_json_walk walk = { 0 };
    struct dcp_json_span pieces;
    const char *file_text, *manifest_text;
    int64_t rank_text;
    size_t n = 0;
    int file = 0,
        rc = dcp_json_get_u64(entry, "size_bytes", what, &shard.size_bytes, err);

    dcp_native_shard_name(name, rank, catalog->world_size, false);
    dcp_native_shard_name(manifest_name, rank, catalog->world_size, true);
    if (!rc)
        rc = dcp_json_get_hex64(entry, "crc64", what, &shard.crc, err);
    if (!rc)
        rc = dcp_json_get_u64(entry, "manifest_size_bytes", what, &manifest.size_bytes,
                              err);
    if (!rc)
        rc = dcp_json_get_hex64(entry, "manifest_crc64", what, &manifest.crc, err);
    if (!rc)
        rc = dcp_json_get_i64(entry, "rank", what, &rank_text, err);
    if (!rc)
        rc = dcp_json_get_text(entry, "file", what, &file_text, err);
    if (!rc)
        rc = dcp_json_get_text(entry, "manifest", what, &manifest_text, err);
    if (!rc && (rank_text != rank || strcmp(file_text, name) ||
                strcmp(manifest_text, manifest_name)))
        rc = dcp_error_set(err, DCP_E_CORRUPT,
                           "the manifest names other files than '%s' and '%s'", name,
                           manifest_name);
    if (!rc)
        rc = add_file(catalog, shard, check_file(source, name, shard.size_bytes, &why),
                      &why, &file, err);
    if (rc)
        return rc;
    int found = read_shard_manifest(source, &manifest, &text, &n, &why);
    DCP_TRY(add_file(catalog, manifest, found, &why, NULL, err));
    if (found)
        return DCP_OK;
    const struct dcp_json_span doc = { text, n };
    DCP_TRY(dcp_json_walk_root(doc, manifest_name, large, &pieces, &root, err));
    DCP_TRY(dcp_native_check_head(root, manifest_name, rank, catalog, err));
    DCP_TRY(dcp_json_walk_member(&walk, doc, pieces, '[', large[0], manifest_name, err));
    while (dcp_json_walk_next(&walk, err)) {
        DCP_CLEANUP_JSON json_t *piece = NULL;
        DCP_TRY(dcp_json_walk_parse(&walk, &piece, err));
        DCP_TRY(dcp_native_index_piece(piece, catalog, rank, file, err));
    }
    return walk.rc;
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
    int rc = check_file(source, file.name, file.size_bytes, &why);
    return add_file(catalog, file, rc, &why, NULL, err);
}

/* Refuses what this version must not ignore. */
static int check_requires(const json_t *root, struct dcp_error *err)
{
    json_t *requires;
    char shown[80];
    DCP_TRY(dcp_json_get_array(root, "requires", NATIVE_MANIFEST, &requires, err));

    const char *feature = NULL;
    json_t *name;
    size_t i;
    json_array_foreach(requires, i, name)
    {
        if (!json_is_string(name) || strcmp(json_string_value(name), NATIVE_COMPLEX128))
            feature = json_is_string(name) ? json_string_value(name) : "?";
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

static int index_head(const json_t *root, struct dcp_catalog *catalog,
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
    DCP_TRY(check_requires(root, err));
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

static int index_entry(const struct dcp_source *source, enum list list,
                       const json_t *entry, size_t i, struct dcp_catalog *catalog,
                       struct dcp_error *err)
{
    switch (list) {
    case TENSORS:
        return dcp_native_index_tensor(entry, catalog, err);
    case SHARDS:
        return index_shard(source, entry, (int)i, catalog, err);
    case FILES:
        return index_other_file(source, entry, catalog, err);
    default:
        return dcp_native_index_object(entry, catalog, err);
    }
}

static int index_list(const struct dcp_source *source, enum list list,
                      struct dcp_json_span doc, struct dcp_json_span part,
                      struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_WALK struct dcp_json_walk walk;
    DCP_TRY(
        dcp_json_walk_member(&walk, doc, part, '[', lists[list], NATIVE_MANIFEST, err));
    size_t i = 0, world_size = (size_t)catalog->world_size;

    for (; dcp_json_walk_next(&walk, err) && !(list == SHARDS && i >= world_size); i++) {
        DCP_CLEANUP_JSON json_t *entry = NULL;
        DCP_TRY(dcp_json_walk_parse(&walk, &entry, err));
        DCP_TRY(index_entry(source, list, entry, i, catalog, err));
    }
    DCP_TRY(walk.rc);
    if (list == SHARDS && (i != world_size || walk.at < walk.end))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the manifest does not name a shard a rank");
    return DCP_OK;
}

int dcp_native_index(const struct dcp_source *source, struct dcp_catalog *catalog,
                     struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *text = NULL;
    DCP_CLEANUP_JSON json_t *root = NULL;
    struct dcp_json_span parts[N_LISTS];
    size_t n = 0;

    DCP_TRY(read_text(source, NATIVE_MANIFEST, &text, &n, err));
    DCP_TRY(check_digest(text, n, err));
    const struct dcp_json_span doc = { text, n };
    DCP_TRY(dcp_json_walk_root(doc, NATIVE_MANIFEST, lists, parts, &root, err));
    DCP_TRY(index_head(root, catalog, err));
    DCP_TRY(index_parity(root, catalog, err));
    DCP_TRY(index_finite(root, catalog, err));
    DCP_TRY(index_extra(root, catalog, err));
    for (int i = 0; i < N_LISTS; i++)
        DCP_TRY(index_list(source, (enum list)i, doc, parts[i], catalog, err));
    return index_ties(root, catalog, err);
}
