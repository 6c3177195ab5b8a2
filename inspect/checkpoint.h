/* checkpoint: what a user named on the command line, opened for reading. */
#ifndef INSPECT_CHECKPOINT_H
#define INSPECT_CHECKPOINT_H

#include "cli/main.h"
#include <dcp/reshard.h>

/* A reader's buffers. */
#define INSPECT_READER_BYTES (16u << 20)

struct inspect_checkpoint {
    struct dcp_location location;
    struct dcp_catalog *catalog;
    struct dcp_reader *reader; /* once inspect_reader was called; threads clone it */
};

/* Opens a run folder (its newest complete step), a step, or a file or folder of a known
 * format; for show without its pieces (dcp_location_head). Steps that were passed over
 * because they are corrupt are logged. Caller owns, inspect_close. Errors: those of
 * dcp_location_open and dcp_location_index. */
int inspect_open(struct dcp_main *m, const char *path, struct inspect_checkpoint *out,
                 struct dcp_error *err);
void inspect_close(struct inspect_checkpoint *checkpoint);

/* Whether the user named a run folder, and the step in it was chosen. */
bool inspect_is_run(const struct dcp_location *location);

/* Makes the reader. */
int inspect_reader(struct inspect_checkpoint *checkpoint, bool verify,
                   struct dcp_error *err);
/* dcp_reader_check of it, to be called before anything that was read is told. */
int inspect_check(const struct inspect_checkpoint *checkpoint, struct dcp_error *err);
/* dcp_reader_read, whose errors name the checkpoint and the next act. */
int inspect_read(const struct inspect_checkpoint *checkpoint, struct dcp_reader *reader,
                 int tensor, int64_t begin, int64_t end, void *out,
                 struct dcp_error *err);

/* Which tensors a verb is about. */
struct inspect_selection {
    struct dcp_opt_list globs; /* any of them; none: all */
    int only;                  /* enum dcp_only */
};

/* The indices of the tensors selected, in the catalog's order; freed with free. Errors:
 * NOT_FOUND (nothing matches), MEMORY. */
int inspect_select(const struct inspect_checkpoint *checkpoint,
                   const struct inspect_selection *selection, size_t **out, size_t *out_n,
                   struct dcp_error *err);
/* The index of the tensor called `name`. Errors: NOT_FOUND, with the nearest name. */
int inspect_find(const struct inspect_checkpoint *checkpoint, const char *name,
                 int *out_tensor, struct dcp_error *err);

/* "format", "step", "world"… of a checkpoint, as every document has them. NULL: out of
 * memory. */
json_t *inspect_checkpoint_json(const struct inspect_checkpoint *checkpoint);
json_t *inspect_catalog_json(const char *path, const struct dcp_catalog *catalog);

/* The option that fills the field `no_verify`, and the word that says so in a text. */
#define INSPECT_OPT_NO_VERIFY                                                    \
    {                                                                            \
        0, "no-verify", NULL,                                                    \
            "do not check digests: what a corrupt checkpoint still holds", NULL, \
            DCP_OPT_FLAG, .at = offsetof(struct settings, no_verify)             \
    }
#define INSPECT_NOT_VERIFIED "not verified (--no-verify)"

/* The options that fill the field `selection` of a verb's `struct settings`. */
#define INSPECT_HELP_ONLY "only weights and buffers, or only optimizer state"
#define INSPECT_OPTS_SELECTION                                                 \
    { 't',                                                                     \
      "tensors",                                                               \
      "GLOB",                                                                  \
      "only tensors whose name matches; may be given again",                   \
      "Selection",                                                             \
      DCP_OPT_LIST,                                                            \
      .at = offsetof(struct settings, selection.globs),                        \
      .values = DCP_VALUES_TENSORS },                                          \
    {                                                                          \
        0, "only", "all|model|optim", INSPECT_HELP_ONLY, NULL, DCP_OPT_CHOICE, \
            .at = offsetof(struct settings, selection.only)                    \
    }

#endif
