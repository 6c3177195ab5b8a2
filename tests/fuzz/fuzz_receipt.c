/* What stands behind the digest of a part's receipt, which is made to fit here: the job's
 * id, the part, its files, and what it tells of them. Nothing in it may be believed that
 * does not fit what was planned. */
#include "base/buf.h"
#include "base/hash.h"
#include "base/mem.h"
#include "core/parts/receipt.h"
#include "core/write/share.h"
#include "lib/must.h"
#include "lib/two_parts.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { JOB = 77, N = TWO_PARTS_FILES, HEAD_BYTES = 16 };

static void check(const struct dcp_catalog *target)
{
    for (size_t p = 0; p < target->n_pieces; p++) {
        const struct dcp_piece *piece = &target->pieces[p];
        uint64_t room = target->files[piece->file].size_bytes;
        must(!piece->has_crc || target->files[piece->file].rank > 0);
        must(!piece->has_crc || (piece->stored_size <= 100 && piece->offset <= room &&
                                 piece->stored_size <= room - piece->offset));
    }
    for (size_t f = N; f < target->n_files; f++)
        must(dcp_store_name_ok(target->files[f].name) && target->files[f].rank > 0 &&
             target->files[f].rank < N);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct dcp_shares shares = { two_parts_of, N, N };
    struct dcp_receipt receipt;
    struct dcp_error err = { 0 };
    uint64_t parts[N] = { 0 };
    _Atomic uint64_t src_parts[N] = { 0 };
    unsigned char *whole = malloc(HEAD_BYTES + size);

    must(whole != NULL);
    memcpy(whole, "DCPPART1", 8);
    dcp_put_le64(whole + 8, dcp_hash_crc64(0, data, size));
    if (size)
        memcpy(whole + HEAD_BYTES, data, size);
    int rc = dcp_receipt_parse(whole, HEAD_BYTES + size, JOB, 1, &receipt, &err);
    must(!rc || ((rc == DCP_E_MISMATCH || rc == DCP_E_CORRUPT) && err.message[0]));
    if (rc)
        return 0;
    for (size_t f = 0; f < receipt.n_files; f++)
        must(dcp_store_name_ok(receipt.files[f].name));
    struct dcp_catalog *target = two_parts_target(), *src = two_parts_source();
    struct dcp_share share = {
        .of = &shares, .part = 1, .target = target, .parts = parts, .src_parts = src_parts
    };
    must(!dcp_proof_new(src, &share.proof, NULL));
    rc = dcp_share_unpack(&share, &receipt.told, &err);
    must(!rc || (rc == DCP_E_CORRUPT && err.message[0]));
    check(target);
    must(!dcp_shares_complete(target)); /* the other part is missing */
    dcp_proof_free(share.proof);
    dcp_catalog_free(target);
    dcp_catalog_free(src);
    dcp_receipt_fini(&receipt);
    return 0;
}
