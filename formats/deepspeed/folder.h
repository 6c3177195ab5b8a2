/* folder: which files a DeepSpeed checkpoint has, and whether they are all
 * there. */
#ifndef DCP_FORMATS_DEEPSPEED_FOLDER_H
#define DCP_FORMATS_DEEPSPEED_FOLDER_H

#include "base/arena.h"
#include <dcp/format.h>

#define DCP_DS_LATEST "latest"
#define DCP_DS_MAX_WORLD_SIZE (1 << 20)
#define DCP_DS_MAX_TAG_BYTES 255

/* Names are relative to the source's folder; everything lies in the arena. */
struct dcp_ds_folder {
    const char *tag;    /* "" when unknown */
    const char *prefix; /* "global_step10/"; "" when the source is the tag's folder */
    const char *model;  /* the file of the model's states, of rank 0; NULL: none */
    bool by_rank;       /* stage 3: each rank has one */
    const char **models, **optims; /* by rank; NULL where there is none */
    int n_models, n_optims;        /* highest rank + 1 */
    bool bf16;                     /* optimizer files say so in their name */
    bool universal;                /* it has zero/, the parameters of a universal one */
    bool seen; /* something is named as DeepSpeed names it; set on failure too */
    bool tags; /* of a failure: there are tags, and nothing names one of them */
};

/* Finds the folder of the tag, by the file `pointer` ("latest") in the source's folder,
 * or the source itself, and lists it. Errors: CORRUPT (the pointer names what is not
 * there, or there are tags and no "latest"; files of two kinds), UNSUPPORTED (files of
 * other parallelisms), IO, MEMORY. */
int dcp_ds_folder_open(const struct dcp_source *source, const char *pointer,
                       struct dcp_arena *arena, struct dcp_ds_folder *out,
                       struct dcp_error *err);
/* Every rank has its optimizer file (and at stage 3 its model's), and nobody
 * else has one. Errors: CORRUPT, naming what is missing or stale. */
int dcp_ds_folder_check(const struct dcp_ds_folder *folder, int world_size,
                        struct dcp_error *err);

/* A name for messages, in the arena or static; never NULL. */
const char *dcp_ds_shown(struct dcp_arena *arena, const char *name);

#endif
