/* folder: delta.json, which says of which files a folder is, and against what base. See
 * docs/FORMAT.md, chapter 14. Plain data; thread rule: as memory. */
#ifndef DCP_CORE_DELTA_FOLDER_H
#define DCP_CORE_DELTA_FOLDER_H

#include "base/buf.h"
#include <dcp/store.h>

#define DCP_DELTA_JSON "delta.json"
#define DCP_DELTA_SUFFIX ".delta"
#define DCP_DELTA_IDENTITY                                      \
    "manifest.json" /* of a base: it binds all of a native step \
                     */
#define DCP_DELTA_SIGNATURE "manifest.json.sig"
#define DCP_DELTA_DIGEST_BYTES 31 /* the last ones of delta.json */

/* A file of the base. */
struct dcp_delta_base_file {
    char *name;
    uint64_t size_bytes, crc;
};

/* A file that the folder stands for. */
struct dcp_delta_file {
    char *name;
    uint64_t size_bytes, crc; /* CRC-64/XZ of all of it */
    bool coded;               /* it is in NAME.delta; else it is there as it is */
    uint64_t delta_bytes;     /* of NAME.delta, */
    uint64_t table_crc;       /* whose table has this digest */
};

struct dcp_delta_folder {
    char *base_path;                  /* from the folder: "../step-00001000" */
    int chain;                        /* deltas from here to a base that is none */
    int number;                       /* which save on its base it is; 0: untold */
    struct dcp_delta_base_file *base; /* sorted by name */
    size_t n_base;
    struct dcp_delta_file *files; /* sorted by name */
    size_t n_files;
};

void dcp_delta_folder_fini(struct dcp_delta_folder *folder);

/* Whether a path may name a base: it begins with "../", and has plain parts behind all
 * "..". */
bool dcp_delta_base_ok(const char *path);
/* Whether a name is of what the folder of a delta has for itself and shows as it lies, by
 * its last part: delta.json, and the signature of what the delta stands for. */
bool dcp_delta_is_own(const char *name);
/* Whether a file of that name may be in a folder that a delta stands for. */
bool dcp_delta_name_ok(const char *name);

/* delta.json as text, with its digest. */
void dcp_delta_folder_format(struct dcp_buf *out, const struct dcp_delta_folder *folder);
/* And back; `what` names it in messages. Release with dcp_delta_folder_fini, after a
 * failure too. Errors: CORRUPT, UNSUPPORTED (a newer version, or a feature that is not
 * known), MEMORY. */
int dcp_delta_folder_parse(const char *text, size_t n, const char *what,
                           struct dcp_delta_folder *out, struct dcp_error *err);
/* Reads that of a folder ("" is the root) of a store. Errors: also NOT_FOUND, IO. */
int dcp_delta_folder_read(const struct dcp_store *store, const char *dir,
                          struct dcp_delta_folder *out, struct dcp_error *err);

/* By name, or NULL. */
const struct dcp_delta_file *dcp_delta_find(const struct dcp_delta_folder *folder,
                                            const char *name);
struct dcp_delta_base_file *dcp_delta_find_base(const struct dcp_delta_folder *folder,
                                                const char *name);

#endif
