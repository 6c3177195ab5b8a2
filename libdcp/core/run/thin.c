#include "thin.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "bases.h"
#include "pin.h"
#include "publish.h"

#define MANIFEST "/manifest.json"
#define USUAL_MANIFEST_BYTES ((size_t)256 << 20)

static bool is_signed(const struct dcp_store *store, const char *step)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(step, MANIFEST, ".sig");
    bool is_dir;
    uint64_t size;

    return !path ||
           store->ops->stat(store->self, path, &is_dir, &size, NULL) != DCP_E_NOT_FOUND;
}

/* Which step it is: another one may come to the name by a reshard, which takes no lease.
 * 0: unknown. */
static uint64_t identity_of(const struct dcp_store *store, const char *step)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(step, MANIFEST, "");
    DCP_CLEANUP_FREE void *text = NULL;
    size_t n;

    return path && !dcp_store_read_header(store, path, USUAL_MANIFEST_BYTES, &text, &n,
                                          NULL)
               ? dcp_hash_xxh3(text, n)
               : 0;
}

/* While nobody can change any of it, or while nobody minds. */
static enum dcp_stay look(const struct dcp_store *store, const char *step,
                          struct dcp_error *err)
{
    struct dcp_marks marks;

    if (dcp_marks_read(store, step, &marks, err) || marks.pinned || marks.n_tags)
        return DCP_STAYS_MARKED;
    if (is_signed(store, step))
        return DCP_STAYS_SIGNED;
    return dcp_is_base(store, step, NULL, 0) ? DCP_STAYS_BASE : DCP_GOES;
}

enum dcp_stay dcp_thin_judge(const struct dcp_store *store, const struct dcp_step *step,
                             struct dcp_error *err)
{
    struct dcp_store_file *pin = NULL, *marks = NULL;
    bool busy =
        dcp_is_read(store, step->name, &pin) || dcp_is_in_use(store, step->name, &marks);

    dcp_unpin(store, &pin);
    dcp_unpin(store, &marks);
    return busy ? DCP_STAYS_READ : look(store, step->name, err);
}

/* Before a step is written that could never have the name: not every file system can. */
static int try_exchange(const struct dcp_publication *publish, struct dcp_error *err)
{
    const struct dcp_store *store = publish->store;
    DCP_CLEANUP_FREE char *one = dcp_str_join(publish->prefix, "one", "");
    DCP_CLEANUP_FREE char *two = dcp_str_join(publish->prefix, "two", "");

    if (!one || !two)
        return dcp_error_memory(err, "the name of a folder");
    if (!store->ops->exchange)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "names in '%s' cannot be exchanged",
                             store->root);
    DCP_TRY(store->ops->make_dir(store->self, one, err));
    DCP_TRY(store->ops->make_dir(store->self, two, err));
    DCP_TRY(store->ops->exchange(store->self, one, two, err));
    DCP_TRY(store->ops->remove(store->self, one, err));
    return store->ops->remove(store->self, two, err);
}

/* The name passes to what was made, unless somebody began to mind: who reads or marks the
 * step is kept away for this moment. */
static enum dcp_stay exchange(struct dcp_publication *publish, uint64_t identity,
                              struct dcp_error *err)
{
    const struct dcp_store *store = publish->store;
    struct dcp_store_file *pin = NULL, *marks = NULL;
    enum dcp_stay stay = DCP_STAYS_READ;

    if (!dcp_is_read(store, publish->name, &pin) &&
        !dcp_is_in_use(store, publish->name, &marks) &&
        identity_of(store, publish->name) == identity)
        stay = look(store, publish->name, err);
    if (stay == DCP_GOES && dcp_publish_exchange(publish, err))
        stay = DCP_STAYS_STUCK;
    dcp_unpin(store, &pin);
    dcp_unpin(store, &marks);
    return stay;
}

enum dcp_stay dcp_thin(const struct dcp_store *store, const struct dcp_step *step,
                       dcp_thin_make *make, struct dcp_error *err)
{
    struct dcp_publication publish = { .store = store };
    enum dcp_stay stay = dcp_thin_judge(store, step, err);
    uint64_t identity = identity_of(store, step->name);

    if (stay != DCP_GOES)
        return stay;
    if (!identity || dcp_publish_begin(&publish, store, step->name, true, err))
        stay = DCP_STAYS_STUCK;
    else if (try_exchange(&publish, err) || make(store, step->name, publish.prefix, err))
        stay = DCP_STAYS_STUCK;
    else
        stay = exchange(&publish, identity, err);
    dcp_publish_fini(&publish);
    return stay;
}
