/* reshard_facts: what a planned reshard reads, writes, casts and leaves out. */
#include "base/fs.h"
#include "base/mem.h"
#include "core/catalog/order.h"
#include "core/catalog/packed.h"
#include "core/integrity/proof.h"
#include "core/parity/parity.h"
#include "core/plan/choose.h"
#include "core/plan/contents.h"
#include "reshard_own.h"
#include <stdio.h>
#include <string.h>

/* Runs that touch in a source file are one read. Counted in the order the target is
 * written, which is the order of its files. */
static int count_reads(struct dcp_reshard *reshard, struct dcp_error *err)
{
    struct dcp_reshard_plan *facts = &reshard->facts;
    const struct dcp_plan *plan = reshard->plan;
    DCP_CLEANUP_FREE size_t *order = dcp_file_order(reshard->target);
    DCP_CLEANUP_FREE uint64_t *at = dcp_mem_calloc(reshard->src->n_files + 1, sizeof *at);

    if (!order || !at)
        return dcp_error_memory(err, "a reshard");
    for (size_t i = 0; i < reshard->target->n_pieces; i++)
        for (size_t c = plan->first[order[i]]; c < plan->first[order[i] + 1]; c++) {
            const struct dcp_copy *copy = &plan->copies[c];
            const struct dcp_piece *piece = &reshard->src->pieces[copy->src];
            uint64_t elem = dcp_dtype_size(reshard->src->tensors[piece->tensor].dtype);
            uint64_t runs = (uint64_t)dcp_copy_runs(copy);
            uint64_t offset = piece->offset + (uint64_t)copy->src_at * elem;
            uint64_t *last = &at[piece->file + 1];
            facts->n_reads += offset == *last ? runs - 1 : runs;
            facts->read_bytes += runs * (uint64_t)copy->n * elem;
            *last = runs == 1 ? offset + (uint64_t)copy->n * elem : UINT64_MAX;
        }
    facts->n_copies = plan->n_runs;
    return DCP_OK;
}

/* What a lossy reshard leaves out, and one of the model alone. */
static int count_left(struct dcp_reshard *reshard, struct dcp_error *err)
{
    struct dcp_identity *of_src;
    int rc = dcp_identity_new(reshard->src, &of_src, err);

    for (size_t t = 0; t < reshard->src->n_tensors && !rc; t++) {
        const struct dcp_tensor *tensor = &reshard->src->tensors[t];
        if (dcp_choose_is_beside(reshard->src, tensor, &reshard->options)) {
            if (!reshard->facts.n_beside++)
                reshard->facts.first_beside = tensor->name;
            continue;
        }
        if (!dcp_choose_selected(tensor, &reshard->options) ||
            dcp_choose_disposition(reshard->src, of_src, reshard->format, reshard->target,
                                   tensor) != DCP_DISPOSITION_UNSUPPORTED)
            continue;
        if (!reshard->facts.n_left++)
            reshard->facts.first_left = tensor->name;
    }
    dcp_identity_free(of_src);
    return rc;
}

/* Tensors whose bytes in the source nothing vouches for. */
static int count_unproved(struct dcp_reshard *reshard, struct dcp_error *err)
{
    struct dcp_proof *proof;
    int rc = dcp_proof_new(reshard->src, &proof, err);

    for (size_t t = 0; t < reshard->target->n_tensors && !rc; t++)
        reshard->facts.n_unproved +=
            !reshard->target->tensors[t].tied_to &&
            !dcp_proof_covers(proof, &reshard->src->tensors[reshard->src_tensor[t]]);
    dcp_proof_free(proof);
    return rc;
}

/* Weights and their masters: which of them are in the target. */
static void count_masters(struct dcp_reshard *reshard)
{
    struct dcp_reshard_plan *facts = &reshard->facts;
    const struct dcp_catalog *src = reshard->src, *target = reshard->target;
    uint64_t taken = 0, weights = 0;

    for (size_t t = 0; t < target->n_tensors; t++) {
        bool weight = target->tensors[t].role == DCP_ROLE_MODEL;
        bool master = src->tensors[reshard->src_tensor[t]].role == DCP_ROLE_MASTER;
        weights += weight;
        facts->n_from_masters += weight && master && !target->tensors[t].tied_to;
        taken += master;
    }
    for (size_t t = 0; t < src->n_tensors && weights && !taken; t++)
        facts->n_masters_left += src->tensors[t].role == DCP_ROLE_MASTER;
}

/* Formats may have a dtype of their own besides: that is no scale that was kept. */
static int count_kept(struct dcp_reshard *reshard, struct dcp_error *err)
{
    const struct dcp_catalog *src = reshard->src, *target = reshard->target;
    struct dcp_packed packed = { 0 };
    int rc = reshard->options.dtype < 0 ? DCP_OK : dcp_packed_find(src, &packed, err);

    for (size_t t = 0; t < target->n_tensors && packed.modules.n && !rc; t++)
        reshard->facts.n_kept +=
            !target->tensors[t].tied_to && dcp_dtype_is_float(target->tensors[t].dtype) &&
            (int)target->tensors[t].dtype != reshard->options.dtype &&
            dcp_packed_needs(&packed, &src->tensors[reshard->src_tensor[t]]);
    dcp_packed_fini(&packed);
    return rc;
}

/* Of a folder that may have to be made. */
static uint64_t free_bytes_at(const char *dir)
{
    DCP_CLEANUP_FREE char *at = dcp_fs_nearest(dir);

    return at ? dcp_fs_free_bytes(at) : UINT64_MAX;
}

/* Whether its name has the weight it is of: "optimizer.exp_avg.<param>". */
static bool has_name(const struct dcp_tensor *tensor)
{
    size_t n = strlen(tensor->param);

    for (const char *at = tensor->name; n && (at = strstr(at, tensor->param)); at++)
        if ((at == tensor->name || at[-1] == '.') && (!at[n] || at[n] == '.'))
            return true;
    return false;
}

/* Whether moments are stored by the weights they are of, not by numbers alone. */
static bool binds_moments(const struct dcp_reshard *reshard)
{
    bool says = reshard->format->flags & (DCP_FORMAT_ROLES | DCP_FORMAT_MASTERS);

    for (size_t t = 0; t < reshard->target->n_tensors; t++) {
        const struct dcp_tensor *from = &reshard->src->tensors[reshard->src_tensor[t]];
        if (dcp_role_is_optim(from->role) && strcmp(from->param, from->name) != 0 &&
            (says || has_name(&reshard->target->tensors[t])))
            return true;
    }
    return false;
}

/* Of what the source does not prove, that which the target says. */
static int find_assumed(struct dcp_reshard *reshard, struct dcp_error *err)
{
    const struct dcp_catalog *src = reshard->src;
    const char *order = binds_moments(reshard) ? src->assumed_order : NULL,
               *trained =
                   reshard->format->flags & DCP_FORMAT_MASTERS ? src->assumed : NULL;

    reshard->facts.assumed = order ? order : trained;
    if (!order || !trained)
        return DCP_OK;
    size_t n = strlen(order) + strlen(trained) + sizeof "; ";
    char *both = dcp_catalog_alloc(reshard->target, n, 1);
    if (!both)
        return dcp_error_memory(err, "a target");
    snprintf(both, n, "%s; %s", order, trained);
    reshard->facts.assumed = both;
    return DCP_OK;
}

int dcp_reshard_count(struct dcp_reshard *reshard, struct dcp_error *err)
{
    struct dcp_reshard_plan *facts = &reshard->facts;
    const struct dcp_catalog *src = reshard->src, *target = reshard->target;
    bool *used = dcp_mem_calloc(src->n_files + 1, sizeof *used);

    facts->n_tensors = target->n_tensors;
    for (size_t t = 0; t < target->n_tensors; t++) {
        if (target->tensors[t].tied_to)
            continue;
        facts->n_cast +=
            target->tensors[t].dtype != src->tensors[reshard->src_tensor[t]].dtype;
        facts->source_bytes += dcp_tensor_bytes(&src->tensors[reshard->src_tensor[t]]);
        facts->target_bytes += dcp_tensor_bytes(&target->tensors[t]);
    }
    for (size_t c = 0; used && c < reshard->plan->n_copies; c++) {
        int file = src->pieces[reshard->plan->copies[c].src].file;
        if (file >= 0 && !used[file]) {
            used[file] = true;
            facts->source_files++;
        }
    }
    free(used);
    count_masters(reshard);
    DCP_TRY(count_kept(reshard, err));
    DCP_TRY(count_left(reshard, err));
    DCP_TRY(dcp_contents_left(src, reshard->format, reshard->target, reshard->src_tensor,
                              &facts->objects_left, err));
    DCP_TRY(count_unproved(reshard, err));
    DCP_TRY(find_assumed(reshard, err));
    facts->target_files = target->n_files;
    uint64_t longest = 0;
    for (size_t f = 0; f < target->n_files; f++)
        if (target->files[f].size_bytes > longest)
            longest = target->files[f].size_bytes;
    if (reshard->options.parity)
        facts->parity_bytes =
            dcp_parity_expect(target->world_size, longest, reshard->options.parity);
    facts->n_writes = facts->target_files;
    /* Caches grow with what is read, up to the limit. */
    facts->buffer_bytes = reshard->options.memory_bytes < facts->source_bytes
                              ? reshard->options.memory_bytes
                              : facts->source_bytes;
    facts->free_bytes = free_bytes_at(reshard->dir);
    return count_reads(reshard, err);
}
