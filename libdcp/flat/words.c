/* words: dtypes, roles and formats, by number; the digest of bytes. */
#include "abi.h"
#include "base/hash.h"
#include <dcp/format.h>

int32_t dcp_flat_dtype_get(int32_t i, struct dcp_flat_dtype *out)
{
    enum dcp_dtype dtype = (enum dcp_dtype)i;

    if (i < 0 || i >= DCP_N_DTYPES)
        return DCP_E_NOT_FOUND;
    const struct dcp_flat_dtype told = { .name = dcp_dtype_name(dtype),
                                         .torch_name = dcp_dtype_torch_name(dtype),
                                         .size_bytes = dcp_dtype_size(dtype),
                                         .is_float = dcp_dtype_is_float(dtype) };
    dcp_flat_give(out, &told, sizeof told);
    return DCP_OK;
}

int32_t dcp_flat_role_get(int32_t i, const char **out_name)
{
    if (i < 0 || i >= DCP_N_ROLES)
        return DCP_E_NOT_FOUND;
    *out_name = dcp_role_name((enum dcp_role)i);
    return DCP_OK;
}

int32_t dcp_flat_format_get(int32_t i, struct dcp_flat_format *out)
{
    const struct dcp_format *const *formats = dcp_formats();

    for (int32_t k = 0; k < i && *formats; k++)
        formats++;
    if (i < 0 || !*formats)
        return DCP_E_NOT_FOUND;
    const struct dcp_format *format = *formats;
    /* An archive is read as what is in it. */
    unsigned inside = format->packs ? format->packs->flags & DCP_FORMAT_READS : 0;
    unsigned flags = format->flags | inside;
    const struct dcp_flat_format told = { .name = format->name,
                                          .alias = format->alias ? format->alias : "",
                                          .help = format->help,
                                          .suffixes = format->suffixes,
                                          .reads = !!(flags & DCP_FORMAT_READS),
                                          .writes = !!(flags & DCP_FORMAT_WRITES),
                                          .is_dir = !!(flags & DCP_FORMAT_IS_DIR),
                                          .sharded = !!(flags & DCP_FORMAT_SHARDED),
                                          .optim = !!(flags & DCP_FORMAT_OPTIM),
                                          .objects = !!(flags & DCP_FORMAT_OBJECTS) };
    dcp_flat_give(out, &told, sizeof told);
    return DCP_OK;
}

void dcp_flat_bytes_digest(const void *bytes, uint64_t n, uint64_t *out)
{
    *out = dcp_hash_xxh3(bytes, (size_t)n);
}
