#include "tar_header.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_OCTAL (((uint64_t)1 << 33) - 1) /* 11 digits */

/* A header record; POSIX calls it ustar. */
static void record(unsigned char out[TAR_RECORD], const char *name, char kind,
                   unsigned mode, uint64_t size_bytes)
{
    char *text = (char *)out;
    unsigned sum = 0;

    memset(out, 0, TAR_RECORD);
    memcpy(out, name, strnlen(name, TAR_MAX_NAME));
    snprintf(text + 100, 8, "%07o", mode);
    snprintf(text + 108, 8, "%07o", 0u); /* user */
    snprintf(text + 116, 8, "%07o", 0u); /* group */
    snprintf(text + 124, 12, "%011" PRIo64, size_bytes);
    snprintf(text + 136, 12, "%011o", 0u); /* time */
    memset(out + 148, ' ', 8);             /* the sum counts itself as blanks */
    out[156] = (unsigned char)kind;
    memcpy(out + 257,
           "ustar\0"
           "00",
           8);
    snprintf(text + 329, 8, "%07o", 0u);
    snprintf(text + 337, 8, "%07o", 0u);
    for (int i = 0; i < TAR_RECORD; i++)
        sum += out[i];
    snprintf(text + 148, 8, "%06o", sum);
}

size_t dcp_tar_header(unsigned char out[TAR_MAX_HEADER], const char *name, bool is_dir,
                      uint64_t size_bytes)
{
    char path[TAR_MAX_NAME + 2], text[64];
    size_t at = 0;

    snprintf(path, sizeof path, "%s%s", name, is_dir ? "/" : "");
    if (size_bytes > MAX_OCTAL) {
        /* "<length> size=<bytes>\n", where the length counts its own digits: two */
        int digits = snprintf(text, sizeof text, "%" PRIu64, size_bytes);
        int n =
            snprintf(text, sizeof text, "%d size=%" PRIu64 "\n", digits + 9, size_bytes);
        record(out, "PaxHeaders/size", 'x', 0644, (uint64_t)n);
        memset(out + TAR_RECORD, 0, TAR_RECORD);
        memcpy(out + TAR_RECORD, text, (size_t)n);
        at = (size_t)2 * TAR_RECORD;
    }
    record(out + at, path, is_dir ? '5' : '0', is_dir ? 0755 : 0644, at ? 0 : size_bytes);
    return at + TAR_RECORD;
}

size_t dcp_tar_padding(uint64_t size_bytes)
{
    return (size_t)(-size_bytes % TAR_RECORD);
}
