/* weights: what the weights of a model are called in a folder: one file, or the index of
 * many. Who finds several takes the first of the table, as transformers does. */
#ifndef DCP_FORMATS_HF_WEIGHTS_H
#define DCP_FORMATS_HF_WEIGHTS_H

#include <dcp/format.h>

/* Who looks for a name; bits. */
enum {
    DCP_WEIGHTS_HF = 1,     /* a model of transformers */
    DCP_WEIGHTS_TRAINER = 2 /* what lies beside an optimizer */
};

struct dcp_weights {
    const char *name;
    unsigned of;   /* who looks for it */
    bool is_index; /* of files that index_file reads */
    bool ordered;  /* torch.save keeps the order of the state dict */
    int (*index_file)(const struct dcp_source *source, const char *name,
                      struct dcp_catalog *catalog, struct dcp_error *err);
};
/* NULL: there are none. */
const struct dcp_weights *dcp_weights_find(const struct dcp_source *source, unsigned of);
/* Reads them; a file that holds parts of tensors is refused. Errors: UNSUPPORTED, those
 * of the files. */
int dcp_weights_index(const struct dcp_source *source, const struct dcp_weights *weights,
                      struct dcp_catalog *catalog, struct dcp_error *err);

#endif
