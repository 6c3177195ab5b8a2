/* The pickles of a rank's files of FSDP: two bytes say how long that of the model is,
 * that of the optimizer follows. */
#include "formats/fsdp/fsdp.h"
#include "lib/fuzz_formats.h"
#include "lib/torch_zip.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static void put(struct dcp_store *store, const char *name, const uint8_t *pickle,
                size_t size_bytes)
{
    size_t n;
    unsigned char *file = torch_zip_make(pickle, size_bytes, "3\n", NULL, &n);

    if (!store->ops)
        fuzz_store(store, name, file, n);
    else if (dcp_store_write_file(store, name, file, n, NULL))
        abort();
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    struct dcp_store store = { 0 };

    if (size_bytes < 2)
        return 0;
    size_t n = (size_t)data[0] | (size_t)data[1] << 8, rest = size_bytes - 2;
    n = n < rest ? n : rest;
    put(&store, "model_world_size_1_rank_0.pt", data + 2, n);
    put(&store, "optim_world_size_1_rank_0.pt", data + 2 + n, rest - n);
    const struct dcp_source source = { .store = &store, .name = "", .is_dir = true };
    fuzz_format(&source, &dcp_format_fsdp_ranks);
    dcp_store_free(&store);
    return 0;
}
