/* A stored block that may be anything, and a raw one.
 *
 * An input is the codec, the width of the elements, the raw size (two bytes) and what is
 * stored. What decodes is coded and decoded again; the stored bytes are also taken as raw
 * ones. */
#include "core/files/codec.h"
#include "lib/exact.h"
#include "lib/must.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static struct dcp_coder *coder;

static void check_round_trip(enum dcp_codec codec, size_t width, const unsigned char *raw,
                             size_t n)
{
    const void *stored;
    size_t stored_n;

    must(!dcp_coder_encode(coder, codec, width, raw, n, &stored, &stored_n, NULL));
    must(stored_n <= n);
    unsigned char *in = exact(stored, stored_n), *back = exact(raw, n);
    memset(back, 0, n);
    must(!dcp_coder_decode(coder, codec, width, in, stored_n, back, n, NULL));
    must(!memcmp(back, raw, n));
    free(in);
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    static const size_t widths[] = { 1, 2, 4, 8, 16 };
    struct dcp_error err = { 0 };

    if (!coder)
        must(!dcp_coder_new(&coder, NULL));
    if (size_bytes < 4 || size_bytes > 65536)
        return 0;
    enum dcp_codec codec = (enum dcp_codec)(data[0] % DCP_N_CODECS);
    size_t width = widths[data[1] % 5], n = (size_t)(data[2] | data[3] << 8) * width;
    n = n ? n : width;
    unsigned char *in = exact(data + 4, size_bytes - 4), *out = malloc(n);
    must(out);
    int rc = dcp_coder_decode(coder, codec, width, in, size_bytes - 4, out, n, &err);
    must(rc == DCP_OK || (rc == DCP_E_CORRUPT && err.message[0]));
    if (!rc)
        check_round_trip(codec, width, out, n);
    check_round_trip(codec, width, in, size_bytes - 4);
    free(in);
    free(out);
    return 0;
}
