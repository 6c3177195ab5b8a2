/* A file that claims to be a tar archive of the first torch.save. */
#include "formats/torch_save/torch_save.h"
#include "lib/fuzz_formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    fuzz_file(&dcp_format_torch, data, size_bytes);
    return 0;
}
