/* megatron: files that Megatron-LM writes without its distributed format, one for each
 * tensor- and pipeline-parallel rank, mp_rank_00_001/model_optim_rng.pt: {"args":
 * Namespace, "checkpoint_version", "model", …}. With several ranks each has a part of
 * every weight, or of the layers, and does not say how it was cut. */
#include "base/mem.h"
#include "torch_save.h"

static int64_t count_of(const struct dcp_pickle_node *args, const char *key)
{
    const struct dcp_pickle_node *value = dcp_pickle_get(args, key);

    return value && value->kind == DCP_PICKLE_INT ? value->number : 1;
}

int dcp_torch_refuse_megatron(const struct dcp_torch_file *file, struct dcp_error *err)
{
    const struct dcp_pickle_node *root = file->tree;
    const struct dcp_pickle_node *args = dcp_pickle_get(root, "args");

    if (!args || args->kind != DCP_PICKLE_OBJECT || !args->object->state ||
        !dcp_pickle_get(root, "checkpoint_version") ||
        (!dcp_pickle_get(root, "model") && !dcp_pickle_get(root, "model0")))
        return DCP_OK;
    args = args->object->state;
    int64_t tensor = count_of(args, "tensor_model_parallel_size");
    int64_t pipeline = count_of(args, "pipeline_model_parallel_size");
    if (tensor <= 1 && pipeline <= 1)
        return DCP_OK;
    dcp_error_set(
        err, DCP_E_UNSUPPORTED,
        "'%s' is one part of a model: Megatron-LM cut it for %lld tensor-parallel "
        "and %lld pipeline-parallel ranks",
        file->in.shown, (long long)tensor, (long long)pipeline);
    dcp_error_hint(err,
                   "save it by Megatron-LM with --ckpt-convert-format torch_dist, and "
                   "give the folder of that");
    return DCP_E_UNSUPPORTED;
}
