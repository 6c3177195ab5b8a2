/* json: strict reading and steady writing of JSON, over jansson. */
#ifndef DCP_BASE_JSON_H
#define DCP_BASE_JSON_H

#include "buf.h"
#include <dcp/error.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses one value and nothing behind it. Duplicate keys, NaN, depth over 64 and bad
 * UTF-8 are refused. `what` names the text in the message. *out is freed with
 * json_decref. Errors: CORRUPT, MEMORY, UNSUPPORTED (a text with a NUL). */
int dcp_json_parse(const char *text, size_t size_bytes, const char *what, json_t **out,
                   struct dcp_error *err);

/* The same for a part of a text, behind which other things may follow: messages count the
 * lines of the text. */
int dcp_json_parse_part(const char *text, const char *part, size_t size_bytes,
                        const char *what, json_t **out, struct dcp_error *err);
/* Refuses a text, which need not be JSON, for its depth. */
int dcp_json_depth(const char *text, size_t size_bytes, const char *what,
                   struct dcp_error *err);
/* CORRUPT: "what: not valid JSON at line …, column …: why". */
int dcp_json_wrong(const char *text, const char *at, const char *what, const char *why,
                   struct dcp_error *err);

/* Members of an object, typed. Missing or wrong: CORRUPT "what: 'key' must be …". Strings
 * are borrowed from the object. */
int dcp_json_get_u64(const json_t *object, const char *key, const char *what,
                     uint64_t *out, struct dcp_error *err);
int dcp_json_get_i64(const json_t *object, const char *key, const char *what,
                     int64_t *out, struct dcp_error *err);
int dcp_json_get_text(const json_t *object, const char *key, const char *what,
                      const char **out, struct dcp_error *err);
int dcp_json_get_hex64(const json_t *object, const char *key, const char *what,
                       uint64_t *out, struct dcp_error *err);
int dcp_json_get_object(const json_t *object, const char *key, const char *what,
                        json_t **out, struct dcp_error *err);
int dcp_json_get_array(const json_t *object, const char *key, const char *what,
                       json_t **out, struct dcp_error *err);

/* Text of a value: keys in insertion order, numbers that read back equal (%.17g), no
 * spaces when indent is 0. Caller frees with free; NULL: out of memory. */
char *dcp_json_text(const json_t *value, int indent);
/* Appends a JSON string, with the escapes of serde_json, which safetensors is written
 * with: short ones, or \u00xx. */
void dcp_json_quote(struct dcp_buf *buf, const char *text);

#define DCP_CLEANUP_JSON __attribute__((cleanup(dcp_json_cleanup)))
static inline void dcp_json_cleanup(json_t **value)
{
    json_decref(*value);
}

#endif
