/* item: how numbers go from rank to rank: one by one, or in blocks of ops/quant.h. */
#include "own.h"

#include "trainer/ops/quant.h"

bool shard_quantizes_weights(const struct shard *s)
{
    return s->options.quantized_weights && s->options.stage == 3;
}

bool shard_quantizes_grads(const struct shard *s)
{
    return s->options.quantized_grads && s->options.stage >= 2 &&
           !s->options.weights_only;
}

/* Norms and biases are a thousandth of a model, so they go as they are; nor does
 * DeepSpeed quantize gradients of one dimension. */
static bool is_quantized(const struct shard *s, int param)
{
    return s->params[param].ndim > 1;
}

int64_t shard_block(const struct shard *s, int param)
{
    bool quantizes = shard_quantizes_weights(s) || shard_quantizes_grads(s);
    return quantizes && is_quantized(s, param) ? QUANT_BLOCK : 1;
}

static struct shard_item item_of(const struct shard *s, int param, bool quantizes,
                                 size_t block_bytes, size_t number_bytes)
{
    if (!quantizes)
        return (struct shard_item){ 1, number_bytes, false };
    if (is_quantized(s, param))
        return (struct shard_item){ QUANT_BLOCK, block_bytes, true };
    return (struct shard_item){ (int64_t)(block_bytes / number_bytes), block_bytes,
                                false };
}

struct shard_item shard_weight_item(const struct shard *s, int param)
{
    return item_of(s, param, shard_quantizes_weights(s), sizeof(struct quant8),
                   shard_weight_bytes(s));
}

struct shard_item shard_grad_item(const struct shard *s, int param)
{
    return item_of(s, param, shard_quantizes_grads(s), sizeof(struct quant4),
                   shard_grad_bytes(s));
}

int64_t shard_count_items(struct shard *s, int unit, int world_size, shard_cut *cut,
                          struct shard_item (*item_of_param)(const struct shard *s,
                                                             int param))
{
    int64_t begin, end, most = 0;
    for (int r = 0; r < world_size; r++) {
        s->counts[r] = 0;
        for (int p = s->unit_first[unit]; p < s->unit_first[unit + 1]; p++) {
            cut(s, p, r, &begin, &end);
            s->counts[r] += shard_n_items(item_of_param(s, p), end - begin);
        }
        most = s->counts[r] > most ? s->counts[r] : most;
    }
    return most;
}

size_t shard_travel_bytes(const struct shard *s, int unit,
                          struct shard_item (*item_of_param)(const struct shard *s,
                                                             int param))
{
    size_t size_bytes = 0;
    for (int p = s->unit_first[unit]; p < s->unit_first[unit + 1]; p++) {
        struct shard_item item = item_of_param(s, p);
        int64_t n = shard_n_items(item, s->params[p].n_elems);
        if (!item.quantized && item.n > 1) /* each rank's last one is filled up */
            n += s->inner->world_size;
        size_bytes += (size_t)n * item.size_bytes;
    }
    return size_bytes;
}
