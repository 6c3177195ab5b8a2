#include "native.h"
#include "formats.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void native_shard_name(char out[64], int rank, int world, bool manifest)
{
    snprintf(out, 64, "shard-%05d-of-%05d.%s", rank, world,
             manifest ? "json" : "safetensors");
}

int native_probe(const struct dcp_source *source)
{
    const struct dcp_store *store = source->store;
    struct dcp_store_file *file;
    char name[512], head[64] = { 0 };
    bool is_dir;
    uint64_t size;
    static const char magic[] = "{\"format\":\"libdcp\"";

    if (!source->is_dir)
        return 0;
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

const struct dcp_format dcp_format_native = {
    .name = "native",
    .help = "libdcp step: safetensors shards with digests, any world and layout",
    .suffixes = "",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_SHARDED |
             DCP_FORMAT_IS_DIR | DCP_FORMAT_OPTIM | DCP_FORMAT_OBJECTS |
             DCP_FORMAT_CODECS,
    .probe = native_probe,
    .index = native_index,
    .layout = native_layout,
    .seal = native_seal,
};
