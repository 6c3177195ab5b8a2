#include "native.h"
#include "base/str.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dcp_native_shard_name(char out[64], int rank, int world_size, const char *suffix)
{
    snprintf(out, 64, "shard-%05d-of-%05d%s", rank, world_size, suffix);
}

/* Bits of the magic at the beginning of manifest.json, 0 when it is not there. */
static int probe_manifest(const struct dcp_source *source)
{
    static const char magic[] = "{\"format\":\"" NATIVE_FORMAT "\"";
    const struct dcp_store *store = source->store;
    struct dcp_store_file *file;
    char name[512], head[64] = { 0 };
    bool is_dir;
    uint64_t size;

    int n = snprintf(name, sizeof name, "%s%s" NATIVE_MANIFEST, source->name,
                     source->name[0] ? "/" : "");
    if (n < 0 || (size_t)n >= sizeof name ||
        store->ops->stat(store->self, name, &is_dir, &size, NULL) || is_dir ||
        size < sizeof magic || store->ops->open(store->self, name, &file, NULL))
        return 0;
    int rc = store->ops->read_at(store->self, file, 0, head, sizeof magic - 1, NULL);
    store->ops->close(store->self, file, NULL);
    return !rc && !memcmp(head, magic, sizeof magic - 1) ? 8 * (int)(sizeof magic - 1)
                                                         : 0;
}

/* A step whose manifest is corrupt or gone is still a native step, so that what is said
 * of it names the manifest; so is one of which little but its parity is left. */
static int probe_shards(const struct dcp_source *source)
{
    static const char first[] = "shard-00000-of-", parity[] = "parity-00000-of-";
    struct dcp_store_entry *entries;
    size_t n;
    int bits = 0;

    if (source->store->ops->list(source->store->self, source->name, &entries, &n, NULL))
        return 0;
    for (size_t i = 0; i < n; i++)
        if (dcp_str_starts(entries[i].name, first) ||
            dcp_str_starts(entries[i].name, parity))
            bits = 8 * (int)(sizeof first - 1);
    dcp_store_list_free(entries, n);
    return bits;
}

int dcp_native_probe(const struct dcp_source *source)
{
    if (!source->is_dir)
        return 0;
    int bits = probe_manifest(source);
    return bits ? bits : probe_shards(source);
}

bool dcp_native_is_bytes(const struct dcp_catalog *catalog, const struct dcp_piece *piece)
{
    return piece->codec != DCP_CODEC_NONE ||
           catalog->tensors[piece->tensor].dtype == DCP_C128;
}

const struct dcp_format dcp_format_native = {
    .name = "native",
    .help = "libdcp step: safetensors shards with digests, any world size and sharding",
    .suffixes = "",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_SHARDED |
             DCP_FORMAT_IS_DIR | DCP_FORMAT_OPTIM | DCP_FORMAT_OBJECTS |
             DCP_FORMAT_ARCHIVES | DCP_FORMAT_CODECS | DCP_FORMAT_TIES |
             DCP_FORMAT_STEPS | DCP_FORMAT_ROLES,
    .probe = dcp_native_probe,
    .index = dcp_native_index,
    .index_head = dcp_native_index_head,
    .index_ranks = dcp_native_index_ranks,
    .index_counts = dcp_native_index_counts,
    .open = dcp_native_open,
    .partition = dcp_partition_by_layout,
    .assign = dcp_native_assign,
    .finalize = dcp_native_finalize,
    .finish = dcp_native_finish,
    .close = dcp_native_close,
    .check = dcp_native_check,
};
