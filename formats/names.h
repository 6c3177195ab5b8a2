/* names: an index of texts: which number belongs to a name. */
#ifndef DCP_FORMATS_NAMES_H
#define DCP_FORMATS_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise; dcp_names_fini. Names need no NUL behind them and are borrowed. */
struct dcp_names {
    struct dcp_names_slot *slots;
    size_t n, cap; /* cap: a power of two */
};
void dcp_names_fini(struct dcp_names *names);

/* The number of a name, or -1. */
int64_t dcp_names_find(const struct dcp_names *names, const char *name, size_t n);
/* Sets it, also in the place of another. False: out of memory. */
bool dcp_names_set(struct dcp_names *names, const char *name, size_t n, int64_t number);

#endif
