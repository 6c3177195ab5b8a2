/* scan: pickles that lie somewhere, searched for what they name (<dcp/globals.h>). */
#ifndef DCP_FORMATS_SCAN_SCAN_H
#define DCP_FORMATS_SCAN_SCAN_H

#include "formats/common/input.h"
#include <dcp/globals.h>

/* Where the search is. */
struct dcp_scan {
    const struct dcp_global_visit *visit;
    const char *file; /* as in struct dcp_global */
    uint64_t n_pickles;
};

enum { DCP_SCAN_MAX_HEAD = 16 << 20 }; /* of a header of NumPy */

/* A pickle that cannot be read. Errors: those of the visitor, as everywhere here. */
int dcp_scan_unreadable(struct dcp_scan *scan, const char *where, struct dcp_error *err);
/* One pickle at the beginning of data. Errors: MEMORY. */
int dcp_scan_pickle(struct dcp_scan *scan, const char *where, const void *data,
                    size_t size_bytes, struct dcp_error *err);
/* The same at a byte of a file. *out_used: its bytes, 0 when it could not be read, which
 * counts unless there need not be a pickle (!is_sure), nothing was named, and Python
 * could not read it either. Errors: IO, MEMORY. */
int dcp_scan_pickle_at(struct dcp_scan *scan, const char *where,
                       const struct dcp_input *in, uint64_t at, bool is_sure,
                       size_t *out_used, struct dcp_error *err);

#define DCP_SCAN_NPY_BYTES 12 /* tell how long the header of a NumPy array file is */
/* 0: data do not begin like one. The array lies behind the header. */
uint64_t dcp_scan_npy_head(const unsigned char *data, size_t n);
/* Whether the array behind a header may be a pickle. */
bool dcp_scan_npy_objects(const unsigned char *head, size_t n);

/* The records of a zip archive in bytes begin .. end of a file. `where` is put before
 * their names. */
int dcp_scan_zip(struct dcp_scan *scan, const char *where, const struct dcp_input *in,
                 uint64_t begin, uint64_t end, struct dcp_error *err);
/* Whether a file that begins so, zeros behind its end, is an archive or compressed: what
 * it holds is not searched. */
bool dcp_scan_is_packed(const unsigned char *head, size_t n, const char *name);
/* A file of that name is loaded as pickles. Those of others (.bin) may be anything. */
bool dcp_scan_is_named_pickle(const char *name);
/* Tells of what is not searched. Errors: those of the visitor. */
int dcp_scan_pass_over(const struct dcp_scan *scan, const char *where,
                       struct dcp_error *err);
/* The bytes of an object: an archive, or nothing that is loaded. */
int dcp_scan_memory(struct dcp_scan *scan, const void *data, size_t size_bytes,
                    struct dcp_error *err);

#endif
