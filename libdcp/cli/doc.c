#include "doc.h"

#include "base/mem.h"
#include "base/str.h"
#include "text.h"
#include <math.h>
#include <string.h>

json_t *dcp_doc_new(const char *verb)
{
    return json_pack("{s:s++}", "schema", "dcp.", verb, "/1");
}

json_t *dcp_doc_text(const char *text)
{
    if (!text)
        return json_null();
    if (dcp_str_utf8_ok(text, strlen(text)))
        return json_string(text);
    DCP_CLEANUP_BUF struct dcp_buf escaped = { 0 };
    dcp_text_add_escaped(&escaped, text);
    return escaped.failed ? NULL : json_string((const char *)escaped.data);
}

json_t *dcp_doc_real(double v)
{
    if (isnan(v))
        return json_string("NaN");
    if (isinf(v))
        return json_string(v > 0 ? "Infinity" : "-Infinity");
    return json_real(v);
}

json_t *dcp_doc_u64(uint64_t v)
{
    if (v <= INT64_MAX)
        return json_integer((json_int_t)v);
    return json_sprintf("%llu", (unsigned long long)v);
}

json_t *dcp_doc_hex(uint64_t v)
{
    char text[17];
    dcp_str_hex64(text, v);
    return json_string(text);
}

json_t *dcp_doc_shape(int ndim, const int64_t *shape)
{
    json_t *list = json_array();
    for (int d = 0; d < ndim && list; d++)
        if (dcp_doc_add(list, json_integer(shape[d]))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

json_t *dcp_doc_tags(const struct dcp_marks *marks)
{
    json_t *list = json_array();
    for (int i = 0; i < marks->n_tags && list; i++)
        if (dcp_doc_add(list, dcp_doc_text(marks->tags[i]))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

int dcp_doc_set(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) ? DCP_E_MEMORY : DCP_OK;
}

int dcp_doc_add(json_t *list, json_t *value)
{
    return json_array_append_new(list, value) ? DCP_E_MEMORY : DCP_OK;
}

int dcp_doc_print(FILE *file, const json_t *doc, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *text = doc ? dcp_json_text(doc, 2) : NULL;
    if (!text)
        return dcp_error_memory(err, "the JSON document");
    fputs(text, file);
    fputc('\n', file);
    return DCP_OK;
}
