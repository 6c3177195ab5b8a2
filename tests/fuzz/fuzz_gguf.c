/* A file that claims to be GGUF. */
#include "formats/gguf/gguf.h"
#include "lib/fuzz_formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    fuzz_file(&dcp_format_gguf, data, size_bytes);
    return 0;
}
