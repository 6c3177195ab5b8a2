/* optim: the optimizer's file of every rank: flat arrays of masters and
 * moments, cut into the parameters that lie in them. */
#include "base/mem.h"
#include "muon.h"
#include "ours.h"
#include "slices.h"
#include <math.h>
#include <string.h>

enum { MAX_COLUMNS = 8 }; /* kinds of flat arrays that one optimizer keeps */

/* A kind of array: the masters, or what the optimizer calls "exp_avg", … */
struct column {
    const char *key;
    int *tensors;           /* of each parameter, by its number; -1: it has none */
    enum dcp_dtype *dtypes; /* of each group */
};

struct shards {
    struct dcp_ds_reader *reader;
    struct column columns[MAX_COLUMNS];
    size_t n_columns;
    struct dcp_torch_view *views; /* of this rank's file: group by column */
    bool *has;                    /* the same: it was there */
    int64_t *ids;                 /* of each group: its number in the optimizer's state */
    double *steps;                /* of each group of ours; NAN: none */
    json_t *states;               /* of each group: what is no flat array */
    bool elastic;
};

/* -- which arrays there are -------------------------------------------------------- */

static int find_column(struct shards *s, const char *key, size_t *out,
                       struct dcp_error *err)
{
    struct dcp_ds_reader *reader = s->reader;

    for (*out = 0; *out < s->n_columns; (*out)++)
        if (!strcmp(s->columns[*out].key, key))
            return DCP_OK;
    if (s->n_columns == MAX_COLUMNS)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "the optimizer keeps over %d arrays for each parameter",
                             MAX_COLUMNS);
    struct column *c = &s->columns[s->n_columns++];
    c->key = key;
    c->tensors = dcp_arena_alloc(reader->arena, reader->n_params, sizeof *c->tensors);
    c->dtypes = dcp_arena_alloc(reader->arena, reader->n_groups, sizeof *c->dtypes);
    if (!c->tensors || !c->dtypes)
        return dcp_error_memory(err, "the optimizer's arrays");
    memset(c->tensors, -1, reader->n_params * sizeof *c->tensors);
    return DCP_OK;
}

static bool is_flat(const struct dcp_torch_view *view)
{
    return view->ndim == 1 && view->dense && view->has_data && !view->memory;
}

/* Elements that an array of a group has on a rank: all of its partition, or without the
 * padding at its end. */
static bool fits(const struct dcp_ds_reader *reader, size_t group, int rank,
                 const struct dcp_torch_view *view)
{
    const struct dcp_ds_group *g = &reader->groups[group];

    return is_flat(view) &&
           (view->shape[0] == g->part ||
            (reader->stage != 3 && view->shape[0] == dcp_ds_filled(g, rank)));
}

static const json_t *options_of(const struct dcp_ds_reader *reader,
                                const struct dcp_ds_group *group)
{
    return json_array_get(reader->param_groups, (size_t)group->param_group);
}

/* And Muon's momenta, whose number tells whether they are of whole weights. Where both
 * may be they are as on the ranks before: unless weights are padded, such a rank begins
 * and ends with a weight, which makes them the same, or has the last part of one, and
 * then the rank before it told. */
static bool fits_momenta(struct dcp_ds_reader *reader, size_t group, int rank,
                         const struct dcp_torch_view *view)
{
    struct dcp_ds_group *g = &reader->groups[group];
    const json_t *options = options_of(reader, g);
    bool cut = fits(reader, group, rank, view);
    bool whole = reader->stage != 3 && dcp_ds_is_muon(options) && is_flat(view) &&
                 view->shape[0] == dcp_ds_muon_elems(g, reader->world_size, rank);

    if (cut != whole)
        g->whole = whole;
    return cut || whole;
}

static bool is_momenta(const char *key)
{
    return !strcmp(key, DCP_DS_MOMENTUM);
}

/* Keeps the view of an array for this rank. */
static int take_array(struct shards *s, struct dcp_ds_file *file, size_t group, int rank,
                      const char *key, const struct dcp_torch_view *view,
                      struct dcp_error *err)
{
    const struct dcp_ds_reader *reader = s->reader;
    size_t c, known = s->n_columns;

    DCP_TRY(find_column(s, key, &c, err));
    if (rank && c == known)
        return dcp_ds_corrupt(file, err, "has '%s', unlike the file of rank 0", key);
    if (!(is_momenta(key) ? fits_momenta(s->reader, group, rank, view)
                          : fits(reader, group, rank, view))) {
        if (reader->stage == 3 && view->ndim == 1 && !view->shape[0])
            return dcp_error_set(err, DCP_E_UNSUPPORTED,
                                 "'%s' has no elements in '%s' of group %zu: they were "
                                 "offloaded to NVMe, which is not supported",
                                 file->torch.in.shown, key, group);
        return dcp_ds_corrupt(file, err,
                              "has %lld elements in '%s' of group %zu, %lld are expected",
                              (long long)(view->ndim ? view->shape[0] : 1), key, group,
                              (long long)reader->groups[group].part);
    }
    if (rank && s->columns[c].dtypes[group] != view->dtype)
        return dcp_ds_corrupt(file, err, "has '%s' of group %zu in another dtype", key,
                              group);
    s->columns[c].dtypes[group] = view->dtype;
    s->views[group * MAX_COLUMNS + c] = *view;
    s->has[group * MAX_COLUMNS + c] = true;
    return DCP_OK;
}

/* -- state of a group -------------------------------------------------------------- */

static int take_step(struct shards *s, struct dcp_ds_file *file, size_t group, int rank,
                     const struct dcp_pickle_node *node, bool *out_taken,
                     struct dcp_error *err)
{
    enum dcp_dtype dtype = DCP_I64;
    int64_t number;
    double value = 0;
    bool found = false;

    *out_taken = true;
    if (dcp_ds_int(node, &number))
        value = (double)number;
    else if (node->kind == DCP_PICKLE_FLOAT)
        value = node->real;
    else
        DCP_TRY(dcp_ds_scalar(&file->torch, node, &found, &dtype, &value, err));
    if (!found && node->kind != DCP_PICKLE_INT && node->kind != DCP_PICKLE_FLOAT) {
        *out_taken = false;
        return DCP_OK;
    }
    if (!(value >= 0 && value < 9e15))
        return dcp_ds_corrupt(file, err, "has no valid step");
    if (rank && s->steps[group] != value)
        return dcp_ds_corrupt(
            file, err,
            "is of step %.0f, and the file of rank 0 of step %.0f: they "
            "are of two saves",
            value, s->steps[group]);
    s->steps[group] = value;
    const char *form = found ? dcp_dtype_torch_name(dtype) : "int";
    return !rank && json_object_set_new(s->reader->note, "step", json_string(form))
               ? dcp_error_memory(err, "an object")
               : DCP_OK;
}

/* One entry of a group's state: the step, a flat array, or something else. */
static int take_entry(struct shards *s, struct dcp_ds_file *file, size_t group, int rank,
                      const char *key, const struct dcp_pickle_node *value,
                      struct dcp_error *err)
{
    struct dcp_torch_view view;
    bool found, taken = false;

    if (!strcmp(key, "step"))
        DCP_TRY(take_step(s, file, group, rank, value, &taken, err));
    if (taken)
        return DCP_OK;
    int rc = dcp_torch_view(&file->torch, value, key, &found, &view, err);
    bool moment = dcp_ds_role_of_key(key) != DCP_ROLE_OPTIM || is_momenta(key);
    if (!rc && found && (moment || fits(s->reader, group, rank, &view)))
        return take_array(s, file, group, rank, key, &view, err);
    if (rc || rank)
        return rc;
    json_t *state =
        json_array_get(s->states, (size_t)s->reader->groups[group].param_group);
    json_t *json = NULL;
    size_t n = strlen(key) + 32;
    char *path = dcp_arena_alloc(s->reader->arena, n, 1);
    if (!path)
        return dcp_error_memory(err, "an object");
    snprintf(path, n, "optimizer.%zu.%s", group, key);
    DCP_TRY(dcp_ds_json(s->reader, file, value, path, &json, err));
    return json_object_set_new(state, key, json) ? dcp_error_memory(err, "an object")
                                                 : DCP_OK;
}

static int take_state(struct shards *s, struct dcp_ds_file *file, size_t group, int rank,
                      const struct dcp_pickle_node *state, struct dcp_error *err)
{
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(state);

    for (size_t i = 0; pairs && i + 1 < pairs->n; i += 2) {
        const char *key = dcp_ds_text(s->reader->arena, pairs->items[i]);
        if (key && key[0])
            DCP_TRY(take_entry(s, file, group, rank, key, pairs->items[i + 1], err));
    }
    return DCP_OK;
}

/* -- one file ---------------------------------------------------------------------- */

/* The parts of a file of a rank. */
struct parts {
    const struct dcp_pickle_node *optim;   /* all of it */
    const struct dcp_pickle_node *masters; /* a list by group */
    const struct dcp_pickle_node *base;    /* of the optimizer inside */
};

static int find_parts(struct shards *s, struct dcp_ds_file *file, struct parts *out,
                      struct dcp_error *err)
{
    const struct dcp_pickle_node *optim =
        dcp_pickle_get(file->torch.tree, "optimizer_state_dict");
    bool three = s->reader->stage == 3;

    out->optim = optim;
    out->masters = dcp_pickle_get(optim, three ? "fp32_flat_groups"
                                               : "single_partition_of_fp32_groups");
    out->base =
        dcp_pickle_get(optim, three ? "optimizer_state_dict" : "base_optimizer_state");
    if (!dcp_pickle_pairs(optim) || !out->masters || !out->base)
        return dcp_ds_corrupt(file, err, "holds no optimizer state of ZeRO stage %s",
                              three ? "3" : "1 or 2");
    if (dcp_ds_count(out->masters) != s->reader->n_groups)
        return dcp_ds_corrupt(file, err, "has masters of %zu groups, %zu are expected",
                              dcp_ds_count(out->masters), s->reader->n_groups);
    return DCP_OK;
}

/* partition_count: a number, or one for each group (experts have fewer). */
static int check_count(struct shards *s, struct dcp_ds_file *file,
                       const struct dcp_pickle_node *count, struct dcp_error *err)
{
    int64_t number;

    for (size_t i = 0; i < dcp_ds_count(count) || (i == 0 && count); i++) {
        const struct dcp_pickle_node *one =
            dcp_ds_count(count) ? count->list.items[i] : count;
        if (!dcp_ds_int(one, &number))
            return dcp_ds_corrupt(file, err, "has a malformed 'partition_count'");
        if (number != s->reader->world_size)
            return dcp_ds_corrupt(
                file, err, "was partitioned for %lld ranks, the model's file for %d",
                (long long)number, s->reader->world_size);
        if (!dcp_ds_count(count))
            break;
    }
    return DCP_OK;
}

static int check_stage(struct shards *s, struct dcp_ds_file *file,
                       const struct dcp_pickle_node *optim, int rank,
                       struct dcp_error *err)
{
    struct dcp_ds_reader *reader = s->reader;
    const struct dcp_pickle_node *node = dcp_pickle_get(optim, "zero_stage");
    int stage = node ? dcp_ds_stage(node) : 1; /* BF16_Optimizer does not say */

    if (!rank && reader->stage != 3 && (stage == 1 || stage == 2))
        reader->stage = stage;
    if (stage == reader->stage)
        return DCP_OK;
    return dcp_ds_corrupt(file, err, "is of ZeRO stage %d, %s of stage %d", stage,
                          rank ? "and the file of rank 0" : "and the model's file",
                          reader->stage);
}

static int read_rank(struct shards *s, struct dcp_ds_file *file, int rank,
                     const struct parts *parts, struct dcp_error *err)
{
    struct dcp_ds_reader *reader = s->reader;
    const struct dcp_pickle_node *states = dcp_pickle_get(parts->base, "state");
    struct dcp_torch_view view;
    bool found;
    int rc = check_count(s, file, dcp_pickle_get(parts->optim, "partition_count"), err);

    memset(s->has, 0, reader->n_groups * MAX_COLUMNS * sizeof *s->has);
    for (size_t g = 0; g < reader->n_groups && !rc; g++) {
        rc = dcp_torch_view(&file->torch, parts->masters->list.items[g], "master", &found,
                            &view, err);
        if (!rc && !found)
            rc = dcp_ds_corrupt(file, err, "has no masters of group %zu", g);
        if (!rc)
            rc = take_array(s, file, g, rank, "master", &view, err);
        if (!rc)
            rc = take_state(s, file, g, rank,
                            s->elastic ? dcp_pickle_item(parts->base, g)
                                       : dcp_ds_get_nth(states, s->ids[g]),
                            err);
    }
    return rc;
}

/* -- tensors and pieces ------------------------------------------------------------ */

static int add_tensors(struct shards *s, struct dcp_error *err)
{
    struct dcp_ds_reader *reader = s->reader;

    for (size_t c = 0; c < s->n_columns; c++)
        for (size_t i = 0; i < reader->n_order; i++) {
            const struct dcp_ds_slot *slot = &reader->order[i];
            size_t number = reader->groups[slot->group].first + slot->param;
            if (s->has[slot->group * MAX_COLUMNS + c])
                DCP_TRY(dcp_ds_add_state(reader, slot, s->columns[c].key,
                                         s->columns[c].dtypes[slot->group],
                                         &s->columns[c].tensors[number], err));
        }
    return DCP_OK;
}

/* `whole`: where the whole weight begins in momenta of whole weights, else -1. */
static int add_piece(struct shards *s, struct dcp_ds_file *file, int rank, size_t group,
                     size_t param, size_t c, int64_t whole, struct dcp_error *err)
{
    struct dcp_ds_reader *reader = s->reader;
    const struct dcp_ds_group *g = &reader->groups[group];
    const struct dcp_ds_param *p = &g->params[param];
    const struct dcp_torch_view *view = &s->views[group * MAX_COLUMNS + c];
    uint64_t elem = dcp_dtype_size(view->dtype);
    struct dcp_ds_part part;

    if (!dcp_ds_part_of(g, p, reader->stage, reader->world_size, rank, &part)) {
        if (rank || p->n_elems)
            return DCP_OK;
        part = (struct dcp_ds_part){ 0 }; /* no elements, in the file of rank 0 */
    }
    int64_t at = whole < 0 ? part.at : whole + part.begin;
    const struct dcp_piece piece = {
        .tensor = s->columns[c].tensors[g->first + param],
        .rank = rank,
        .region = { .kind = DCP_FLAT, .begin = part.begin, .end = part.end },
        .file = file->index,
        .offset = view->offset + (uint64_t)at * elem,
        .stored_size = (uint64_t)(part.end - part.begin) * elem,
    };
    return dcp_catalog_add_piece(reader->catalog, &piece, err);
}

static int add_column(struct shards *s, struct dcp_ds_file *file, int rank, size_t group,
                      size_t c, struct dcp_error *err)
{
    const struct dcp_ds_reader *reader = s->reader;
    const struct dcp_ds_group *g = &reader->groups[group];
    bool whole = g->whole && is_momenta(s->columns[c].key);
    struct dcp_ds_part part;
    int64_t at = 0;

    for (size_t p = 0; p < g->n_params; p++) {
        DCP_TRY(add_piece(s, file, rank, group, p, c, whole ? at : -1, err));
        if (whole && dcp_ds_part_of(g, &g->params[p], reader->stage, reader->world_size,
                                    rank, &part))
            at += g->params[p].n_elems;
    }
    return DCP_OK;
}

/* A rank without a weight has no momenta of Muon's. */
static bool may_lack(const struct shards *s, size_t group, size_t c, int rank)
{
    const struct dcp_ds_group *g = &s->reader->groups[group];

    return g->whole && is_momenta(s->columns[c].key) && !dcp_ds_filled(g, rank);
}

static int add_pieces(struct shards *s, struct dcp_ds_file *file, int rank,
                      struct dcp_error *err)
{
    const struct dcp_ds_reader *reader = s->reader;

    for (size_t g = 0; g < reader->n_groups; g++)
        for (size_t c = 0; c < s->n_columns; c++) {
            const struct dcp_ds_group *group = &reader->groups[g];
            bool has = s->has[g * MAX_COLUMNS + c];
            bool first = group->n_params && s->columns[c].tensors[group->first] >= 0;
            if (rank && group->n_params && has != first && !may_lack(s, g, c, rank))
                return dcp_ds_corrupt(file, err,
                                      "%s '%s' of group %zu, unlike the file of rank 0",
                                      has ? "has" : "has no", s->columns[c].key, g);
            if (has)
                DCP_TRY(add_column(s, file, rank, g, c, err));
        }
    return DCP_OK;
}

/* -- what rank 0 tells of all ------------------------------------------------------ */

/* param_alignment_paddings: a list of lists. */
static int read_paddings(struct shards *s, struct dcp_ds_file *file,
                         const struct dcp_pickle_node *paddings, struct dcp_error *err)
{
    struct dcp_ds_reader *reader = s->reader;

    if (dcp_ds_none(paddings))
        return DCP_OK;
    for (size_t g = 0; g < reader->n_groups; g++) {
        const struct dcp_pickle_node *of_group = dcp_pickle_item(paddings, g);
        struct dcp_ds_group *group = &reader->groups[g];
        bool ok = dcp_ds_count(of_group) == group->n_params;
        for (size_t p = 0; p < group->n_params && ok; p++)
            ok = dcp_ds_int(of_group->list.items[p], &group->params[p].padding) &&
                 group->params[p].padding >= 0;
        if (!ok)
            return dcp_ds_corrupt(file, err, "has malformed 'param_alignment_paddings'");
    }
    return DCP_OK;
}

static int prepare(struct shards *s, struct dcp_ds_file *file, const struct parts *parts,
                   struct dcp_error *err)
{
    struct dcp_ds_reader *reader = s->reader;
    const struct dcp_pickle_node *groups = dcp_pickle_get(parts->base, "param_groups");
    size_t n = reader->n_groups;

    s->elastic = parts->base->kind == DCP_PICKLE_LIST;
    s->views = dcp_arena_alloc(reader->arena, n * MAX_COLUMNS, sizeof *s->views);
    s->has = dcp_arena_alloc(reader->arena, n * MAX_COLUMNS, sizeof *s->has);
    s->ids = dcp_arena_alloc(reader->arena, n, sizeof *s->ids);
    s->steps = dcp_arena_alloc(reader->arena, n, sizeof *s->steps);
    s->states = json_array();
    if (!s->views || !s->has || !s->ids || !s->steps || !s->states)
        return dcp_error_memory(err, "the optimizer's arrays");
    for (size_t g = 0; g < n; g++) {
        s->steps[g] = NAN;
        if (json_array_append_new(s->states, json_object()))
            return dcp_error_memory(err, "the optimizer's arrays");
    }
    if (reader->stage != 3)
        DCP_TRY(read_paddings(
            s, file, dcp_pickle_get(parts->optim, "param_alignment_paddings"), err));
    if (!s->elastic)
        DCP_TRY(dcp_ds_read_ids(reader, file, groups, s->ids, err));
    for (size_t g = 0; g < n; g++)
        DCP_TRY(dcp_ds_cut(&reader->groups[g], reader->stage, reader->world_size, err));
    DCP_TRY(dcp_ds_read_scalars(reader, file, parts->optim, err));
    DCP_TRY(dcp_ds_read_param_groups(reader, file, s->elastic ? NULL : groups, err));
    for (size_t g = 0; g < n; g++)
        reader->groups[g].whole = dcp_ds_muon_is_whole(
            options_of(reader, &reader->groups[g]), reader->stage, reader->config);
    return DCP_OK;
}

static int64_t first_step(const struct shards *s)
{
    for (size_t g = 0; g < s->reader->n_groups; g++)
        if (!isnan(s->steps[g]))
            return (int64_t)s->steps[g];
    return 0;
}

/* The steps of all groups, where they differ, and what else their states hold. Muon keeps
 * none of its own. */
static int finish(struct shards *s, struct dcp_error *err)
{
    struct dcp_ds_reader *reader = s->reader;
    bool differ = false, any = false;
    json_t *steps = json_array();
    int failed = steps == NULL;
    int64_t last = first_step(s);

    for (size_t g = 0; g < reader->n_groups; g++) {
        bool known = !isnan(s->steps[g]);
        int64_t step = known ? (int64_t)s->steps[g] : last;
        differ = differ || (g && step != last);
        last = step;
        if (known)
            dcp_ds_see_updates(reader, step);
        size_t at = (size_t)reader->groups[g].param_group;
        if (at >= json_array_size(steps))
            failed |= json_array_append_new(steps, json_integer((json_int_t)step));
        any |= json_object_size(json_array_get(s->states, at)) > 0;
    }
    if (differ)
        failed |= json_object_set(reader->note, "steps", steps);
    if (any)
        failed |= json_object_set(reader->note, "state", s->states);
    json_decref(steps);
    return failed ? dcp_error_memory(err, "an object") : DCP_OK;
}

static int read_file(struct shards *s, int rank, struct dcp_error *err)
{
    struct dcp_ds_reader *reader = s->reader;
    DCP_CLEANUP_DS struct dcp_ds_file file = { 0 };
    struct parts parts = { 0 };
    bool noted;

    DCP_TRY(dcp_ds_open(reader, reader->folder.optims[rank], rank, &file, err));
    DCP_TRY(dcp_ds_check_optim_file(reader, &file, rank, err));
    DCP_TRY(check_stage(s, &file, dcp_pickle_get(file.torch.tree, "optimizer_state_dict"),
                        rank, err));
    DCP_TRY(find_parts(s, &file, &parts, err));
    if (!rank)
        DCP_TRY(prepare(s, &file, &parts, err));
    if (s->elastic != (parts.base->kind == DCP_PICKLE_LIST))
        return dcp_ds_corrupt(&file, err, "is of another form than the file of rank 0");
    DCP_TRY(read_rank(s, &file, rank, &parts, err));
    DCP_TRY(dcp_ds_slices_check(reader, &file, parts.optim, rank, &noted, err));
    DCP_TRY(dcp_ds_note_unnamed(reader, &file, rank, noted, err));
    if (!rank)
        DCP_TRY(add_tensors(s, err));
    return add_pieces(s, &file, rank, err);
}

int dcp_ds_read_optim(struct dcp_ds_reader *reader, struct dcp_error *err)
{
    struct shards s = { .reader = reader };
    int rc = DCP_OK;

    for (int rank = 0; rank < reader->world_size && !rc; rank++)
        rc = read_file(&s, rank, err);
    if (!rc)
        rc = finish(&s, err);
    json_decref(s.states);
    return rc;
}
