/* globals: what an object is said to name, against what the writer of PyTorch's objects
 * puts into a pickle, for tags with whatever is no payload of theirs. */
#include "base/arena.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/pickle/pickle.h"
#include "formats/torch/value.h"
#include <dcp/globals.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EVIL "{\"$object\":\"os.system\",\"args\":[\"true\"]}"

static const char *const tags[] = { "$tuple",  "$set",   "$frozenset", "$dict",
                                    "$bytes",  "$text",  "$bytearray", "$int",
                                    "$float",  "$again", "$global",    "$object",
                                    "$tensor", "$value", "$unknown",   "pairs" };

static const char *const payloads[] = {
    EVIL,
    "[" EVIL "]",
    "{\"a\":" EVIL "}",
    "[[1," EVIL "]]",
    "[[" EVIL ",1]]",
    "[[1,2," EVIL "]]",
    "[[" EVIL "]]",
    "[{\"0\":1,\"1\":" EVIL "}]",
    "[1," EVIL "]",
    "{\"$dict\":{\"a\":" EVIL "}}",
    "{\"$dict\":[[1,{\"$tuple\":{\"a\":" EVIL "}}]]}",
    "\"os.system\"",
    "null",
    "1",
};

/* @: the tag; %: the payload */
static const char *const shapes[] = {
    "{\"@\":%}",
    "[{\"@\":%}]",
    "{\"@\":%,\"x\":%}",
    "{\"x\":1,\"@\":%}",
    "{\"@\":\"w\",\"attributes\":%,\"parameter\":true}",
    "{\"@\":\"w\",\"state\":%,\"type\":\"torch.Tensor\"}",
    "{\"@\":\"w\",\"type\":\"os.system\",\"pairs\":%}",
    "{\"@\":\"my.Class\",\"args\":%,\"items\":%}",
    "{\"@\":\"my.Class\",\"kwargs\":%,\"state\":%}",
    "{\"@\":\"my.Class\",\"new\":true,\"pairs\":%}",
    "{\"@\":\"no name\",\"pairs\":%}",
    "{\"@\":\"builtins.getattr\",\"args\":[{\"$global\":\"my.Class\"},%]}",
};

/* Whether names that are not known safe were among those told. */
struct told {
    bool system, getattr, class;
};

static void tell(struct told *told, const char *name)
{
    told->system |= !strcmp(name, "os.system") || !strcmp(name, "posix.system");
    told->getattr |= !strcmp(name, "builtins.getattr");
    told->class |= !strcmp(name, "my.Class");
}

static int take_name(void *self, const char *name, struct dcp_error *err)
{
    (void)err;
    tell(self, name);
    return 0;
}

static int take_global(void *self, const struct dcp_global *global, struct dcp_error *err)
{
    (void)err;
    tell(self, global->name);
    return 0;
}

static void write_value(const struct dcp_catalog *catalog, json_t *value,
                        struct dcp_pickle_out *out)
{
    size_t first_seen;
    int64_t storage = -1;
    struct dcp_error err = { 0 };
    struct dcp_torch_writer w = { .catalog = catalog,
                                  .out = out,
                                  .arena = dcp_arena_new(),
                                  .first_seen = &first_seen,
                                  .storage = &storage };

    dcp_pickle_begin(out);
    if (dcp_torch_write_value(&w, value, &err))
        fail_msg("%s", err.message);
    dcp_pickle_end(out);
    dcp_arena_free(w.arena);
}

static void check(const struct dcp_catalog *catalog, const char *text)
{
    const struct dcp_object object = {
        .name = "x", .kind = DCP_OBJECT_JSON, .data = text, .size_bytes = strlen(text)
    };
    struct told gate = { 0 }, pickle = { 0 };
    const struct dcp_global_visit visit = { .take = take_global, .self = &gate };
    const struct dcp_pickle_names names = { .take = take_name, .self = &pickle };
    struct dcp_pickle_out out = { 0 };
    struct dcp_error err = { 0 };
    json_t *value = NULL;
    size_t used;

    if (dcp_json_parse(text, strlen(text), "a test", &value, &err)) {
        if (!strstr(err.message, "duplicate"))
            fail_msg("%s: %s", text, err.message);
        return;
    }
    write_value(catalog, value, &out);
    assert_int_equal(dcp_object_globals(&object, &visit, NULL), 0);
    assert_int_equal(
        dcp_pickle_names(out.buf.data, out.buf.size_bytes, &names, &used, NULL), 0);
    if ((pickle.system && !gate.system) || (pickle.getattr && !gate.getattr) ||
        (pickle.class && !gate.class))
        fail_msg("the pickle of %s names more than the object is said to", text);
    dcp_pickle_out_fini(&out);
    json_decref(value);
}

static void fill(const char *shape, const char *tag, const char *payload, char *out,
                 size_t cap)
{
    size_t n = 0;

    for (; *shape; shape++)
        n += (size_t)snprintf(out + n, cap - n, "%.*s",
                              *shape == '@' || *shape == '%' ? 1000 : 1,
                              *shape == '@'   ? tag
                              : *shape == '%' ? payload
                                              : shape);
}

static void test_tags(void **state)
{
    const int64_t shape[] = { 2 };
    const struct dcp_tensor w = {
        .name = "w", .dtype = DCP_F32, .ndim = 1, .shape = shape
    };
    struct dcp_catalog *catalog = NULL;
    char text[2048];

    (void)state;
    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    assert_int_equal(dcp_catalog_add_tensor(catalog, &w, NULL, NULL), 0);
    for (size_t s = 0; s < DCP_ARRAY_LEN(shapes); s++)
        for (size_t t = 0; t < DCP_ARRAY_LEN(tags); t++)
            for (size_t p = 0; p < DCP_ARRAY_LEN(payloads); p++) {
                fill(shapes[s], tags[t], payloads[p], text, sizeof text);
                check(catalog, text);
            }
    dcp_catalog_free(catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_tags) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
