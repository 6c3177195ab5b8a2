#include "pin.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PINNED_FILE "manifest.json"
#define PIN_LOOK_US 2000 /* between two tries to pin */
enum { PIN_LOOKS = 50 };

/* Errors are as good as no pin; only BUSY says something. */
static int hold(const struct dcp_store *store, const char *step, bool exclusive,
                struct dcp_store_file **out)
{
    DCP_CLEANUP_FREE char *path = step[0] ? dcp_str_join(step, "/", PINNED_FILE)
                                          : dcp_str_join(PINNED_FILE, "", "");

    *out = NULL;
    return path && store->ops->hold
               ? store->ops->hold(store->self, path, exclusive, out, NULL)
               : DCP_E_UNSUPPORTED;
}

bool dcp_is_gone(const struct dcp_store *store, const char *step)
{
    bool is_dir;
    uint64_t size;

    return step[0] &&
           store->ops->stat(store->self, step, &is_dir, &size, NULL) == DCP_E_NOT_FOUND;
}

int dcp_pin(const struct dcp_store *store, const char *step, struct dcp_store_file **out,
            struct dcp_error *err)
{
    /* Who asks whether it is read holds it exclusively, for a moment. */
    for (int i = 0; hold(store, step, false, out) == DCP_E_BUSY && i < PIN_LOOKS; i++)
        dcp_clock_sleep_us(PIN_LOOK_US);
    if (!dcp_is_gone(store, step)) /* looked at behind the pin, which now holds */
        return DCP_OK;
    dcp_unpin(store, out);
    return dcp_error_set(err, DCP_E_NOT_FOUND, "'%s' was removed from '%s' meanwhile",
                         step, store->root);
}

void dcp_unpin(const struct dcp_store *store, struct dcp_store_file **pin)
{
    if (*pin)
        store->ops->close(store->self, *pin, NULL);
    *pin = NULL;
}

static void due_name(const char *step, char out[96])
{
    snprintf(out, 96, DCP_DUE_PREFIX "%s", step);
}

/* Since when a step is due, in seconds of the clock on the wall; now, when that is not
 * known or lies ahead. */
static int64_t due_since(const struct dcp_store *store, const char *step, int64_t now,
                         bool remember)
{
    DCP_CLEANUP_FREE void *text = NULL;
    char name[96], line[32];
    size_t n;
    int64_t since = now + 1;

    due_name(step, name);
    if (!dcp_store_read_file(store, name, sizeof line, &text, &n, NULL)) {
        ((char *)text)[strcspn(text, "\n")] = '\0';
        if (!dcp_str_parse_i64(text, &since))
            since = now + 1;
    }
    if (since <= now)
        return since;
    snprintf(line, sizeof line, "%" PRId64 "\n", now);
    if (remember)
        store->ops->replace(store->self, name, line, strlen(line), NULL);
    return now;
}

bool dcp_is_read(const struct dcp_store *store, const char *step,
                 struct dcp_store_file **out)
{
    return hold(store, step, true, out) == DCP_E_BUSY;
}

bool dcp_pin_yields(const struct dcp_store *store, const char *step, double timeout_s,
                    bool remember, struct dcp_store_file **out,
                    struct dcp_store_file **out_marks)
{
    int64_t now = (int64_t)time(NULL);
    bool busy = dcp_is_read(store, step, out);

    busy |= dcp_is_in_use(store, step, out_marks);
    if (!busy)
        return true;
    return (double)(now - due_since(store, step, now, remember)) > timeout_s;
}

bool dcp_is_in_use(const struct dcp_store *store, const char *name,
                   struct dcp_store_file **out)
{
    *out = NULL;
    return store->ops->hold &&
           store->ops->hold(store->self, name, true, out, NULL) == DCP_E_BUSY;
}

void dcp_pin_invalidate(const struct dcp_store *store, const char *step)
{
    char name[96];

    due_name(step, name);
    store->ops->remove(store->self, name, NULL);
}
