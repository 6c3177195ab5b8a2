/* The pickle of a Trainer's optimizer beside weights of safetensors. An odd first byte:
 * config.json tells their order; else nobody knows it. */
#include "formats/hf/trainer.h"
#include "lib/fuzz_formats.h"
#include "lib/torch_zip.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static const char config[] = "{\"model_type\":\"gpt2\"}";
static const char header[] =
    "{\"h.0.attn.c_proj.weight\":{\"dtype\":\"F32\",\"shape\":[1,4],"
    "\"data_offsets\":[0,16]},"
    "\"ln_f.bias\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,32]},"
    "\"ln_f.weight\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[32,48]},"
    "\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[48,80]}}";

static void add_file(struct dcp_store *store, const char *name, const void *data,
                     size_t size_bytes)
{
    if (dcp_store_write_file(store, name, data, size_bytes, NULL))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    unsigned char weights[8 + sizeof header - 1 + 80] = { (sizeof header - 1) & 255,
                                                          (sizeof header - 1) >> 8 };
    struct dcp_store store = { 0 };
    size_t n;

    if (!size_bytes)
        return 0;
    memcpy(weights + 8, header, sizeof header - 1);
    unsigned char *file = torch_zip_make(data + 1, size_bytes - 1, "3\n", NULL, &n);
    fuzz_store(&store, "optimizer.pt", file, n);
    free(file);
    add_file(&store, "model.safetensors", weights, sizeof weights);
    if (data[0] & 1)
        add_file(&store, "config.json", config, sizeof config - 1);
    const struct dcp_source source = { .store = &store, .name = "", .is_dir = true };
    fuzz_format(&source, &dcp_format_hf_trainer);
    dcp_store_free(&store);
    return 0;
}
