/* What an agreement tells where its own calls of comm fail. */
#include "lib/must.h"
#include "lib/rank_threads.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

static int call_code; /* of every call of comm */

static int allgather(void *self, const void *in, size_t size_bytes, void *out,
                     int timeout_ms, struct dcp_error *err)
{
    (void)self, (void)in, (void)size_bytes, (void)out, (void)timeout_ms;
    return dcp_error_set(err, call_code, "the call failed");
}

static int agree(int mine, int of_call, struct dcp_error *err)
{
    static const struct dcp_comm_ops ops = { .allgather = allgather };
    struct dcp_comm comm = { .ops = &ops, .rank = 0, .world_size = 2, .timeout_ms = 1 };

    *err = (struct dcp_error){ 0 };
    if (mine)
        dcp_error_set(err, mine, "the work failed");
    call_code = of_call;
    return dcp_agree(&comm, mine, err);
}

/* What fails alike on all ranks is what all return, or one would go on alone. */
static void a_call_without_memory(void **state)
{
    struct dcp_error err;

    (void)state;
    assert_int_equal(agree(DCP_OK, DCP_E_MEMORY, &err), DCP_E_MEMORY);
    assert_int_equal(agree(DCP_E_CORRUPT, DCP_E_MEMORY, &err), DCP_E_MEMORY);
    assert_string_equal(err.message, "the call failed");
}

/* What a rank knew before the others were gone says more than that. */
static void a_call_of_the_dead(void **state)
{
    struct dcp_error err;

    (void)state;
    assert_int_equal(agree(DCP_OK, DCP_E_COMM, &err), DCP_E_COMM);
    assert_string_equal(err.message, "the call failed");
    assert_int_equal(agree(DCP_E_NO_SPACE, DCP_E_COMM, &err), DCP_E_NO_SPACE);
    assert_string_equal(err.message, "the work failed");
}

enum { WORLD_SIZE = 3, FAILS = 1 };

static void agree_twice(void *arg, struct dcp_comm *comm)
{
    struct dcp_error err = { 0 };
    int rc = comm->rank == FAILS ? dcp_error_set(&err, DCP_E_IO, "its disk failed") : 0;

    (void)arg;
    for (int i = 0; i < 2; i++) {
        rc = dcp_agree(comm, rc, &err);
        must(rc == DCP_E_IO && err.code == DCP_E_IO && err.rank == FAILS);
        must(!strcmp(err.message, "its disk failed"));
    }
}

/* What was agreed on stays what it is when all agree on it again. */
static void whose_failure_it_is(void **state)
{
    (void)state;
    rank_threads_run(WORLD_SIZE, agree_twice, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_without_memory),
        cmocka_unit_test(a_call_of_the_dead),
        cmocka_unit_test(whose_failure_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
