#include "draft.h"

#include "base/buf.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/part.h"
#include "trainer/ops/exact.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    DCP_CLEANUP_BUF struct dcp_buf list = { 0 };
    const char *const *types = settings_scheduler_keys[0].choices;
    for (size_t i = 1; types[i]; i++)
        dcp_buf_add_fmt(&list, "\"%s\", ", types[i]);
    DCP_TRY(dcp_buf_check(&list, err));
    dcp_error_hint(err, "give \"type\": %sor \"none\"", (const char *)list.data);
    return DCP_E_USAGE;
}

static int parse(const char *text, size_t size_bytes, struct settings_draft start,
                 const char *folder, const char *const *overrides, int world_size,
                 struct settings *out, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *root = NULL;
    struct settings_draft draft = start;
    const char *what = draft.what;
    draft.betas[0] = draft.betas[1] = draft.ns_coefficients[0] = NAN;
    draft.eps_pair[0] = draft.eps_pair[1] = NAN;
    *out = (struct settings){ 0 };
    if (world_size < 1)
        return dcp_error_set(err, DCP_E_USAGE, "%s: a world size of %d cannot train",
                             what, world_size);
    int rc = settings_load(text, size_bytes, what, overrides, &root, err);
    if (!rc)
        rc = settings_plain_fsdp(root, err);
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

const char *settings_precision(const struct settings *s)
{
    return s->dtype == DCP_F32 ? "fp32" : s->dtype == DCP_BF16 ? "bf16" : "fp16";
}

int settings_parse(const char *text, size_t size_bytes, const char *what,
                   const char *folder, const char *const *overrides, int world_size,
                   const struct dcp_log *log, struct settings *out, struct dcp_error *err)
{
    const struct settings_draft start = { .what = what, .log = log };
    return parse(text, size_bytes, start, folder, overrides, world_size, out, err);
}

static int read_file(const char *path, bool no_data, const char *const *overrides,
                     int world_size, const struct dcp_log *log, struct settings *out,
                     struct dcp_error *err)
{
    const struct settings_draft start = { .what = path, .log = log, .no_data = no_data };
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
    return parse(text, size, start, folder, overrides, world_size, out, err);
}

int settings_read(const char *path, const char *const *overrides, int world_size,
                  const struct dcp_log *log, struct settings *out, struct dcp_error *err)
{
    return read_file(path, false, overrides, world_size, log, out, err);
}

int settings_read_sizes(const char *path, const char *const *overrides, int world_size,
                        const struct dcp_log *log, struct settings *out,
                        struct dcp_error *err)
{
    return read_file(path, true, overrides, world_size, log, out, err);
}

int settings_set_batch(struct settings *settings, int64_t train_batch_size,
                       int world_size, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *root = NULL;
    int64_t n_micros = train_batch_size / settings->micro_batch;
    if (train_batch_size < 1 || train_batch_size % settings->micro_batch ||
        n_micros > EXACT_MAX_VALUES)
        return dcp_error_set(err, DCP_E_USAGE,
                             "train_batch_size %lld is not a multiple of "
                             "train_micro_batch_size_per_gpu %d",
                             (long long)train_batch_size, settings->micro_batch);
    DCP_TRY(dcp_json_parse(settings->text, strlen(settings->text), "the configuration",
                           &root, err));
    char *text = json_object_set_new(root, "train_batch_size",
                                     json_integer((json_int_t)train_batch_size))
                     ? NULL
                     : dcp_json_text(root, JSON_INDENT(4));
    if (!text)
        return dcp_error_memory(err, "the configuration");
    free(settings->text);
    settings->text = text;
    settings->train_batch_size = train_batch_size;
    settings->n_micros = (int)n_micros;
    settings->accumulation = (int)dcp_part_ceil(n_micros, world_size);
    return DCP_OK;
}

void settings_fini(struct settings *settings)
{
    free(settings->model_init);
    free(settings->data_train);
    free(settings->data_val);
    free(settings->tokenizer);
    free(settings->checkpoint_dir);
    free(settings->swap_param.path);
    free(settings->swap_optim.path);
    free(settings->on_save);
    free(settings->on_failure);
    free(settings->metrics_textfile);
    free(settings->text);
    *settings = (struct settings){ 0 };
}
