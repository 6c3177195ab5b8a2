/* reshard_clones: blocks that a reshard shares with its source, in place of writing them:
 * whether that can be done there, and of which bytes. */
#include "base/fs.h"
#include "base/mem.h"
#include "core/files/files.h"
#include "reshard_own.h"
#include <string.h>

int dcp_reshard_check_reflink(const struct dcp_reshard *reshard, struct dcp_error *err)
{
    const struct dcp_reshard_options *options = &reshard->options;

    if (!options->reflink)
        return DCP_OK;
    if (options->codec != DCP_CODEC_NONE)
        return dcp_error_set(err, DCP_E_USAGE,
                             "what is compressed shares nothing with the source: a codec "
                             "and --reflink exclude each other");
    if (reshard->packs)
        return dcp_error_set(
            err, DCP_E_USAGE,
            "an archive shares nothing with the source: --reflink is for "
            "targets that are files");
    return DCP_OK;
}

static int no_blocks(const struct dcp_location *location, const char *why,
                     struct dcp_error *err)
{
    dcp_error_set(err, DCP_E_UNSUPPORTED, "nothing of '%s' can be shared: %s",
                  location->path, why);
    dcp_error_hint(err, "leave out --reflink");
    return DCP_E_UNSUPPORTED;
}

/* One file of the source against the folder of the target. */
static int try_file(struct dcp_reshard *reshard, const struct dcp_store *folder,
                    const struct dcp_file *file, struct dcp_error *err)
{
    const struct dcp_source *source = &reshard->location->source;
    const struct dcp_store *store = source->store;
    DCP_CLEANUP_FREE char *path = dcp_source_file(source, file->name);
    struct dcp_store_file *opened;

    if (!path)
        return dcp_error_memory(err, "a file name");
    DCP_TRY(store->ops->open(store->self, path, &opened, err));
    int fd = store->ops->descriptor(store->self, opened);
    int rc = fd < 0
                 ? no_blocks(reshard->location, "it is a delta", err)
                 : folder->ops->try_clone(folder->self, fd, &reshard->block_bytes, err);
    store->ops->close(store->self, opened, NULL);
    return rc;
}

/* Files may be links to other file systems: each is tried. */
static int try_files(struct dcp_reshard *reshard, const struct dcp_store *folder,
                     struct dcp_error *err)
{
    const struct dcp_catalog *src = reshard->src;
    DCP_CLEANUP_FREE bool *has_pieces =
        dcp_mem_calloc(src->n_files + 1, sizeof *has_pieces);

    if (!has_pieces)
        return dcp_error_memory(err, "a reshard");
    for (size_t p = 0; p < src->n_pieces; p++)
        if (src->pieces[p].file >= 0)
            has_pieces[src->pieces[p].file] = true;
    for (size_t f = 0; f < src->n_files; f++)
        if (has_pieces[f])
            DCP_TRY(try_file(reshard, folder, &src->files[f], err));
    return DCP_OK;
}

int dcp_reshard_try_reflink(struct dcp_reshard *reshard, struct dcp_error *err)
{
    const struct dcp_location *location = reshard->location;
    struct dcp_store folder;

    if (!reshard->options.reflink)
        return DCP_OK;
    if (location->rebuilt)
        return no_blocks(location, "it is read through its parity", err);
    if (!location->source.store->ops->descriptor)
        return no_blocks(location, "it is an archive", err);
    DCP_CLEANUP_FREE char *dir = dcp_fs_nearest(reshard->dir);
    if (!dir)
        return dcp_error_memory(err, "a path");
    DCP_TRY(dcp_store_dir(&folder, dir, false, err));
    int rc = try_files(reshard, &folder, err);
    dcp_store_free(&folder);
    reshard->options.target.align_bytes = rc ? 0 : reshard->block_bytes;
    return rc;
}

int dcp_reshard_find_clones(struct dcp_reshard *reshard, struct dcp_error *err)
{
    /* Nothing was tried where the source has no bytes. */
    if (!reshard->block_bytes)
        return DCP_OK;
    DCP_TRY(dcp_clones_init(&reshard->clones, reshard->plan, reshard->src,
                            reshard->target, reshard->block_bytes, err));
    for (size_t p = 0; p < reshard->target->n_pieces; p++)
        reshard->facts.stored_bytes +=
            dcp_piece_bytes(reshard->target, &reshard->target->pieces[p]);
    reshard->facts.shared_bytes = dcp_reshard_spared(reshard, -1);
    return DCP_OK;
}

uint64_t dcp_reshard_spared(const struct dcp_reshard *reshard, int part)
{
    const struct dcp_catalog *target = reshard->target;
    uint64_t bytes = 0;

    for (size_t f = 0; f < reshard->clones.n_files; f++)
        if (part < 0 || reshard->parts.deal.part_of[target->files[f].rank] == part)
            bytes += dcp_clones_bytes(&reshard->clones, f);
    return bytes;
}

uint64_t dcp_reshard_shared(const struct dcp_reshard *reshard)
{
    return reshard->shared_bytes;
}
