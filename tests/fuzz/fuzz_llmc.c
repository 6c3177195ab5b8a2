/* A file that claims to be a model of llm.c. */
#include "formats.h"
#include "lib/fuzz_formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    struct dcp_store store;

    fuzz_store(&store, "x", data, size_bytes);
    const struct dcp_source source = { .store = &store, .name = "x" };
    fuzz_format(&source, &dcp_format_llmc);
    dcp_store_free(&store);
    return 0;
}
