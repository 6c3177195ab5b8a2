/* verify_print: what verify found in one checkpoint, for the terminal or a document. */
#ifndef INSPECT_VERIFY_PRINT_H
#define INSPECT_VERIFY_PRINT_H

#include "base/buf.h"
#include "cli/main.h"
#include <dcp/checkpoint.h>

/* The part of a checkpoint that is verified; `to` 0: all of it. */
struct inspect_part {
    double from, to;
};

/* Corruption goes to the terminal, or into the document. */
struct inspect_findings {
    struct dcp_main *m;
    const char *path; /* of the checkpoint */
    const struct dcp_catalog *catalog;
    json_t *head, *list; /* with --json; NULL once memory ran out */
    struct dcp_buf lost; /* what is lost with the file that was named last: its parts */
    uint64_t n_lost;
    uint64_t hole_bytes; /* of its files, see dcp_fs_hole_bytes */
    char hole_file[256]; /* the first with any, for messages */
    size_t n_hole_files;
    char weight[64];  /* what the model has and this not, see dcp_family; or "" */
    char untold[160]; /* what nothing proves, see struct dcp_catalog; "": nothing */
    bool is_of_file;  /* they lie in it */
    bool retired;     /* the checkpoint went while it was read: nothing is corrupt */
};

/* `begin` and `finding` of dcp_verify_options; self is the findings. */
void inspect_findings_begin(void *self, const struct dcp_catalog *catalog);
void inspect_findings_add(void *self, const struct dcp_finding *finding);

/* What was found, and what that rests on; rc is what dcp_verify returned. */
void inspect_findings_print(struct inspect_findings *findings, int rc,
                            const struct dcp_verify_result *result,
                            const struct inspect_part *part, double seconds);
/* The same as an object, of the caller; NULL: out of memory. */
json_t *inspect_findings_json(struct inspect_findings *findings, int rc,
                              const struct dcp_verify_result *result,
                              const struct inspect_part *part, double seconds);
void inspect_findings_fini(struct inspect_findings *findings);

#endif
