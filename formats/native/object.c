/* An object of the manifest to the catalog. */
#include "base/hex.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "native.h"
#include <string.h>

int dcp_native_index_object(const json_t *entry, struct dcp_catalog *catalog,
                            struct dcp_error *err)
{
    static const char what[] = "an object of " NATIVE_MANIFEST;
    struct dcp_object object = { .kind = DCP_OBJECT_JSON };
    DCP_CLEANUP_FREE char *text = NULL;
    const char *kind, *hex;

    DCP_TRY(dcp_json_get_text(entry, "name", what, &object.name, err));
    DCP_TRY(dcp_json_get_text(entry, "kind", what, &kind, err));
    if (!strcmp(kind, "json")) {
        const json_t *value = json_object_get(entry, "value");
        if (!value)
            return dcp_error_set(err, DCP_E_CORRUPT, "%s has no value", what);
        if (!(text = dcp_json_text(value, 0)))
            return dcp_error_memory(err, "an object");
        object.size_bytes = strlen(text);
    } else if (strcmp(kind, "bytes")) {
        return dcp_error_set(err, DCP_E_CORRUPT, "%s has no known kind", what);
    } else {
        DCP_TRY(dcp_json_get_text(entry, "hex", what, &hex, err));
        object.kind = DCP_OBJECT_BYTES;
        object.size_bytes = strlen(hex) / 2;
        if (!(text = malloc(object.size_bytes + 1)))
            return dcp_error_memory(err, "an object");
        if (!dcp_hex_parse_all(hex, text))
            return dcp_error_set(err, DCP_E_CORRUPT, "%s is not hexadecimal", what);
    }
    object.data = text;
    return dcp_catalog_add_object(catalog, &object, err);
}
