/* json_walk: a large object or array, member by member. What is parsed is one member at a
 * time, so that memory is a small multiple of the text even where the text has millions
 * of values; all of it is checked as strictly as by dcp_json_parse. */
#ifndef DCP_BASE_JSON_WALK_H
#define DCP_BASE_JSON_WALK_H

#include "buf.h"
#include "json.h"

/* A part of a text. */
struct dcp_json_span {
    const char *text;
    size_t size_bytes;
};

struct dcp_json_walk {
    struct dcp_json_span doc; /* the whole text, which messages count lines of */
    const char *what;         /* borrowed */
    const char *at, *end;     /* what is left of the object or array */
    char close;
    bool begun;
    int rc;             /* of next */
    struct dcp_buf key; /* of the present member of an object; "" in an array */
    struct dcp_json_span value;
};

/* Begins with the object ('{') or array ('[') that a part of the text is. Both texts and
 * `what` are borrowed until fini. Errors: CORRUPT (it is something else, or nested deeper
 * than 64). */
int dcp_json_walk_init(struct dcp_json_walk *walk, struct dcp_json_span doc,
                       struct dcp_json_span part, char open, const char *what,
                       struct dcp_error *err);
void dcp_json_walk_fini(struct dcp_json_walk *walk);
/* Goes on to the next member. Values are only found here, and checked when they are
 * parsed: whoever walks parses each. False behind the last, and when it failed: rc says
 * which. Errors: those of dcp_json_parse. */
bool dcp_json_walk_next(struct dcp_json_walk *walk, struct dcp_error *err);
/* The same in an array, in two steps, for who can read some values faster: `at` is where
 * the next one begins, and who reads it sets it to where it ends, or finds it so. */
bool dcp_json_walk_begin(struct dcp_json_walk *walk, struct dcp_error *err);
int dcp_json_walk_find(struct dcp_json_walk *walk, struct dcp_error *err);
static inline const char *dcp_json_walk_key(const struct dcp_json_walk *walk)
{
    return walk->key.data ? (const char *)walk->key.data : "";
}
/* The present value. Errors: those of dcp_json_parse; UNSUPPORTED also when it would take
 * much more memory than its text. */
int dcp_json_walk_parse(const struct dcp_json_walk *walk, json_t **out,
                        struct dcp_error *err);
/* An object whose large members are to be walked: those that are named (the list ends
 * with NULL) are only found (text NULL: missing), the others parsed into *out, which is
 * freed with json_decref. Errors: those of next and parse. */
int dcp_json_walk_root(struct dcp_json_span doc, const char *what,
                       const char *const *large, struct dcp_json_span *out_large,
                       json_t **out, struct dcp_error *err);
/* Begins with such a member, which must be there. Errors: CORRUPT. */
int dcp_json_walk_member(struct dcp_json_walk *walk, struct dcp_json_span doc,
                         struct dcp_json_span part, char open, const char *key,
                         const char *what, struct dcp_error *err);
#define DCP_CLEANUP_WALK __attribute__((cleanup(dcp_json_walk_fini)))

#endif
