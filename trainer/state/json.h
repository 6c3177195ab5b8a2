/* json: JSON that a checkpoint or a configuration holds. */
#ifndef TRAINER_STATE_JSON_H
#define TRAINER_STATE_JSON_H

#include <dcp/tensor.h>
#include <jansson.h>

/* An object of a catalog. Caller owns; NULL: there is none that can be read. */
json_t *state_json_object(const struct dcp_catalog *catalog, const char *name);
/* The text of settings. Caller owns; NULL: out of memory. */
json_t *state_json_config(const char *text);
/* scheduler.params of such a configuration, borrowed. */
const json_t *state_json_scheduler(const json_t *config);

#endif
