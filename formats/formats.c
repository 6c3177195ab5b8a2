/* formats: the table of formats, and which of them a file or a name belongs to. */
#include "formats.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/deepspeed/deepspeed.h"
#include "formats/deepspeed/universal.h"
#include "formats/fsdp/fsdp.h"
#include "formats/gguf/gguf.h"
#include "formats/hf/hf.h"
#include "formats/hf/trainer.h"
#include "formats/llmc/llmc.h"
#include "formats/llmc/run.h"
#include "formats/meta_llama/meta_llama.h"
#include "formats/native/native.h"
#include "formats/numpy/npy.h"
#include "formats/numpy/npz.h"
#include "formats/safetensors/safetensors.h"
#include "formats/safetensors/sharded.h"
#include "formats/torch_dist/torch_dist.h"
#include "formats/torch_save/torch_save.h"
#include <string.h>

static const struct dcp_format *const formats[] = {
    &dcp_format_native,      &dcp_format_bundle,
    &dcp_format_safetensors, &dcp_format_safetensors_sharded,
    &dcp_format_torch,       &dcp_format_hf,
    &dcp_format_hf_trainer,  &dcp_format_fsdp_ranks,
    &dcp_format_npy,         &dcp_format_npz,
    &dcp_format_torch_dist,  &dcp_format_gguf,
    &dcp_format_llmc,        &dcp_format_llmc_run,
    &dcp_format_meta_llama,  &dcp_format_deepspeed,
    &dcp_format_universal,   NULL,
};

const struct dcp_format *const *dcp_formats(void)
{
    return formats;
}

const struct dcp_format *dcp_format_find(const char *name)
{
    for (size_t i = 0; formats[i]; i++)
        if (!strcmp(formats[i]->name, name) ||
            (formats[i]->alias && !strcmp(formats[i]->alias, name)))
            return formats[i];
    return NULL;
}

const struct dcp_format *dcp_format_of_steps(void)
{
    size_t i = 0;

    while (!(formats[i]->flags & DCP_FORMAT_STEPS))
        i++;
    return formats[i];
}

/* Whether one of the blank-separated suffixes ends the name. */
static bool has_suffix(const char *name, const char *suffixes)
{
    size_t name_len = strlen(name);

    while (*suffixes) {
        size_t n = strcspn(suffixes, " ");
        if (n && n < name_len && !memcmp(name + name_len - n, suffixes, n))
            return true;
        suffixes += n + (suffixes[n] == ' ');
    }
    return false;
}

const struct dcp_format *dcp_format_for_suffix(const char *name)
{
    for (size_t i = 0; formats[i]; i++)
        if ((formats[i]->flags & DCP_FORMAT_WRITES) &&
            has_suffix(name, formats[i]->suffixes))
            return formats[i];
    return NULL;
}

int dcp_format_probe(const struct dcp_source *source,
                     const struct dcp_format **out_format, struct dcp_error *err)
{
    const struct dcp_format *best = NULL;
    int best_bid = 0;

    for (size_t i = 0; formats[i]; i++) {
        int bid = formats[i]->flags & DCP_FORMAT_READS ? formats[i]->probe(source) : 0;
        if (bid > best_bid) {
            best_bid = bid;
            best = formats[i];
        }
    }
    *out_format = best;
    return best ? DCP_OK : dcp_format_unknown(source, err);
}

int dcp_format_probe_links(struct dcp_store *store, const struct dcp_source *source,
                           const struct dcp_format **out_format, struct dcp_error *err)
{
    dcp_store_dir_follow(store, true);
    int rc = dcp_format_probe(source, out_format, err);
    if (!rc && (*out_format)->flags & DCP_FORMAT_STEPS)
        dcp_store_dir_follow(store, false);
    return rc;
}
