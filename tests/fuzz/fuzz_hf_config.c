/* The config.json and the index of a Hugging Face folder. The bytes up to the first NUL
 * are the configuration, those behind it the index. */
#include "formats/hf/hf.h"
#include "lib/fuzz_formats.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

/* One tensor of each kind that the naming rules know. */
static const char header[] =
    "{\"h.0.attn.bias\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
    "\"lm_head.weight\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]},"
    "\"wte.weight\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}";

static void add_file(struct dcp_store *store, const char *name, const void *data,
                     size_t size_bytes)
{
    if (dcp_store_write_file(store, name, data, size_bytes, NULL))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    const uint8_t *nul = size_bytes ? memchr(data, 0, size_bytes) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size_bytes;
    unsigned char weights[8 + sizeof header - 1 + 4] = { sizeof header - 1 };
    struct dcp_store store;

    memcpy(weights + 8, header, sizeof header - 1);
    fuzz_store(&store, "config.json", data, n);
    if (nul) {
        add_file(&store, "model.safetensors.index.json", nul + 1, size_bytes - n - 1);
        add_file(&store, "model-00001-of-00001.safetensors", weights, sizeof weights);
    } else {
        add_file(&store, "model.safetensors", weights, sizeof weights);
    }
    const struct dcp_source source = { .store = &store, .name = "", .is_dir = true };
    fuzz_format(&source, &dcp_format_hf);
    dcp_store_free(&store);
    return 0;
}
