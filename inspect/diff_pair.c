#include "diff.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/checkpoint.h>
#include <dcp/training.h>
#include <stdio.h>
#include <string.h>

static bool same_shape(const struct dcp_tensor *a, const struct dcp_tensor *b)
{
    for (int d = 0; d < a->ndim && a->ndim == b->ndim; d++)
        if (a->shape[d] != b->shape[d])
            return false;
    return a->ndim == b->ndim;
}

/* What can be said before anything is read. */
static struct inspect_pair make_pair(const struct dcp_tensor *a,
                                     const struct dcp_tensor *b)
{
    struct inspect_pair pair = { .a = a, .b = b, .most_at = -1 };
    pair.verdict = !a                  ? INSPECT_ONLY_B
                   : !b                ? INSPECT_ONLY_A
                   : !same_shape(a, b) ? INSPECT_OTHER_SHAPE
                                       : INSPECT_SAME_BITS;
    return pair;
}

/* The tensors of one side; none where none is selected, when the other has some. */
static int select_side(const struct inspect_checkpoint *side,
                       const struct inspect_selection *selection, size_t **out, size_t *n,
                       struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    int rc = inspect_select(side, selection, out, n, &why);
    if (rc && rc != DCP_E_NOT_FOUND)
        *err = why;
    return rc == DCP_E_NOT_FOUND ? DCP_OK : rc;
}

/* One side, to look things up in. */
struct side {
    const struct dcp_catalog *catalog;
    struct dcp_identity *identity;
};

/* What is a buffer on one side may be a weight on the other, of which less is known. */
static int find_param(const struct side *side, enum dcp_role role, const char *param)
{
    int i = dcp_identity_find(side->identity, role, param);
    if (i < 0 && (role == DCP_ROLE_MODEL || role == DCP_ROLE_BUFFER))
        i = dcp_identity_find(side->identity,
                              role == DCP_ROLE_MODEL ? DCP_ROLE_BUFFER : DCP_ROLE_MODEL,
                              param);
    return i;
}

/* A weight is also found without the prefix that a wrapper of the model puts before every
 * name, or with it. */
static int find_weight(const struct side *side, const struct dcp_tensor *tensor)
{
    static const char *const prefixes[] = { "transformer.", "model.", "module." };
    int i = find_param(side, tensor->role, tensor->param);
    for (size_t k = 0; k < DCP_ARRAY_LEN(prefixes) && i < 0; k++) {
        char longer[1024];
        size_t n = strlen(prefixes[k]);
        if (strncmp(tensor->param, prefixes[k], n) == 0)
            i = find_param(side, tensor->role, tensor->param + n);
        else if ((size_t)snprintf(longer, sizeof longer, "%s%s", prefixes[k],
                                  tensor->param) < sizeof longer)
            i = find_param(side, tensor->role, longer);
    }
    return i;
}

/* ".step" of "optimizer.state.0.step"; NULL: its name ends as its weight's does. */
static const char *state_word(const struct dcp_tensor *tensor)
{
    const char *dot = strrchr(tensor->name, '.');
    size_t n = strlen(tensor->name), n_param = strlen(tensor->param);
    if (n >= n_param && strcmp(tensor->name + n - n_param, tensor->param) == 0)
        return NULL;
    return dot;
}

/* The one tensor that an optimizer keeps of that weight under that word; -1: none, or
 * several. */
static int find_state(const struct dcp_catalog *catalog, const char *param,
                      const char *word)
{
    int found = -1;
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (tensor->role != DCP_ROLE_OPTIM || strcmp(tensor->param, param) != 0)
            continue;
        const char *own = state_word(tensor);
        if (!own || strcmp(own, word) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = (int)t;
    }
    return found;
}

/* The tensor of the other side: the one with its name, else the one that is the same to
 * training. Of what an optimizer keeps beside moments and masters, the last word of the
 * name tells, where each side has one such tensor of the weight. NULL: there is none. */
static const struct dcp_tensor *find_twin(const struct side *own, const struct side *side,
                                          const struct dcp_tensor *tensor)
{
    const char *word = tensor->role == DCP_ROLE_OPTIM ? state_word(tensor) : NULL;
    int i = dcp_catalog_find(side->catalog, tensor->name);
    if (i < 0 && word && find_state(own->catalog, tensor->param, word) >= 0)
        i = find_state(side->catalog, tensor->param, word);
    if (i < 0 && tensor->role != DCP_ROLE_OPTIM && tensor->role != DCP_ROLE_OTHER)
        i = find_weight(side, tensor);
    return i < 0 ? NULL : &side->catalog->tensors[i];
}

/* A second name that one side alone has says nothing that the other does not. */
static int add_pairs(struct inspect_diff_result *diff, const struct side *a,
                     const size_t *in_a, size_t n_a, const struct side *b,
                     const size_t *in_b, size_t n_b, struct dcp_error *err)
{
    diff->pairs = dcp_mem_calloc(n_a + n_b, sizeof *diff->pairs);
    if (!diff->pairs)
        return dcp_error_memory(err, "the pairs of tensors");
    for (size_t i = 0; i < n_a; i++) {
        const struct dcp_tensor *t = &a->catalog->tensors[in_a[i]];
        const struct dcp_tensor *twin = find_twin(a, b, t);
        if (twin || !t->tied_to)
            diff->pairs[diff->n_pairs++] = make_pair(t, twin);
    }
    for (size_t i = 0; i < n_b; i++) {
        const struct dcp_tensor *t = &b->catalog->tensors[in_b[i]];
        if (!t->tied_to && !find_twin(b, a, t))
            diff->pairs[diff->n_pairs++] = make_pair(NULL, t);
    }
    return DCP_OK;
}

static int pair_tensors(struct inspect_diff_result *diff,
                        const struct inspect_selection *selection, struct dcp_error *err)
{
    DCP_CLEANUP_FREE size_t *in_a = NULL, *in_b = NULL;
    const struct dcp_catalog *a = diff->a.catalog, *b = diff->b.catalog;
    size_t n_a = 0, n_b = 0;
    DCP_TRY(select_side(&diff->a, selection, &in_a, &n_a, err));
    DCP_TRY(select_side(&diff->b, selection, &in_b, &n_b, err));
    if (!n_a && !n_b && a->n_tensors) /* with its sentence, which select_side drops */
        return inspect_select(&diff->a, selection, &in_a, &n_a, err);
    struct side side_a = { .catalog = a }, side_b = { .catalog = b };
    int rc = dcp_identity_new(a, &side_a.identity, err);
    rc = rc ? rc : dcp_identity_new(b, &side_b.identity, err);
    rc = rc ? rc : add_pairs(diff, &side_a, in_a, n_a, &side_b, in_b, n_b, err);
    dcp_identity_free(side_a.identity);
    dcp_identity_free(side_b.identity);
    return rc;
}

static bool same_object(const struct dcp_object *a, const struct dcp_object *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->size_bytes == b->size_bytes && memcmp(a->data, b->data, a->size_bytes) == 0)
        return true;
    if (a->kind != DCP_OBJECT_JSON)
        return false;
    /* JSON is the same in any order of keys and with any blanks. */
    DCP_CLEANUP_JSON json_t *x = NULL, *y = NULL;
    return dcp_json_parse(a->data, a->size_bytes, a->name, &x, NULL) == DCP_OK &&
           dcp_json_parse(b->data, b->size_bytes, b->name, &y, NULL) == DCP_OK &&
           json_equal(x, y);
}

/* Where a state comes from does not make it another. */
static bool is_compared(const char *name)
{
    return strcmp(name, DCP_LINEAGE) != 0;
}

/* Whether one name is the other or the beginning of its path: "rng" of "rng.python". */
static bool is_path_of(const char *name, const char *other)
{
    size_t n = strlen(name), m = strlen(other), k = n < m ? n : m;
    return strncmp(name, other, k) == 0 && (n == m || (n < m ? other : name)[k] == '.');
}

/* What stands at a path in a value, whose keys may have dots; NULL: nothing is known. */
static json_t *at_path(json_t *value, const char *path)
{
    json_t *found = json_object_get(value, path);

    for (const char *dot = path; !found && (dot = strchr(dot, '.')); dot++) {
        json_t *inner = json_object_getn(value, path, (size_t)(dot - path));
        found = inner ? at_path(inner, dot + 1) : NULL;
    }
    return found;
}

/* Whether a part of an object that is known there is another one. */
static bool is_other_part(const struct dcp_object *whole, const struct dcp_object *part)
{
    DCP_CLEANUP_JSON json_t *all = NULL, *one = NULL;

    if (whole->kind != DCP_OBJECT_JSON || part->kind != DCP_OBJECT_JSON ||
        dcp_json_parse(whole->data, whole->size_bytes, whole->name, &all, NULL) ||
        dcp_json_parse(part->data, part->size_bytes, part->name, &one, NULL))
        return false;
    json_t *there = at_path(all, part->name + strlen(whole->name) + 1);
    return there && !json_equal(there, one);
}

enum held { HELD_NOT, HELD_OTHERWISE, HELD_OTHER };

/* Whether a side says it in other words: formats differ in what of a tree is one object,
 * and groups of parameters are told by `optimizer`, too. */
static enum held find_otherwise(const struct dcp_catalog *side,
                                const struct dcp_object *object)
{
    size_t n = strlen(object->name);
    enum held held = HELD_NOT;

    if (dcp_str_ends(object->name, ".param_groups") &&
        dcp_catalog_find_object(side, DCP_TRAINING_OPTIMIZER) >= 0)
        return HELD_OTHERWISE;
    for (size_t i = 0; i < side->n_objects && held != HELD_OTHER; i++) {
        const struct dcp_object *there = &side->objects[i];
        bool first = n < strlen(there->name);
        if (is_path_of(object->name, there->name))
            held = is_other_part(first ? object : there, first ? there : object)
                       ? HELD_OTHER
                       : HELD_OTHERWISE;
    }
    return held;
}

/* How an object that `side` has not under its name is there: between two formats what one
 * of them spells names by is no difference, nor a file beside its weights, for which
 * others have no place. */
static enum held find_elsewhere(const struct inspect_diff_result *diff,
                                const struct dcp_catalog *side,
                                const struct dcp_object *object)
{
    bool state = dcp_training_is_state(object->name);

    if (diff->a.location.format == diff->b.location.format)
        return HELD_NOT;
    if (!state && (dcp_object_is_spelling(object->name) || dcp_object_file(object->name)))
        return HELD_OTHERWISE;
    return find_otherwise(side, object);
}

static int pair_objects(struct inspect_diff_result *diff, struct dcp_error *err)
{
    const struct dcp_catalog *a = diff->a.catalog, *b = diff->b.catalog;
    diff->objects = dcp_mem_calloc(a->n_objects + b->n_objects, sizeof *diff->objects);
    if (!diff->objects)
        return dcp_error_memory(err, "the pairs of objects");
    for (size_t i = 0; i < a->n_objects; i++) {
        const char *name = a->objects[i].name;
        int other = dcp_catalog_find_object(b, name);
        if (!is_compared(name))
            continue;
        if (other >= 0 && same_object(&a->objects[i], &b->objects[other])) {
            diff->n_objects_same++;
            continue;
        }
        enum held held =
            other >= 0 ? HELD_OTHER : find_elsewhere(diff, b, &a->objects[i]);
        if (held != HELD_OTHERWISE)
            diff->objects[diff->n_objects++] =
                (struct inspect_object_diff){ name, true, held == HELD_OTHER };
    }
    for (size_t i = 0; i < b->n_objects; i++) {
        const char *name = b->objects[i].name;
        if (!is_compared(name) || dcp_catalog_find_object(a, name) >= 0)
            continue;
        enum held held = find_elsewhere(diff, a, &b->objects[i]);
        if (held != HELD_OTHERWISE)
            diff->objects[diff->n_objects++] =
                (struct inspect_object_diff){ name, held == HELD_OTHER, true };
    }
    return DCP_OK;
}

int inspect_diff_pair(struct inspect_diff_result *diff,
                      const struct inspect_selection *selection, struct dcp_error *err)
{
    int rc = pair_tensors(diff, selection, err);
    /* Objects are training state: no part of a selection, and not every format holds
     * them. */
    diff->objects_compared = selection->globs.n == 0 && selection->only == DCP_ONLY_ALL &&
                             (diff->a.location.format->flags & DCP_FORMAT_OBJECTS) &&
                             (diff->b.location.format->flags & DCP_FORMAT_OBJECTS);
    if (rc == DCP_OK && diff->objects_compared)
        rc = pair_objects(diff, err);
    return rc;
}

/* The pairs that must be read, and what the threads share. */
struct job {
    struct inspect_diff_result *diff;
    size_t *to_read;
};

static int compare_share(void *self, size_t first, size_t last, struct inspect_work *work,
                         struct dcp_error *err)
{
    struct job *job = self;
    struct inspect_comparer *comparer;
    int rc = inspect_comparer_new(&job->diff->a, &job->diff->b, &job->diff->tolerance,
                                  &comparer, err);
    for (size_t i = first; i < last && rc == DCP_OK; i++)
        rc = inspect_compare(comparer, &job->diff->pairs[job->to_read[i]], work, err);
    inspect_comparer_free(comparer);
    return rc;
}

static bool has_equal_fingerprints(const struct inspect_pair *pair)
{
    return pair->a->has_fingerprint && pair->b->has_fingerprint &&
           pair->a->dtype == pair->b->dtype &&
           pair->a->fingerprint == pair->b->fingerprint;
}

int inspect_diff_compare(struct dcp_main *m, struct inspect_diff_result *diff, bool read,
                         struct dcp_error *err)
{
    DCP_CLEANUP_FREE size_t *to_read = dcp_mem_calloc(diff->n_pairs, sizeof *to_read);
    DCP_CLEANUP_FREE uint64_t *sizes = dcp_mem_calloc(diff->n_pairs, sizeof *sizes);
    struct job job = { diff, to_read };
    size_t n = 0;
    if (!to_read || !sizes)
        return dcp_error_memory(err, "the pairs of tensors");
    for (size_t i = 0; i < diff->n_pairs; i++) {
        struct inspect_pair *pair = &diff->pairs[i];
        if (pair->verdict != INSPECT_SAME_BITS)
            continue;
        pair->by_fingerprint = !read && has_equal_fingerprints(pair);
        if (pair->by_fingerprint)
            continue;
        sizes[n] = dcp_tensor_bytes(pair->a) + dcp_tensor_bytes(pair->b);
        to_read[n++] = i;
    }
    int rc = n ? inspect_reader(&diff->a, diff->verified, err) : DCP_OK;
    if (n && rc == DCP_OK)
        rc = inspect_reader(&diff->b, diff->verified, err);
    if (n && rc == DCP_OK)
        rc = inspect_work_run(m, "comparing", sizes, n, compare_share, &job, err);
    if (n && rc == DCP_OK)
        rc = inspect_check(&diff->a, err);
    if (n && rc == DCP_OK)
        rc = inspect_check(&diff->b, err);
    for (size_t i = 0; i < diff->n_pairs && rc == DCP_OK; i++) {
        const struct inspect_pair *pair = &diff->pairs[i];
        diff->n_same += inspect_diff_is_same(pair);
        diff->n_by_fingerprint += pair->by_fingerprint;
        diff->n_by_value += pair->verdict == INSPECT_SAME_VALUES;
        diff->n_near += pair->verdict == INSPECT_WITHIN_TOLERANCE;
    }
    return rc;
}

bool inspect_diff_is_same(const struct inspect_pair *pair)
{
    return pair->verdict == INSPECT_SAME_BITS || pair->verdict == INSPECT_SAME_VALUES ||
           pair->verdict == INSPECT_WITHIN_TOLERANCE;
}

void inspect_diff_fini(struct inspect_diff_result *diff)
{
    free(diff->pairs);
    free(diff->objects);
    inspect_close(&diff->a);
    inspect_close(&diff->b);
}
