/* A file that claims to be safetensors. */
#include "formats/safetensors/safetensors.h"
#include "lib/fuzz_formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    fuzz_file(&dcp_format_safetensors, data, size_bytes);
    return 0;
}
