/* What all ranks have is folded into one, a slice at a time. */
#include "core/collective/fold.h"
#include "lib/must.h"
#include "lib/rank_threads.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { SLICE = 1 << 20 };

static atomic_size_t largest; /* what a call brings to one rank */

static struct dcp_comm *real(void *self)
{
    return self;
}

static int allgather(void *self, const void *in, size_t size_bytes, void *out,
                     int timeout_ms, struct dcp_error *err)
{
    size_t all = size_bytes * (size_t)real(self)->world_size;

    if (all > largest)
        largest = all;
    return real(self)->ops->allgather(real(self)->self, in, size_bytes, out, timeout_ms,
                                      err);
}

static int bcast(void *self, void *data, size_t size_bytes, int root, int timeout_ms,
                 struct dcp_error *err)
{
    return real(self)->ops->bcast(real(self)->self, data, size_bytes, root, timeout_ms,
                                  err);
}

static int gather(void *self, const void *in, size_t size_bytes, void *out,
                  int timeout_ms, struct dcp_error *err)
{
    size_t all = size_bytes * (size_t)real(self)->world_size;

    if (all > largest)
        largest = all;
    return real(self)->ops->gather(real(self)->self, in, size_bytes, out, timeout_ms,
                                   err);
}

struct job {
    enum dcp_fold how;
    size_t n;
    bool gathers; /* the comm can */
};

static unsigned char byte_of(int rank, size_t i)
{
    return (unsigned char)((i * 2654435761u >> 7) & (size_t)(rank * 37 + 5));
}

static void run(void *arg, struct dcp_comm *comm)
{
    const struct job *job = arg;
    const struct dcp_comm_ops ops = { .allgather = allgather,
                                      .bcast = bcast,
                                      .gather = job->gathers ? gather : NULL };
    struct dcp_comm counting = { &ops, comm, comm->rank, comm->world_size, 0 };
    unsigned char *bytes = malloc(job->n + 1);

    must(bytes);
    for (size_t i = 0; i < job->n; i++)
        bytes[i] = byte_of(comm->rank, i);
    must(!dcp_fold(&counting, job->how, bytes, job->n, NULL));
    for (size_t i = 0; i < job->n; i++) {
        unsigned char want = 0;
        for (int r = 0; r < comm->world_size; r++)
            want = (unsigned char)(job->how == DCP_FOLD_OR ? want | byte_of(r, i)
                                                           : want ^ byte_of(r, i));
        must(bytes[i] == want);
    }
    free(bytes);
}

static void folds(void **state)
{
    const int worlds[] = { 1, 2, 3, 8 };
    const size_t sizes[] = { 0, 1, 513, SLICE / 2 + 3 };

    (void)state;
    for (int w = 0; w < 4; w++)
        for (int s = 0; s < 4; s++)
            for (int ways = 0; ways < 4; ways++) {
                struct job job = { ways & 1 ? DCP_FOLD_OR : DCP_FOLD_XOR, sizes[s],
                                   ways & 2 };
                rank_threads_run(worlds[w], run, &job);
            }
    assert_true(largest > SLICE / 2 && largest <= SLICE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
