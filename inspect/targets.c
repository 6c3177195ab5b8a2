#include "targets.h"

#include "base/fs.h"
#include "base/mem.h"
#include "cli/source.h"
#include <dcp/checkpoint.h>
#include <string.h>

static int add(struct inspect_targets *targets, const char *run, const char *step,
               struct dcp_error *err)
{
    struct inspect_target *items =
        dcp_mem_grow(targets->items, &targets->cap, targets->n + 1, sizeof *items);
    if (!items)
        return dcp_error_memory(err, "a list of checkpoints");
    targets->items = items;
    struct inspect_target *target = &items[targets->n++];
    *target =
        (struct inspect_target){ .run = run,
                                 .path = step ? dcp_fs_join(run, step) : strdup(run),
                                 .step = step ? strdup(step) : NULL };
    return target->path && (target->step || !step)
               ? DCP_OK
               : dcp_error_memory(err, "a list of checkpoints");
}

/* What is no folder, or cannot be read, is told of when it is opened. */
static int find(const struct dcp_main *m, struct inspect_targets *targets,
                const char *operand, struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    struct dcp_store store;
    size_t n = 0;
    int rc = DCP_OK;
    if (!dcp_fs_is_dir(operand) || dcp_source_store(m, operand, &store, NULL))
        return add(targets, operand, NULL, err);
    if (dcp_steps(&store, &steps, &n, NULL, NULL) || n == 0)
        rc = add(targets, operand, NULL, err);
    for (size_t i = 0; i < n && !rc; i++)
        rc = add(targets, operand, steps[i].name, err);
    dcp_store_free(&store);
    return rc;
}

int inspect_targets_find(const struct dcp_main *m, bool newest,
                         struct inspect_targets *out, struct dcp_error *err)
{
    const struct dcp_opt_list *operands = &m->operands;
    *out = (struct inspect_targets){ 0 };
    for (size_t i = 0; i < operands->n; i++)
        DCP_TRY(newest ? add(out, operands->items[i], NULL, err)
                       : find(m, out, operands->items[i], err));
    return DCP_OK;
}

void inspect_targets_fini(struct inspect_targets *targets)
{
    for (size_t i = 0; i < targets->n; i++) {
        free(targets->items[i].path);
        free(targets->items[i].step);
    }
    free(targets->items);
    *targets = (struct inspect_targets){ 0 };
}
