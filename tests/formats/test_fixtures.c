/* fixtures: every file of tests/formats/data gives the tensors of its expected.json, or
 * is refused as its index says. */
#include "base/fs.h"
#include "base/json.h"
#include "lib/checkpoint.h"
#include "lib/format_io.h"
#include "lib/sha256.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/reshard.h>

#define DATA DCP_TESTS_DIR "/formats/data/"

static int index_path(const char *path, const struct dcp_format *format,
                      struct format_location *location, struct dcp_catalog **out,
                      struct dcp_error *err)
{
    assert_int_equal(dcp_catalog_new(out, err), 0);
    int rc = format_location_open(path, location, err);
    if (!rc && !format)
        rc = dcp_format_probe(&location->source, &format, err);
    if (!rc)
        rc = format->index(&location->source, *out, err);
    return rc ? rc : dcp_catalog_sort(*out, err);
}

static json_t *load_json(const char *path)
{
    void *text;
    size_t n;
    json_t *value;
    struct dcp_error err = { 0 };

    assert_int_equal(dcp_fs_read_file(path, 16 << 20, &text, &n, &err), 0);
    assert_int_equal(dcp_json_parse(text, n, path, &value, &err), 0);
    free(text);
    return value;
}

/* A catalog's tensor must have a name: a file that is one tensor calls it "tensor". */
static const char *name_of(const json_t *expected)
{
    const char *name = json_string_value(json_object_get(expected, "name"));

    return name[0] ? name : "tensor";
}

/* The library's own reader must give the same bytes, in parts too. */
static void check_reader(struct dcp_reader *reader, const struct dcp_catalog *catalog,
                         int tensor, const unsigned char *data)
{
    const struct dcp_tensor *t = &catalog->tensors[tensor];
    size_t item = dcp_dtype_size(t->dtype);
    unsigned char *read = malloc((size_t)dcp_tensor_bytes(t) + 1);
    struct dcp_error err = { 0 };

    for (int64_t begin = 0, n = 1; begin < t->n_elems; begin += n, n += 3) {
        int64_t end = begin + n < t->n_elems ? begin + n : t->n_elems;
        if (dcp_reader_read(reader, tensor, begin, end, read, &err))
            fail_msg("%s", err.message);
        assert_memory_equal(read, data + (size_t)begin * item,
                            (size_t)(end - begin) * item);
    }
    free(read);
}

static void check_tensor(const struct format_location *location,
                         struct dcp_reader *reader, const struct dcp_catalog *catalog,
                         const json_t *expected)
{
    int at = dcp_catalog_find(catalog, name_of(expected));
    const char *note = json_string_value(json_object_get(expected, "note"));
    struct dcp_error err = { 0 };
    char digest[65];
    void *data;

    if (at < 0)
        fail_msg("no tensor '%s'", name_of(expected));
    const struct dcp_tensor *tensor = &catalog->tensors[at];
    checkpoint_expect_facts(tensor, expected);
    if (note) { /* on the meta device: it has no data */
        assert_int_equal(tensor->n_pieces, 0);
        return;
    }
    if (format_read_tensor(&location->source, catalog, at, &data, &err))
        fail_msg("%s", err.message);
    sha256_hex(data, (size_t)dcp_tensor_bytes(tensor), digest);
    check_reader(reader, catalog, at, data);
    free(data);
    assert_string_equal(digest, json_string_value(json_object_get(expected, "sha256")));
}

/* The JSON at a path of keys and positions, through the objects' names. */
static json_t *find_value(const struct dcp_catalog *catalog, const char *path)
{
    for (size_t i = 0; i < catalog->n_objects; i++) {
        const struct dcp_object *object = &catalog->objects[i];
        size_t n = strlen(object->name);
        json_t *value = NULL;
        if (strncmp(object->name, path, n) || (path[n] && path[n] != '.') ||
            dcp_json_parse(object->data, object->size_bytes, "object", &value, NULL))
            continue;
        const char *rest = path + n;
        while (value && *rest) {
            char key[64] = "";
            size_t len = strcspn(++rest, ".");
            memcpy(key, rest, len);
            rest += len;
            json_t *next = json_is_array(value)
                               ? json_array_get(value, (size_t)strtoull(key, NULL, 10))
                               : json_object_get(value, key);
            json_incref(next);
            json_decref(value);
            value = next;
        }
        if (value)
            return value;
    }
    return NULL;
}

/* Values with a JSON form are compared; of the others it is checked that they are there.
 */
static void check_object(const struct dcp_catalog *catalog, const char *path,
                         const json_t *expected)
{
    json_t *want = json_object_get(expected, "value"), *got = find_value(catalog, path);

    if (!got && strncmp(path, "rng.", 4) != 0)
        fail_msg("no object '%s'", path);
    if (want && json_object_get(got, "$int"))
        assert_true(json_equal(json_object_get(got, "$int"), want));
    else if (want && got && !json_object_get(got, "$object"))
        assert_true(json_equal(got, want));
    json_decref(got);
}

static void check_file(const char *folder, const char *name, const json_t *expected)
{
    json_t *tensors = json_object_get(expected, "tensors"), *tensor, *object;
    struct format_location location;
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };
    char path[512];
    const char *key;
    size_t i;

    snprintf(path, sizeof path, DATA "%s/%s", folder, name);
    if (index_path(path, NULL, &location, &catalog, &err))
        fail_msg("%s: %s", name, err.message);
    assert_int_equal(catalog->n_tensors, json_array_size(tensors));
    struct dcp_reader *reader = NULL;
    if (catalog->n_pieces >= catalog->n_tensors &&
        dcp_reader_new(&location.source, catalog, 1 << 20, true, &reader, &err))
        fail_msg("%s: %s", name, err.message);
    json_array_foreach(tensors, i, tensor)
    {
        check_tensor(&location, reader, catalog, tensor);
    }
    dcp_reader_free(reader);
    json_object_foreach(json_object_get(expected, "objects"), key, object)
    {
        check_object(catalog, key, object);
    }
    dcp_catalog_free(catalog);
    format_location_close(&location);
}

/* A file of a form that is not read must be refused, and the sentence must say what it
 * is.
 */
static void check_refused(const char *folder, const char *name, const char *words)
{
    struct format_location location;
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };
    char path[512];

    snprintf(path, sizeof path, DATA "%s/%s", folder, name);
    assert_int_equal(index_path(path, NULL, &location, &catalog, &err),
                     DCP_E_UNSUPPORTED);
    if (!strstr(err.message, words))
        fail_msg("%s: %s", name, err.message);
    dcp_catalog_free(catalog);
    format_location_close(&location);
}

static const struct {
    const char *name, *words;
} refused[] = {
    { "struct.npy", "structures" },
};

static void check_folder(const char *folder)
{
    char path[512];
    snprintf(path, sizeof path, DATA "%s/expected.json", folder);
    json_t *expected = load_json(path), *entry;
    const char *name;

    json_object_foreach(json_object_get(expected, "files"), name, entry)
    {
        const char *words = NULL;
        for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
            if (!strcmp(refused[i].name, name))
                words = refused[i].words;
        print_message("%s/%s\n", folder, name);
        if (words)
            check_refused(folder, name, words);
        else
            check_file(folder, name, entry);
    }
    json_decref(expected);
}

static void test_torch(void **state)
{
    (void)state;
    check_folder("torch");
}

static void test_npy(void **state)
{
    (void)state;
    check_folder("npy");
}

static void test_fsdp(void **state)
{
    (void)state;
    check_folder("fsdp");
}

static void test_hf_trainer(void **state)
{
    (void)state;
    check_folder("hf-trainer");
}

static void test_safetensors(void **state)
{
    (void)state;
    check_folder("safetensors");
}

/* The first is a model that is known, and has the names of Hugging Face. */
static void test_gguf(void **state)
{
    (void)state;
    check_folder("gguf");
}

/* Each line of index.tsv: file, what is wrong, verdict. */
static void check_hostile(const char *folder, const char *format)
{
    char path[512];
    void *text;
    size_t n, n_files = 0;

    snprintf(path, sizeof path, DATA "hostile/%s/index.tsv", folder);
    assert_int_equal(dcp_fs_read_file(path, 1 << 20, &text, &n, NULL), 0);
    for (char *line = strchr(text, '\n') + 1; *line; line = strchr(line, '\n') + 1) {
        struct format_location location;
        struct dcp_catalog *catalog;
        struct dcp_error err = { 0 };
        snprintf(path, sizeof path, DATA "hostile/%s/%.*s", folder,
                 (int)strcspn(line, "\t"), line);
        bool accept = !strncmp(strchr(strchr(line, '\t') + 1, '\t') + 1, "accept", 6);
        int rc = index_path(path, dcp_format_find(format), &location, &catalog, &err);
        print_message("%s: %s\n", path + sizeof DATA - 1, rc ? err.message : "accepted");
        assert_true(accept ? rc == 0 : rc == DCP_E_CORRUPT || rc == DCP_E_UNSUPPORTED);
        assert_true(accept || err.message[0]);
        dcp_catalog_free(catalog);
        format_location_close(&location);
        n_files++;
    }
    assert_true(n_files > 10);
    free(text);
}

static void test_hostile_torch(void **state)
{
    (void)state;
    check_hostile("badpt", "torch");
}

static void test_hostile_npy(void **state)
{
    (void)state;
    check_hostile("badnpy", "npy");
    check_hostile("badnpz", "npz");
}

static void test_hostile_safetensors(void **state)
{
    (void)state;
    check_hostile("badst", "safetensors");
}

static void test_hostile_dcp(void **state)
{
    (void)state;
    check_hostile("baddcp", "torch-dist");
}

static void test_hostile_gguf(void **state)
{
    (void)state;
    check_hostile("badgguf", "gguf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torch),
        cmocka_unit_test(test_npy),
        cmocka_unit_test(test_fsdp),
        cmocka_unit_test(test_hf_trainer),
        cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_hostile_torch),
        cmocka_unit_test(test_hostile_npy),
        cmocka_unit_test(test_hostile_safetensors),
        cmocka_unit_test(test_hostile_dcp),
        cmocka_unit_test(test_hostile_gguf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
