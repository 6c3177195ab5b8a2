#include "weights.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/str.h"
#include "core/catalog/index.h"
#include "core/plan/contents.h"
#include "core/plan/layout.h"
#include "core/plan/plan.h"
#include "core/plan/target.h"
#include "stream.h"
#include <string.h>

struct weights {
    const struct dcp_store *store;
    const char *name, *prefix;
    struct dcp_catalog *step, *catalog;
    int *src_tensor;
    struct dcp_plan *plan;
    struct dcp_target target;
};

/* -- which of it --------------------------------------------------------------------- */

static int choose(struct weights *weights, struct dcp_error *err)
{
    static const char *const all[] = { "*", NULL }; /* also what is no weight */
    const struct dcp_catalog *step = weights->step;
    struct dcp_reshard_plan facts = { 0 };
    const struct dcp_reshard_options options = {
        .dtype = -1,
        .only = DCP_ONLY_MODEL,
        .select = all,
        .weights = DCP_WEIGHTS_MODEL,
        .layout = dcp_layout_check(step->layout, step->world_size, NULL) ? "flat" : NULL,
        .keep_unsafe = true,
    };

    DCP_TRY(dcp_contents_new(step, dcp_format_of_steps(), &options, &facts,
                             &weights->catalog, &weights->src_tensor, err));
    weights->catalog->mesh = step->mesh;
    return DCP_OK;
}

static int check_room(const struct weights *weights, struct dcp_error *err)
{
    uint64_t need = 0, room = weights->store->ops->free_bytes(weights->store->self);
    char wanted[DCP_SIZE_CAP], left[DCP_SIZE_CAP];

    for (size_t t = 0; t < weights->catalog->n_tensors; t++)
        need += dcp_tensor_bytes(&weights->catalog->tensors[t]);
    return need <= room
               ? DCP_OK
               : dcp_error_set(err, DCP_E_NO_SPACE,
                               "%s without its optimizer state needs %s beside it, %s "
                               "are free",
                               weights->name, dcp_size_format(wanted, need),
                               dcp_size_format(left, room));
}

/* -- files that were made of the step ------------------------------------------------ */

static bool is_made_of(const struct dcp_file *file)
{
    return !dcp_str_starts(file->name, "shard-") &&
           !dcp_str_starts(file->name, "parity-") && strcmp(file->name, "manifest.json");
}

static int copy_bytes(const struct dcp_store *store, struct dcp_store_file *in,
                      struct dcp_store_file *out, struct dcp_file *file,
                      struct dcp_error *err)
{
    DCP_CLEANUP_FREE unsigned char *block = malloc(DCP_BLOCK_BYTES);
    uint64_t crc = 0;

    if (!block)
        return dcp_error_memory(err, "a copy");
    for (uint64_t at = 0; at < file->size_bytes; at += DCP_BLOCK_BYTES) {
        uint64_t left = file->size_bytes - at;
        size_t n = left < DCP_BLOCK_BYTES ? (size_t)left : DCP_BLOCK_BYTES;
        DCP_TRY(store->ops->read_at(store->self, in, at, block, n, err));
        crc = dcp_hash_crc64(crc, block, n);
        if (out)
            DCP_TRY(store->ops->write_at(store->self, out, at, block, n, err));
    }
    if (!file->has_crc || crc == file->crc)
        return DCP_OK;
    return dcp_error_set(err, DCP_E_CORRUPT, "'%s' is corrupt: its digest differs",
                         DCP_SHOWN(file->name));
}

/* From one open file to a new one; to NULL: it is read alone, for its digest. */
static int copy_file(const struct dcp_store *store, const char *from, const char *to,
                     struct dcp_file *file, struct dcp_error *err)
{
    const struct dcp_store_ops *ops = store->ops;
    struct dcp_store_file *in = NULL, *out = NULL;
    int rc = ops->open(store->self, from, &in, err);

    if (!rc && to)
        rc = ops->create(store->self, to, file->size_bytes, &out, err);
    if (!rc)
        rc = copy_bytes(store, in, out, file, err);
    if (!rc && out)
        rc = ops->sync(store->self, out, file->size_bytes, err);
    if (in)
        ops->close(store->self, in, NULL);
    if (out) {
        int closed = ops->close(store->self, out, rc ? NULL : err);
        rc = rc ? rc : closed;
    }
    return rc;
}

static int copy_made(struct weights *weights, struct dcp_error *err)
{
    const struct dcp_catalog *step = weights->step;

    for (size_t f = 0; f < step->n_files; f++) {
        struct dcp_file file = step->files[f];
        DCP_CLEANUP_FREE char *from = dcp_str_join(weights->name, "/", file.name);
        DCP_CLEANUP_FREE char *to = dcp_str_join(weights->prefix, file.name, "");
        if (!is_made_of(&file))
            continue;
        if (!from || !to)
            return dcp_error_memory(err, "a file name");
        DCP_TRY(copy_file(weights->store, from, to, &file, err));
        DCP_TRY(copy_file(weights->store, to, NULL, &file, err));
        file.rank = -1; /* written already */
        DCP_TRY(dcp_catalog_add_file(weights->catalog, &file, NULL, err));
    }
    return DCP_OK;
}

/* -- the act ------------------------------------------------------------------------- */

static int write_all(struct weights *weights, struct dcp_error *err)
{
    const struct dcp_source source = { weights->store, weights->name, true };
    struct dcp_parity_facts parity;
    enum dcp_codec codec =
        weights->step->n_pieces ? weights->step->pieces[0].codec : DCP_CODEC_NONE;

    DCP_TRY(dcp_parity_facts(weights->step, &parity, err));
    weights->target =
        (struct dcp_target){ .format = dcp_format_of_steps(),
                             .catalog = weights->catalog,
                             .options = &(struct dcp_target_options){ .name = NULL } };
    DCP_TRY(dcp_target_open(&weights->target, codec, err));
    DCP_TRY(dcp_plan_new(weights->step, weights->catalog, weights->src_tensor,
                         &weights->plan, err));
    DCP_TRY(copy_made(weights, err));
    return dcp_stream_run(&(struct dcp_stream_setup){ .source = &source,
                                                      .src = weights->step,
                                                      .target = &weights->target,
                                                      .src_tensor = weights->src_tensor,
                                                      .plan = weights->plan,
                                                      .store = weights->store,
                                                      .prefix = weights->prefix,
                                                      .threads = 1,
                                                      .memory_bytes = DCP_WEIGHTS_MEMORY,
                                                      .verify = true,
                                                      .read_back = DCP_READ_BACK_CACHE,
                                                      .parity = parity.rows },
                          err);
}

int dcp_write_weights(const struct dcp_store *store, const char *name, const char *prefix,
                      struct dcp_error *err)
{
    const struct dcp_source source = { store, name, true };
    struct weights weights = { .store = store, .name = name, .prefix = prefix };
    int rc = dcp_index(&source, dcp_format_of_steps(), false, &weights.step, err);

    if (!rc)
        rc = choose(&weights, err);
    if (!rc)
        rc = check_room(&weights, err);
    if (!rc)
        rc = write_all(&weights, err);
    dcp_plan_free(weights.plan);
    dcp_target_close(&weights.target);
    dcp_catalog_free(weights.catalog);
    dcp_catalog_free(weights.step);
    free(weights.src_tensor);
    return rc;
}
