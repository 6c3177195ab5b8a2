/* Planning a large change of world: 1,024 -> 768 ranks, 1,000 tensors. */
#include "base/mem.h"
#include "core/plan/plan.h"
#include "lib/bench.h"
#include <dcp/dcp.h>
#include <stdio.h>
#include <stdlib.h>

static struct dcp_catalog *catalog_at(const char *layout, int world_size)
{
    struct dcp_catalog *catalog;
    int64_t shape[2] = { 4096, 1024 };
    char name[64];

    if (dcp_catalog_new(&catalog, NULL))
        return NULL;
    for (int t = 0; t < 1000; t++) {
        snprintf(name, sizeof name, "model.layers.%d.weight", t);
        shape[0] = 4096 + t;
        struct dcp_tensor tensor = {
            .name = name, .dtype = DCP_F32, .ndim = 2, .shape = shape
        };
        if (dcp_catalog_add_tensor(catalog, &tensor, NULL, NULL))
            return NULL;
    }
    return dcp_layout_apply(catalog, layout, world_size, NULL) ? NULL : catalog;
}

int main(void)
{
    static const char *const pairs[][2] = { { "zero3", "zero3" },
                                            { "zero2", "dim0" },
                                            { "dim0", "flat" } };
    bool met = true;

    for (size_t i = 0; i < DCP_ARRAY_LEN(pairs); i++) {
        double started = bench_now();
        struct dcp_catalog *src = catalog_at(pairs[i][0], 1024);
        struct dcp_catalog *dst = catalog_at(pairs[i][1], 768);
        struct dcp_plan *plan;
        if (!src || !dst || dcp_plan_new(src, dst, NULL, &plan, NULL))
            return 1;
        double seconds = bench_now() - started;
        printf("plan %s x 1024 -> %s x 768, 1000 tensors: %zu copies, %.2f s (aim: under "
               "5 s)\n",
               pairs[i][0], pairs[i][1], plan->n_copies, seconds);
        met &= seconds < 5;
        dcp_plan_free(plan);
        dcp_catalog_free(src);
        dcp_catalog_free(dst);
    }
    return met ? 0 : 1;
}
