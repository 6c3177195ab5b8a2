/* order: the order in which models of transformers have their parameters, which a
 * safetensors file, sorted by name, has lost. An optimizer's numbers count in it.
 *
 * Source: named_parameters() of the classes in transformers 4.40 to 5.23
 * (models/gpt2, llama, mistral, qwen2, qwen3, gemma, gemma2, bert, gpt_neox). */
#ifndef DCP_FORMATS_MODELS_ORDER_H
#define DCP_FORMATS_MODELS_ORDER_H

#include <dcp/tensor.h>

/* Fills order with the indices of the first n tensors of a catalog, weights of the model
 * in the order that models of that type (NULL: unknown) have them, and the rest behind
 * them. False: it is not known of the type, or of one of the weights. Errors: MEMORY. */
int dcp_hf_order(const char *model_type, const struct dcp_catalog *catalog, size_t n,
                 size_t *order, bool *out_known, struct dcp_error *err);

#endif
