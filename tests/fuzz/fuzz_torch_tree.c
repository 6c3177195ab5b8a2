/* The data.pkl of a sound PyTorch file: no checksum stands between the fuzzer and the
 * code that reads tensors from the tree. */
#include "formats/torch_save/torch_save.h"
#include "lib/fuzz_formats.h"
#include "lib/torch_zip.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    struct dcp_store store;
    size_t n;
    unsigned char *file = torch_zip_make(data, size_bytes, "3\n", NULL, &n);

    fuzz_store(&store, "x", file, n);
    free(file);
    const struct dcp_source source = { .store = &store, .name = "x" };
    fuzz_format(&source, &dcp_format_torch);
    dcp_store_free(&store);
    return 0;
}
