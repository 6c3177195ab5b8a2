/* Files that begin with blocks of the source's, and get what is missing. */
#include "base/mem.h"
#include "base/str.h"
#include "core/files/files.h"
#include "own.h"

bool dcp_write_is_shared(const struct dcp_write *w, int file)
{
    const struct dcp_clones *clones = w->setup.sharing.clones;

    return clones && (size_t)file < clones->n_files &&
           clones->first[file] < clones->first[file + 1];
}

/* Ranges first .. last of the target's file, all of one file of the source. */
static int share_with(struct dcp_write *w, int file, const struct dcp_clone *first,
                      const struct dcp_clone *last, struct dcp_error *err)
{
    const struct dcp_write_sharing *sharing = &w->setup.sharing;
    const struct dcp_store *from = sharing->source->store, *to = w->setup.store;
    const char *name = sharing->src->files[first->src_file].name;
    DCP_CLEANUP_FREE char *path = dcp_source_file(sharing->source, name);
    struct dcp_store_file *source;

    if (!path)
        return dcp_error_memory(err, "a file name");
    DCP_TRY(from->ops->open(from->self, path, &source, err));
    int rc = DCP_OK, fd = from->ops->descriptor(from->self, source);
    if (fd < 0)
        rc = dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' has no blocks to share",
                           DCP_SHOWN(name));
    for (const struct dcp_clone *c = first; c < last && !rc; c++) {
        rc = to->ops->clone(to->self, w->files[file].handle, c->to, fd, c->from, c->n,
                            err);
        w->shared_bytes += rc ? 0 : c->n;
    }
    int closed = from->ops->close(from->self, source, rc ? NULL : err);
    return rc ? rc : closed;
}

int dcp_write_share(struct dcp_write *w, int file, struct dcp_error *err)
{
    const struct dcp_clones *clones = w->setup.sharing.clones;
    const struct dcp_clone *c = clones->items + clones->first[file];
    const struct dcp_clone *end = clones->items + clones->first[file + 1];

    for (const struct dcp_clone *last; c < end; c = last) {
        for (last = c; last < end && last->src_file == c->src_file;)
            last++;
        DCP_TRY(share_with(w, file, c, last, err));
    }
    return DCP_OK;
}

/* The first range of a file that ends behind `at`; behind the last: where it is not. */
static const struct dcp_clone *seek(const struct dcp_clones *clones, int file,
                                    uint64_t at)
{
    size_t low = clones->first[file], high = clones->first[file + 1];

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (clones->items[middle].to + clones->items[middle].n > at)
            high = middle;
        else
            low = middle + 1;
    }
    return clones->items + low;
}

int dcp_write_unshared(struct dcp_write *w, int file, uint64_t offset,
                       const unsigned char *data, size_t n, struct dcp_error *err)
{
    const struct dcp_read_callback *callback = &w->setup.read_callback;
    uint64_t at = offset, stop = offset + n;

    if (!dcp_write_is_shared(w, file))
        return dcp_write_at(w, file, offset, data, n, err);
    const struct dcp_clones *clones = w->setup.sharing.clones;
    const struct dcp_clone *c = seek(clones, file, at);
    const struct dcp_clone *end = clones->items + clones->first[file + 1];
    bool rebuilds = callback->rebuilds && callback->rebuilds(callback->self);
    while (at < stop) {
        bool has = c < end && c->to < stop;
        uint64_t begin = !has ? stop : c->to > at ? c->to : at;
        uint64_t over = !has ? stop : c->to + c->n < stop ? c->to + c->n : stop;
        uint64_t until = rebuilds ? over : begin; /* what is shared is another's then */
        if (until > at)
            DCP_TRY(dcp_write_at(w, file, at, data + (at - offset), (size_t)(until - at),
                                 err));
        w->shared_bytes -= until - begin;
        at = over;
        c++;
    }
    return DCP_OK;
}
