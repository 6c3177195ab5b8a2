/* py: Python values as JSON that loses nothing.
 *
 * What JSON has stands as it is. The rest is an object whose first key, a tag, tells what
 * it is:
 *
 *   {"$tuple": […]}  {"$set": […]}  {"$frozenset": […]}
 *   {"$dict": [[key, value], …]}     keys that are no plain strings
 *   {"$bytes": "00ff"}  {"$bytearray": "00ff"}       in hexadecimal
 *   {"$text": "6100"}                a string with NUL, as UTF-8 in hexadecimal
 *   {"$int": "1180591620717411303424"}               over 64 bits
 *   {"$float": "nan"}                also "inf", "-inf"
 *   {"$global": "torch.bfloat16"}    "module:Outer.Inner": what stands in a class
 *   {"$object": "module.Class", "new": true, "args": […], "kwargs": …, "state": …,
 *    "items": […], "pairs": [[key, value], …]}     empty members are left out; new: made
 *                                    by __new__, else by a call
 *
 * and what a format makes of tensors and of parts of a catalog:
 *
 *   {"$tensor": name}  {"$again": name}  a tensor; the very object that its first name
 *                                    stands for. More members may say how it is dressed
 *                                    (torch/dress.h)
 *   {"$value": name}                 an object
 *   {"$view": i}                     a view of a file that is written (torch/out.h)
 *   {"$array": {"dtype", "shape", "bytes"}}     a small tensor, in hexadecimal
 *
 * No key of a plain dict begins like a tag. Nobody else spells one. */
#ifndef DCP_FORMATS_PICKLE_PY_H
#define DCP_FORMATS_PICKLE_PY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define DCP_PY_MARK '$' /* how they begin */
#define DCP_PY_TUPLE "$tuple"
#define DCP_PY_SET "$set"
#define DCP_PY_FROZENSET "$frozenset"
#define DCP_PY_DICT "$dict"
#define DCP_PY_BYTES "$bytes"
#define DCP_PY_BYTEARRAY "$bytearray"
#define DCP_PY_TEXT "$text"
#define DCP_PY_INT "$int"
#define DCP_PY_FLOAT "$float"
#define DCP_PY_GLOBAL "$global"
#define DCP_PY_OBJECT "$object"
#define DCP_PY_TENSOR "$tensor"
#define DCP_PY_AGAIN "$again"
#define DCP_PY_VALUE "$value"
#define DCP_PY_VIEW "$view"
#define DCP_PY_ARRAY "$array"

/* -- made; NULL: out of memory ------------------------------------------------------- */

/* {tag: payload}; takes the payload, NULL for none. */
json_t *dcp_py_new(const char *tag, json_t *payload);
/* {tag: text}, and bytes in hexadecimal as text. */
json_t *dcp_py_name(const char *tag, const char *text);
json_t *dcp_py_hex(const char *tag, const void *data, size_t n);
/* {"$object": class, member: value}; takes the value. */
json_t *dcp_py_object(const char *class, const char *member, json_t *value);
/* An OrderedDict of [[key, value], …], which it takes. */
#define DCP_PY_ORDERED "collections.OrderedDict"
json_t *dcp_py_ordered(json_t *pairs);

/* -- tested and taken apart; what is given is borrowed, NULL: it is no such -----------
 */

/* Whether a key looks like a tag. NULL: no. */
bool dcp_py_is_tag(const char *key);
/* The first key of an object, when it does. */
const char *dcp_py_tag(const json_t *value);
/* A dict that stands for itself. */
bool dcp_py_is_dict(const json_t *value);
/* The payload of {tag: payload}. */
json_t *dcp_py_get(const json_t *value, const char *tag);
/* The name of a tensor, however it is dressed; that of an object. */
const char *dcp_py_tensor(const json_t *value);
const char *dcp_py_value(const json_t *value);
/* The full name of the class that {"$object": …} is of; what {"$global": name} is. */
const char *dcp_py_class(const json_t *value);
const char *dcp_py_global(const json_t *value);
/* The [key, value] pairs of an OrderedDict, or of a dict whose keys are not plain
 * strings.
 */
json_t *dcp_py_pairs(const json_t *value);
/* A tuple as a list; any other value as it is. */
json_t *dcp_py_untuple(json_t *value);

/* -- parts --------------------------------------------------------------------------- */

enum dcp_py_kind {
    DCP_PY_PLAIN,   /* without parts */
    DCP_PY_LIST,    /* a list or tuple */
    DCP_PY_PAIRS,   /* a dict of dcp_py_pairs */
    DCP_PY_MEMBERS, /* any other JSON object, a tag's too */
};
/* What stands in a value, one after the other:
 *
 *   for (struct dcp_py_parts p = dcp_py_parts(value); dcp_py_next(&p);) … */
struct dcp_py_parts {
    enum dcp_py_kind kind;
    const char *name; /* key or position, as paths have it; NULL: a key that has none */
    bool is_word;     /* the key is True, False or None */
    json_t *value;
    json_t *container; /* the rest is dcp_py_next's */
    size_t n_seen;
    void *member;
    char digits[24];
};
struct dcp_py_parts dcp_py_parts(const json_t *value);
/* What JSON has in it, whatever tags mean: items of an array, members of an object. */
struct dcp_py_parts dcp_py_children(const json_t *value);
bool dcp_py_next(struct dcp_py_parts *parts);
/* Whether a tensor is in it, or it is one. */
bool dcp_py_holds_tensor(const json_t *value);
/* Puts another value in the place of the one that was given last; takes it. False: out of
 * memory. */
bool dcp_py_put(struct dcp_py_parts *parts, json_t *value);
/* A key as paths have it: a text, or an integer, True, False, None in digits' room. NULL:
 * it is neither. */
const char *dcp_py_key(const json_t *key, char digits[24]);

#endif
