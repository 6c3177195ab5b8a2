/* lineage: where a state comes from. */
#include "base/bytes.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/str.h"
#include <dcp/checkpoint.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void dcp_lineage_read(const struct dcp_catalog *catalog, struct dcp_lineage *out)
{
    DCP_CLEANUP_JSON json_t *root = NULL;
    struct dcp_lineage read = { .parent = -1 };
    int found = dcp_catalog_find_object(catalog, DCP_LINEAGE);

    *out = read;
    if (found < 0 || catalog->objects[found].kind != DCP_OBJECT_JSON)
        return;
    const struct dcp_object *object = &catalog->objects[found];
    if (dcp_json_parse(object->data, object->size_bytes, DCP_LINEAGE, &root, NULL) ||
        dcp_json_get_hex64(root, "run", DCP_LINEAGE, &read.run, NULL))
        return;
    if (dcp_json_get_i64(root, "parent", DCP_LINEAGE, &read.parent, NULL) ||
        read.parent < 0)
        read.parent = -1;
    else if (dcp_json_get_hex64(root, "fingerprint", DCP_LINEAGE, &read.fingerprint,
                                NULL))
        read.fingerprint = 0;
    *out = read;
}

void dcp_lineage_object(const struct dcp_lineage *lineage, char text[DCP_LINEAGE_CAP],
                        struct dcp_object *out)
{
    char parent[80] = "";

    if (lineage->parent >= 0 && lineage->fingerprint)
        snprintf(parent, sizeof parent,
                 ",\"parent\":%" PRId64 ",\"fingerprint\":\"%016" PRIx64 "\"",
                 lineage->parent, lineage->fingerprint);
    else if (lineage->parent >= 0)
        snprintf(parent, sizeof parent, ",\"parent\":%" PRId64, lineage->parent);
    snprintf(text, DCP_LINEAGE_CAP, "{\"run\":\"%016" PRIx64 "\"%s}", lineage->run,
             parent);
    *out = (struct dcp_object){ .name = DCP_LINEAGE,
                                .kind = DCP_OBJECT_JSON,
                                .data = text,
                                .size_bytes = strlen(text) };
}

/* A sum does not depend on the order of the tensors. */
static uint64_t fingerprint_of(const struct dcp_catalog *catalog, bool weights_only)
{
    uint64_t sum = 0;

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        uint64_t name = dcp_hash_xxh3(tensor->name, strlen(tensor->name));
        unsigned char pair[16];
        if (tensor->tied_to || (weights_only && tensor->role != DCP_ROLE_MODEL))
            continue;
        if (!tensor->has_fingerprint)
            return 0;
        dcp_put_le64(pair, name);
        dcp_put_le64(pair + 8, tensor->fingerprint);
        sum += dcp_hash_xxh3(pair, sizeof pair);
    }
    return sum;
}

uint64_t dcp_state_fingerprint(const struct dcp_catalog *catalog)
{
    return fingerprint_of(catalog, false);
}

uint64_t dcp_weights_fingerprint(const struct dcp_catalog *catalog)
{
    return fingerprint_of(catalog, true);
}
