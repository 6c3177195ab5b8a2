/* trainer_state: the optimizer, and the files of what is no tensor. */
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include "formats/common/training.h"
#include "formats/fsdp/fsdp.h"
#include "formats/models/order.h"
#include "trainer.h"
#include <stdio.h>
#include <string.h>

#define STATE_NAME "trainer_state.json"

/* Files of torch.save by the beginning and end of their names; '#' of an object's name
 * is what stands between, a number, or 0 where nothing does. Without an object: what a
 * model or an optimizer is called that is not the first; a folder where the end is empty.
 */
static const struct {
    const char *begin, *end, *object;
} files[] = {
    { "model_", ".safetensors", NULL },
    { "pytorch_model_", ".bin", NULL },
    { "pytorch_model_fsdp_", ".bin", NULL },
    { "pytorch_model_fsdp_", "", NULL },
    { "optimizer_", ".bin", NULL },
    { "optimizer_", "", NULL },
    { "scheduler", ".pt", DCP_TRAINING_SCHEDULER },
    { "scheduler", ".bin", DCP_TRAINING_SCHEDULER },
    { "scheduler_", ".bin", "scheduler_#" },
    { "scaler", ".pt", "scaler" },
    { "rng_state", ".pth", "rng_state.rank_#" },
    { "rng_state_", ".pth", "rng_state.rank_#" },
    { "random_states_", ".pkl", "rng_state.rank_#" },
    { "sampler", ".bin", "sampler" },
    { "sampler_", ".bin", "sampler_#" },
    { "dl_state_dict", ".bin", "dl_state_dict" },
    { "dl_state_dict_", ".bin", "dl_state_dict_#" },
    { "custom_checkpoint_", ".pkl", "custom_checkpoint_#" },
    { "training_args", ".bin", "training_args" },
};

/* -- the optimizer ------------------------------------------------------------------- */

/* "model_type" of the model's configuration; caller frees, NULL when there is none. */
static int read_model_type(const struct dcp_catalog *catalog, char **out,
                           struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *config = NULL;
    int rc = dcp_training_read(catalog, DCP_TRAINING_MODEL_CONFIG, &config, err);
    const char *type = json_string_value(json_object_get(config, "model_type"));

    *out = type ? strdup(type) : NULL;
    return rc || !type || *out ? rc : dcp_error_memory(err, "a model's type");
}

static int index_optimizer(struct dcp_fsdp_reader *r, const char *name, bool ordered,
                           struct dcp_error *err)
{
    size_t n = r->catalog->n_tensors;
    DCP_CLEANUP_FREE size_t *order = dcp_mem_calloc(n, sizeof *order);
    DCP_CLEANUP_FREE char *type = NULL;
    bool known = false;
    int rc = order ? read_model_type(r->catalog, &type, err)
                   : dcp_error_memory(err, "the order of weights");

    r->known = dcp_mem_grow(NULL, &r->cap_known, n + 1, sizeof *r->known);
    if (!rc && !r->known)
        rc = dcp_error_memory(err, "the order of weights");
    for (size_t t = 0; t < r->cap_known && !rc; t++)
        r->known[t] = (struct dcp_fsdp_known_tensor){ .plain = true, .file = -1 };
    if (!rc && !ordered)
        rc = dcp_hf_order(type, r->catalog, n, order, &known, err);
    r->order = known ? order : NULL;
    r->unordered = !ordered && !known;
    if (!rc)
        rc = dcp_fsdp_index_whole_optim(r, name, n, err);
    r->order = NULL;
    return rc;
}

/* -- what is no tensor --------------------------------------------------------------- */

/* What stands between beginning and end of a name: a number, or nothing where the object
 * has none or is of rank 0. */
static bool match(size_t f, const char *name, char out[16])
{
    size_t begin = strlen(files[f].begin), end = strlen(files[f].end), n = strlen(name);

    if (n < begin + end || !dcp_str_starts(name, files[f].begin) ||
        !dcp_str_ends(name, files[f].end))
        return false;
    size_t digits = n - begin - end;
    bool wants = files[f].begin[begin - 1] == '_';
    if (digits > 15 || strspn(name + begin, "0123456789") < digits || wants != !!digits)
        return false;
    snprintf(out, 16, "%.*s", digits ? (int)digits : 1, digits ? name + begin : "0");
    return true;
}

/* accelerate numbers the models and optimizers of a training from 0 on; the first has no
 * number, but for FSDP's folders. */
static int refuse_second(const char *name, int64_t number, struct dcp_error *err)
{
    if (!number)
        return DCP_OK;
    dcp_error_set(err, DCP_E_UNSUPPORTED,
                  "'%s' is of a second model or optimizer; the folder of one is read",
                  name);
    dcp_error_hint(err, "give each model a folder of its own, or name its file alone");
    return DCP_E_UNSUPPORTED;
}

static int index_file(struct dcp_fsdp_reader *r, const struct dcp_store_entry *entry,
                      struct dcp_error *err)
{
    const char *name = entry->name;
    char digits[16], object[64];
    int64_t number;

    for (size_t f = 0; f < DCP_ARRAY_LEN(files); f++) {
        if (!files[f].end[0] != entry->is_dir || !match(f, name, digits) ||
            !dcp_str_parse_i64(digits, &number) || number >= DCP_FSDP_MAX_WORLD_SIZE)
            continue;
        if (!files[f].object)
            return refuse_second(name, number, err);
        const char *hash = strchr(files[f].object, '#');
        snprintf(object, sizeof object, "%.*s%s",
                 hash ? (int)(hash - files[f].object) : (int)strlen(files[f].object),
                 files[f].object, hash ? digits : "");
        return dcp_catalog_find_object(r->catalog, object) >= 0
                   ? DCP_OK
                   : dcp_fsdp_index_value(r, name, object, (int)number, err);
    }
    return DCP_OK;
}

static int index_files(struct dcp_fsdp_reader *r, struct dcp_error *err)
{
    const struct dcp_source *source = &r->folder.source;
    struct dcp_store_entry *entries = NULL;
    size_t n = 0;
    int rc =
        source->store->ops->list(source->store->self, source->name, &entries, &n, err);

    for (size_t i = 0; i < n && !rc; i++)
        rc = index_file(r, &entries[i], err);
    dcp_store_list_free(entries, n);
    return rc;
}

/* What the optimizer's states say. */
static int find_step(struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *optimizer = NULL;
    int rc = dcp_training_read(catalog, DCP_TRAINING_OPTIMIZER, &optimizer, err);

    catalog->step = dcp_training_most_updates(optimizer);
    return rc;
}

/* How often the optimizer updated; -1: unknown. */
static int64_t count_of_updates(const struct dcp_catalog *catalog)
{
    DCP_CLEANUP_JSON json_t *optimizer = NULL;

    if (dcp_training_read(catalog, DCP_TRAINING_OPTIMIZER, &optimizer, NULL))
        return -1;
    return dcp_training_step(json_object_get(optimizer, "step"));
}

/* The Trainer names a folder by its step, checkpoint-10. One whose optimizer is of that
 * step, and whose state is of another, is of two saves; else the folder has been renamed,
 * or a second train() of one Trainer counts its steps anew. */
static int check_step(const struct dcp_source *source, const struct dcp_catalog *catalog,
                      int64_t step, struct dcp_error *err)
{
    static const char begin[] = "checkpoint-";
    DCP_CLEANUP_FREE char *name = dcp_source_folder(source);
    int64_t number;

    if (!name)
        return dcp_error_memory(err, "a folder's name");
    if (!dcp_str_starts(name, begin) ||
        !dcp_str_parse_i64(name + strlen(begin), &number) || number == step ||
        count_of_updates(catalog) != number)
        return DCP_OK;
    dcp_error_set(err, DCP_E_CORRUPT,
                  "'" STATE_NAME
                  "' is of step %lld, and the optimizer of step %lld, as the folder '%s' "
                  "is called: they are of two saves",
                  (long long)step, (long long)number, DCP_SHOWN(name));
    dcp_error_hint(err, "every file must be of the same save");
    return DCP_E_CORRUPT;
}

/* Takes trainer_state.json, and its global_step in the words of common/training.h. */
static int index_state(const struct dcp_source *source, struct dcp_catalog *catalog,
                       struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *text = NULL;
    DCP_CLEANUP_JSON json_t *state = NULL;
    size_t n;

    if (!dcp_source_has(source, STATE_NAME))
        return find_step(catalog, err);
    int rc =
        dcp_source_read(source, STATE_NAME, DCP_FORMAT_JSON_MAX_BYTES, &text, &n, err);
    if (!rc)
        rc = dcp_json_parse(text, n, STATE_NAME, &state, err);
    int64_t step = dcp_training_step(json_object_get(state, "global_step"));
    if (!rc && step >= 0)
        rc = check_step(source, catalog, step, err);
    if (!rc && step >= 0) {
        catalog->step = step;
        struct dcp_training training;
        dcp_training_init(&training);
        training.step = step;
        rc = dcp_training_store(&training, catalog, err);
        dcp_training_fini(&training);
    }
    return rc ? rc : dcp_training_add(catalog, "trainer_state", json_incref(state), err);
}

int dcp_hf_trainer_state(const struct dcp_source *source, bool ordered,
                         struct dcp_catalog *catalog, struct dcp_error *err)
{
    static const char *const names[] = { "optimizer.pt", "optimizer.bin" };
    struct dcp_fsdp_reader r = { .catalog = catalog,
                                 .folder = { .source = *source, .world_size = 1 } };
    size_t i = 0;

    while (i < DCP_ARRAY_LEN(names) && !dcp_source_has(source, names[i]))
        i++;
    int rc = i < DCP_ARRAY_LEN(names)
                 ? index_optimizer(&r, names[i], ordered, err)
                 : dcp_hf_trainer_dcp(source, "optimizer_0", catalog, err);
    if (!rc)
        rc = index_files(&r, err);
    if (!rc)
        rc = index_state(source, catalog, err);
    free(r.known);
    dcp_optim_ids_fini(&r.ids);
    return rc;
}
