/* trainer: the format hf-trainer: one checkpoint, or a run, whose newest it is. */
#include "trainer.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include "formats/common/roles.h"
#include <stdio.h>
#include <string.h>

enum { BID = 160, BID_OF_RUN = 96 /* under a model that lies there, too */ };

/* -- a run --------------------------------------------------------------------------- */

/* The number of a folder named checkpoint-500 or checkpoint_3, or -1. */
static int64_t number_of(const char *name)
{
    static const char *const begins[] = { "checkpoint-", "checkpoint_" };
    int64_t number = -1;

    for (size_t i = 0; i < DCP_ARRAY_LEN(begins); i++) {
        const char *digits = name + strlen(begins[i]);
        if (dcp_str_starts(name, begins[i]) &&
            strspn(digits, "0123456789") == strlen(digits) &&
            dcp_str_parse_i64(digits, &number))
            return number;
    }
    return -1;
}

/* The path of the folder with the highest number, and its own name; caller frees the
 * path. NULL: there is none. */
static char *find_newest(const struct dcp_source *source, char out_name[64])
{
    const struct dcp_store_ops *ops = source->store->ops;
    struct dcp_store_entry *entries = NULL;
    int64_t newest = -1;
    size_t n = 0;

    if (ops->list(source->store->self, source->name, &entries, &n, NULL))
        return NULL;
    for (size_t i = 0; i < n; i++) {
        int64_t number = entries[i].is_dir ? number_of(entries[i].name) : -1;
        if (number > newest) {
            newest = number;
            snprintf(out_name, 64, "%s", entries[i].name);
        }
    }
    dcp_store_list_free(entries, n);
    return newest >= 0 ? dcp_source_path(source, out_name) : NULL;
}

/* What the newest checkpoint is: of this format, or of another one, as DeepSpeed's. */
static int index_run(const struct dcp_source *source, struct dcp_catalog *catalog,
                     struct dcp_error *err)
{
    char name[64];
    DCP_CLEANUP_FREE char *path = find_newest(source, name);
    const struct dcp_source newest = { source->store, path, true };
    const struct dcp_format *format;
    char text[160];

    if (!path)
        return dcp_error_set(err, DCP_E_NOT_FOUND, "the run has no checkpoint");
    DCP_TRY(dcp_format_probe(&newest, &format, err));
    DCP_TRY(format->index(&newest, catalog, err));
    DCP_TRY(dcp_hf_trainer_nest(catalog, 0, name, err));
    snprintf(text, sizeof text, "%s, %s", name, catalog->version);
    catalog->version = dcp_catalog_text(catalog, text);
    return catalog->version ? DCP_OK : dcp_error_memory(err, "a run");
}

/* -- the format ---------------------------------------------------------------------- */

static int probe(const struct dcp_source *source)
{
    char name[64];

    if (!source->is_dir)
        return 0;
    if (dcp_hf_trainer_has_optimizer(source) && dcp_hf_trainer_has_model(source))
        return BID;
    DCP_CLEANUP_FREE char *path = find_newest(source, name);
    const struct dcp_source newest = { source->store, path, true };
    const struct dcp_format *format;
    return path && !dcp_format_probe(&newest, &format, NULL) ? BID_OF_RUN : 0;
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    bool ordered;

    if (!dcp_hf_trainer_has_optimizer(source) || !dcp_hf_trainer_has_model(source))
        return index_run(source, catalog, err);
    catalog->format = dcp_format_hf_trainer.name;
    DCP_TRY(dcp_hf_trainer_model(source, catalog, &ordered, err));
    DCP_TRY(dcp_hf_trainer_state(source, ordered, catalog, err));
    return dcp_roles_find_buffers(catalog, err); /* now that it is all there */
}

const struct dcp_format dcp_format_hf_trainer = {
    .name = "hf-trainer",
    .help = "checkpoint or run of Hugging Face's Trainer, or of accelerate",
    .suffixes = "",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_IS_DIR | DCP_FORMAT_OPTIM | DCP_FORMAT_OBJECTS,
    .probe = probe,
    .index = index_source,
};
