/* A tar archive as a folder that can only be read. */
#include <dcp/store.h>

#include "base/mem.h"
#include "base/str.h"
#include "members.h"
#include "refuse.h"
#include <inttypes.h>
#include <string.h>

enum { HEADER_BYTES = 512, SUM_AT = 148, SUM_BYTES = 8, MAGIC_AT = 257, MAGIC_BYTES = 5 };

struct bundle {
    struct dcp_store_ops ops;
    struct dcp_store inner; /* where the archive lies */
    bool owns;              /* and is freed with this one */
    struct dcp_tape *tape;
    struct dcp_members members;
};

struct dcp_store_file {
    const struct dcp_member *member;
};

/* Headers from before POSIX have no magic, but the same sum: of all bytes, where those of
 * the sum count as blanks. */
static bool is_v7(const unsigned char *head)
{
    static const unsigned char none[MAGIC_BYTES];
    unsigned long sum = 0, said = 0;

    for (size_t i = 0; i < HEADER_BYTES; i++)
        sum += i >= SUM_AT && i < SUM_AT + SUM_BYTES ? ' ' : head[i];
    size_t i = SUM_AT;
    while (i < SUM_AT + SUM_BYTES && head[i] == ' ')
        i++;
    for (; i < SUM_AT + SUM_BYTES && head[i] >= '0' && head[i] <= '7'; i++)
        said = said * 8 + (unsigned long)(head[i] - '0');
    return head[0] && !memcmp(head + MAGIC_AT, none, MAGIC_BYTES) && sum == said;
}

bool dcp_bundle_probe(const struct dcp_store *store, const char *name)
{
    struct dcp_store_file *file;
    unsigned char head[HEADER_BYTES] = { 0 };

    if (dcp_tape_is_zstd(store, name))
        return true;
    if (store->ops->open(store->self, name, &file, NULL))
        return false;
    int rc = store->ops->read_at(store->self, file, 0, head, sizeof head, NULL);
    store->ops->close(store->self, file, NULL);
    return !rc && (!memcmp(head + MAGIC_AT, "ustar", MAGIC_BYTES) || is_v7(head));
}

static int not_found(const struct bundle *bundle, const char *name, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_NOT_FOUND, "there is no '%s' in '%s'",
                         DCP_SHOWN(name), dcp_tape_shown(bundle->tape));
}

static int bundle_stat(void *self, const char *name, bool *out_is_dir,
                       uint64_t *out_size_bytes, struct dcp_error *err)
{
    const struct bundle *bundle = self;
    const struct dcp_member *member = dcp_members_find(&bundle->members, name);
    size_t n = 1;

    if (!member && *name)
        dcp_members_below(&bundle->members, name, &n);
    if (n == 0)
        return not_found(bundle, name, err);
    *out_is_dir = !member || member->is_dir;
    *out_size_bytes = *out_is_dir ? 0 : member->size_bytes;
    return DCP_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct dcp_store_entry *x = a, *y = b;

    return strcmp(x->name, y->name);
}

/* The parts of names behind "dir/": members of one folder stand together. */
static int list_below(const struct dcp_member *members, size_t n, size_t skip,
                      struct dcp_store_entry *entries, size_t *out_n,
                      struct dcp_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *part = members[i].name + skip;
        size_t length = strcspn(part, "/");
        struct dcp_store_entry *last = *out_n ? &entries[*out_n - 1] : NULL;
        if (last && strlen(last->name) == length && !strncmp(last->name, part, length))
            continue;
        struct dcp_store_entry entry = {
            .name = strndup(part, length),
            .is_dir = part[length] || members[i].is_dir,
            .size_bytes = part[length] ? 0 : members[i].size_bytes,
        };
        if (!entry.name)
            return dcp_error_memory(err, "the names of an archive");
        entries[(*out_n)++] = entry;
    }
    return DCP_OK;
}

/* A folder with an entry of its own may stand apart from what is in it: "a", "a-b",
 * "a/c". */
static void drop_twins(struct dcp_store_entry *entries, size_t *n)
{
    size_t kept = 0;

    if (*n)
        qsort(entries, *n, sizeof *entries, by_name);
    for (size_t i = 0; i < *n; i++) {
        if (kept && !strcmp(entries[kept - 1].name, entries[i].name))
            free(entries[i].name);
        else
            entries[kept++] = entries[i];
    }
    *n = kept;
}

static int bundle_list(void *self, const char *dir, struct dcp_store_entry **out,
                       size_t *out_n, struct dcp_error *err)
{
    const struct bundle *bundle = self;
    bool is_dir = false;
    uint64_t size;
    size_t n_members, n = 0, below = *dir ? strlen(dir) + 1 : 0;
    size_t first = dcp_members_below(&bundle->members, dir, &n_members);

    *out = NULL;
    *out_n = 0;
    int rc = bundle_stat(self, dir, &is_dir, &size, err);
    if (!rc && !is_dir)
        rc = dcp_error_set(err, DCP_E_IO, "cannot list '%s': it is a file", dir);
    if (rc || n_members == 0)
        return rc;
    struct dcp_store_entry *entries = dcp_mem_calloc(n_members, sizeof *entries);
    if (!entries)
        return dcp_error_memory(err, "the names of an archive");
    rc = list_below(bundle->members.items + first, n_members, below, entries, &n, err);
    if (rc) {
        dcp_store_list_free(entries, n);
        return rc;
    }
    drop_twins(entries, &n);
    *out = entries;
    *out_n = n;
    return DCP_OK;
}

static int bundle_open(void *self, const char *name, struct dcp_store_file **out,
                       struct dcp_error *err)
{
    const struct bundle *bundle = self;
    bool is_dir = false;
    uint64_t size;
    int rc = bundle_stat(self, name, &is_dir, &size, err);

    *out = NULL;
    if (!rc && is_dir)
        rc = dcp_error_set(err, DCP_E_IO, "cannot open '%s': it is a folder", name);
    if (rc)
        return rc;
    if (!(*out = malloc(sizeof **out)))
        return dcp_error_memory(err, name);
    (*out)->member = dcp_members_find(&bundle->members, name);
    return DCP_OK;
}

static int bundle_read_at(void *self, struct dcp_store_file *file, uint64_t offset,
                          void *out, size_t size_bytes, struct dcp_error *err)
{
    const struct bundle *bundle = self;
    const struct dcp_member *member = file->member;
    size_t n = 0;

    bool inside =
        offset <= member->size_bytes && size_bytes <= member->size_bytes - offset;
    if (inside && member->data) {
        memcpy(out, member->data + offset, size_bytes);
        return DCP_OK;
    }
    if (inside && size_bytes)
        DCP_TRY(dcp_tape_read(bundle->tape, member->offset + offset, out, size_bytes, &n,
                              err));
    if (!inside || n < size_bytes)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' in '%s' ends before byte %" PRIu64
                             ", where %zu bytes at %" PRIu64 " were to be read",
                             DCP_SHOWN(member->name), dcp_tape_shown(bundle->tape),
                             offset + size_bytes, size_bytes, offset);
    return DCP_OK;
}

static int bundle_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    (void)self;
    (void)err;
    free(file);
    return DCP_OK;
}

static void bundle_free(void *self)
{
    struct bundle *bundle = self;

    dcp_members_fini(&bundle->members);
    dcp_tape_free(bundle->tape);
    if (bundle->owns)
        dcp_store_free(&bundle->inner);
    free(bundle);
}

int dcp_store_bundle(struct dcp_store *out_store, struct dcp_store *inner,
                     const char *name, struct dcp_error *err)
{
    struct bundle *bundle = calloc(1, sizeof *bundle);

    if (!bundle)
        return dcp_error_memory(err, "an archive");
    bundle->ops = dcp_store_refuse;
    bundle->ops.list = bundle_list;
    bundle->ops.stat = bundle_stat;
    bundle->ops.open = bundle_open;
    bundle->ops.read_at = bundle_read_at;
    bundle->ops.close = bundle_close;
    bundle->ops.free = bundle_free;
    bundle->inner = *inner;
    bool is_dir;
    uint64_t packed_bytes = 0;
    int rc = inner->ops->stat(inner->self, name, &is_dir, &packed_bytes, err);
    if (!rc)
        rc = dcp_tape_new(&bundle->inner, name, &bundle->tape, err);
    if (!rc)
        rc = dcp_members_read(bundle->tape, &bundle->members, err);
    if (rc) {
        bundle_free(bundle);
        return rc;
    }
    bundle->owns = true;
    *out_store = (struct dcp_store){ .ops = &bundle->ops,
                                     .self = bundle,
                                     .root = dcp_tape_shown(bundle->tape),
                                     .max_header_bytes = inner->max_header_bytes,
                                     .packed_bytes = packed_bytes };
    *inner = (struct dcp_store){ 0 };
    return DCP_OK;
}
