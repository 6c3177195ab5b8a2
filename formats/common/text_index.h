/* text_index: an index of texts: which number belongs to a name. */
#ifndef DCP_FORMATS_COMMON_TEXT_INDEX_H
#define DCP_FORMATS_COMMON_TEXT_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise; dcp_text_index_fini. Names need no NUL behind them and are borrowed.
 */
struct dcp_text_index {
    struct dcp_text_slot *slots;
    size_t n, cap; /* cap: a power of two */
};
void dcp_text_index_fini(struct dcp_text_index *names);

/* The number of a name, or -1. */
int64_t dcp_text_index_find(const struct dcp_text_index *names, const char *name,
                            size_t n);
/* Sets it, also in the place of another. False: out of memory. */
bool dcp_text_index_set(struct dcp_text_index *names, const char *name, size_t n,
                        int64_t number);

#endif
