/* training: the members of the record, read and written. */
#include "base/arena.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/training.h>
#include <math.h>
#include <string.h>

/* The objects, in the order in which they are written. */
enum part { MODEL_CONFIG, TRAINER, OPTIMIZER, SCHEDULER, LOSS_SCALER, RNG, DATA, CONFIG };
static const char *const names[] = {
    DCP_TRAINING_MODEL_CONFIG, DCP_TRAINING_TRAINER,          DCP_TRAINING_OPTIMIZER,
    DCP_TRAINING_SCHEDULER,    DCP_TRAINING_LOSS_SCALER,      DCP_TRAINING_RNG,
    DCP_TRAINING_DATA,         DCP_TRAINING_DEEPSPEED_CONFIG,
};
enum { N_PARTS = DCP_ARRAY_LEN(names) };

/* What was read, and what is given out. */
struct dcp_training_kept {
    struct dcp_arena *arena;
    json_t *parts[N_PARTS]; /* NULL: it was not there; of configurations never */
    const char *texts[N_PARTS];
};

/* -- members ------------------------------------------------------------------------- */

enum type { INTEGER, REAL, PAIR, TRUTH, TEXT, DIGEST };

struct member {
    enum part part;
    const char *key;
    enum type type;
    size_t at; /* in the record, or in a group */
};

#define AT(name) offsetof(struct dcp_training, name)
static const struct member members[] = {
    { TRAINER, "step", INTEGER, AT(step) },
    { TRAINER, "samples", INTEGER, AT(samples) },
    { TRAINER, "tokens", INTEGER, AT(tokens) },
    { TRAINER, "skipped_steps", INTEGER, AT(skipped_steps) },
    { TRAINER, "seed", INTEGER, AT(seed) },
    { OPTIMIZER, "type", TEXT, AT(optimizer) },
    { OPTIMIZER, "step", INTEGER, AT(updates) },
    { SCHEDULER, "type", TEXT, AT(scheduler) },
    { SCHEDULER, "last_batch_iteration", INTEGER, AT(last_batch_iteration) },
    { LOSS_SCALER, "type", TEXT, AT(loss_scaler) },
    { LOSS_SCALER, "scale", REAL, AT(loss_scale) },
    { RNG, "algorithm", TEXT, AT(rng) },
    { RNG, "seed", INTEGER, AT(rng_seed) },
    { DATA, "cursor", INTEGER, AT(cursor) },
    { DATA, "digest", DIGEST, AT(data_digest) },
    { DATA, "seq_len", INTEGER, AT(seq_len) },
    { MODEL_CONFIG, NULL, TEXT, AT(model_config) },
    { CONFIG, NULL, TEXT, AT(deepspeed_config) },
};
#undef AT
#define AT(name) offsetof(struct dcp_training_group, name)
static const struct member options[] = {
    { OPTIMIZER, "lr", REAL, AT(lr) },
    { OPTIMIZER, "initial_lr", REAL, AT(initial_lr) },
    { OPTIMIZER, "betas", PAIR, AT(betas) },
    { OPTIMIZER, "eps", REAL, AT(eps) },
    { OPTIMIZER, "weight_decay", REAL, AT(weight_decay) },
    { OPTIMIZER, "bias_correction", TRUTH, AT(bias_correction) },
};
#undef AT
#define GROUPS "param_groups"
#define PARAMS "params"

static double real_of(const json_t *value)
{
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* Sets a member; unknown, where the value is none of the type. */
static void parse(enum type type, const json_t *value, void *at)
{
    const char *text = json_string_value(value);
    uint64_t digest;

    if (type == INTEGER)
        *(int64_t *)at =
            json_is_integer(value) ? json_integer_value(value) : DCP_TRAINING_UNKNOWN;
    else if (type == REAL)
        *(double *)at = real_of(value);
    else if (type == PAIR)
        for (size_t i = 0; i < 2; i++)
            ((double *)at)[i] = real_of(json_array_get(value, i));
    else if (type == TRUTH)
        *(int *)at = json_is_boolean(value) ? json_is_true(value) : -1;
    else
        *(const char **)at =
            type == TEXT || (text && dcp_str_parse_hex64(text, &digest)) ? text : NULL;
}

/* *out stays NULL where nothing is known. False: out of memory. */
static bool to_json(enum type type, const void *at, json_t **out)
{
    const double *real = at;
    int64_t integer = type == INTEGER ? *(const int64_t *)at : 0;
    int truth = type == TRUTH ? *(const int *)at : 0;
    const char *text = type >= TEXT ? *(const char *const *)at : "";

    if (integer == DCP_TRAINING_UNKNOWN || truth < 0 || !text ||
        (type == REAL && isnan(real[0])) ||
        (type == PAIR && (isnan(real[0]) || isnan(real[1]))))
        return true;
    *out = type == INTEGER ? json_integer((json_int_t)integer)
           : type == REAL  ? json_real(real[0])
           : type == PAIR  ? json_pack("[f,f]", real[0], real[1])
           : type == TRUTH ? json_boolean(truth)
                           : json_string(text);
    return *out;
}

/* Sets a member as the record has it: where that knows none, or what was read says the
 * same, as it was read. */
static bool put(json_t *out, const struct member *member, const void *base,
                const json_t *read)
{
    json_t *old = json_object_get(read, member->key);
    DCP_CLEANUP_JSON json_t *now = NULL, *then = NULL;
    union {
        int64_t integer;
        double reals[2];
        int truth;
        const char *text;
    } value;

    parse(member->type, old, &value);
    if (!to_json(member->type, &value, &then) ||
        !to_json(member->type, (const char *)base + member->at, &now))
        return false;
    json_t *chosen = !now || json_equal(now, then) ? old : now;
    return !chosen || !json_object_set(out, member->key, chosen);
}

/* -- groups -------------------------------------------------------------------------- */

static const char *const *parse_params(struct dcp_arena *arena, const json_t *params)
{
    size_t n = json_array_size(params);
    const char **names_of = dcp_arena_alloc(arena, n, sizeof *names_of);

    for (size_t i = 0; names_of && i < n; i++)
        names_of[i] = json_string_value(json_array_get(params, i));
    return names_of;
}

static int parse_groups(struct dcp_training *training, const json_t *groups,
                        struct dcp_error *err)
{
    struct dcp_arena *arena = training->kept->arena;
    size_t n = json_array_size(groups);
    struct dcp_training_group *list = dcp_arena_alloc(arena, n, sizeof *list);

    for (size_t g = 0; list && g < n; g++) {
        const json_t *group = json_array_get(groups, g),
                     *params = json_object_get(group, PARAMS);
        for (size_t i = 0; i < DCP_ARRAY_LEN(options); i++)
            parse(options[i].type, json_object_get(group, options[i].key),
                  (char *)&list[g] + options[i].at);
        list[g].n_params = json_array_size(params);
        if (!(list[g].params = parse_params(arena, params)))
            list = NULL;
    }
    training->groups = list;
    training->n_groups = list ? n : 0;
    return list ? DCP_OK : dcp_error_memory(err, "groups of parameters");
}

/* The names; what has none stays as it was read. */
static bool put_params(json_t *out, const struct dcp_training_group *group,
                       const json_t *read)
{
    json_t *old = json_object_get(read, PARAMS), *made = json_array();
    bool ok = made != NULL;

    for (size_t i = 0; i < group->n_params && ok; i++) {
        json_t *kept = json_array_get(old, i);
        ok = !json_array_append_new(made, group->params[i] ? json_string(group->params[i])
                                          : kept           ? json_incref(kept)
                                                           : json_null());
    }
    if (ok && (group->n_params || !read))
        ok = !json_object_set(out, PARAMS, made);
    json_decref(made);
    return ok;
}

/* NULL: out of memory. */
static json_t *make_group(const struct dcp_training_group *group, json_t *read)
{
    json_t *made = !read || json_is_object(read) ? json_object() : json_incref(read);
    bool ok = made != NULL;

    if (made == read)
        return made;
    for (size_t i = 0; i < DCP_ARRAY_LEN(options) && ok; i++)
        ok = put(made, &options[i], group, read);
    ok = ok && put_params(made, group, read) &&
         (!read || !json_object_update_missing(made, read));
    if (ok)
        return made;
    json_decref(made);
    return NULL;
}

static bool put_groups(json_t *out, const struct dcp_training *training,
                       const json_t *read)
{
    json_t *old = json_object_get(read, GROUPS), *list = json_array();
    bool ok = list != NULL;

    for (size_t g = 0; g < training->n_groups && ok; g++)
        ok = !json_array_append_new(
            list, make_group(&training->groups[g], json_array_get(old, g)));
    ok = ok && (!training->n_groups || !json_object_set(out, GROUPS, list));
    json_decref(list);
    return ok;
}

/* -- parts --------------------------------------------------------------------------- */

/* Known members in their order, then the others that were read. *out stays NULL where
 * nothing is known. */
static int make_part(const struct dcp_training *training, enum part part,
                     const json_t *read, json_t **out, struct dcp_error *err)
{
    json_t *made = json_object();
    bool ok = made != NULL;

    for (size_t i = 0; i < DCP_ARRAY_LEN(members) && ok; i++)
        if (members[i].part == part)
            ok = put(made, &members[i], training, read);
    if (ok && part == OPTIMIZER)
        ok = put_groups(made, training, read);
    if (ok && json_is_object(read))
        ok = !json_object_update_missing(made, (json_t *)(uintptr_t)read);
    if (ok && json_object_size(made))
        *out = json_incref(made);
    json_decref(made);
    return ok ? DCP_OK : dcp_error_memory(err, names[part]);
}

/* The text of a part, or NULL: there is none. */
static int text_of(const struct dcp_training *training, enum part part, const char **out,
                   struct dcp_error *err)
{
    const struct dcp_training_kept *kept = training->kept;
    bool config = part == MODEL_CONFIG || part == CONFIG;
    const char *given =
        part == MODEL_CONFIG ? training->model_config : training->deepspeed_config;
    DCP_CLEANUP_JSON json_t *value = NULL;

    *out = config ? given : kept->texts[part];
    if (!config)
        DCP_TRY(make_part(training, part, kept->parts[part], &value, err));
    else if (given && given != kept->texts[part])
        DCP_TRY(dcp_json_parse(given, strlen(given), names[part], &value, err));
    if (!value || json_equal(value, kept->parts[part]))
        return DCP_OK;
    DCP_CLEANUP_FREE char *text = dcp_json_text(value, 0);
    *out = text ? dcp_arena_text(kept->arena, text) : NULL;
    return *out ? DCP_OK : dcp_error_memory(err, names[part]);
}

/* -- the record ---------------------------------------------------------------------- */

void dcp_training_init(struct dcp_training *training)
{
    *training = (struct dcp_training){ 0 };
    for (size_t i = 0; i < DCP_ARRAY_LEN(members); i++)
        parse(members[i].type, NULL, (char *)training + members[i].at);
}

void dcp_training_fini(struct dcp_training *training)
{
    for (size_t p = 0; training->kept && p < N_PARTS; p++)
        json_decref(training->kept->parts[p]);
    if (training->kept)
        dcp_arena_free(training->kept->arena);
    free(training->kept);
    dcp_training_init(training);
}

static int keep(struct dcp_training *training, struct dcp_error *err)
{
    struct dcp_training_kept *kept = training->kept;

    if (kept)
        return DCP_OK;
    kept = dcp_mem_calloc(1, sizeof *kept);
    if (kept && !(kept->arena = dcp_arena_new())) {
        free(kept);
        kept = NULL;
    }
    training->kept = kept;
    return kept ? DCP_OK : dcp_error_memory(err, "a training state");
}

static int parse_part(struct dcp_training *training, const struct dcp_catalog *catalog,
                      enum part part, struct dcp_error *err)
{
    struct dcp_training_kept *kept = training->kept;
    int found = dcp_catalog_find_object(catalog, names[part]);
    bool config = part == MODEL_CONFIG || part == CONFIG;

    if (found < 0 || catalog->objects[found].kind != DCP_OBJECT_JSON)
        return DCP_OK;
    const struct dcp_object *object = &catalog->objects[found];
    kept->texts[part] = dcp_arena_text_n(kept->arena, object->data, object->size_bytes);
    if (!kept->texts[part])
        return dcp_error_memory(err, names[part]);
    if (part == MODEL_CONFIG)
        training->model_config = kept->texts[part];
    if (part == CONFIG)
        training->deepspeed_config = kept->texts[part];
    return config ? DCP_OK
                  : dcp_json_parse(object->data, object->size_bytes, names[part],
                                   &kept->parts[part], err);
}

int dcp_training_parse(const struct dcp_catalog *catalog,
                       struct dcp_training *out_training, struct dcp_error *err)
{
    struct dcp_training *t = out_training;

    dcp_training_init(t);
    int rc = keep(t, err);
    for (int p = 0; p < N_PARTS && !rc; p++)
        rc = parse_part(t, catalog, (enum part)p, err);
    for (size_t i = 0; i < DCP_ARRAY_LEN(members) && !rc; i++)
        if (members[i].key)
            parse(members[i].type,
                  json_object_get(t->kept->parts[members[i].part], members[i].key),
                  (char *)t + members[i].at);
    if (!rc)
        rc = parse_groups(t, json_object_get(t->kept->parts[OPTIMIZER], GROUPS), err);
    if (rc)
        dcp_training_fini(t);
    return rc;
}

int dcp_training_check(const struct dcp_training *training, struct dcp_error *err)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(members); i++) {
        const struct member *m = &members[i];
        const json_t *read = training->kept ? training->kept->parts[m->part] : NULL;
        int64_t integer = 0;
        uint64_t digest;
        if ((m->part != TRAINER && m->part != DATA) || !json_object_get(read, m->key))
            continue;
        DCP_TRY(m->type == DIGEST
                    ? dcp_json_get_hex64(read, m->key, names[m->part], &digest, err)
                    : dcp_json_get_i64(read, m->key, names[m->part], &integer, err));
        if (integer < 0)
            return dcp_error_set(err, DCP_E_CORRUPT, "%s: '%s' is %lld", names[m->part],
                                 m->key, (long long)integer);
    }
    if (training->kept &&
        json_is_array(json_object_get(training->kept->parts[OPTIMIZER], "steps")))
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "weights were updated some more often than others, and "
                             "there is one count for all here");
    return DCP_OK;
}

int dcp_training_format(struct dcp_training *training,
                        const struct dcp_object **out_objects, size_t *out_n,
                        struct dcp_error *err)
{
    struct dcp_object *objects = NULL;
    int rc = keep(training, err);

    *out_n = 0;
    if (!rc &&
        !(objects = dcp_arena_alloc(training->kept->arena, N_PARTS, sizeof *objects)))
        rc = dcp_error_memory(err, "a training state");
    for (int p = 0; p < N_PARTS && !rc; p++) {
        const char *text;
        rc = text_of(training, (enum part)p, &text, err);
        if (!rc && text)
            objects[(*out_n)++] = (struct dcp_object){ .name = names[p],
                                                       .kind = DCP_OBJECT_JSON,
                                                       .data = text,
                                                       .size_bytes = strlen(text) };
    }
    *out_objects = objects;
    return rc;
}

int dcp_training_store(struct dcp_training *training, struct dcp_catalog *catalog,
                       struct dcp_error *err)
{
    const struct dcp_object *objects;
    size_t n;
    int rc = dcp_training_format(training, &objects, &n, err);

    for (size_t i = 0; i < n && !rc; i++)
        rc = dcp_catalog_add_object(catalog, &objects[i], err);
    return rc;
}

bool dcp_training_is_state(const char *name)
{
    for (int p = TRAINER; p <= DATA; p++)
        if (!strcmp(names[p], name))
            return true;
    return false;
}
