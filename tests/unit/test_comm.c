/* labels: tsan */
#include <dcp/comm.h>
#include <dcp/device.h>

#include "base/clock.h"
#include "core/await.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* cmocka's asserts belong to the main thread: ranks count what is wrong instead. */
struct rank {
    struct dcp_comm comm;
    int (*run)(struct rank *rank); /* returns what was wrong, 0: nothing */
    int wrong;
};

#define MAX_WORLD 8

static void *run_rank(void *arg)
{
    struct rank *rank = arg;
    rank->wrong = rank->run(rank);
    return NULL;
}

static void run_world(int world, int timeout_ms, int (*run)(struct rank *rank))
{
    struct dcp_comm comms[MAX_WORLD];
    struct rank ranks[MAX_WORLD];
    pthread_t threads[MAX_WORLD];
    assert_int_equal(dcp_comm_threads(comms, world, NULL), 0);
    for (int r = 0; r < world; r++) {
        ranks[r] = (struct rank){ .comm = comms[r], .run = run };
        ranks[r].comm.timeout_ms = timeout_ms;
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < world; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < world; r++) {
        if (ranks[r].wrong)
            fail_msg("rank %d: line %d", r, ranks[r].wrong);
        dcp_comm_free(&ranks[r].comm);
    }
}

#define WANT(condition)      \
    do {                     \
        if (!(condition))    \
            return __LINE__; \
    } while (0)

static unsigned char byte_of(int rank, size_t i, int round)
{
    return (unsigned char)(rank * 89 + (int)(i % 251) * 3 + round);
}

static int check_part(const unsigned char *part, int rank, size_t n, int round)
{
    for (size_t i = 0; i < n; i++)
        WANT(part[i] == byte_of(rank, i, round));
    return 0;
}

static int exchange(struct rank *rank)
{
    struct dcp_comm *comm = &rank->comm;
    for (int round = 0; round < 200; round++) {
        unsigned char mine[700], all[700 * MAX_WORLD];
        size_t n = (size_t)(round * 37 % 700), got[MAX_WORLD];
        int root = round % comm->world;
        for (size_t i = 0; i < n; i++)
            mine[i] = byte_of(comm->rank, i, round);
        WANT(dcp_comm_allgather(comm, mine, n, all, NULL) == 0);
        for (int r = 0; r < comm->world; r++)
            WANT(check_part(all + (size_t)r * n, r, n, round) == 0);

        size_t my_size = comm->rank % 3 ? n / (size_t)comm->rank : 0;
        void *parts;
        WANT(dcp_comm_allgatherv(comm, mine, my_size, &parts, got, NULL) == 0);
        const unsigned char *part = parts;
        for (int r = 0; r < comm->world; r++) {
            WANT(got[r] == (r % 3 ? n / (size_t)r : 0));
            WANT(check_part(part, r, got[r], round) == 0);
            part += got[r];
        }
        free(parts);

        WANT(dcp_comm_bcast(comm, mine, n, root, NULL) == 0);
        WANT(check_part(mine, root, n, round) == 0);
    }
    WANT(dcp_comm_bcast(comm, NULL, 0, comm->world, NULL) == DCP_E_USAGE);
    return 0;
}

static void values(void **state)
{
    (void)state;
    for (int world = 1; world <= MAX_WORLD; world++)
        run_world(world, 0, exchange);
}

/* This and every later call fails the same way. */
static int expect_failure(struct dcp_comm *comm, int wanted, int fate,
                          const char *message)
{
    for (int i = 0; i < 3; i++) {
        char c = 0, all[MAX_WORLD];
        struct dcp_error err = { 0 };
        WANT(dcp_comm_allgather(comm, &c, 1, all, &err) == DCP_E_COMM);
        WANT(err.code == DCP_E_COMM && err.rank == wanted && err.rank_fate == fate);
        WANT(strstr(err.message, message) && err.hint[0]);
        WANT(dcp_comm_bcast(comm, &c, 1, 0, NULL) == DCP_E_COMM);
        void *out = &c;
        size_t sizes[MAX_WORLD];
        WANT(dcp_comm_allgatherv(comm, &c, 1, &out, sizes, NULL) == DCP_E_COMM);
        WANT(!out);
    }
    return 0;
}

static int stay_away(struct rank *rank)
{
    if (rank->comm.rank == 3)
        return 0;
    return expect_failure(&rank->comm, 3, DCP_RANK_SILENT,
                          "rank 3 did not answer within 0.1 s");
}

static void silent_rank_is_named(void **state)
{
    (void)state;
    run_world(5, 100, stay_away);
}

/* With the time-out a minute away, the test would not end were the death not noticed. */
static int die(struct rank *rank)
{
    struct dcp_comm *comm = &rank->comm;
    char c = 0, all[MAX_WORLD];
    WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == 0);
    if (comm->rank == 2) {
        dcp_clock_sleep_us(20000); /* most others wait already */
        dcp_comm_threads_kill(comm);
        WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == DCP_E_COMM);
        return 0;
    }
    WANT(expect_failure(comm, 2, DCP_RANK_DEAD, "rank 2 is gone") == 0);
    WANT(dcp_comm_peer_dead(comm) == 2);
    return 0;
}

static void dead_rank_is_named_at_once(void **state)
{
    (void)state;
    run_world(4, 60000, die);
}

static int differ(struct rank *rank)
{
    struct dcp_comm *comm = &rank->comm;
    char data[16] = { 0 }, all[16 * MAX_WORLD];
    size_t n = comm->rank == 0 ? 8 : 16;
    WANT(dcp_comm_allgather(comm, data, n, all, NULL) == DCP_E_COMM);
    return 0;
}

static void different_calls_are_noticed(void **state)
{
    (void)state;
    run_world(3, 60000, differ);
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
    assert_int_equal(comm.world, 1);
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

    dcp_device_host_poisoned(&device);
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

static int wait_for_the_slow(struct rank *rank)
{
    bool worked = false;
    struct dcp_error err = { 0 };
    bool slow = rank->comm.rank == 1;

    WANT(!dcp_await(&rank->comm, slow ? slow_work : NULL, &worked, &err));
    WANT(worked == slow);
    WANT(dcp_await(&rank->comm, slow ? failing_work : NULL, NULL, &err) == DCP_E_CORRUPT);
    WANT(!strcmp(err.message, "a bad file"));
    return 0;
}

/* Work that takes longer than the time-out is not death. */
static void slow_is_not_dead(void **state)
{
    (void)state;
    run_world(3, 200, wait_for_the_slow);
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
