/* globals: what the pickles of a checkpoint name, counted. */
#ifndef INSPECT_GLOBALS_H
#define INSPECT_GLOBALS_H

#include "cli/main.h"
#include <dcp/globals.h>
#include <dcp/tensor.h>

struct inspect_global {
    char *file;  /* NULL: an object of a step */
    char *where; /* the first place in it */
    char *name;
    enum dcp_global_kind kind;
    uint64_t n; /* how often it is named in that file, or at that place */
    size_t at;  /* it was the at-th that was found */
};
/* What is known safe is counted for each file, the rest for each place. */
struct inspect_globals {
    struct inspect_global *items;
    size_t n, cap;
    size_t n_kinds[DCP_GLOBAL_DANGEROUS + 1]; /* items of each kind */
};
void inspect_globals_fini(struct inspect_globals *globals);

/* Of a source, worst first; *out_pickles: how many were read. Errors: NOT_FOUND, IO,
 * MEMORY, CORRUPT (a step). */
int inspect_globals_of_source(const struct dcp_source *source,
                              struct inspect_globals *out, uint64_t *out_pickles,
                              struct dcp_error *err);
/* Of the objects of a catalog. Errors: MEMORY. */
int inspect_globals_of_catalog(const struct dcp_catalog *catalog,
                               struct inspect_globals *out, struct dcp_error *err);
/* "2 names are not known to be safe to load ('posix.system' is dangerous)"; "" when all
 * are. */
void inspect_globals_text(const struct inspect_globals *globals, char *out, size_t cap);
/* Warns of that in one line, and of an error that leaves it unknown. */
void inspect_globals_warn(struct dcp_main *m, const struct dcp_catalog *catalog);

#endif
