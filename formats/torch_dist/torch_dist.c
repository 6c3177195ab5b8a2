/* torch_dist: what a distributed checkpoint of PyTorch looks like from outside. */
#include "torch_dist.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include "formats/state_dict/carried.h"
#include "hf_shards.h"
#include "lightning.h"
#include "metadata.h"
#include "write.h"
#include <string.h>

#define MAGIC "torch.distributed." /* the module of the first class of the pickle */

enum {
    HEAD_BYTES = 64,
    BID = 8 * (sizeof MAGIC + 1), /* with the pickle's first two bytes */
    BID_OF_SHARDS = 8 * 17,       /* a name in a header */
    BID_OF_NAMES = 8 * sizeof "__0_0.distcp" / 2,
};

/* A pickle that begins with a class of torch.distributed. */
static bool is_metadata(const struct dcp_source *source, const char *name)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    unsigned char head[HEAD_BYTES];

    return !dcp_input_open(&in, source, name, NULL) && in.size_bytes > sizeof head &&
           !dcp_input_read(&in, 0, head, sizeof head, NULL) && head[0] == 0x80 &&
           head[1] >= 2 && head[1] <= 5 &&
           memmem(head, sizeof head, MAGIC, sizeof MAGIC - 1);
}

static int probe(const struct dcp_source *source)
{
    struct dcp_store_entry *entries;
    size_t n;
    int bits = 0;

    if (!source->is_dir)
        return 0;
    if (is_metadata(source, DCP_TORCH_DIST_METADATA_NAME) ||
        (!dcp_source_has(source, DCP_TORCH_DIST_METADATA_NAME) &&
         is_metadata(source, "__0" DCP_TORCH_DIST_RANK_SUFFIX)))
        return BID;
    if (dcp_torch_dist_shards_probe(source))
        return BID_OF_SHARDS;
    if (source->store->ops->list(source->store->self, source->name, &entries, &n, NULL))
        return 0;
    for (size_t i = 0; i < n; i++) /* so that what is said of it names .metadata */
        if (dcp_torch_dist_file_rank(entries[i].name) >= 0 &&
            dcp_str_ends(entries[i].name, DCP_TORCH_DIST_FILE_SUFFIX))
            bits = BID_OF_NAMES;
    dcp_store_list_free(entries, n);
    return bits;
}

static enum dcp_disposition disposition(const struct dcp_catalog *src,
                                        const struct dcp_identity *of_src,
                                        const struct dcp_catalog *target,
                                        const struct dcp_tensor *tensor)
{
    (void)of_src, (void)target;
    return tensor->role == DCP_ROLE_OTHER && dcp_is_carried(src, tensor->name)
               ? DCP_DISPOSITION_DERIVED
               : DCP_DISPOSITION_STORED;
}

const struct dcp_format dcp_format_torch_dist = {
    .name = "torch-dist",
    .alias = "dcp",
    .help = "PyTorch distributed checkpoint (torch.distributed.checkpoint), FSDP",
    .suffixes = "",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_SHARDED |
             DCP_FORMAT_IS_DIR | DCP_FORMAT_OPTIM | DCP_FORMAT_OBJECTS |
             DCP_FORMAT_ARCHIVES | DCP_FORMAT_CRC32 | DCP_FORMAT_TIES | DCP_FORMAT_ROLES,
    .layouts = "dim0 replicated",
    .probe = probe,
    .index = dcp_torch_dist_lightning_index,
    .disposition = disposition,
    .spelling = DCP_KEYS " " DCP_ATTRIBUTES,
    .open = dcp_torch_dist_open,
    .partition = dcp_partition_by_layout,
    .assign = dcp_torch_dist_assign,
    .finalize = dcp_torch_dist_finalize,
    .finish = dcp_torch_dist_finish,
    .close = dcp_torch_dist_close,
};
