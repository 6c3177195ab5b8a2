/* weights: the table of names. */
#include "weights.h"
#include "base/mem.h"
#include "formats/common/input.h"
#include "formats/safetensors/parts.h"
#include "formats/safetensors/safetensors.h"
#include "formats/safetensors/sharded.h"
#include "formats/torch/torch.h"
#include "formats/torch_save/torch_save.h"

enum { BOTH = DCP_WEIGHTS_HF | DCP_WEIGHTS_TRAINER };

static const struct dcp_weights table[] = {
    { "model.safetensors", BOTH, false, false, dcp_safetensors_index_file },
    { "model.safetensors.index.json", BOTH, true, false, dcp_safetensors_index_file },
    { "pytorch_model.bin", BOTH, false, true, dcp_torch_index_file },
    { "pytorch_model.bin.index.json", BOTH, true, true, dcp_torch_index_file },
    { "pytorch_model_fsdp.bin", DCP_WEIGHTS_TRAINER, false, true, dcp_torch_index_file },
    { "adapter_model.safetensors", DCP_WEIGHTS_TRAINER, false, false,
      dcp_safetensors_index_file },
    { "adapter_model.safetensors.index.json", DCP_WEIGHTS_TRAINER, true, false,
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
    DCP_TRY(weights->index_file(source, weights->name, catalog, err));
    return dcp_parts_refuse(catalog, err);
}
