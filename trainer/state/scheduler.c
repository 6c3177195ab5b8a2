#include "scheduler.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "json.h"
#include "optimizer.h"
#include "trainer/config/schedule.h"
#include <dcp/training.h>
#include <stdio.h>
#include <string.h>

#define STEPS_CAP (INT64_C(1) << 32) /* no run is so long; a file may say anything */

/* -- written ------------------------------------------------------------------------- */

/* The rate of every group: of the configuration, or (step > 0) of a step. */
static json_t *of_groups(const struct settings *settings, int64_t step)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (int g = 0; ok && g < optimizer_n_groups(settings); g++) {
        double lr = optimizer_lr(settings, g);
        if (step > 0)
            lr = schedule_lr(&settings->scheduler, lr, step, NULL);
        ok = !json_array_append_new(list, json_real(lr));
    }
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}

/* state_dict() of a class of PyTorch's: its attributes, parameters first. */
static json_t *torch_state(const struct settings *settings, int64_t done)
{
    DCP_CLEANUP_JSON json_t *config = state_json_config(settings->text);
    json_t *state = json_pack("{s:s}", "type", schedule_names[settings->scheduler.type]);
    if (config && state &&
        !json_object_update(state, (json_t *)state_json_scheduler(config)) &&
        !json_object_set_new(state, "base_lrs", of_groups(settings, 0)) &&
        !json_object_set_new(state, "last_epoch", json_integer(done)) &&
        !json_object_set_new(state, "_step_count", json_integer(done + 1)) &&
        !json_object_set_new(state, "_last_lr", of_groups(settings, done + 1)))
        return state;
    json_decref(state);
    return NULL;
}

char *scheduler_text(const struct settings *settings, int64_t done)
{
    enum settings_schedule type = settings->scheduler.type;
    DCP_CLEANUP_JSON json_t *state =
        schedule_is_torch(type) ? torch_state(settings, done)
                                : json_pack("{s:s, s:I}", "type", schedule_names[type],
                                            "last_batch_iteration", (json_int_t)done - 1);
    return state ? dcp_json_text(state, 0) : NULL;
}

/* -- read ---------------------------------------------------------------------------- */

static bool is_count(const json_t *value, int64_t least)
{
    return json_is_integer(value) && json_integer_value(value) >= least &&
           json_integer_value(value) <= STEPS_CAP;
}

/* -1: it does not say. */
static int64_t done_of(const struct dcp_catalog *catalog)
{
    DCP_CLEANUP_JSON json_t *state = state_json_object(catalog, DCP_TRAINING_SCHEDULER);
    const char *type = json_string_value(json_object_get(state, "type"));
    const json_t *last = json_object_get(state, "last_batch_iteration");
    const json_t *epoch = json_object_get(state, "last_epoch");
    if (is_count(last, -1))
        return json_integer_value(last) + 1;
    /* A schedule that no trainer of steps made may be stepped once in an epoch. */
    for (int t = 0; type && schedule_names[t]; t++)
        if (schedule_is_torch((enum settings_schedule)t) &&
            !strcmp(type, schedule_names[t]) && is_count(epoch, 0))
            return json_integer_value(epoch);
    return -1;
}

int64_t scheduler_done(const struct dcp_catalog *catalog, int64_t updates)
{
    int64_t done = done_of(catalog);
    if (done < 0)
        done = updates < 0 ? 0 : updates;
    return done < STEPS_CAP ? done : STEPS_CAP;
}
