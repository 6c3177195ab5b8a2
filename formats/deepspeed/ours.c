/* ours: written into files, and held against them. */
#include "ours.h"
#include "base/mem.h"
#include "slices.h"
#include <stdio.h>

enum { OURS_VERSION = 1 };

/* -- writing ----------------------------------------------------------------------- */

static int64_t step_of(const struct dcp_ds_writer *w)
{
    const json_t *step = json_object_get(w->trainer, "step");

    return json_is_integer(step) ? json_integer_value(step) : w->updates;
}

json_t *dcp_ds_ours_of_rank(const struct dcp_ds_writer *w, int rank)
{
    return json_pack("{s:i, s:I, s:i, s:i}", "version", OURS_VERSION, "step",
                     (json_int_t)step_of(w), "world", w->world_size, "rank", rank);
}

json_t *dcp_ds_ours_of_param(const struct dcp_ds_writer *w, const char *param,
                             const char *state)
{
    return json_pack("{s:i, s:I, s:i, s:s, s:s}", "version", OURS_VERSION, "step",
                     (json_int_t)step_of(w), "world", w->world_size, "param", param,
                     "state", state);
}

/* -- reading ----------------------------------------------------------------------- */

/* The dict, of a version that is known; NULL: none. */
static const struct dcp_pickle_node *find(const struct dcp_ds_file *file)
{
    const struct dcp_pickle_node *ours = dcp_pickle_get(file->torch.tree, DCP_DS_OURS);
    int64_t version;

    return dcp_pickle_pairs(ours) && dcp_ds_get_int(ours, "version", &version) &&
                   version == OURS_VERSION
               ? ours
               : NULL;
}

static int check_save(const struct dcp_ds_reader *reader, const struct dcp_ds_file *file,
                      const struct dcp_pickle_node *ours, struct dcp_error *err)
{
    const char *model = dcp_ds_shown(reader->arena, reader->folder.model);
    int64_t step, world_size;

    if (!dcp_ds_get_int(ours, "step", &step) ||
        !dcp_ds_get_int(ours, "world", &world_size))
        return dcp_ds_corrupt(file, err, "has a malformed '" DCP_DS_OURS "'");
    if (step != reader->global_steps)
        return dcp_ds_corrupt(file, err,
                              "was written at step %lld, and '%s' at step %lld: they are "
                              "of two saves",
                              (long long)step, model, (long long)reader->global_steps);
    if (world_size != reader->world_size)
        return dcp_ds_corrupt(file, err,
                              "was written for %lld ranks, and '%s' for %d: they are of "
                              "two saves",
                              (long long)world_size, model, reader->world_size);
    return DCP_OK;
}

static int check_rank(const struct dcp_ds_file *file, const struct dcp_pickle_node *ours,
                      int rank, struct dcp_error *err)
{
    int64_t said;

    if (!dcp_ds_get_int(ours, "rank", &said))
        return dcp_ds_corrupt(file, err, "has a malformed '" DCP_DS_OURS "'");
    return said == rank ? DCP_OK
                        : dcp_ds_corrupt(file, err,
                                         "was written as the file of rank %lld: it has "
                                         "the name of another file",
                                         (long long)said);
}

#define UNNAMED "nothing in a file says which rank it is of"

/* With one rank there is nobody else whose file it could be. */
static void take_unnamed(struct dcp_ds_reader *reader)
{
    if (reader->world_size > 1)
        reader->catalog->untold = UNNAMED;
}

int dcp_ds_note_unnamed(struct dcp_ds_reader *reader, const struct dcp_ds_file *file,
                        int rank, bool noted, struct dcp_error *err)
{
    char text[80];

    if (find(file))
        return DCP_OK;
    if (!noted)
        take_unnamed(reader);
    if (!noted || reader->catalog->untold || !dcp_ds_slices_repeat(reader, rank))
        return DCP_OK;
    snprintf(text, sizeof text,
             "nothing tells the files of some ranks apart, as of %d and %d", rank,
             rank + 1);
    reader->catalog->untold = dcp_catalog_text(reader->catalog, text);
    return reader->catalog->untold ? DCP_OK : dcp_error_memory(err, "a catalog");
}

int dcp_ds_check_model_file(struct dcp_ds_reader *reader, const struct dcp_ds_file *file,
                            int rank, struct dcp_error *err)
{
    const struct dcp_pickle_node *ours = find(file), *root = file->torch.tree;
    int64_t step, world_size, said;

    if (ours && dcp_ds_get_int(ours, "step", &step) &&
        dcp_ds_get_int(ours, "world", &world_size) &&
        dcp_ds_get_int(root, "global_steps", &said) && said == step &&
        dcp_ds_get_int(root, "dp_world_size", &said) && said == world_size)
        return check_rank(file, ours, rank, err);
    if (reader->folder.by_rank)
        take_unnamed(reader);
    return DCP_OK;
}

int dcp_ds_check_optim_file(struct dcp_ds_reader *reader, const struct dcp_ds_file *file,
                            int rank, struct dcp_error *err)
{
    const struct dcp_pickle_node *ours = find(file);

    if (!ours)
        return DCP_OK;
    DCP_TRY(check_save(reader, file, ours, err));
    return check_rank(file, ours, rank, err);
}

static const char *said(const struct dcp_ds_reader *reader,
                        const struct dcp_pickle_node *ours, const char *key)
{
    const char *text = dcp_ds_text(reader->arena, dcp_pickle_get(ours, key));

    return dcp_ds_shown(reader->arena, text ? text : "?");
}

int dcp_ds_check_param_file(struct dcp_ds_reader *reader, const struct dcp_ds_file *file,
                            const char *param, const char *state, struct dcp_error *err)
{
    const struct dcp_pickle_node *ours = find(file);

    if (!ours) {
        reader->catalog->untold = "nothing in a file says which parameter it is of";
        return DCP_OK;
    }
    int rc = check_save(reader, file, ours, err);
    if (rc || (dcp_pickle_is_text(dcp_pickle_get(ours, "param"), param) &&
               dcp_pickle_is_text(dcp_pickle_get(ours, "state"), state)))
        return rc;
    return dcp_ds_corrupt(file, err,
                          "was written as another file: as '%s' of the parameter '%s'",
                          said(reader, ours, "state"), said(reader, ours, "param"));
}
