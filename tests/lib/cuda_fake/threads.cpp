/* The threads of a kernel: each has its own stack, one runs at a time, until it waits for
 * others or ends. */
#include "fake.h"
#include <cstdlib>
#include <memory>
#include <ucontext.h>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace
{

const size_t stack_bytes = 128 << 10;

/* Where somebody paused: the compiler's own, since the library's jumps look at much that
 * is not needed here. */
typedef void *place[5];

/* For functions that make or leave a place: callers must not know what is in them, since
 * all registers and all memory may be others when they return. */
#ifdef __clang__
#define OPAQUE __attribute__((noinline))
#else
#define OPAQUE __attribute__((noipa))
#endif
enum state { ready, at_barrier, at_warp, ended };

struct stack {
    ucontext_t context; /* a thread begins with it, once */
    char bytes[stack_bytes];
};

struct thread {
    place paused; /* and goes on with this, which takes no system call */
    state now;
    unsigned mask;         /* of the lanes it waits for */
    uint64_t offer, shown; /* to these lanes; to all of them, since they met */
    dim3 index;
    std::unique_ptr<stack> begun;
};

struct scheduler {
    ucontext_t begun_from;
    place home;
    std::vector<thread> threads; /* kept from kernel to kernel */
    size_t n, current;
    const std::function<void()> *body;
    unsigned order; /* in which threads run, changed at each round */
};

scheduler all;

[[noreturn]] OPAQUE void go_to(place to)
{
    __builtin_longjmp(to, 1);
}

OPAQUE void wait_as(state how, unsigned mask)
{
    thread *me = &all.threads[all.current];
    me->now = how;
    me->mask = mask;
    if (!__builtin_setjmp(me->paused))
        go_to(all.home);
}

/* One kernel after the other: to begin a stack anew takes system calls. */
void enter()
{
    for (;;) {
        (*all.body)();
        wait_as(ended, 0);
    }
}

void begin(thread *t)
{
    t->begun.reset(new stack);
    getcontext(&t->begun->context);
    t->begun->context.uc_stack.ss_sp = t->begun->bytes;
    t->begun->context.uc_stack.ss_size = stack_bytes;
    t->begun->context.uc_link = nullptr;
    makecontext(&t->begun->context, enter, 0);
    swapcontext(&all.begun_from, &t->begun->context);
}

OPAQUE void resume(size_t i)
{
    thread *next = &all.threads[i];
    all.current = i;
    threadIdx = next->index;
    if (__builtin_setjmp(all.home))
        return;
    if (next->begun)
        go_to(next->paused);
    begin(next);
}

/* Calls with each number below n: up, down, or from somewhere in the middle on. */
template <typename Call> void in_order(unsigned order, size_t n, Call call)
{
    size_t first = order % 3 == 2 ? (n / 2 + order) % n : 0;
    for (size_t i = 0; i < n; i++) {
        size_t up = first + i < n ? first + i : first + i - n;
        call(order % 3 == 1 ? n - 1 - i : up);
    }
}

/* Lets a warp go on when all lanes that are waited for are there. */
bool release_warp(size_t first)
{
    size_t n = all.n - first < 32 ? all.n - first : 32;
    unsigned there = 0, mask = 0;
    for (size_t i = 0; i < n; i++) {
        const thread &t = all.threads[first + i];
        if (t.now != at_warp)
            continue;
        there |= 1u << i;
        mask |= t.mask;
    }
    if (!there)
        return false;
    for (size_t i = 0; i < 32; i++)
        if (mask >> i & 1 && (i >= n || all.threads[first + i].now == ended))
            cuda_fake_fail("a shuffle waits for lane %zu, which is not there", i);
    if (there != mask)
        return false;
    for (size_t i = 0; i < n; i++)
        if (there >> i & 1) {
            all.threads[first + i].now = ready;
            all.threads[first + i].shown = all.threads[first + i].offer;
        }
    return true;
}

/* A warp runs as far as it can before another one does: to a barrier, or its end. */
void run_warp(size_t first)
{
    size_t n = all.n - first < 32 ? all.n - first : 32;
    do {
        in_order(++all.order, n, [&](size_t i) {
            if (all.threads[first + i].now == ready)
                resume(first + i);
        });
    } while (release_warp(first));
}

/* Lets all go on when all are there. False: all ended. */
bool release()
{
    size_t waiting = 0, gone = 0;
    for (size_t i = 0; i < all.n; i++) {
        waiting += all.threads[i].now == at_barrier;
        gone += all.threads[i].now == ended;
    }
    if (gone == all.n)
        return false;
    if (waiting + gone != all.n)
        cuda_fake_fail("threads of a block wait for each other in different places");
    if (gone)
        cuda_fake_fail("%zu threads of %zu ended before a barrier", gone, all.n);
    for (size_t i = 0; i < all.n; i++)
        all.threads[i].now = ready;
    return true;
}

void run_block()
{
    size_t warps = (all.n + 31) / 32;
    for (size_t i = 0; i < all.n; i++)
        all.threads[i].now = ready;
    do {
        unsigned order = ++all.order;
        in_order(order, warps, [&](size_t w) {
            all.order = order;
            run_warp(w * 32);
        });
    } while (release());
}

} // namespace

void cuda_run_kernel(dim3 grid, dim3 block, const std::function<void()> &body)
{
    all.n = size_t(block.x) * block.y * block.z;
    all.body = &body;
    if (all.threads.size() < all.n)
        all.threads.resize(all.n);
    for (unsigned i = 0; i < all.n; i++)
        all.threads[i].index =
            dim3(i % block.x, i / block.x % block.y, i / block.x / block.y);
    gridDim = grid;
    blockDim = block;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = dim3(x, y, z);
                run_block();
            }
}

void __syncthreads()
{
    wait_as(at_barrier, 0);
}

void cuda_warp_sync(unsigned mask)
{
    wait_as(at_warp, mask);
}

/* What a lane shows stays until all meet again: by then they have seen it. */
uint64_t cuda_warp_exchange(unsigned mask, uint64_t offer, unsigned lane)
{
    all.threads[all.current].offer = offer;
    wait_as(at_warp, mask);
    return all.threads[all.current / 32 * 32 + lane].shown;
}
