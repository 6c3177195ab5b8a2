/* pickle: reads a Python pickle into a tree of nodes, and never runs anything.
 *
 * A pickle is a program for a stack machine. Here REDUCE, NEWOBJ and BUILD only make
 * nodes that say what would have been called; whoever reads the tree knows a few names
 * and leaves the rest alone. Opcodes that exist to reach other code or files (INST, OBJ,
 * EXT, out-of-band buffers, text persistent ids) are refused, as is everything of
 * protocol 0. Source: PEP 3154, PEP 574 and the opcode list of CPython's pickletools.
 *
 * No recursion: stacks are explicit, and the limits below bound memory to about a hundred
 * times the pickle's size. The result is free of cycles. */
#ifndef DCP_FORMATS_PICKLE_PICKLE_H
#define DCP_FORMATS_PICKLE_PICKLE_H

#include "base/arena.h"
#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCP_PICKLE_MAX_BYTES (1u << 30)
#define DCP_PICKLE_MAX_NODES (1u << 25)
#define DCP_PICKLE_MAX_DEPTH 1000 /* of the tree */
#define DCP_PICKLE_MAX_GLOBAL_BYTES 1024

enum dcp_pickle_kind {
    DCP_PICKLE_NONE,
    DCP_PICKLE_BOOL,
    DCP_PICKLE_INT,
    DCP_PICKLE_LONG, /* an integer over 64 bits: two's complement, little-endian */
    DCP_PICKLE_FLOAT,
    DCP_PICKLE_STR, /* UTF-8, may hold NUL */
    DCP_PICKLE_BYTES,
    DCP_PICKLE_BYTEARRAY,
    DCP_PICKLE_TUPLE,
    DCP_PICKLE_LIST,
    DCP_PICKLE_DICT,
    DCP_PICKLE_SET,
    DCP_PICKLE_FROZENSET,
    DCP_PICKLE_GLOBAL,
    DCP_PICKLE_OBJECT,
    DCP_PICKLE_PERSID
};

struct dcp_pickle_node;

struct dcp_pickle_list {
    struct dcp_pickle_node **items;
    size_t n, cap;
};

/* What would have been made by calling cls(*args), or cls.__new__, and then filled. */
struct dcp_pickle_object {
    struct dcp_pickle_node *cls;    /* a GLOBAL */
    struct dcp_pickle_node *args;   /* a TUPLE */
    struct dcp_pickle_node *kwargs; /* a DICT, or NULL */
    struct dcp_pickle_node *state;  /* of BUILD, or NULL */
    bool made;                      /* by cls.__new__, not by a call */
    struct dcp_pickle_list items;   /* appended or added to it */
    struct dcp_pickle_list pairs;   /* set in it: key, value, key, value… */
};

struct dcp_pickle_node {
    enum dcp_pickle_kind kind;
    uint32_t height; /* 1 + that of the highest child; 0: not reachable from the root */
    union {
        bool truth;
        int64_t number;
        double real;
        struct {
            const char *data; /* borrowed from the pickle: not NUL-terminated */
            size_t size_bytes;
        } text;                      /* LONG, STR, BYTES, BYTEARRAY */
        struct dcp_pickle_list list; /* TUPLE, LIST, SET, FROZENSET; DICT as pairs */
        struct {
            const char *module, *name; /* Python 3 spelling; no dots in name, but
                                        * where only names are wanted */
            size_t n_module; /* the bytes of `module` that name it; behind them follow a
                              * dot and the classes that the name stands in */
        } global;
        struct dcp_pickle_object *object;
        struct dcp_pickle_node *id; /* PERSID */
    };
};

/* Reads the pickle at the beginning of data; *out_used (may be NULL: then nothing may
 * follow it) says where it ended. Nodes lie in the arena, texts in data. Errors: CORRUPT,
 * UNSUPPORTED (a limit, a protocol over 5, what Python reads and JSON cannot say),
 * MEMORY. */
int dcp_pickle_parse(const void *data, size_t size_bytes, struct dcp_arena *arena,
                     struct dcp_pickle_node **out_root, size_t *out_used,
                     struct dcp_error *err);

/* What persistent ids stand for. */
struct dcp_pickle_ids {
    /* The node that an id stands for, a part of it, or NULL: it stays a PERSID. */
    struct dcp_pickle_node *(*resolve)(const struct dcp_pickle_node *id);
    struct dcp_pickle_list found; /* gets every PERSID; in the arena */
};
/* The same; ids may be NULL. */
int dcp_pickle_parse_ids(const void *data, size_t size_bytes, struct dcp_arena *arena,
                         struct dcp_pickle_ids *ids, struct dcp_pickle_node **out_root,
                         size_t *out_used, struct dcp_error *err);
/* Looks for the end of the pickle at the beginning of data, from *at on (0 at first), and
 * builds nothing. *out_whole: it ends at *at; else data end before, and with more of them
 * the search goes on at *at. Errors: CORRUPT. */
int dcp_pickle_find_end(const void *data, size_t size_bytes, size_t *at, bool *out_whole,
                        struct dcp_error *err);

/* The classes and functions that a pickle names, in order, each as dcp_global_judge
 * (<dcp/globals.h>) wants it; of opcodes that are refused otherwise, too. What getattr
 * reaches in a class is told by its name; getattr itself at the end, when it has another
 * use than that and members of known Enums. *out_used: where it ended. Errors: CORRUPT:
 * Python cannot read it either (*out_used is size_bytes: data end before it does, else it
 * is less); UNSUPPORTED: it is not read here; the names up to there were told. MEMORY,
 * those of take. */
struct dcp_pickle_names {
    int (*take)(void *self, const char *name, struct dcp_error *err);
    void *self;
};
int dcp_pickle_names(const void *data, size_t size_bytes,
                     const struct dcp_pickle_names *names, size_t *out_used,
                     struct dcp_error *err);

/* Questions about a node; NULL is no node and answers no. */
bool dcp_pickle_is_global(const struct dcp_pickle_node *node, const char *module,
                          const char *name);
/* An object made by calling that global. */
bool dcp_pickle_is_call(const struct dcp_pickle_node *node, const char *module,
                        const char *name);
/* A str that equals text. */
bool dcp_pickle_is_text(const struct dcp_pickle_node *node, const char *text);
/* A dict, or an object that torch treats as one: OrderedDict, defaultdict, Counter. Its
 * pairs, or NULL. */
const struct dcp_pickle_list *dcp_pickle_pairs(const struct dcp_pickle_node *node);
/* The value of the (last) key of a dict, or NULL. */
const struct dcp_pickle_node *dcp_pickle_get(const struct dcp_pickle_node *node,
                                             const char *key);
/* The i-th argument of an object, item of a tuple or list, or NULL. */
const struct dcp_pickle_node *dcp_pickle_item(const struct dcp_pickle_node *node,
                                              size_t i);
/* The bytes of a bytes or bytearray, also in the spellings of protocol 2, which stores
 * text to be encoded as Latin-1: then they are decoded to the arena. *out_found: it was
 * one. Errors: MEMORY. */
int dcp_pickle_bytes(const struct dcp_pickle_node *node, struct dcp_arena *arena,
                     bool *out_found, const unsigned char **out, size_t *out_size_bytes,
                     struct dcp_error *err);

#endif
