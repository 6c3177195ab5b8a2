/* parts: what a safetensors file says of tensors that go on in other files. */
#include "parts.h"
#include "base/json.h"
#include "base/str.h"
#include "formats/common/training.h"
#include <string.h>

#define OFFSETS "saved_offsets"

int dcp_parts_read(const struct dcp_catalog *catalog, json_t **out, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *metadata = NULL;
    int rc = dcp_training_read(catalog, DCP_SAFETENSORS_METADATA, &metadata, err);
    const char *text = json_string_value(json_object_get(metadata, DCP_PARTS_INFO));

    *out = NULL;
    return rc || !text ? rc
                       : dcp_json_parse(text, strlen(text), DCP_PARTS_INFO, out, err);
}

bool dcp_parts_offset(json_t *info, const struct dcp_tensor *tensor,
                      int64_t out[DCP_MAX_NDIM])
{
    json_t *offsets = json_object_get(json_object_get(info, tensor->name), OFFSETS);

    if (!json_is_array(offsets) || json_array_size(offsets) != (size_t)tensor->ndim)
        return false;
    for (int d = 0; d < tensor->ndim; d++) {
        const json_t *v = json_array_get(offsets, (size_t)d);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return false;
        out[d] = json_integer_value(v);
    }
    return true;
}

int dcp_parts_refuse(const struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *info = NULL;
    int64_t offset[DCP_MAX_NDIM];
    int rc = dcp_parts_read(catalog, &info, err);

    for (size_t t = 0; t < catalog->n_tensors && !rc && info; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        bool part = false;
        if (!dcp_parts_offset(info, tensor, offset))
            continue;
        for (int d = 0; d < tensor->ndim; d++)
            part |= offset[d] > 0;
        if (!part)
            continue;
        dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' holds only a part of tensor '%s'",
                      catalog->files[0].name, DCP_SHOWN(tensor->name));
        dcp_error_hint(err,
                       "save it with HuggingFaceStorageWriter(save_distributed=True)");
        return DCP_E_UNSUPPORTED;
    }
    return rc;
}
