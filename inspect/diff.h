/* diff: what two checkpoints have in common, and the two ways to say it. */
#ifndef INSPECT_DIFF_H
#define INSPECT_DIFF_H

#include "compare.h"

/* An object that is not the same in both. */
struct inspect_object_diff {
    const char *name; /* belongs to one of the catalogs */
    bool in_a, in_b;
};

struct inspect_diff_result {
    struct inspect_checkpoint a, b;
    struct inspect_tolerance tolerance;
    struct inspect_pair *pairs; /* in a's order, then what only b has */
    size_t n_pairs, n_same, n_by_fingerprint, n_by_value, n_near;
    struct inspect_object_diff *objects;
    size_t n_objects, n_objects_same;
    bool objects_compared, verified;
    double seconds;
};

/* Pairs the tensors selected by name, and the objects. Errors: NOT_FOUND, MEMORY. */
int inspect_diff_pair(struct inspect_diff_result *diff,
                      const struct inspect_selection *selection, struct dcp_error *err);
/* Compares all pairs; with `read` fingerprints are not trusted, with diff->verified what
 * is read is. */
int inspect_diff_compare(struct dcp_main *m, struct inspect_diff_result *diff, bool read,
                         struct dcp_error *err);
void inspect_diff_fini(struct inspect_diff_result *diff);

bool inspect_diff_is_same(const struct inspect_pair *pair);
void inspect_diff_text(struct dcp_main *m, const struct inspect_diff_result *diff,
                       int64_t limit);
int inspect_diff_json(struct dcp_main *m, const struct inspect_diff_result *diff,
                      struct dcp_error *err);

#endif
