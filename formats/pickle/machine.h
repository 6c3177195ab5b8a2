/* machine: the state that the opcodes of a pickle share. Private to this folder. */
#ifndef DCP_FORMATS_PICKLE_MACHINE_H
#define DCP_FORMATS_PICKLE_MACHINE_H

#include "base/bytes.h"
#include "pickle.h"

struct dcp_pickle_machine {
    struct dcp_cursor in;
    struct dcp_arena *arena;
    struct dcp_error *err; /* never NULL */
    const char *op_name;   /* of the opcode that runs, for messages */
    size_t op_at;
    uint64_t arg;     /* what followed it: a number, */
    const char *text; /* or bytes, */
    size_t text_len;
    const char *text2; /* or two lines */
    size_t text2_len;
    struct dcp_pickle_node **stack;
    size_t n_stack, cap_stack;
    size_t *marks; /* heights of the stack */
    size_t n_marks, cap_marks;
    struct dcp_pickle_node **memo;
    size_t n_memo, cap_memo; /* n_memo: 1 + the highest index */
    size_t n_memoized;       /* indices that are set: the one that MEMOIZE takes next */
    size_t n_nodes;
    struct dcp_pickle_ids *ids; /* or NULL */
    /* Set when only the names are wanted: then every opcode is run, also those that are
     * refused otherwise, and what is done to objects is not looked at. */
    const struct dcp_pickle_names *names;
    size_t n_held; /* with names: getattr on the stack, less the uses of it that are
                    * known; what is left at the end is told */
    /* Why it ended early, where only names are wanted. Refused is what Python may read.
     */
    enum { DCP_PICKLE_REFUSED, DCP_PICKLE_BROKEN, DCP_PICKLE_CUT_OFF } why;
    bool stopped;
};

/* What follows an opcode. */
enum dcp_pickle_argument {
    NOTHING,
    U1,
    U2,
    I4,
    U4,
    U8,
    BYTES_1, /* a count of 1, 4 or 8 bytes, and as many bytes */
    BYTES_4,
    BYTES_8,
    TWO_LINES,
    ONE_LINE
};

struct dcp_pickle_op {
    const char *name; /* NULL: not in this table */
    enum dcp_pickle_argument argument;
    int (*run)(struct dcp_pickle_machine *m); /* NULL: refused */
};

extern const struct dcp_pickle_op dcp_pickle_stack_ops[256];
extern const struct dcp_pickle_op dcp_pickle_value_ops[256];
extern const struct dcp_pickle_op dcp_pickle_object_ops[256];
extern const struct dcp_pickle_op dcp_pickle_name_ops[256]; /* with names alone */

/* Sets the error: this opcode, here, and what is wrong with it. */
int dcp_pickle_corrupt(struct dcp_pickle_machine *m, const char *what);
/* The same, where Python fails as well, and where data end. */
int dcp_pickle_broken(struct dcp_pickle_machine *m, const char *what);
int dcp_pickle_cut_off(struct dcp_pickle_machine *m, const char *what);
int dcp_pickle_no_memory(struct dcp_pickle_machine *m);

/* Items above the last mark: no opcode but those that take a mark reaches below it. */
size_t dcp_pickle_reach(const struct dcp_pickle_machine *m);
int dcp_pickle_push(struct dcp_pickle_machine *m, struct dcp_pickle_node *node);
int dcp_pickle_pop(struct dcp_pickle_machine *m, struct dcp_pickle_node **out);
int dcp_pickle_top(struct dcp_pickle_machine *m, struct dcp_pickle_node **out);
/* Takes the last mark and all above it; *out points into the stack until the next push.
 */
int dcp_pickle_pop_mark(struct dcp_pickle_machine *m, struct dcp_pickle_node ***out,
                        size_t *out_n);

/* NULL with the error set when there is no room; dcp_pickle_push_new takes that NULL. */
struct dcp_pickle_node *dcp_pickle_node_new(struct dcp_pickle_machine *m,
                                            enum dcp_pickle_kind kind);
int dcp_pickle_push_new(struct dcp_pickle_machine *m, struct dcp_pickle_node *node);

/* Adds items to a list; its memory is the arena's. */
int dcp_pickle_list_add(struct dcp_pickle_machine *m, struct dcp_pickle_list *list,
                        struct dcp_pickle_node *const *items, size_t n);

/* Pushes an object, and a class or function by its name; with names, tells of it. */
int dcp_pickle_push_object(struct dcp_pickle_machine *m, struct dcp_pickle_node *cls,
                           struct dcp_pickle_node *args, struct dcp_pickle_node *kwargs);
int dcp_pickle_push_global(struct dcp_pickle_machine *m, const char *module,
                           size_t module_len, const char *name, size_t name_len);
bool dcp_pickle_is_getattr(const struct dcp_pickle_node *node);
int dcp_pickle_memo_set(struct dcp_pickle_machine *m, uint64_t index);
int dcp_pickle_memo_get(struct dcp_pickle_machine *m, uint64_t index);

/* After STOP: sets the heights; refuses cycles and what is too deep. */
int dcp_pickle_check_tree(struct dcp_pickle_node *root, struct dcp_error *err);

#endif
