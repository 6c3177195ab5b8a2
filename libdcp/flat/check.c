/* check: what is corrupt, and the fingerprint of a tensor. */
#include "checkpoint.h"

#include "base/hash.h"
#include "base/mem.h"
#include <dcp/checkpoint.h>
#include <dcp/family.h>
#include <string.h>

#define CHUNK_BYTES ((int64_t)8 << 20)

struct listener {
    struct dcp_flat_verify_options options;
};

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

static void on_finding(void *self, const struct dcp_finding *finding)
{
    const struct listener *listener = self;
    const struct dcp_flat_finding told = {
        .struct_size = sizeof told,
        .code = finding->code,
        .file = or_empty(finding->file),
        .tensor = or_empty(finding->tensor),
        .what = or_empty(finding->what),
        .begin = finding->begin,
        .end = finding->end,
        .offset = finding->offset,
        .size_bytes = finding->size_bytes,
    };

    listener->options.finding(listener->options.self, &told);
}

int32_t dcp_flat_checkpoint_verify(struct dcp_flat_checkpoint *checkpoint,
                                   const struct dcp_flat_verify_options *options,
                                   const struct dcp_flat_hooks *hooks,
                                   struct dcp_flat_verify_result *out_result,
                                   struct dcp_flat_error *err)
{
    struct dcp_source source = dcp_location_plain(&checkpoint->location);
    struct dcp_verify_result result = { 0 };
    struct dcp_error why = { 0 };
    struct dcp_flat_watch watch;
    struct listener listener;

    dcp_flat_take(&listener.options, sizeof listener.options, options);
    const struct dcp_verify_options ours = {
        .finding = listener.options.finding ? on_finding : NULL,
        .self = &listener,
        .progress = dcp_flat_watch(&watch, hooks),
        .threads = dcp_flat_threads(listener.options.threads),
    };
    int rc = dcp_verify(&source, &ours, &result, &why);
    if (rc && !result.n_findings)
        dcp_location_name_error(&checkpoint->location, &why);
    else if (rc == DCP_E_CORRUPT)
        dcp_error_prefix(&why, "'%s' is corrupt", checkpoint->location.path);
    if (rc)
        rc = dcp_location_failed(&checkpoint->location, rc, &why);
    rc = dcp_flat_check_replaced(checkpoint, NULL, rc, &why);
    struct dcp_flat_verify_result told = { .n_findings = result.n_findings,
                                           .size_bytes = result.size_bytes,
                                           .n_blocks = result.n_blocks,
                                           .n_tensors = result.n_tensors,
                                           .n_unproved = result.n_unproved };
    dcp_family_lacks_weight(checkpoint->catalog, told.lacks, sizeof told.lacks);
    dcp_flat_give(out_result, &told, sizeof told);
    return dcp_flat_fail(err, rc, &why);
}

/* -- fingerprint ------------------------------------------------------------------- */

static int read_crc(struct dcp_flat_readers *readers, int tensor,
                    const struct dcp_progress *progress, uint64_t *out,
                    struct dcp_error *err)
{
    const struct dcp_tensor *of = &readers->checkpoint->catalog->tensors[tensor];
    int64_t elem = (int64_t)dcp_dtype_size(of->dtype), step = CHUNK_BYTES / elem, n;
    int64_t most = of->n_elems < step ? of->n_elems : step;
    DCP_CLEANUP_FREE unsigned char *buffer = dcp_mem_calloc((size_t)most, (size_t)elem);

    *out = 0;
    if (!buffer)
        return dcp_error_memory(err, "a part of a tensor");
    for (int64_t at = 0; at < of->n_elems; at += n) {
        n = of->n_elems - at < step ? of->n_elems - at : step;
        DCP_TRY(dcp_reader_read(readers->items[0], tensor, at, at + n, buffer, err));
        *out = dcp_hash_crc64(*out, buffer, (size_t)(n * elem));
        if (progress->report(progress->self, (uint64_t)((at + n) * elem),
                             dcp_tensor_bytes(of)))
            return dcp_flat_interrupted(err);
    }
    return DCP_OK;
}

static int fingerprint(struct dcp_flat_checkpoint *checkpoint, uint64_t tensor,
                       const struct dcp_progress *progress, uint64_t *out,
                       struct dcp_error *err)
{
    struct dcp_flat_readers readers;

    if (tensor >= checkpoint->catalog->n_tensors)
        return dcp_error_set(err, DCP_E_USAGE, "there is no such tensor");
    const struct dcp_tensor *of = &checkpoint->catalog->tensors[tensor];
    *out = of->fingerprint;
    if (of->has_fingerprint)
        return DCP_OK;
    if (of->is_meta)
        return dcp_error_of_tensor(err, DCP_E_UNSUPPORTED, of->name,
                                   "a tensor of '%s' has no numbers that are read",
                                   checkpoint->location.path);
    DCP_TRY(dcp_flat_readers_take(checkpoint, 1, &readers, err));
    int rc = read_crc(&readers, (int)tensor, progress, out, err);
    rc = dcp_flat_readers_give(&readers, rc, err);
    return dcp_flat_check_replaced(checkpoint, of, rc, err);
}

int32_t dcp_flat_tensor_fingerprint(struct dcp_flat_checkpoint *checkpoint,
                                    uint64_t tensor, const struct dcp_flat_hooks *hooks,
                                    uint64_t *out_fingerprint, struct dcp_flat_error *err)
{
    struct dcp_flat_watch watch;
    struct dcp_error why = { 0 };
    const struct dcp_progress progress = dcp_flat_watch(&watch, hooks);
    int rc = fingerprint(checkpoint, tensor, &progress, out_fingerprint, &why);

    return dcp_flat_fail(err, rc, &why);
}
