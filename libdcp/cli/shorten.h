/* shorten: names of one table that are too long for it, "…h.10.attn.c_attn.weight" or
 * "optimizer.exp_avg.…c_attn.weight", so that those which differ still do. */
#ifndef DCP_CLI_SHORTEN_H
#define DCP_CLI_SHORTEN_H

#include "base/buf.h"

struct dcp_shortener {
    int width; /* of the longest, in columns */
    int head;  /* parts (which end at '.' or '/') that are kept at the beginning */
};

/* How to shorten names, to `width` columns if they can be told apart then, else to as few
 * more as that takes. Without memory they stay as they are. */
struct dcp_shortener dcp_shorten_choose(const char *const *names, size_t n, int width);
void dcp_shorten_add(struct dcp_buf *out, const char *name,
                     const struct dcp_shortener *how);

#endif
