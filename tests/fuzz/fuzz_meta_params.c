/* params.json of a folder of Meta's, with the tensors of one layer beside it. */
#include "formats/meta_llama/meta_llama.h"
#include "lib/fuzz_formats.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

#define TENSOR(name, shape, begin, end)                                              \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" shape "],\"data_offsets\":[" #begin \
    "," #end "]},"

static const char header[] = "{" TENSOR("tok_embeddings.weight", "2,4", 0, 8)
    TENSOR("layers.0.attention.wq.weight", "4,4", 8, 24)
        TENSOR("layers.0.attention.wk.weight", "2,4", 24, 32)
            TENSOR("layers.0.feed_forward.w1.weight", "3,4", 32,
                   44) "\"layers.0.attention_norm.weight\":{\"dtype\":\"U8\",\"shape\":["
                       "4],\"data_offsets\":"
                       "[44,48]}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    size_t n = sizeof header - 1;
    unsigned char weights[8 + sizeof header - 1 + 48] = { (unsigned char)n,
                                                          (unsigned char)(n >> 8) };
    struct dcp_store store;

    memcpy(weights + 8, header, n);
    fuzz_store(&store, "params.json", data, size_bytes);
    if (dcp_store_write_file(&store, "consolidated.safetensors", weights, sizeof weights,
                             NULL))
        abort();
    const struct dcp_source source = { .store = &store, .name = "", .is_dir = true };
    fuzz_format(&source, &dcp_format_meta_llama);
    dcp_store_free(&store);
    return 0;
}
