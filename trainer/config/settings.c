#include "draft.h"

#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include <errno.h>
#include <stdlib.h>

#define MAX_FILE_BYTES ((size_t)16 << 20)

/* Without a type DeepSpeed leaves the schedule out, whatever its parameters say. */
static int check_scheduler(const json_t *root, const char *what, struct dcp_error *err)
{
    const json_t *scheduler = json_object_get(root, "scheduler");
    const json_t *type = json_object_get(scheduler, "type");
    if (!json_object_size(scheduler) || (type && !json_is_null(type)))
        return DCP_OK;
    dcp_error_set(err, DCP_E_USAGE, "%s: 'scheduler' has no type, so it would do nothing",
                  what);
    dcp_error_hint(err, "give \"type\": \"WarmupLR\", \"WarmupDecayLR\" or "
                        "\"WarmupCosineLR\", or \"none\"");
    return DCP_E_USAGE;
}

int settings_parse(const char *text, size_t size_bytes, const char *what,
                   const char *folder, const char *const *overrides, int world_size,
                   const struct dcp_log *log, struct settings *out, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *root = NULL;
    struct settings_draft draft = { .what = what, .log = log, .betas = { 0.9, 0.999 } };
    *out = (struct settings){ 0 };
    if (world_size < 1)
        return dcp_error_set(err, DCP_E_USAGE, "%s: a world size of %d cannot train",
                             what, world_size);
    int rc = settings_load(text, size_bytes, what, overrides, &root, err);
    for (size_t i = 0; !rc && overrides && overrides[i]; i++)
        rc = settings_check_override(&draft, overrides[i], err);
    if (!rc)
        rc = check_scheduler(root, what, err);
    if (!rc)
        rc = settings_set_defaults(&draft, settings_root, err);
    if (!rc)
        rc = settings_walk(&draft, settings_root, root, "", err);
    if (!rc)
        rc = settings_resolve(&draft, folder, world_size, err);
    if (!rc) {
        draft.out.text = settings_text(&draft);
        if (!draft.out.text)
            rc = dcp_error_memory(err, "the configuration");
    }
    if (rc) {
        settings_fini(&draft.out);
        return rc;
    }
    *out = draft.out;
    return DCP_OK;
}

int settings_read(const char *path, const char *const *overrides, int world_size,
                  const struct dcp_log *log, struct settings *out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *text = NULL;
    DCP_CLEANUP_FREE char *dir = NULL;
    DCP_CLEANUP_FREE char *name = NULL;
    size_t size = 0;
    *out = (struct settings){ 0 };
    int rc = dcp_fs_read_file(path, MAX_FILE_BYTES, &text, &size, err);
    if (rc) {
        dcp_error_hint(err, "the configuration is a DeepSpeed JSON file");
        return rc;
    }
    if (!dcp_fs_split(path, &dir, &name))
        return dcp_error_memory(err, path);
    DCP_CLEANUP_FREE char *folder = realpath(dir, NULL);
    if (!folder)
        return dcp_error_sys(err, DCP_E_IO, errno, "cannot find the folder of '%s'",
                             path);
    return settings_parse(text, size, path, folder, overrides, world_size, log, out, err);
}

void settings_fini(struct settings *settings)
{
    free(settings->model_init);
    free(settings->data_train);
    free(settings->data_val);
    free(settings->tokenizer);
    free(settings->checkpoint_dir);
    free(settings->on_save);
    free(settings->on_failure);
    free(settings->metrics_textfile);
    free(settings->text);
    *settings = (struct settings){ 0 };
}
