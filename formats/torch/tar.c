/* tar: the tar archive of the oldest PyTorch files (up to 0.1.9).
 *
 *   storages  pickle of n; n times: pickle of (key, location, class), count of elements,
 *             elements; pickle of [(key, key of the storage it is a part of, offset,
 *             count)]
 *   tensors   pickle of n; n times: pickle of (key, key of its storage, class), number of
 *             dimensions, 4 bytes of nothing, sizes, strides, offset
 *   pickle    the object; its persistent ids are keys
 *
 * All numbers are little-endian, the first of 4 bytes, the others of 8. Source:
 * legacy_load in torch/serialization.py. */
#include "formats/archive/tar.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "form.h"
#include <string.h>

enum { NUMBER_BYTES = 8, NDIM_BYTES = 8 };

bool dcp_torch_tar_probe(const unsigned char *head, size_t n)
{
    return dcp_tar_probe(head, n);
}

int dcp_torch_tar_open(struct dcp_torch_file *file, struct dcp_error *err)
{
    static const char *const needed[] = { "storages", "tensors", "pickle" };

    file->tar = dcp_arena_alloc(file->arena, 1, sizeof *file->tar);
    if (!file->tar)
        return dcp_error_memory(err, "a tar archive");
    int rc = dcp_tar_open(&file->in, file->arena, file->tar, err);
    for (size_t i = 0; i < DCP_ARRAY_LEN(needed) && !rc; i++)
        if (!dcp_tar_find(file->tar, needed[i]))
            rc = dcp_error_set(err, DCP_E_UNSUPPORTED,
                               "'%s' is a tar archive without a member '%s', so it is no "
                               "PyTorch file",
                               file->in.shown, needed[i]);
    return rc;
}

/* -- reading a member from front to back --------------------------------------------- */

struct member {
    struct dcp_torch_file *file;
    struct dcp_error *err;
    const char *name;
    uint64_t at, end;
};

static struct member open_member(struct dcp_torch_file *file, const char *name,
                                 struct dcp_error *err)
{
    const struct dcp_tar_member *m = dcp_tar_find(file->tar, name);

    return (struct member){ file, err, name, m->offset, m->offset + m->size_bytes };
}

static int corrupt(const struct member *m, const char *what)
{
    return dcp_error_set(m->err, DCP_E_CORRUPT, "'%s': the member '%s' %s",
                         m->file->in.shown, m->name, what);
}

static int read_pickle(struct member *m, struct dcp_torch_pickled *out)
{
    return dcp_torch_read_pickle(m->file, &m->at, m->end, NULL, out, m->err);
}

/* A count of things that need at least one byte each. */
static int read_count(struct member *m, uint64_t *out)
{
    struct dcp_torch_pickled p;

    DCP_TRY(read_pickle(m, &p));
    *out = p.root->kind == DCP_PICKLE_INT && p.root->number >= 0
               ? (uint64_t)p.root->number
               : UINT64_MAX;
    free(p.data);
    return *out <= m->end - m->at ? DCP_OK : corrupt(m, "has a malformed count");
}

static int read_bytes(struct member *m, void *out, size_t n)
{
    if (n > m->end - m->at)
        return corrupt(m, "is incomplete");
    int rc = dcp_input_read(&m->file->in, m->at, out, n, m->err);
    m->at += n;
    return rc;
}

static int read_numbers(struct member *m, int64_t *out, size_t n)
{
    unsigned char bytes[NUMBER_BYTES * DCP_MAX_NDIM];
    int rc = read_bytes(m, bytes, n * NUMBER_BYTES);

    for (size_t i = 0; i < n && !rc; i++) {
        out[i] = (int64_t)dcp_le64(bytes + i * NUMBER_BYTES);
        if (out[i] < 0)
            rc = corrupt(m, "has a negative number");
    }
    return rc;
}

static int check_end(const struct member *m)
{
    return m->at == m->end ? DCP_OK : corrupt(m, "has bytes behind its end");
}

/* -- storages ------------------------------------------------------------------------ */

struct storages {
    struct dcp_torch_storage *items; /* on the heap; keys in the arena */
    size_t n, cap;
};

static struct dcp_torch_storage *add_storage(struct storages *s)
{
    struct dcp_torch_storage *items =
        dcp_mem_grow(s->items, &s->cap, s->n + 1, sizeof *items);

    if (!items)
        return NULL;
    s->items = items;
    items[s->n] = (struct dcp_torch_storage){ .dtype = -1 };
    return &items[s->n++];
}

/* (key, location, class) */
static int parse_storage(struct member *m, const struct dcp_pickle_node *node,
                         struct dcp_torch_storage *s)
{
    char key[DCP_TORCH_KEY_CAP];
    enum dcp_dtype dtype;
    bool untyped;

    if (!dcp_torch_key(dcp_pickle_item(node, 0), key))
        return corrupt(m, "has a storage whose key is no number");
    if (!dcp_torch_class_dtype(dcp_pickle_item(node, 2), &dtype, &untyped))
        return dcp_error_set(m->err, DCP_E_UNSUPPORTED,
                             "'%s' has a storage of a class that is not supported",
                             m->file->in.shown);
    s->dtype = (int)dtype;
    s->key = dcp_arena_text(m->file->arena, key);
    return s->key ? DCP_OK : dcp_error_memory(m->err, "a PyTorch file");
}

static int read_storage(struct member *m, struct storages *all)
{
    struct dcp_torch_storage *s = add_storage(all);
    struct dcp_torch_pickled p;
    int64_t n_elems;

    if (!s)
        return dcp_error_memory(m->err, "a PyTorch file");
    DCP_TRY(read_pickle(m, &p));
    int rc = parse_storage(m, p.root, s);
    free(p.data);
    if (!rc)
        rc = read_numbers(m, &n_elems, 1);
    if (rc)
        return rc;
    s->offset = m->at;
    if (!dcp_mul_u64((uint64_t)n_elems, dcp_dtype_size((enum dcp_dtype)s->dtype),
                     &s->size_bytes) ||
        s->size_bytes > m->end - m->at)
        return corrupt(m, "ends before its storages");
    s->stored_size = s->size_bytes;
    m->at += s->size_bytes;
    return DCP_OK;
}

/* (key, key of the storage it is a part of, offset, count), in elements. */
static int add_part(struct member *m, const struct dcp_pickle_node *part,
                    struct storages *all)
{
    const struct dcp_pickle_node *offset = dcp_pickle_item(part, 2),
                                 *count = dcp_pickle_item(part, 3);
    char key[DCP_TORCH_KEY_CAP], root_key[DCP_TORCH_KEY_CAP];
    const struct dcp_torch_storage *root =
        dcp_torch_key(dcp_pickle_item(part, 1), root_key)
            ? dcp_torch_find_storage(m->file, root_key)
            : NULL;

    if (!dcp_torch_key(dcp_pickle_item(part, 0), key) || !root || !offset ||
        offset->kind != DCP_PICKLE_INT || offset->number < 0 || !count ||
        count->kind != DCP_PICKLE_INT || count->number < 0)
        return corrupt(m, "has a malformed part of a storage");
    struct dcp_torch_storage of = *root;
    uint64_t elem = dcp_dtype_size((enum dcp_dtype)of.dtype), room = of.size_bytes / elem;
    if ((uint64_t)offset->number > room ||
        (uint64_t)count->number > room - (uint64_t)offset->number)
        return corrupt(m, "has a part that reaches past the end of its storage");
    struct dcp_torch_storage *s = add_storage(all);
    if (!s)
        return dcp_error_memory(m->err, "a PyTorch file");
    *s = of;
    s->key = dcp_arena_text(m->file->arena, key);
    s->offset += (uint64_t)offset->number * elem;
    s->size_bytes = s->stored_size = (uint64_t)count->number * elem;
    return s->key ? DCP_OK : dcp_error_memory(m->err, "a PyTorch file");
}

static int read_parts(struct member *m, struct storages *all)
{
    struct dcp_torch_pickled p;
    int rc = read_pickle(m, &p);

    if (rc)
        return rc;
    if (p.root->kind != DCP_PICKLE_LIST)
        rc = corrupt(m, "has no list of parts");
    for (size_t i = 0; !rc && i < p.root->list.n; i++)
        rc = add_part(m, p.root->list.items[i], all);
    free(p.data);
    return rc;
}

static int take_storages(struct dcp_torch_file *file, const struct storages *all,
                         struct dcp_error *err)
{
    if (!all->n)
        return DCP_OK;
    file->storages = dcp_arena_copy(file->arena, all->items, all->n * sizeof *all->items);
    file->n_storages = all->n;
    return file->storages ? dcp_torch_sort_storages(file, err)
                          : dcp_error_memory(err, "a PyTorch file");
}

static int read_storages(struct dcp_torch_file *file, struct dcp_error *err)
{
    struct member m = open_member(file, "storages", err);
    struct storages all = { 0 };
    uint64_t n = 0;

    int rc = read_count(&m, &n);
    for (uint64_t i = 0; i < n && !rc; i++)
        rc = read_storage(&m, &all);
    if (!rc)
        rc = take_storages(file, &all, err); /* parts are looked up in them */
    if (!rc)
        rc = read_parts(&m, &all);
    if (!rc)
        rc = check_end(&m);
    if (!rc)
        rc = take_storages(file, &all, err);
    free(all.items);
    return rc;
}

/* -- tensors ------------------------------------------------------------------------- */

struct tensors {
    struct dcp_torch_tar_tensor *items;
    size_t n, cap;
};

/* (key, key of its storage, class) */
static int parse_tensor(struct member *m, const struct dcp_pickle_node *node,
                        struct dcp_torch_tar_tensor *t)
{
    char key[DCP_TORCH_KEY_CAP], storage_key[DCP_TORCH_KEY_CAP];
    const struct dcp_torch_storage *storage =
        dcp_torch_key(dcp_pickle_item(node, 1), storage_key)
            ? dcp_torch_find_storage(m->file, storage_key)
            : NULL;

    if (!dcp_torch_key(dcp_pickle_item(node, 0), key) || !storage)
        return corrupt(m, "has a tensor without a key or a storage");
    t->storage = (size_t)(storage - m->file->storages);
    t->key = dcp_arena_text(m->file->arena, key);
    return t->key ? DCP_OK : dcp_error_memory(m->err, "a PyTorch file");
}

static int read_tensor(struct member *m, struct tensors *all)
{
    struct dcp_torch_tar_tensor t = { 0 }, *items;
    struct dcp_torch_pickled p;
    unsigned char ndim[NDIM_BYTES];

    DCP_TRY(read_pickle(m, &p));
    int rc = parse_tensor(m, p.root, &t);
    free(p.data);
    if (!rc)
        rc = read_bytes(m, ndim, sizeof ndim);
    if (!rc && dcp_le32(ndim) > DCP_MAX_NDIM)
        rc = dcp_error_set(m->err, DCP_E_UNSUPPORTED,
                           "'%s' has a tensor with more dimensions than supported",
                           m->file->in.shown);
    t.ndim = rc ? 0 : (int)dcp_le32(ndim);
    if (!rc)
        rc = read_numbers(m, t.shape, (size_t)t.ndim);
    if (!rc)
        rc = read_numbers(m, t.stride, (size_t)t.ndim);
    if (!rc)
        rc = read_numbers(m, &t.offset, 1);
    if (rc)
        return rc;
    items = dcp_mem_grow(all->items, &all->cap, all->n + 1, sizeof *items);
    if (!items)
        return dcp_error_memory(m->err, "a PyTorch file");
    all->items = items;
    items[all->n++] = t;
    return DCP_OK;
}

static int by_key(const void *p, const void *q)
{
    return strcmp(((const struct dcp_torch_tar_tensor *)p)->key,
                  ((const struct dcp_torch_tar_tensor *)q)->key);
}

static int take_tensors(struct dcp_torch_file *file, const struct tensors *all,
                        struct dcp_error *err)
{
    size_t size = all->n * sizeof *all->items;

    if (!all->n)
        return DCP_OK;
    file->tensors = dcp_arena_copy(file->arena, all->items, size);
    if (!file->tensors)
        return dcp_error_memory(err, "a PyTorch file");
    file->n_tensors = all->n;
    qsort(file->tensors, all->n, sizeof *all->items, by_key);
    for (size_t i = 1; i < all->n; i++)
        if (!strcmp(file->tensors[i - 1].key, file->tensors[i].key))
            return dcp_error_set(err, DCP_E_CORRUPT, "'%s' has two tensors named '%s'",
                                 file->in.shown, file->tensors[i].key);
    return DCP_OK;
}

static int read_tensors(struct dcp_torch_file *file, struct dcp_error *err)
{
    struct member m = open_member(file, "tensors", err);
    struct tensors all = { 0 };
    uint64_t n = 0;

    int rc = read_count(&m, &n);
    for (uint64_t i = 0; i < n && !rc; i++)
        rc = read_tensor(&m, &all);
    if (!rc)
        rc = check_end(&m);
    if (!rc)
        rc = take_tensors(file, &all, err);
    free(all.items);
    return rc;
}

const struct dcp_torch_tar_tensor *dcp_torch_find_tar_tensor(
    const struct dcp_torch_file *file, const char *key)
{
    const struct dcp_torch_tar_tensor wanted = { .key = key };

    return file->n_tensors
               ? bsearch(&wanted, file->tensors, file->n_tensors, sizeof wanted, by_key)
               : NULL;
}

/* -- the object ---------------------------------------------------------------------- */

/* (class, file, source) stands for the class. */
static struct dcp_pickle_node *resolve(const struct dcp_pickle_node *id)
{
    return id->kind == DCP_PICKLE_TUPLE && id->list.n == 3 &&
                   id->list.items[0]->kind == DCP_PICKLE_GLOBAL
               ? id->list.items[0]
               : NULL;
}

int dcp_torch_tar_tree(struct dcp_torch_file *file, struct dcp_error *err)
{
    struct dcp_pickle_ids ids = { .resolve = resolve };
    struct member m = open_member(file, "pickle", err);
    struct dcp_torch_pickled object;

    DCP_TRY(read_storages(file, err));
    DCP_TRY(read_tensors(file, err));
    DCP_TRY(dcp_torch_read_pickle(file, &m.at, m.end, &ids, &object, err));
    file->pickle = object.data;
    file->tree = object.root;
    return check_end(&m);
}
