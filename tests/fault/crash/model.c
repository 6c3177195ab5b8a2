#include "model.h"
#include "base/fs.h"
#include "lib/acts.h"
#include "lib/must.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512, N_FILE_WAYS = 6 };

struct bytes {
    unsigned char *data;
    size_t size;
};

/* A change of a file. */
struct change {
    enum trace_kind kind; /* WRITE, TRUNCATE, ALLOCATE */
    size_t offset;        /* or the size */
    struct bytes bytes;
};

struct name {
    char *text;
    struct node *node; /* NULL: it is taken away */
};

struct names {
    struct name *at;
    size_t n;
};

struct node {
    uint64_t ino;
    bool is_dir;
    struct names durable_names, live_names;
    struct bytes durable, live;
    struct change *changes;
    size_t n_changes;
};

/* A change of names: of one folder, or of two. */
struct half {
    struct node *dir;
    struct name set[2];
    int n_set;
    bool durable;
};
struct operation {
    struct half halves[2];
    int n_halves;
};

struct model {
    struct node **nodes; /* a later one takes the place of an earlier with its number */
    size_t n_nodes;
    struct operation *operations; /* not durable yet */
    size_t n_operations;
};

static void *grown(void *array, size_t n, size_t size)
{
    void *out = realloc(array, (n + 1) * size);

    must(out);
    return out;
}

/* --- bytes --- */

static void resize(struct bytes *bytes, size_t size)
{
    bytes->data = realloc(bytes->data, size + 1);
    must(bytes->data);
    if (size > bytes->size)
        memset(bytes->data + bytes->size, 0, size - bytes->size);
    bytes->size = size;
}

static void change_bytes(struct bytes *bytes, const struct change *change)
{
    size_t end = change->offset + change->bytes.size;

    if (change->kind == TRACE_TRUNCATE)
        resize(bytes, change->offset);
    else if (end > bytes->size)
        resize(bytes, end);
    if (change->kind == TRACE_WRITE)
        memcpy(bytes->data + change->offset, change->bytes.data, change->bytes.size);
}

static struct bytes copy_bytes(const struct bytes *bytes)
{
    struct bytes copy = { 0 };

    resize(&copy, bytes->size);
    if (bytes->size)
        memcpy(copy.data, bytes->data, bytes->size);
    return copy;
}

/* --- names --- */

static struct node *find_name(const struct names *names, const char *text)
{
    for (size_t i = 0; i < names->n; i++)
        if (!strcmp(names->at[i].text, text))
            return names->at[i].node;
    return NULL;
}

static void set_name(struct names *names, const struct name *name)
{
    size_t i = 0;

    while (i < names->n && strcmp(names->at[i].text, name->text) != 0)
        i++;
    if (i < names->n && name->node) {
        names->at[i].node = name->node;
    } else if (i < names->n) {
        names->at[i] = names->at[--names->n];
    } else if (name->node) {
        names->at = grown(names->at, names->n, sizeof *names->at);
        names->at[names->n++] = *name;
    }
}

static void set_names(struct names *names, const struct half *half)
{
    for (int i = 0; i < half->n_set; i++)
        set_name(names, &half->set[i]);
}

/* --- nodes --- */

static struct node *find_node(const struct model *model, uint64_t ino)
{
    for (size_t i = model->n_nodes; i > 0; i--)
        if (model->nodes[i - 1]->ino == ino)
            return model->nodes[i - 1];
    return NULL;
}

static struct node *add_node(struct model *model, uint64_t ino, bool is_dir)
{
    struct node *node = calloc(1, sizeof *node);

    must(node);
    *node = (struct node){ .ino = ino, .is_dir = is_dir };
    model->nodes = grown(model->nodes, model->n_nodes, sizeof *model->nodes);
    model->nodes[model->n_nodes++] = node;
    return node;
}

struct model *model_new(uint64_t root)
{
    struct model *model = calloc(1, sizeof *model);

    must(model);
    add_node(model, root, true);
    return model;
}

static void drop_changes(struct node *node)
{
    for (size_t i = 0; i < node->n_changes; i++)
        free(node->changes[i].bytes.data);
    node->n_changes = 0;
}

/* Texts of names live as long as the process: few, and shared by many. */
void model_free(struct model *model)
{
    for (size_t i = 0; i < model->n_nodes; i++) {
        struct node *node = model->nodes[i];
        drop_changes(node);
        free(node->changes);
        free(node->durable.data);
        free(node->live.data);
        free(node->durable_names.at);
        free(node->live_names.at);
        free(node);
    }
    free(model->nodes);
    free(model->operations);
    free(model);
}

/* --- applying a trace --- */

static void operate(struct model *model, struct operation operation)
{
    model->operations =
        grown(model->operations, model->n_operations, sizeof *model->operations);
    model->operations[model->n_operations++] = operation;
    for (int i = 0; i < operation.n_halves; i++)
        set_names(&operation.halves[i].dir->live_names, &operation.halves[i]);
}

static void make_durable(struct half *half)
{
    if (!half->durable)
        set_names(&half->dir->durable_names, half);
    half->durable = true;
}

static void sync_dir(struct model *model, const struct node *dir)
{
    size_t n = 0;

    for (size_t i = 0; i < model->n_operations; i++) {
        struct operation *op = &model->operations[i];
        bool whole = true;
        for (int h = 0; h < op->n_halves; h++)
            if (op->halves[h].dir == dir)
                make_durable(&op->halves[h]);
        for (int h = 0; h < op->n_halves; h++)
            whole = whole && op->halves[h].durable;
        if (!whole)
            model->operations[n++] = *op;
    }
    model->n_operations = n;
}

static void sync_file(struct node *node, bool only_data)
{
    size_t n = 0;

    for (size_t i = 0; i < node->n_changes; i++) {
        struct change *change = &node->changes[i];
        bool shorter =
            change->kind == TRACE_TRUNCATE && change->offset < node->durable.size;
        if (only_data && shorter) {
            node->changes[n++] = *change;
            continue;
        }
        change_bytes(&node->durable, change);
        free(change->bytes.data);
    }
    node->n_changes = n;
}

static void sync_all(struct model *model)
{
    for (size_t i = 0; i < model->n_nodes; i++)
        if (model->nodes[i]->is_dir)
            sync_dir(model, model->nodes[i]);
        else
            sync_file(model->nodes[i], false);
}

static void change(struct node *node, const struct trace_record *record, const char *data)
{
    struct change change = { .kind = (enum trace_kind)record->kind,
                             .offset = (size_t)record->a };

    if (record->kind == TRACE_ALLOCATE && (size_t)record->a <= node->live.size)
        return;
    if (record->data_bytes) {
        resize(&change.bytes, record->data_bytes);
        memcpy(change.bytes.data, data, record->data_bytes);
    }
    node->changes = grown(node->changes, node->n_changes, sizeof *node->changes);
    node->changes[node->n_changes++] = change;
    change_bytes(&node->live, &change);
}

static bool unknown(const struct trace_record *record, const char *what)
{
    fprintf(stderr, "trace: a record of kind %u speaks of a %s that is not known\n",
            record->kind, what);
    return false;
}

static bool apply_names(struct model *model, const struct trace_record *record,
                        const char *first, const char *second)
{
    struct node *dir = find_node(model, record->dir);
    struct node *dir2 = record->dir2 ? find_node(model, record->dir2) : NULL;
    struct node *node = find_node(model, record->ino);
    struct node *other = record->ino2 ? find_node(model, record->ino2) : NULL;
    bool one = record->kind == TRACE_CREATE || record->kind == TRACE_MAKE_DIR ||
               record->kind == TRACE_UNLINK;
    char *name = strdup(first), *name2 = strdup(second);

    must(name && name2);
    if ((record->kind != TRACE_LINK && !dir) || (!one && !dir2))
        return unknown(record, "folder");
    if (record->kind == TRACE_CREATE || record->kind == TRACE_MAKE_DIR) {
        struct node *there = find_name(&dir->live_names, name);
        if (there && there->ino == record->ino)
            return true;
        node = add_node(model, record->ino, record->kind == TRACE_MAKE_DIR);
    }
    if (!node)
        return unknown(record, "file");
    struct operation op = { .n_halves = 1, .halves = { { .dir = dir, .n_set = 1 } } };
    struct half *half = op.halves;
    half[0].set[0] = (struct name){ name, record->kind == TRACE_UNLINK ? NULL : node };
    if (record->kind == TRACE_LINK) {
        half[0].dir = dir2;
        half[0].set[0] = (struct name){ name2, node };
    } else if (record->kind == TRACE_EXCHANGE) {
        if (!other)
            return unknown(record, "file");
        op.n_halves = dir == dir2 ? 1 : 2;
        half[0].set[0].node = other;
        half[op.n_halves - 1].dir = dir2;
        half[op.n_halves - 1].set[half[op.n_halves - 1].n_set++] =
            (struct name){ name2, node };
    } else if (record->kind == TRACE_RENAME) {
        op.n_halves = dir == dir2 ? 1 : 2;
        half[0].dir = dir2;
        half[0].set[0] = (struct name){ name2, node };
        half[op.n_halves - 1].dir = dir;
        half[op.n_halves - 1].set[half[op.n_halves - 1].n_set++] =
            (struct name){ name, NULL };
    }
    operate(model, op);
    return true;
}

bool model_apply(struct model *model, const struct trace_record *record)
{
    char first[512] = "", second[512] = "";
    const char *at = (const char *)(record + 1);

    must(record->name_bytes < sizeof first && record->name2_bytes < sizeof second);
    memcpy(first, at, record->name_bytes);
    memcpy(second, at + record->name_bytes, record->name2_bytes);
    at += record->name_bytes + record->name2_bytes;
    struct node *node = find_node(model, record->ino);
    switch ((enum trace_kind)record->kind) {
    case TRACE_WRITE:
    case TRACE_TRUNCATE:
    case TRACE_ALLOCATE:
        if (!node || node->is_dir)
            return unknown(record, "file");
        change(node, record, at);
        return true;
    case TRACE_SYNC:
    case TRACE_DATA_SYNC:
        if (!node)
            return unknown(record, "file");
        if (node->is_dir)
            sync_dir(model, node);
        else
            sync_file(node, record->kind == TRACE_DATA_SYNC);
        return true;
    case TRACE_FS_SYNC:
        sync_all(model);
        return true;
    case TRACE_CREATE:
    case TRACE_MAKE_DIR:
    case TRACE_RENAME:
    case TRACE_EXCHANGE:
    case TRACE_LINK:
    case TRACE_UNLINK:
        return apply_names(model, record, first, second);
    case TRACE_CLOSE:
    case TRACE_BEGIN:
    case TRACE_DONE:
        return true;
    }
    return unknown(record, "kind");
}

/* --- choices --- */

/* The file of choice i, which comes behind the operations. */
static const struct node *dirty_file(const struct model *model, size_t i)
{
    for (size_t n = 0; n < model->n_nodes; n++)
        if (model->nodes[n]->n_changes && i-- == 0)
            return model->nodes[n];
    return NULL;
}

size_t model_choices(const struct model *model)
{
    size_t n = model->n_operations;

    while (dirty_file(model, n - model->n_operations))
        n++;
    return n;
}

unsigned model_ways(const struct model *model, size_t i)
{
    return i < model->n_operations ? 2 : N_FILE_WAYS;
}

/* Of a file that was changed and not synced. */
static struct bytes content(const struct node *node, unsigned way, uint64_t seed)
{
    struct bytes out = copy_bytes(&node->durable);
    size_t half = node->live.size / 2 / BLOCK * BLOCK;
    uint64_t random = seed ^ node->ino;

    if (way == 0) /* nothing of it */
        return out;
    for (size_t i = 0; i < node->n_changes; i++)
        change_bytes(&out, &node->changes[i]);
    if (way == 1) /* all */
        return out;
    if (way == 4) { /* cut at a block */
        if (half < out.size)
            resize(&out, half);
        return out;
    }
    for (size_t at = 0; at < out.size; at += BLOCK) { /* its size, with blocks missing */
        size_t n = out.size - at < BLOCK ? out.size - at : BLOCK;
        bool there = way == 2 ? false : way == 3 ? at < half : acts_pick(&random, 2) == 0;
        if (there)
            continue;
        size_t old = at >= node->durable.size      ? 0
                     : node->durable.size - at < n ? node->durable.size - at
                                                   : n;
        memset(out.data + at, 0, n);
        if (old)
            memcpy(out.data + at, node->durable.data + at, old);
    }
    return out;
}

struct build {
    const struct model *model;
    const unsigned char *ways; /* NULL: as a running program sees it */
    uint64_t seed;
    struct tree *tree;
};

static void add_item(struct tree *tree, const char *path, bool is_dir, struct bytes bytes)
{
    if (tree->n == tree->cap) {
        tree->cap = tree->cap ? 2 * tree->cap : 32;
        tree->items = realloc(tree->items, tree->cap * sizeof *tree->items);
        must(tree->items);
    }
    tree->items[tree->n++] =
        (struct tree_item){ strdup(path), is_dir, bytes.data, bytes.size };
}

static struct names names_of(const struct build *build, const struct node *dir)
{
    const struct names *from = build->ways ? &dir->durable_names : &dir->live_names;
    struct names out = { malloc((from->n + 1) * sizeof *out.at), from->n };

    must(out.at);
    if (from->n)
        memcpy(out.at, from->at, from->n * sizeof *out.at);
    for (size_t i = 0; build->ways && i < build->model->n_operations; i++)
        for (int h = 0; h < build->model->operations[i].n_halves; h++) {
            const struct half *half = &build->model->operations[i].halves[h];
            if (half->dir == dir && !half->durable && build->ways[i])
                set_names(&out, half);
        }
    return out;
}

static void build_file(const struct build *build, const struct node *node,
                       const char *path)
{
    size_t i = build->model->n_operations;

    if (!build->ways) {
        add_item(build->tree, path, false, copy_bytes(&node->live));
    } else if (!node->n_changes) {
        add_item(build->tree, path, false, copy_bytes(&node->durable));
    } else {
        while (dirty_file(build->model, i - build->model->n_operations) != node)
            i++;
        add_item(build->tree, path, false, content(node, build->ways[i], build->seed));
    }
}

static void build_dir(const struct build *build, const struct node *dir, const char *path,
                      int depth)
{
    struct names names = names_of(build, dir);

    must(depth < 16);
    add_item(build->tree, path, true, (struct bytes){ 0 });
    for (size_t i = 0; i < names.n; i++) {
        char *below = dcp_fs_join(path, names.at[i].text);
        must(below);
        if (names.at[i].node->is_dir)
            build_dir(build, names.at[i].node, below, depth + 1);
        else
            build_file(build, names.at[i].node, below);
        free(below);
    }
    free(names.at);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct tree_item *)a)->path,
                  ((const struct tree_item *)b)->path);
}

void model_tree(const struct model *model, const unsigned char *ways, uint64_t seed,
                struct tree *out)
{
    *out = (struct tree){ 0 };
    build_dir(&(struct build){ model, ways, seed, out }, model->nodes[0], "", 0);
    qsort(out->items, out->n, sizeof *out->items, by_path);
}

void model_live(const struct model *model, struct tree *out)
{
    model_tree(model, NULL, 0, out);
}
