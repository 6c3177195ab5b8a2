/* weights: the table of names. */
#include "weights.h"
#include "base/mem.h"
#include "dcp_shards.h"
#include "input.h"
#include "safetensors.h"
#include "sharded.h"
#include "torch.h"

#define DIFFUSERS "diffusion_pytorch_model.safetensors"

enum {
    ALL = DCP_WEIGHTS_HF | DCP_WEIGHTS_TRAINER | DCP_WEIGHTS_SAFETENSORS,
    MODEL = DCP_WEIGHTS_HF | DCP_WEIGHTS_TRAINER,
    ADAPTER = DCP_WEIGHTS_TRAINER | DCP_WEIGHTS_SAFETENSORS
};

static const struct dcp_weights table[] = {
    { "model.safetensors", ALL, false, false, dcp_safetensors_index_file },
    { "model.safetensors.index.json", ALL, true, false, dcp_safetensors_index_file },
    { "pytorch_model.bin", MODEL, false, true, dcp_torch_index_file },
    { "pytorch_model.bin.index.json", MODEL, true, true, dcp_torch_index_file },
    { "pytorch_model_fsdp.bin", DCP_WEIGHTS_TRAINER, false, true, dcp_torch_index_file },
    { "adapter_model.safetensors", ADAPTER, false, false, dcp_safetensors_index_file },
    { "adapter_model.safetensors.index.json", ADAPTER, true, false,
      dcp_safetensors_index_file },
    { DIFFUSERS, DCP_WEIGHTS_SAFETENSORS, false, false, dcp_safetensors_index_file },
    { DIFFUSERS ".index.json", DCP_WEIGHTS_SAFETENSORS, true, false,
      dcp_safetensors_index_file },
};

const struct dcp_weights *dcp_weights_find(const struct dcp_source *source, unsigned of)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(table); i++)
        if (table[i].of & of && dcp_source_has(source, table[i].name))
            return &table[i];
    return NULL;
}

int dcp_weights_index(const struct dcp_source *source, const struct dcp_weights *weights,
                      struct dcp_catalog *catalog, struct dcp_error *err)
{
    if (weights->is_index)
        return dcp_sharded_index(source, weights->name, weights->index_file, catalog,
                                 err);
    int rc = weights->index_file(source, weights->name, catalog, err);
    return rc ? rc : dcp_shards_refuse(catalog, err);
}
