/* stream: five pickles in a row, and the storages behind them.
 *
 * A magic number, the protocol's version, facts about the machine, the object, and the
 * keys of the storages in the order in which they follow: each a count of elements and
 * the elements, little-endian whatever the machine was, without padding. A tensor's
 * storage may be a part of another one (view_metadata). Source: _legacy_save and
 * _legacy_load of torch/serialization.py, torch/csrc/serialization.cpp. */
#include "base/bytes.h"
#include "base/mem.h"
#include "form.h"
#include <string.h>

#define VERSION 1001

enum { COUNT_BYTES = 8 };

/* The pickle of 0x1950a86a20f9469cfc6c behind its PROTO, and behind a FRAME. */
static const unsigned char magic[] = { 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9,
                                       0x20, 0x6a, 0xa8, 0x50, 0x19, '.' };
static const size_t magic_at[] = { 2, 11 };

/* Where the magic number ends, or 0. */
static size_t find_magic(const unsigned char *head, size_t n)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(magic_at); i++)
        if (n >= magic_at[i] + sizeof magic && head[0] == 0x80 &&
            !memcmp(head + magic_at[i], magic, sizeof magic))
            return magic_at[i] + sizeof magic;
    return 0;
}

bool dcp_torch_stream_probe(const unsigned char *head, size_t n)
{
    return find_magic(head, n) != 0;
}

static int corrupt(const struct dcp_torch_file *file, struct dcp_error *err,
                   const char *what)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "'%s' is not a valid PyTorch file: %s",
                         file->in.shown, what);
}

/* {'protocol_version': 1001, 'little_endian': …, 'type_sizes': …} */
static int check_facts(const struct dcp_torch_file *file,
                       const struct dcp_pickle_node *facts, struct dcp_error *err)
{
    const struct dcp_pickle_node *version = dcp_pickle_get(facts, "protocol_version"),
                                 *little = dcp_pickle_get(facts, "little_endian");

    if (!version || version->kind != DCP_PICKLE_INT || version->number != VERSION ||
        !little || little->kind != DCP_PICKLE_BOOL)
        return corrupt(file, err, "what it says of its machine is malformed");
    return DCP_OK;
}

int dcp_torch_stream_open(struct dcp_torch_file *file, struct dcp_error *err)
{
    unsigned char head[DCP_TORCH_HEAD_BYTES];
    struct dcp_torch_pickled version, facts = { 0 };
    uint64_t end = file->in.size_bytes;
    size_t n = end < sizeof head ? (size_t)end : sizeof head;

    int rc = dcp_input_read(&file->in, 0, head, n, err);
    if (rc)
        return rc;
    file->begin = find_magic(head, n);
    DCP_TRY(dcp_torch_read_pickle(file, &file->begin, end, NULL, &version, err));
    if (version.root->kind != DCP_PICKLE_INT || version.root->number != VERSION)
        rc = dcp_error_set(err, DCP_E_UNSUPPORTED,
                           "'%s' is a PyTorch file of another version than %d of its "
                           "form",
                           file->in.shown, VERSION);
    if (!rc)
        rc = dcp_torch_read_pickle(file, &file->begin, end, NULL, &facts, err);
    if (!rc)
        rc = check_facts(file, facts.root, err);
    free(version.data);
    free(facts.data);
    return rc;
}

/* ('module', class, file, source) stands for the class. */
static struct dcp_pickle_node *resolve(const struct dcp_pickle_node *id)
{
    struct dcp_pickle_node *class;

    if (id->kind != DCP_PICKLE_TUPLE || id->list.n != 4 ||
        !dcp_pickle_is_text(id->list.items[0], "module"))
        return NULL;
    class = id->list.items[1];
    return class->kind == DCP_PICKLE_GLOBAL ? class : NULL;
}

/* -- the table of storages ----------------------------------------------------------- */

/* One storage for each key that an id of the object names. */
static int collect(struct dcp_torch_file *file, const struct dcp_pickle_list *ids,
                   struct dcp_error *err)
{
    struct dcp_torch_storage *s =
        dcp_arena_alloc(file->arena, ids->n, sizeof *file->storages);

    if (!s)
        return dcp_error_memory(err, "a PyTorch file");
    for (size_t i = 0; i < ids->n; i++) {
        const struct dcp_pickle_node *id = ids->items[i]->id;
        const struct dcp_pickle_node *numel = dcp_pickle_item(id, 4);
        enum dcp_dtype dtype;
        bool untyped;
        uint64_t size_bytes;
        char key[DCP_TORCH_KEY_CAP];
        if (!dcp_pickle_is_text(dcp_pickle_item(id, 0), "storage") || !numel ||
            numel->kind != DCP_PICKLE_INT || numel->number < 0)
            return corrupt(file, err, "it refers to something that is no storage");
        if (!dcp_torch_class_dtype(dcp_pickle_item(id, 1), &dtype, &untyped))
            return dcp_error_set(err, DCP_E_UNSUPPORTED,
                                 "'%s' has a storage of a class that is not supported "
                                 "(quantized?)",
                                 file->in.shown);
        if (!dcp_torch_key(dcp_pickle_item(id, 2), key))
            return corrupt(file, err, "a storage's key is no number");
        if (!dcp_mul_u64((uint64_t)numel->number, dcp_dtype_size(dtype), &size_bytes))
            return corrupt(file, err, "a storage is larger than any file");
        s[i] = (struct dcp_torch_storage){ .key = dcp_arena_text(file->arena, key),
                                           .size_bytes = size_bytes,
                                           .dtype = (int)dtype };
        if (!s[i].key)
            return dcp_error_memory(err, "a PyTorch file");
    }
    file->storages = s;
    file->n_storages = ids->n;
    return DCP_OK;
}

static int by_key(const void *p, const void *q)
{
    return strcmp(((const struct dcp_torch_storage *)p)->key,
                  ((const struct dcp_torch_storage *)q)->key);
}

/* Several tensors name one storage; they must agree on it. */
static int unite(struct dcp_torch_file *file, struct dcp_error *err)
{
    struct dcp_torch_storage *s = file->storages;
    size_t n = 0;

    if (file->n_storages)
        qsort(s, file->n_storages, sizeof *s, by_key);
    for (size_t i = 0; i < file->n_storages; i++) {
        if (!n || strcmp(s[n - 1].key, s[i].key) != 0)
            s[n++] = s[i];
        else if (s[n - 1].dtype != s[i].dtype || s[n - 1].size_bytes != s[i].size_bytes)
            return corrupt(file, err,
                           "two tensors share a storage, but not its dtype or size");
    }
    file->n_storages = n;
    return DCP_OK;
}

/* Each storage begins with its count of elements. */
static int place(struct dcp_torch_file *file, const struct dcp_pickle_node *keys,
                 uint64_t at, struct dcp_error *err)
{
    unsigned char count[COUNT_BYTES];
    char key[DCP_TORCH_KEY_CAP];
    size_t n_placed = 0;

    if (keys->kind != DCP_PICKLE_LIST)
        return corrupt(file, err, "the list of its storages is malformed");
    for (size_t i = 0; i < keys->list.n; i++) {
        struct dcp_torch_storage *s = dcp_torch_key(keys->list.items[i], key)
                                          ? dcp_torch_find_storage(file, key)
                                          : NULL;
        if (!s || s->offset)
            return corrupt(file, err,
                           "the list of its storages names one twice, or one that "
                           "nothing uses");
        DCP_TRY(dcp_input_read(&file->in, at, count, sizeof count, err));
        if (dcp_le64(count) != s->size_bytes / dcp_dtype_size((enum dcp_dtype)s->dtype))
            return corrupt(file, err, "a storage has another size than its tensors say");
        s->offset = at + sizeof count;
        s->stored_size = s->size_bytes;
        if (s->size_bytes > file->in.size_bytes - s->offset)
            return corrupt(file, err, "a storage is not all there; it is incomplete");
        at = s->offset + s->size_bytes;
        n_placed++;
    }
    if (n_placed != file->n_storages)
        return corrupt(file, err, "a storage has no bytes");
    if (at != file->in.size_bytes)
        return corrupt(file, err, "bytes follow its last storage");
    return DCP_OK;
}

int dcp_torch_stream_tree(struct dcp_torch_file *file, struct dcp_error *err)
{
    struct dcp_pickle_ids ids = { .resolve = resolve };
    struct dcp_torch_pickled object, keys = { 0 };
    uint64_t at = file->begin, end = file->in.size_bytes;

    DCP_TRY(dcp_torch_read_pickle(file, &at, end, &ids, &object, err));
    file->pickle = object.data;
    file->tree = object.root;
    int rc = collect(file, &ids.found, err);
    if (!rc)
        rc = unite(file, err);
    if (!rc)
        rc = dcp_torch_read_pickle(file, &at, end, NULL, &keys, err);
    if (!rc)
        rc = place(file, keys.root, at, err);
    free(keys.data);
    return rc;
}
