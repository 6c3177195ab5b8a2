/* write: writes a pickle of protocol 2 as CPython's own pickler would, memo and
 * batches included, so that torch's files can be written byte for byte. */
#ifndef DCP_FORMATS_PICKLE_WRITE_H
#define DCP_FORMATS_PICKLE_WRITE_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/map.h"
#include <dcp/error.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise; dcp_pickle_out_fini. Failures are remembered in buf. */
struct dcp_pickle_out {
    struct dcp_buf buf;
    uint32_t n_memo;        /* the index the next PUT takes */
    struct dcp_map shared;  /* from what makes a text or a name to its index */
    struct dcp_arena *keys; /* of that */
};
void dcp_pickle_out_fini(struct dcp_pickle_out *out);

void dcp_pickle_begin(struct dcp_pickle_out *out);
void dcp_pickle_end(struct dcp_pickle_out *out);

void dcp_pickle_op(struct dcp_pickle_out *out, char op);
/* Remembers what is on top of the stack. Returns its index. */
uint32_t dcp_pickle_put(struct dcp_pickle_out *out);
void dcp_pickle_fetch(struct dcp_pickle_out *out, uint32_t index);

void dcp_pickle_none(struct dcp_pickle_out *out);
void dcp_pickle_bool(struct dcp_pickle_out *out, bool truth);
void dcp_pickle_int(struct dcp_pickle_out *out, int64_t number);
void dcp_pickle_long(struct dcp_pickle_out *out, const unsigned char *bytes, size_t n);
void dcp_pickle_float(struct dcp_pickle_out *out, double real);
/* A string object of its own. Returns its index in the memo. */
uint32_t dcp_pickle_text(struct dcp_pickle_out *out, const char *text, size_t n);
/* A string that is one object wherever it stands, as constants and dict keys are. */
void dcp_pickle_shared_text(struct dcp_pickle_out *out, const char *text);
/* A class or function. */
void dcp_pickle_global(struct dcp_pickle_out *out, const char *module, const char *name);
/* bytes as protocol 2 spells them, a call of _codecs.encode; also where CPython writes
 * bytes(), which torch's weights_only loader refuses. */
void dcp_pickle_bytes_call(struct dcp_pickle_out *out, const unsigned char *data,
                           size_t n);

/* Around the n items of a tuple; then it is remembered. */
void dcp_pickle_tuple_begin(struct dcp_pickle_out *out, size_t n);
void dcp_pickle_tuple_end(struct dcp_pickle_out *out, size_t n);
/* A tuple of numbers. */
void dcp_pickle_numbers(struct dcp_pickle_out *out, const int64_t *numbers, size_t n);

/* Filling a dict or list that is on the stack with n items: call next(…, i) before item i
 * (for a dict: before its key), and end behind the last. */
enum dcp_pickle_fill {
    DCP_PICKLE_FILL_DICT,  /* a plain dict */
    DCP_PICKLE_FILL_PAIRS, /* any other object that takes keys */
    DCP_PICKLE_FILL_LIST
};
void dcp_pickle_fill_next(struct dcp_pickle_out *out, enum dcp_pickle_fill fill, size_t i,
                          size_t n);
void dcp_pickle_fill_end(struct dcp_pickle_out *out, enum dcp_pickle_fill fill, size_t n);

#endif
