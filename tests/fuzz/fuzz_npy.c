/* A file that claims to be NumPy's. */
#include "formats/numpy/npy.h"
#include "lib/fuzz_formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    fuzz_file(&dcp_format_npy, data, size_bytes);
    return 0;
}
