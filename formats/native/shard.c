/* A shard of a step and its shard manifest, as the manifest tells of them. */
#include "base/hash.h"
#include "base/json_walk.h"
#include "base/mem.h"
#include "base/str.h"
#include "native.h"
#include "table.h"
#include <stdio.h>
#include <string.h>

/* The files of a rank. */
struct pair {
    char shard_name[64], manifest_name[64];
    struct dcp_file shard, manifest;
};

/* What an entry of the manifest's shards says. */
static int get_pair(const json_t *entry, int rank, int world_size, bool tables,
                    struct pair *pair, struct dcp_error *err)
{
    static const char what[] = "a shard of " NATIVE_MANIFEST;
    const char *file, *manifest;
    int64_t its_rank;

    dcp_native_shard_name(pair->shard_name, rank, world_size, NATIVE_SHARD_SUFFIX);
    dcp_native_shard_name(pair->manifest_name, rank, world_size,
                          tables ? NATIVE_TABLE_SUFFIX : NATIVE_JSON_SUFFIX);
    pair->shard =
        (struct dcp_file){ .name = pair->shard_name, .rank = rank, .has_crc = true };
    pair->manifest =
        (struct dcp_file){ .name = pair->manifest_name, .rank = rank, .has_crc = true };
    DCP_TRY(dcp_json_get_u64(entry, "size_bytes", what, &pair->shard.size_bytes, err));
    DCP_TRY(dcp_json_get_hex64(entry, "crc64", what, &pair->shard.crc, err));
    DCP_TRY(dcp_json_get_u64(entry, "manifest_size_bytes", what,
                             &pair->manifest.size_bytes, err));
    DCP_TRY(dcp_json_get_hex64(entry, "manifest_crc64", what, &pair->manifest.crc, err));
    DCP_TRY(dcp_json_get_i64(entry, "rank", what, &its_rank, err));
    DCP_TRY(dcp_json_get_text(entry, "file", what, &file, err));
    DCP_TRY(dcp_json_get_text(entry, "manifest", what, &manifest, err));
    if (its_rank != rank || strcmp(file, pair->shard_name) ||
        strcmp(manifest, pair->manifest_name))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the manifest names other files than '%s' and '%s'",
                             pair->shard_name, pair->manifest_name);
    return DCP_OK;
}

/* The bytes of a shard manifest, when it is the one that the manifest means. */
static int read_shard_manifest(const struct dcp_source *source,
                               const struct dcp_file *file, char **out, size_t *out_n,
                               struct dcp_error *err)
{
    DCP_TRY(dcp_native_read(source, file->name, out, out_n, err));
    if (*out_n != file->size_bytes || dcp_hash_crc64(0, *out, *out_n) != file->crc)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' is corrupt or of another step: its digest differs",
                             file->name);
    return DCP_OK;
}

/* Whether a shard manifest that is no table is that of its rank. */
static int check_head(const json_t *root, const struct pair *pair,
                      const struct dcp_catalog *catalog, struct dcp_error *err)
{
    const char *name = pair->manifest_name, *format, *file;
    int64_t version, step, rank, world_size;

    DCP_TRY(dcp_json_get_text(root, "format", name, &format, err));
    DCP_TRY(dcp_json_get_i64(root, "version", name, &version, err));
    DCP_TRY(dcp_json_get_i64(root, "step", name, &step, err));
    DCP_TRY(dcp_json_get_i64(root, "rank", name, &rank, err));
    DCP_TRY(dcp_json_get_i64(root, "world", name, &world_size, err));
    DCP_TRY(dcp_json_get_text(root, "file", name, &file, err));
    if (strcmp(format, NATIVE_SHARD_FORMAT) || version != NATIVE_VERSION ||
        step != catalog->step || rank != pair->shard.rank ||
        world_size != catalog->world_size || strcmp(file, pair->shard_name))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' is of another step, rank or world size than '%s' says",
                             name, NATIVE_MANIFEST);
    return DCP_OK;
}

/* Begins with the pieces of a shard manifest that is no table. */
static int walk_json(const char *text, size_t n, const struct pair *pair,
                     const struct dcp_catalog *catalog, struct dcp_json_walk *walk,
                     struct dcp_error *err)
{
    static const char *const large[] = { "pieces", NULL };
    const struct dcp_json_span doc = { text, n };
    DCP_CLEANUP_JSON json_t *root = NULL;
    struct dcp_json_span pieces;

    DCP_TRY(dcp_json_walk_root(doc, pair->manifest_name, large, &pieces, &root, err));
    DCP_TRY(check_head(root, pair, catalog, err));
    return dcp_json_walk_member(walk, doc, pieces, '[', large[0], pair->manifest_name,
                                err);
}

static int count_json(const char *text, size_t n, const struct pair *pair,
                      const struct dcp_catalog *catalog, uint64_t *out,
                      struct dcp_error *err)
{
    DCP_CLEANUP_WALK struct dcp_json_walk walk = { 0 };

    DCP_TRY(walk_json(text, n, pair, catalog, &walk, err));
    while (dcp_json_walk_next(&walk, err))
        ++*out;
    return walk.rc;
}

/* The pieces of a shard manifest that is no table. */
static int index_json(const char *text, size_t n, const struct pair *pair, int file,
                      struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_WALK struct dcp_json_walk walk = { 0 };

    DCP_TRY(walk_json(text, n, pair, catalog, &walk, err));
    while (dcp_json_walk_next(&walk, err)) {
        DCP_CLEANUP_JSON json_t *piece = NULL;
        DCP_TRY(dcp_json_walk_parse(&walk, &piece, err));
        DCP_TRY(dcp_native_index_piece(piece, catalog, pair->shard.rank, file, err));
    }
    return walk.rc;
}

/* The pieces of a shard manifest, as it was read. */
static int index_pieces(const char *text, size_t n, const struct pair *pair, bool tables,
                        int file, struct dcp_catalog *catalog, struct dcp_error *err)
{
    return tables ? dcp_native_table_index(text, n, pair->manifest_name, pair->shard.rank,
                                           file, catalog, err)
                  : index_json(text, n, pair, file, catalog, err);
}

int dcp_native_index_shard(const struct dcp_source *source, const json_t *entry, int rank,
                           bool tables, struct dcp_catalog *catalog,
                           struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *text = NULL;
    struct dcp_error why = { 0 };
    struct pair pair;
    size_t n = 0;
    int file = 0;

    DCP_TRY(get_pair(entry, rank, catalog->world_size, tables, &pair, err));
    int rc = dcp_native_check_file(source, pair.shard_name, pair.shard.size_bytes, &why);
    DCP_TRY(dcp_native_add_file(catalog, pair.shard, rc, &why, &file, err));
    rc = read_shard_manifest(source, &pair.manifest, &text, &n, &why);
    DCP_TRY(dcp_native_add_file(catalog, pair.manifest, rc, &why, NULL, err));
    if (rc)
        return DCP_OK;
    return index_pieces(text, n, &pair, tables, file, catalog, err);
}

int dcp_native_index_pair(const struct dcp_source *source, const json_t *entry, int rank,
                          bool tables, struct dcp_catalog *catalog, struct dcp_error *err)
{
    struct pair pair;

    DCP_TRY(get_pair(entry, rank, catalog->world_size, tables, &pair, err));
    DCP_TRY(dcp_native_check_file(source, pair.shard_name, pair.shard.size_bytes, err));
    DCP_TRY(
        dcp_native_check_file(source, pair.manifest_name, pair.manifest.size_bytes, err));
    DCP_TRY(dcp_catalog_add_file(catalog, &pair.shard, NULL, err));
    return dcp_catalog_add_file(catalog, &pair.manifest, NULL, err);
}

/* The files of a rank as the catalog has them: two for each rank, the first of all. */
static int find_pair(const struct dcp_catalog *catalog, int rank, struct pair *pair,
                     bool *out_tables, struct dcp_error *err)
{
    size_t at = 2 * (size_t)rank;

    *pair = (struct pair){ 0 };
    dcp_native_shard_name(pair->shard_name, rank, catalog->world_size,
                          NATIVE_SHARD_SUFFIX);
    if (at + 1 >= catalog->n_files || strcmp(catalog->files[at].name, pair->shard_name))
        return dcp_error_set(err, DCP_E_CORRUPT, "the files of rank %d are not told",
                             rank);
    pair->shard = catalog->files[at];
    pair->manifest = catalog->files[at + 1];
    snprintf(pair->manifest_name, sizeof pair->manifest_name, "%s", pair->manifest.name);
    *out_tables = dcp_str_ends(pair->manifest_name, NATIVE_TABLE_SUFFIX);
    return DCP_OK;
}

/* The files of a rank, and its table or text: read whole, and as its digest says. Caller
 * frees *out_text. */
static int read_pair(const struct dcp_source *source, int rank,
                     const struct dcp_catalog *catalog, struct pair *out,
                     bool *out_tables, char **out_text, size_t *out_n,
                     struct dcp_error *err)
{
    DCP_TRY(find_pair(catalog, rank, out, out_tables, err));
    return read_shard_manifest(source, &out->manifest, out_text, out_n, err);
}

static int index_rank(const struct dcp_source *source, int rank,
                      struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *text = NULL;
    struct pair pair;
    bool tables = false;
    size_t n = 0;

    DCP_TRY(read_pair(source, rank, catalog, &pair, &tables, &text, &n, err));
    return index_pieces(text, n, &pair, tables, 2 * rank, catalog, err);
}

/* Second names have the pieces of the first. */
static int index_aliases(struct dcp_catalog *catalog, struct dcp_error *err)
{
    bool tied = false;

    for (size_t t = 0; t < catalog->n_tensors && !tied; t++)
        tied = catalog->tensors[t].tied_to;
    if (!tied)
        return DCP_OK;
    DCP_TRY(dcp_catalog_sort(catalog, err));
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const char *first = catalog->tensors[t].tied_to;
        int of = first ? dcp_catalog_find(catalog, first) : -1;
        if (of < 0)
            continue;
        const struct dcp_tensor *tensor = &catalog->tensors[of];
        for (size_t i = 0; i < tensor->n_pieces; i++) {
            struct dcp_piece piece = catalog->pieces[tensor->first_piece + i];
            piece.tensor = (int)t;
            DCP_TRY(dcp_catalog_add_piece(catalog, &piece, err));
        }
    }
    return DCP_OK;
}

static int count(const struct dcp_source *source, int rank, struct dcp_catalog *catalog,
                 struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *text = NULL;
    struct pair pair;
    bool tables = false;
    size_t n = 0;

    DCP_TRY(read_pair(source, rank, catalog, &pair, &tables, &text, &n, err));
    uint64_t *out = &catalog->files[2 * (size_t)rank].n_pieces;
    return tables ? dcp_native_table_count(text, n, pair.manifest_name, rank, catalog,
                                           out, err)
                  : count_json(text, n, &pair, catalog, out, err);
}

int dcp_native_index_counts(const struct dcp_source *source, struct dcp_catalog *catalog,
                            struct dcp_error *err)
{
    for (int r = 0; r < catalog->world_size; r++)
        DCP_TRY(count(source, r, catalog, err));
    return DCP_OK;
}

int dcp_native_index_ranks(const struct dcp_source *source, const bool *ranks,
                           struct dcp_catalog *catalog, struct dcp_error *err)
{
    for (int r = 0; r < catalog->world_size; r++)
        if (ranks[r])
            DCP_TRY(index_rank(source, r, catalog, err));
    catalog->head = false;
    return index_aliases(catalog, err);
}
