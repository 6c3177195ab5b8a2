/* scan: pickles that lie somewhere, searched for what they name (<dcp/globals.h>). */
#ifndef DCP_FORMATS_SCAN_H
#define DCP_FORMATS_SCAN_H

#include "input.h"
#include <dcp/globals.h>

/* Where the search is. */
struct dcp_scan {
    const struct dcp_global_visit *visit;
    const char *file; /* as in struct dcp_global */
    uint64_t n_pickles;
};

/* One pickle at the beginning of data; *out_used (may be NULL): where it ended, 0 when it
 * could not be read. Errors: MEMORY, those of the visitor. */
int dcp_scan_pickle(struct dcp_scan *scan, const char *where, const void *data,
                    size_t size_bytes, size_t *out_used, struct dcp_error *err);
/* The records of a zip archive in bytes begin .. end of a file. `where` is put before
 * their names. */
int dcp_scan_zip(struct dcp_scan *scan, const char *where, const struct dcp_input *in,
                 uint64_t begin, uint64_t end, struct dcp_error *err);
/* Whether a file that begins so, zeros behind its end, is an archive or compressed: what
 * it holds is not searched. */
bool dcp_scan_is_packed(const unsigned char *head, size_t n, const char *name);
bool dcp_scan_is_named_pickle(const char *name);
/* Tells of what is not searched. Errors: those of the visitor. */
int dcp_scan_pass_over(const struct dcp_scan *scan, const char *where,
                       struct dcp_error *err);
/* The bytes of an object: an archive, or nothing that is loaded. */
int dcp_scan_memory(const void *data, size_t size_bytes,
                    const struct dcp_global_visit *visit, struct dcp_error *err);

#endif
