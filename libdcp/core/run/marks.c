/* marks: what people say of a step: tags, and that it stays. A small file beside the
 * step, so that no step is changed and no lease is needed: a run in training can be
 * marked. Who changes it holds the step's folder meanwhile. */
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "pin.h"
#include "steps.h"
#include <stdio.h>
#include <string.h>

#define MARKS_FORMAT "libdcp-marks"
#define MAX_MARKS_BYTES ((size_t)64 << 10)
#define PATIENCE_S 30.0 /* others hold a step while they write a line */
#define LOOK_US 5000

void dcp_marks_name(const char *step, char out[96])
{
    snprintf(out, 96, DCP_MARKS_PREFIX "%s", step);
}

bool dcp_tag_ok(const char *tag)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789-_.:+=/";
    size_t n = strspn(tag, letters);

    return n > 0 && n <= DCP_TAG_MAX && !tag[n];
}

bool dcp_marks_has(const struct dcp_marks *marks, const char *tag)
{
    for (int i = 0; i < marks->n_tags; i++)
        if (!strcmp(marks->tags[i], tag))
            return true;
    return false;
}

static int parse(const json_t *root, const char *name, struct dcp_marks *out,
                 struct dcp_error *err)
{
    const char *format;
    int64_t version = 0;
    json_t *tags;

    DCP_TRY(dcp_json_get_text(root, "format", name, &format, err));
    DCP_TRY(dcp_json_get_i64(root, "version", name, &version, err));
    DCP_TRY(dcp_json_get_array(root, "tags", name, &tags, err));
    if (strcmp(format, MARKS_FORMAT) || version != 1 ||
        json_array_size(tags) > DCP_MAX_TAGS)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' holds no marks of a step", name);
    out->pinned = json_is_true(json_object_get(root, "pinned"));
    for (size_t i = 0; i < json_array_size(tags); i++) {
        const char *tag = json_string_value(json_array_get(tags, i));
        if (!tag || !dcp_tag_ok(tag))
            return dcp_error_set(err, DCP_E_CORRUPT, "'%s' holds an invalid tag", name);
        snprintf(out->tags[out->n_tags++], sizeof out->tags[0], "%s", tag);
    }
    return DCP_OK;
}

int dcp_marks_read(const struct dcp_store *store, const char *step, struct dcp_marks *out,
                   struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *text = NULL;
    DCP_CLEANUP_JSON json_t *root = NULL;
    struct dcp_error why = { 0 };
    char name[96];
    size_t n = 0;

    *out = (struct dcp_marks){ 0 };
    dcp_marks_name(step, name);
    int rc = dcp_store_read_file(store, name, MAX_MARKS_BYTES, &text, &n, &why);
    if (rc == DCP_E_NOT_FOUND)
        return DCP_OK;
    if (!rc)
        rc = dcp_json_parse(text, n, name, &root, &why);
    if (!rc)
        rc = parse(root, name, out, &why);
    if (rc && err)
        *err = why;
    return rc;
}

int dcp_marks_hold(const struct dcp_store *store, const char *step,
                   struct dcp_store_file **out, struct dcp_error *err)
{
    double until = dcp_clock_s() + PATIENCE_S;

    *out = NULL;
    while (dcp_is_in_use(store, step, out)) {
        if (dcp_clock_s() > until)
            return dcp_error_set(err, DCP_E_BUSY, "'%s/%s' is locked by another process",
                                 store->root, step);
        dcp_clock_sleep_us(LOOK_US);
    }
    return DCP_OK;
}

static int check_there(const struct dcp_store *store, const char *step,
                       struct dcp_error *err)
{
    if (dcp_step_parse(step) >= 0 && !dcp_is_gone(store, step))
        return DCP_OK;
    return dcp_error_set(err, DCP_E_NOT_FOUND, "there is no step '%s' in '%s'", step,
                         store->root);
}

static int write_marks(const struct dcp_store *store, const char *name,
                       const struct dcp_marks *marks, struct dcp_error *err)
{
    struct dcp_error why = { 0 };

    if (!marks->pinned && !marks->n_tags) {
        int rc = store->ops->remove(store->self, name, &why);
        if (rc && rc != DCP_E_NOT_FOUND && err)
            *err = why;
        return rc == DCP_E_NOT_FOUND ? DCP_OK : rc;
    }
    DCP_CLEANUP_JSON json_t *root =
        json_pack("{s:s, s:i, s:b, s:[]}", "format", MARKS_FORMAT, "version", 1, "pinned",
                  (int)marks->pinned, "tags");
    bool made = root;
    for (int i = 0; i < marks->n_tags && made; i++)
        made = !json_array_append_new(json_object_get(root, "tags"),
                                      json_string(marks->tags[i]));
    DCP_CLEANUP_FREE char *text = made ? dcp_json_text(root, 0) : NULL;
    return text ? store->ops->replace(store->self, name, text, strlen(text), err)
                : dcp_error_memory(err, "the marks of a step");
}

int dcp_marks_change(const struct dcp_store *store, const char *step,
                     int (*change)(void *self, struct dcp_marks *marks,
                                   struct dcp_error *err),
                     void *self, struct dcp_marks *out, struct dcp_error *err)
{
    struct dcp_store_file *held = NULL;
    char name[96];
    int rc = check_there(store, step, err);

    *out = (struct dcp_marks){ 0 };
    if (!rc)
        rc = dcp_marks_hold(store, step, &held, err);
    if (!rc)
        rc = dcp_marks_read(store, step, out, err);
    if (!rc)
        rc = change(self, out, err);
    if (!rc)
        rc = check_there(store, step, err); /* it may have gone while we waited */
    dcp_marks_name(step, name);
    if (!rc)
        rc = write_marks(store, name, out, err);
    /* Retention waits for whoever holds the step, where the store has locks: else a step
     * may be gone by now, and its mark must not be that of a later one. */
    if (!rc && (rc = check_there(store, step, err)))
        store->ops->remove(store->self, name, NULL);
    dcp_unpin(store, &held);
    return rc;
}
