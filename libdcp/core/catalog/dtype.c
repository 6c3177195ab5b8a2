/* Sizes and names of element types, roles and codecs. */
#include "base/mem.h"
#include <dcp/tensor.h>
#include <string.h>
#include <strings.h>

static const struct {
    size_t size_bytes;
    const char *name, *torch_name;
} dtypes[DCP_N_DTYPES] = {
#define DCP_X(code, size, st, torch) [DCP_##code] = { size, st, torch },
    DCP_DTYPE_TABLE(DCP_X)
#undef DCP_X
};

static const struct {
    const char *name;
    enum dcp_dtype dtype;
} aliases[] = {
    { "fp32", DCP_F32 },         { "float", DCP_F32 },
    { "fp16", DCP_F16 },         { "half", DCP_F16 },
    { "bf16", DCP_BF16 },        { "fp64", DCP_F64 },
    { "double", DCP_F64 },       { "fp8_e4m3", DCP_F8_E4M3 },
    { "fp8_e5m2", DCP_F8_E5M2 }, { "float8_e4m3", DCP_F8_E4M3 },
};

size_t dcp_dtype_size(enum dcp_dtype dtype)
{
    return dtypes[dtype].size_bytes;
}

const char *dcp_dtype_name(enum dcp_dtype dtype)
{
    return dtypes[dtype].name;
}

const char *dcp_dtype_torch_name(enum dcp_dtype dtype)
{
    return dtypes[dtype].torch_name;
}

int dcp_dtype_parse(const char *text)
{
    if (strncasecmp(text, "torch.", 6) == 0)
        text += 6;
    for (int d = 0; d < DCP_N_DTYPES; d++)
        if (!strcasecmp(text, dtypes[d].name) || !strcasecmp(text, dtypes[d].torch_name))
            return d;
    for (size_t i = 0; i < DCP_ARRAY_LEN(aliases); i++)
        if (!strcasecmp(text, aliases[i].name))
            return (int)aliases[i].dtype;
    return -1;
}

bool dcp_dtype_is_float(enum dcp_dtype dtype)
{
    switch (dtype) {
    case DCP_F64:
    case DCP_F32:
    case DCP_F16:
    case DCP_BF16:
    case DCP_F8_E5M2:
    case DCP_F8_E4M3:
    case DCP_F8_E5M2FNUZ:
    case DCP_F8_E4M3FNUZ:
    case DCP_F8_E8M0:
        return true;
    default:
        return false;
    }
}

static const char *const role_names[DCP_N_ROLES] = {
    [DCP_ROLE_MODEL] = "model",           [DCP_ROLE_BUFFER] = "buffer",
    [DCP_ROLE_MASTER] = "master",         [DCP_ROLE_EXP_AVG] = "exp_avg",
    [DCP_ROLE_EXP_AVG_SQ] = "exp_avg_sq", [DCP_ROLE_OPTIM] = "optim",
    [DCP_ROLE_OTHER] = "other",
};

static const char *const codec_names[] = {
    [DCP_CODEC_NONE] = "none",
    [DCP_CODEC_ZSTD] = "zstd",
    [DCP_CODEC_PLANES] = "planes",
    [DCP_CODEC_SPLIT] = "split",
    [DCP_CODEC_ZSTD_STREAM] = "zstd stream",
    [DCP_CODEC_DEFLATE_STREAM] = "deflate stream",
};

static int name_index(const char *const *names, int n, const char *text)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], text))
            return i;
    return -1;
}

const char *dcp_role_name(enum dcp_role role)
{
    return role_names[role];
}

int dcp_role_parse(const char *text)
{
    return name_index(role_names, DCP_N_ROLES, text);
}

bool dcp_role_is_optim(enum dcp_role role)
{
    return role == DCP_ROLE_MASTER || role == DCP_ROLE_EXP_AVG ||
           role == DCP_ROLE_EXP_AVG_SQ || role == DCP_ROLE_OPTIM;
}

const char *dcp_codec_name(enum dcp_codec codec)
{
    return codec_names[codec];
}

int dcp_codec_parse(const char *text)
{
    return name_index(codec_names, DCP_N_CODECS, text);
}
