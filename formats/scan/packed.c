/* packed: files whose content is hidden from a search, by how they begin. */
#include "base/mem.h"
#include "base/str.h"
#include "scan.h"
#include <string.h>

static const struct {
    size_t at;
    const char *bytes;
    size_t n;
} magics[] = {
    { 0, "\x1f\x8b", 2 }, /* gzip */
    { 0, "\x1f\x9d", 2 }, /* compress */
    { 0, "BZh", 3 },      /* bzip2 */
    { 0,
      "\xfd"
      "7zXZ",
      5 },                        /* xz */
    { 0, "\x5d\0\0", 3 },         /* lzma */
    { 0, "\x28\xb5\x2f\xfd", 4 }, /* zstd */
    { 1, "\x2a\x4d\x18", 3 },     /* zstd, lz4: a frame that is skipped */
    { 0, "\x04\x22\x4d\x18", 4 }, /* lz4 */
    { 0, "7z\xbc\xaf", 4 },       /* 7-Zip */
    { 0, "Rar!", 4 },
    { 0, "PK\3\4", 4 }, /* zip, in another archive */
    { 257, "ustar", 5 },
};

/* zlib has two bytes, which text may begin with, too: "x^" is no formula where the name
 * is that of a pickle. */
static bool is_zlib(const unsigned char *head, size_t n, const char *name)
{
    if (n < 2 || head[0] != 0x78)
        return false;
    return head[1] == 0x01 || head[1] == 0x9c || head[1] == 0xda ||
           (head[1] == 0x5e &&
            (dcp_scan_is_named_pickle(name) || dcp_str_ends(name, ".z")));
}

bool dcp_scan_is_packed(const unsigned char *head, size_t n, const char *name)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(magics); i++)
        if (n >= magics[i].at + magics[i].n &&
            !memcmp(head + magics[i].at, magics[i].bytes, magics[i].n))
            return true;
    return is_zlib(head, n, name);
}

bool dcp_scan_is_named_pickle(const char *name)
{
    static const char *const suffixes[] = { ".pkl", ".pickle", ".pt",
                                            ".pth", ".ckpt",   ".joblib" };

    for (size_t i = 0; i < DCP_ARRAY_LEN(suffixes); i++)
        if (dcp_str_ends(name, suffixes[i]))
            return true;
    return false;
}

int dcp_scan_pass_over(const struct dcp_scan *scan, const char *where,
                       struct dcp_error *err)
{
    const struct dcp_global global = { .file = scan->file,
                                       .where = where,
                                       .name = DCP_GLOBAL_UNSEARCHED,
                                       .kind = DCP_GLOBAL_UNKNOWN };

    return scan->visit->take(scan->visit->self, &global, err);
}
