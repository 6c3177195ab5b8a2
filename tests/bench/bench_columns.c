/* Rows become columns: what a rank reads, of tensors that were saved in rows, to load
 * columns. Ranks are threads, and reads of shards are counted. Files are in memory, or in
 * a folder that is empty, and out of the page cache with `cold`.
 * usage: bench_columns WORLD [FOLDER ROW_BYTES [cold]] */
#include "base/clock.h"
#include "lib/must.h"
#include "lib/rank_threads.h"
#include <dcp/dcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 2048, TENSORS = 4 };
#define TENSOR_BYTES ((int64_t)SIDE * SIDE * (int64_t)sizeof(float))

static struct dcp_store_forward wrapper;
static atomic_ullong n_read;

static int counting_read(void *self, struct dcp_store_file *file, uint64_t offset,
                         void *out, size_t n, struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;

    n_read += n;
    return inner->ops->read_at(inner->self, file, offset, out, n, err);
}

struct act {
    const struct dcp_store *store;
    int64_t columns;
    bool load;
};

static void drop(const struct dcp_store *store)
{
    struct dcp_store_entry *entries;
    size_t n;

    must(!store->ops->list(store->self, "step-00000001", &entries, &n, NULL));
    for (size_t i = 0; i < n; i++) {
        struct dcp_store_file *file;
        char name[256];
        snprintf(name, sizeof name, "step-00000001/%s", entries[i].name);
        must(!store->ops->open(store->self, name, &file, NULL));
        store->ops->drop_cache(store->self, file);
        must(!store->ops->close(store->self, file, NULL));
    }
    dcp_store_list_free(entries, n);
}

static void run(void *arg, struct dcp_comm *comm)
{
    const struct act *act = arg;
    const int64_t rows = TENSOR_BYTES / 4 / act->columns;
    const int64_t shape[] = { rows, act->columns };
    int64_t offset[2] = { 0, 0 }, size[2] = { rows, act->columns };
    struct dcp_local_tensor locals[TENSORS];
    char names[TENSORS][16];
    int d = act->load;

    size[d] /= comm->world_size;
    offset[d] = comm->rank * size[d];
    for (int t = 0; t < TENSORS; t++) {
        snprintf(names[t], sizeof names[t], "w.%d", t);
        locals[t] = (struct dcp_local_tensor){
            .name = names[t],
            .dtype = DCP_F32,
            .ndim = 2,
            .shape = shape,
            .region = { .kind = DCP_BOX, .offset = offset, .size = size },
            .data = calloc((size_t)(size[0] * size[1]), sizeof(float))
        };
        must(locals[t].data != NULL);
    }
    struct dcp_state state = { .layout = "dim0", .locals = locals, .n_locals = TENSORS };
    struct dcp_context ctx = { .comm = comm, .store = act->store, .threads = 1 };
    struct dcp_save_options save = { .step = 1, .no_read_back = true };
    struct dcp_load_options load = { .step = 1 };
    must(!(act->load ? dcp_load(&ctx, &load, &state, NULL, NULL)
                     : dcp_save(&ctx, &save, &state, NULL, NULL)));
    for (int t = 0; t < TENSORS; t++)
        free(locals[t].data);
}

int main(int argc, char **argv)
{
    int world_size = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0;
    int64_t row_bytes = argc > 3 ? strtol(argv[3], NULL, 10) : SIDE * 4;
    struct dcp_store store, counting;

    if (world_size < 1 || row_bytes < 4 || row_bytes / 4 % world_size) {
        fprintf(stderr, "usage: bench_columns WORLD [FOLDER ROW_BYTES [cold]]\n");
        return 2;
    }
    must(!(argc > 2 ? dcp_store_dir(&store, argv[2], true, NULL)
                    : dcp_store_mem(&store, NULL)));
    dcp_store_forward(&counting, &wrapper, &store);
    wrapper.ops.read_at = counting_read;
    struct act act = { &counting, row_bytes / 4, false };
    rank_threads_run(world_size, run, &act);
    if (argc > 4)
        drop(&store);
    n_read = 0;
    act.load = true;
    double began = dcp_clock_s();
    rank_threads_run(world_size, run, &act);
    printf("shares %.6f\nload_s %.6f\n", (double)n_read / (TENSOR_BYTES * TENSORS),
           dcp_clock_s() - began);
    dcp_store_free(&store);
    return 0;
}
