/* labels: tsan */
#include <dcp/comm.h>
#include <dcp/device.h>

#include "base/clock.h"
#include "core/collective/await.h"
#include "lib/check_comm.h"
#include "lib/poisoned.h"
#include "port/comm/threads.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void run_ranks(int world_size, int timeout_ms, int (*run)(struct dcp_comm *comm))
{
    struct dcp_comm comms[CHECK_COMM_MAX_WORLD_SIZE];
    assert_int_equal(dcp_comm_threads(comms, world_size, NULL), 0);
    assert_int_equal(check_comm_run(comms, world_size, timeout_ms, run), 0);
}

static void values(void **state)
{
    (void)state;
    for (int world_size = 1; world_size <= 8; world_size++)
        run_ranks(world_size, 0, check_comm_values);
}

static void silent_rank_is_named(void **state)
{
    (void)state;
    run_ranks(5, 100, check_comm_silent);
}

/* With the time-out a minute away, the test would not end were the death not noticed. */
static int die(struct dcp_comm *comm)
{
    char c = 0, all[CHECK_COMM_MAX_WORLD_SIZE];
    WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == 0);
    if (comm->rank == 2) {
        dcp_clock_sleep_us(20000); /* most others wait already */
        dcp_comm_threads_kill(comm);
        WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == DCP_E_COMM);
        return 0;
    }
    WANT(check_comm_failure(comm, 2, DCP_RANK_DEAD, "rank 2 is gone") == 0);
    WANT(dcp_comm_peer_dead(comm) == 2);
    return 0;
}

static void dead_rank_is_named_at_once(void **state)
{
    (void)state;
    run_ranks(4, 60000, die);
}

static void different_calls_are_noticed(void **state)
{
    (void)state;
    run_ranks(3, 60000, check_comm_other_size);
    run_ranks(3, 60000, check_comm_other_kind);
    run_ranks(3, 60000, check_comm_other_number);
    run_ranks(3, 60000, check_comm_other_root);
}

static void a_rank_that_left_is_gone(void **state)
{
    (void)state;
    struct dcp_comm comms[2];
    char c = 0, all[2];
    struct dcp_error err = { 0 };
    assert_int_equal(dcp_comm_threads(comms, 2, NULL), 0);
    assert_int_equal(dcp_comm_peer_dead(&comms[1]), -1);
    dcp_comm_free(&comms[0]);
    assert_int_equal(dcp_comm_allgather(&comms[1], &c, 1, all, &err), DCP_E_COMM);
    assert_int_equal(err.rank, 0);
    dcp_comm_free(&comms[1]);
    dcp_comm_free(&comms[1]); /* is empty by now */
    dcp_comm_free(NULL);
    assert_int_equal(dcp_comm_threads(comms, 0, NULL), DCP_E_USAGE);
}

static void alone(void **state)
{
    (void)state;
    struct dcp_comm comm;
    dcp_comm_self(&comm);
    assert_int_equal(comm.rank, 0);
    assert_int_equal(comm.world_size, 1);
    int in = 7, out = 0;
    size_t size = 0;
    void *all;
    assert_int_equal(dcp_comm_allgather(&comm, &in, sizeof in, &out, NULL), 0);
    assert_int_equal(out, 7);
    assert_int_equal(dcp_comm_bcast(&comm, &in, sizeof in, 0, NULL), 0);
    assert_int_equal(dcp_comm_allgatherv(&comm, &in, sizeof in, &all, &size, NULL), 0);
    assert_int_equal(size, sizeof in);
    assert_memory_equal(all, &in, sizeof in);
    free(all);
    assert_int_equal(dcp_comm_allgatherv(&comm, NULL, 0, &all, &size, NULL), 0);
    assert_int_equal(size, 0);
    free(all);
    assert_int_equal(dcp_comm_peer_dead(&comm), -1);
    dcp_comm_free(&comm);
}

static void host_device(void **state)
{
    (void)state;
    struct dcp_device device;
    void *staging;
    char memory[8] = "device";
    dcp_device_host(&device);
    assert_int_equal(device.host_readable, 1);
    assert_int_equal(device.ops->alloc_staging(device.self, 100, &staging, NULL), 0);
    assert_int_equal((uintptr_t)staging % 4096, 0);
    assert_int_equal(device.ops->to_host(device.self, staging, memory, 7, NULL), 0);
    assert_string_equal(staging, "device");
    assert_int_equal(device.ops->to_device(device.self, memory, "changed", 8, NULL), 0);
    assert_string_equal(memory, "changed");
    device.ops->free_staging(device.self, staging, 100);
    dcp_device_free(&device);

    poisoned_device(&device);
    assert_int_equal(device.host_readable, 0);
    assert_int_equal(device.ops->alloc_staging(device.self, 100, &staging, NULL), 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(((unsigned char *)staging)[i], 0xa5);
    device.ops->free_staging(device.self, staging, 100);
    dcp_device_free(&device);
}

static int slow_work(void *arg, struct dcp_error *err)
{
    (void)err;
    dcp_clock_sleep_us(700000);
    *(bool *)arg = true;
    return DCP_OK;
}

static int failing_work(void *arg, struct dcp_error *err)
{
    (void)arg;
    return dcp_error_set(err, DCP_E_CORRUPT, "a bad file");
}

static int wait_for_the_slow(struct dcp_comm *comm)
{
    bool worked = false;
    struct dcp_error err = { 0 };
    bool slow = comm->rank == 1;

    WANT(!dcp_await(comm, slow ? slow_work : NULL, &worked, &err));
    WANT(worked == slow);
    WANT(dcp_await(comm, slow ? failing_work : NULL, NULL, &err) == DCP_E_CORRUPT);
    WANT(!strcmp(err.message, "a bad file"));
    return 0;
}

/* Work that takes longer than the time-out is not death. */
static void slow_is_not_dead(void **state)
{
    (void)state;
    run_ranks(3, 200, wait_for_the_slow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(silent_rank_is_named),
        cmocka_unit_test(dead_rank_is_named_at_once),
        cmocka_unit_test(different_calls_are_noticed),
        cmocka_unit_test(a_rank_that_left_is_gone),
        cmocka_unit_test(slow_is_not_dead),
        cmocka_unit_test(alone),
        cmocka_unit_test(host_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
