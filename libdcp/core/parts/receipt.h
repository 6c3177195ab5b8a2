/* receipt: what a part of a reshard leaves behind its files when they are durable: which
 * files these are, and what the process that finishes must know of them.
 *
 *   "DCPPART1"; le64 CRC-64/XZ of all that follows; le64 the job's id; le32 the part;
 *   le64 n; n files: le64 size, le64 CRC-64/XZ, le32 bytes of the name, the name and NUL;
 *   and up to the end what write/share.h packs. */
#ifndef DCP_CORE_PARTS_RECEIPT_H
#define DCP_CORE_PARTS_RECEIPT_H

#include "base/buf.h"
#include "base/bytes.h"
#include <dcp/store.h>

struct dcp_receipt_file {
    const char *name; /* below the target's folder */
    uint64_t size_bytes, crc;
};
struct dcp_receipt {
    void *data; /* owned; the names lie in it */
    struct dcp_receipt_file *files;
    size_t n_files;
    struct dcp_cursor told;
};

void dcp_receipt_pack(uint64_t job, int part, const struct dcp_receipt_file *files,
                      size_t n_files, const struct dcp_buf *told, struct dcp_buf *out);
/* Reads what dcp_receipt_pack made; `data` is taken over, and freed after a failure.
 * Trusts nothing. Errors: CORRUPT; MISMATCH (of another job or part); MEMORY. */
int dcp_receipt_parse(void *data, size_t size_bytes, uint64_t job, int part,
                      struct dcp_receipt *out, struct dcp_error *err);
void dcp_receipt_fini(struct dcp_receipt *receipt);
/* The files are in the folder `prefix` (with its slash), with these sizes; the first that
 * is not, or NULL. Errors: IO. */
int dcp_receipt_look(const struct dcp_receipt *receipt, const struct dcp_store *store,
                     const char *prefix, const char **out_name, struct dcp_error *err);
/* The same, and every byte of them is what was written. Reads all. */
int dcp_receipt_compare(const struct dcp_receipt *receipt, const struct dcp_store *store,
                        const char *prefix, bool *out_same, struct dcp_error *err);

#endif
