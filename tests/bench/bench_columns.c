/* Rows become columns: what a rank reads, of tensors that were saved in rows, to load
 * columns. Ranks are threads, files are in memory, and reads of shards are counted.
 * usage: bench_columns WORLD */
#include "lib/must.h"
#include "lib/rank_threads.h"
#include <dcp/dcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 2048, TENSORS = 4 };

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
    bool load;
};

static void run(void *arg, struct dcp_comm *comm)
{
    const struct act *act = arg;
    const int64_t shape[] = { SIDE, SIDE };
    int64_t offset[2] = { 0, 0 }, size[2] = { SIDE, SIDE };
    struct dcp_local_tensor locals[TENSORS];
    char names[TENSORS][16];
    int d = act->load;

    size[d] = SIDE / comm->world_size;
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
    int world_size = argc == 2 ? (int)strtol(argv[1], NULL, 10) : 0;
    struct dcp_store store, counting;

    if (world_size < 1 || SIDE % world_size) {
        fprintf(stderr, "usage: bench_columns WORLD\n");
        return 2;
    }
    must(!dcp_store_mem(&store, NULL));
    dcp_store_forward(&counting, &wrapper, &store);
    wrapper.ops.read_at = counting_read;
    struct act act = { &counting, false };
    rank_threads_run(world_size, run, &act);
    n_read = 0;
    act.load = true;
    rank_threads_run(world_size, run, &act);
    printf("shares %.6f\n",
           (double)n_read / ((double)SIDE * SIDE * sizeof(float) * TENSORS));
    dcp_store_free(&store);
    return 0;
}
