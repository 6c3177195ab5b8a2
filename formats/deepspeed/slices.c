/* slices: notes of partitions, held against the arithmetic of cut.h. */
#include "slices.h"

static int refuse(const struct dcp_ds_reader *reader, const struct dcp_ds_file *file,
                  const char *param, const char *how, struct dcp_error *err)
{
    dcp_ds_corrupt(file, err,
                   "holds what another rank saved: 'param_slice_mappings' has %s of '%s'",
                   how, dcp_ds_shown(reader->arena, param));
    dcp_error_hint(err, "copy the folder again from where it was saved");
    return DCP_E_CORRUPT;
}

/* One parameter of a group's note. */
static int check_param(const struct dcp_ds_reader *reader, const struct dcp_ds_file *file,
                       const struct dcp_ds_group *group, int rank,
                       const struct dcp_pickle_node *key,
                       const struct dcp_pickle_node *address, struct dcp_error *err)
{
    const char *name = dcp_ds_text(reader->arena, key);
    const json_t *number = name ? json_object_get(reader->places, name) : NULL;
    size_t at = (size_t)json_integer_value(number) - group->first;
    const struct dcp_pickle_node *state =
        address->kind == DCP_PICKLE_OBJECT ? address->object->state : NULL;
    struct dcp_ds_part part;
    int64_t n_elems, start;

    if (!name)
        return dcp_ds_corrupt(file, err, "has malformed 'param_slice_mappings'");
    if (!number || at >= group->n_params ||
        !dcp_ds_part_of(group, &group->params[at], reader->stage, reader->world_size,
                        rank, &part))
        return refuse(reader, file, name, "a part", err);
    if (!dcp_ds_get_int(state, "numel", &n_elems) ||
        !dcp_ds_get_int(state, "start", &start) ||
        (n_elems == part.end - part.begin && start == part.at))
        return DCP_OK;
    return refuse(reader, file, name, "another part", err);
}

/* All that a note has was found right; so it lacks one where it has fewer. */
static int check_count(const struct dcp_ds_reader *reader, const struct dcp_ds_file *file,
                       const struct dcp_ds_group *group, int rank,
                       const struct dcp_pickle_node *note, struct dcp_error *err)
{
    size_t n = 0;

    for (size_t p = 0; p < group->n_params; p++) {
        struct dcp_ds_part part;
        if (!dcp_ds_part_of(group, &group->params[p], reader->stage, reader->world_size,
                            rank, &part))
            continue;
        if (n++ == dcp_pickle_pairs(note)->n / 2)
            return refuse(reader, file, group->params[p].name, "no part", err);
    }
    return DCP_OK;
}

/* Under round_robin_gradients DeepSpeed notes the parts that ranks had if nothing were
 * shuffled (_link_all_hp_params in runtime/zero/stage_1_and_2.py of 0.19.8). */
static bool can_note(const struct dcp_ds_reader *reader)
{
    const json_t *zero = json_object_get(reader->config, "zero_optimization");

    return reader->stage != 3 && json_is_object(zero) &&
           !json_is_true(json_object_get(zero, "round_robin_gradients"));
}

int dcp_ds_slices_check(const struct dcp_ds_reader *reader,
                        const struct dcp_ds_file *file,
                        const struct dcp_pickle_node *optim, int rank, bool *out_noted,
                        struct dcp_error *err)
{
    const struct dcp_pickle_node *notes = dcp_pickle_get(optim, "param_slice_mappings");

    *out_noted = can_note(reader) && dcp_ds_count(notes) == reader->n_groups;
    for (size_t g = 0; g < reader->n_groups && *out_noted; g++) {
        const struct dcp_ds_group *group = &reader->groups[g];
        const struct dcp_pickle_node *note = notes->list.items[g];
        const struct dcp_pickle_list *pairs = dcp_pickle_pairs(note);
        if (!pairs)
            return dcp_ds_corrupt(file, err, "has malformed 'param_slice_mappings'");
        for (size_t i = 0; i + 1 < pairs->n; i += 2)
            DCP_TRY(check_param(reader, file, group, rank, pairs->items[i],
                                pairs->items[i + 1], err));
        DCP_TRY(check_count(reader, file, group, rank, note, err));
    }
    return DCP_OK;
}

static bool same_part(const struct dcp_ds_reader *reader,
                      const struct dcp_ds_group *group, size_t param, int rank,
                      bool *out_has)
{
    struct dcp_ds_part a, b;
    bool has = dcp_ds_part_of(group, &group->params[param], reader->stage,
                              reader->world_size, rank, &a);
    bool next = dcp_ds_part_of(group, &group->params[param], reader->stage,
                               reader->world_size, rank + 1, &b);

    *out_has |= has;
    return has == next && (!has || (a.at == b.at && a.end - a.begin == b.end - b.begin));
}

bool dcp_ds_slices_repeat(const struct dcp_ds_reader *reader, int rank)
{
    bool has = false;

    if (rank + 1 >= reader->world_size)
        return false;
    for (size_t g = 0; g < reader->n_groups; g++)
        for (size_t p = 0; p < reader->groups[g].n_params; p++)
            if (!same_part(reader, &reader->groups[g], p, rank, &has))
                return false;
    return has;
}
