#include "checkpoint.h"
#include "base/fs.h"
#include "sha256.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

void checkpoint_open(const char *path, struct checkpoint *out)
{
    struct dcp_error err = { 0 };

    *out = (struct checkpoint){ 0 };
    if (dcp_location_open(path, &out->location, &err) ||
        dcp_location_index(&out->location, &out->catalog, &err) ||
        dcp_catalog_check(out->catalog, &err) ||
        dcp_identity_new(out->catalog, &out->identity, &err) ||
        dcp_reader_new(&out->location.source, out->catalog, 1 << 20, true, &out->reader,
                       &err))
        fail_msg("%s: %s", path, err.message);
}

void checkpoint_close(struct checkpoint *c)
{
    dcp_reader_free(c->reader);
    dcp_identity_free(c->identity);
    dcp_catalog_free(c->catalog);
    dcp_location_close(&c->location);
}

void *checkpoint_read(struct checkpoint *c, int tensor)
{
    const struct dcp_tensor *t = &c->catalog->tensors[tensor];
    void *data = malloc((size_t)dcp_tensor_bytes(t) + 1);
    struct dcp_error err = { 0 };

    assert_non_null(data);
    if (dcp_reader_read(c->reader, tensor, 0, t->n_elems, data, &err))
        fail_msg("%s: %s", t->name, err.message);
    return data;
}

void checkpoint_expect_facts(const struct dcp_tensor *tensor, const json_t *expected)
{
    json_t *shape = json_object_get(expected, "shape");

    assert_string_equal(dcp_dtype_torch_name(tensor->dtype),
                        json_string_value(json_object_get(expected, "dtype")));
    assert_int_equal(tensor->ndim, json_array_size(shape));
    for (int d = 0; d < tensor->ndim; d++)
        assert_int_equal(tensor->shape[d],
                         json_integer_value(json_array_get(shape, (size_t)d)));
}

void checkpoint_expect_tensor(struct checkpoint *c, int at, const json_t *expected)
{
    const struct dcp_tensor *tensor = &c->catalog->tensors[at];
    char digest[65];

    checkpoint_expect_facts(tensor, expected);
    void *data = checkpoint_read(c, at);
    sha256_hex(data, (size_t)dcp_tensor_bytes(tensor), digest);
    free(data);
    assert_string_equal(digest, json_string_value(json_object_get(expected, "sha256")));
}

json_t *checkpoint_object(const struct dcp_catalog *catalog, const char *name)
{
    int at = dcp_catalog_find_object(catalog, name);
    json_t *value = NULL;

    if (at >= 0)
        assert_int_equal(dcp_json_parse(catalog->objects[at].data,
                                        catalog->objects[at].size_bytes, name, &value,
                                        NULL),
                         0);
    return value;
}

json_t *checkpoint_load_json(const char *path)
{
    void *text;
    size_t n;
    json_t *value;

    assert_int_equal(dcp_fs_read_file(path, 16 << 20, &text, &n, NULL), 0);
    assert_int_equal(dcp_json_parse(text, n, path, &value, NULL), 0);
    free(text);
    return value;
}
