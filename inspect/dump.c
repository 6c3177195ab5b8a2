/* dump: the numbers of a slice, or an object. */
#include "verbs.h"

#include "base/mem.h"
#include "base/str.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/text.h"
#include "dump_array.h"
#include <stdio.h>
#include <string.h>

#define SUMMARY_ELEMS 1000                   /* longer slices show their edges */
#define DOC_ELEMS (INT64_C(8) * 1024 * 1024) /* a document of more is refused */

struct settings {
    const char *object;
    int64_t precision;
    bool full, no_verify;
};

/* "name[0:4]": the whole text is a name if there is such a tensor. */
static int find_slice(const struct inspect_checkpoint *checkpoint, const char *text,
                      int *out_tensor, struct inspect_slice *out, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = checkpoint->catalog;
    *out_tensor = dcp_catalog_find(catalog, text);
    size_t n = *out_tensor < 0 ? inspect_slice_name(text) : strlen(text);
    if (*out_tensor < 0) {
        DCP_CLEANUP_FREE char *name = strndup(text, n);
        if (!name)
            return dcp_error_memory(err, "a name");
        DCP_TRY(inspect_find(checkpoint, name, out_tensor, err));
    }
    const struct dcp_tensor *t = &catalog->tensors[*out_tensor];
    return inspect_slice_parse(text + n, t->ndim, t->shape, out, err);
}

static void put_head(struct dcp_main *m, const struct settings *settings,
                     const struct dcp_tensor *t, const char *slice)
{
    DCP_CLEANUP_BUF struct dcp_buf name = { 0 };
    dcp_text_add_escaped(&name, slice);
    dcp_term_printf(&m->out, "%s%s%s  %s %s%s\n", dcp_term_style(&m->out, DCP_STYLE_BOLD),
                    name.failed ? "" : (const char *)name.data,
                    dcp_term_style(&m->out, DCP_STYLE_OFF), dcp_dtype_name(t->dtype),
                    dcp_human_shape(t->ndim, t->shape).text,
                    settings->no_verify ? "  " INSPECT_NOT_VERIFIED : "");
}

static int add_json(json_t *list, const struct inspect_array *array, const char *slice)
{
    int64_t shape[DCP_MAX_NDIM];
    const struct dcp_tensor *t = array->tensor;
    int ndim = inspect_slice_shape(&array->slice, shape);
    return dcp_doc_add(
        list,
        json_pack("{s:o, s:o, s:s, s:o, s:o, s:o}", "slice", dcp_doc_text(slice),
                  "tensor", dcp_doc_text(t->name), "dtype", dcp_dtype_name(t->dtype),
                  "tensor_shape", dcp_doc_shape(t->ndim, t->shape), "shape",
                  dcp_doc_shape(ndim, shape), "values", inspect_array_json(array)));
}

static int dump_slice(struct dcp_main *m, const struct settings *settings,
                      struct inspect_checkpoint *checkpoint, const char *text,
                      json_t *list, struct dcp_error *err)
{
    struct inspect_slice slice;
    struct inspect_array array;
    int tensor;
    int rc = find_slice(checkpoint, text, &tensor, &slice, err);
    if (rc)
        return rc;
    int64_t most = m->json || settings->full ? 0 : SUMMARY_ELEMS;
    if (m->json && inspect_slice_elems(&slice) > DOC_ELEMS) {
        dcp_error_set(err, DCP_E_USAGE, "'%s' has %s elements, too many for a document",
                      text, dcp_human_count((uint64_t)inspect_slice_elems(&slice)).text);
        dcp_error_hint(err, "take a slice, or export the tensor");
        return DCP_E_USAGE;
    }
    DCP_TRY(inspect_array_read(checkpoint, tensor, &slice, most, &array, err));
    if (m->json) {
        if (add_json(list, &array, text))
            rc = dcp_error_memory(err, "the JSON document");
    } else {
        put_head(m, settings, array.tensor, text);
        rc = inspect_array_print(m, &array, (int)settings->precision, err);
    }
    inspect_array_fini(&array);
    return rc;
}

static int dump_object(struct dcp_main *m, const struct inspect_checkpoint *checkpoint,
                       const char *name, json_t *doc, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = checkpoint->catalog;
    int i = dcp_catalog_find_object(catalog, name);
    if (i < 0) {
        dcp_error_set(err, DCP_E_NOT_FOUND, "'%s' has no object '%s'",
                      checkpoint->location.path, name);
        dcp_error_hint(err, "'dcp-inspect show %s' names them",
                       checkpoint->location.path);
        return DCP_E_NOT_FOUND;
    }
    const struct dcp_object *object = &catalog->objects[i];
    DCP_CLEANUP_JSON json_t *value = NULL;
    if (object->kind != DCP_OBJECT_JSON)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "the object '%s' is %llu opaque bytes, not JSON", name,
                             (unsigned long long)object->size_bytes);
    int rc = dcp_json_parse(object->data, object->size_bytes, name, &value, err);
    if (rc)
        return rc;
    if (!m->json)
        return dcp_doc_print(m->out.file, value, err);
    rc |= dcp_doc_set(doc, "object", dcp_doc_text(name));
    rc |= dcp_doc_set(doc, "value", json_incref(value));
    return rc ? dcp_error_memory(err, "the JSON document") : DCP_OK;
}

static int dump(struct dcp_main *m, const struct settings *settings,
                struct inspect_checkpoint *checkpoint, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("dump");
    json_t *list = json_array();
    const struct dcp_catalog *catalog = checkpoint->catalog;
    if (dcp_doc_set(doc, "path", dcp_doc_text(checkpoint->location.path)) ||
        dcp_doc_set(doc, "verified", json_boolean(!settings->no_verify)) ||
        dcp_doc_set(doc, "slices", list))
        return dcp_error_memory(err, "the JSON document");
    int rc = inspect_reader(checkpoint, !settings->no_verify, err);
    if (rc)
        return rc;
    if (settings->object)
        rc = dump_object(m, checkpoint, settings->object, doc, err);
    else if (m->operands.n == 1 && catalog->n_tensors == 1)
        rc = dump_slice(m, settings, checkpoint, catalog->tensors[0].name, list, err);
    else if (m->operands.n == 1)
        rc = dcp_error_set(err, DCP_E_USAGE, "which tensor? 'NAME' or 'NAME[0:4,:8]'");
    for (size_t i = 1; i < m->operands.n && rc == DCP_OK && dcp_main_is_read(m); i++) {
        if (i > 1 && !m->json)
            dcp_term_put(&m->out, "\n");
        rc = dump_slice(m, settings, checkpoint, m->operands.items[i], list, err);
    }
    if (rc == DCP_OK && m->json)
        rc = dcp_doc_print(m->out.file, doc, err);
    return rc;
}

static int run(struct dcp_main *m, const void *given, struct dcp_error *err)
{
    struct inspect_checkpoint checkpoint;
    DCP_TRY(inspect_open(m, m->operands.items[0], &checkpoint, err));
    int rc = dump(m, given, &checkpoint, err);
    inspect_close(&checkpoint);
    return rc;
}

#define AT(field) .at = offsetof(struct settings, field)
static const struct dcp_opt opts[] = {
    { 'f', "full", NULL, "all elements, even more than 1000", "Output", DCP_OPT_FLAG,
      AT(full) },
    { 0, "precision", "N",
      "digits of a number (default: as few as read back to the same)", NULL, DCP_OPT_INT,
      AT(precision), .min = 1, .max = 17 },
    { 'o', "object", "NAME", "an object instead of a tensor: scheduler, rng, data, ...",
      NULL, DCP_OPT_TEXT, AT(object) },
    INSPECT_OPT_NO_VERIFY,
    { 0 },
};

static const struct dcp_example examples[] = {
    { "dcp-inspect dump run 'wte.weight[0:4,:8]'", "four rows, the first eight of each" },
    { "dcp-inspect dump model.bin 'h.0.ln_1.weight[::100]' 'h.0.ln_1.bias[-1]'",
      "every hundredth element; the last one" },
    { "dcp-inspect dump run --object scheduler", "the state of the scheduler" },
    { 0 },
};

const struct dcp_command inspect_dump = {
    .name = "dump",
    .operands = "PATH NAME[SLICE]...",
    .min_operands = 1,
    .max_operands = -1,
    .purpose = "print values of a slice",
    .about = INSPECT_ABOUT_PATH
    "\nA SLICE is NumPy's: first:end:step in each dimension, negative from the end, "
    "'...' "
    "for the dimensions between; without one the whole tensor. More than 1000 elements "
    "are shown by the edges. NAME may be left out where there is one tensor.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct settings),
    .examples = examples,
    .exits = inspect_exits,
    .run = run,
};
