/* A state of llm.c beside a sound model of one layer, two channels and two words. The
 * ranks of a run of two have the same bytes. */
#include "base/bytes.h"
#include "formats/llmc/llmc.h"
#include "formats/llmc/run.h"
#include "lib/fuzz_formats.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static void add_file(struct dcp_store *store, const char *name, const void *data,
                     size_t size_bytes)
{
    if (dcp_store_write_file(store, name, data, size_bytes, NULL))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    static const uint32_t header[] = { DCP_LLMC_MODEL_MAGIC, 3, 2, 2, 1, 1, 2, 4 };
    static unsigned char model[DCP_LLMC_HEADER_BYTES + 4 * 90];
    unsigned char *second = malloc(size_bytes + 1);
    struct dcp_store store;

    for (size_t i = 0; i < sizeof header / sizeof *header; i++)
        dcp_put_le32(model + 4 * i, header[i]);
    fuzz_store(&store, "model_00000001.bin", model, sizeof model);
    add_file(&store, "DONE_00000001", "", 0);
    add_file(&store, "state_00000001_00000.bin", data, size_bytes);
    memcpy(second, data, size_bytes);
    if (size_bytes >= 16)
        dcp_put_le32(second + 12, 1);
    add_file(&store, "state_00000001_00001.bin", second, size_bytes);
    const struct dcp_source source = { .store = &store, .name = "", .is_dir = true };
    fuzz_format(&source, &dcp_format_llmc_run);
    dcp_store_free(&store);
    free(second);
    return 0;
}
