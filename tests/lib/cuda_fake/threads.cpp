/* The threads of a kernel: each has its own stack, one runs at a time, until it waits for
 * others or ends. */
#include "fake.h"
#include <csetjmp>
#include <cstdlib>
#include <memory>
#include <ucontext.h>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace
{

const size_t stack_bytes = 128 << 10;
enum state { ready, at_barrier, at_warp, ended };

struct thread {
    ucontext_t context; /* it begins with it, once */
    jmp_buf paused;     /* and goes on with this, which takes no system call */
    bool begun = false;
    std::unique_ptr<char[]> stack{ new char[stack_bytes] };
    state now;
    dim3 index;
    unsigned mask; /* of the lanes it waits for */
};

struct scheduler {
    ucontext_t begun_from;
    jmp_buf home;
    std::vector<std::unique_ptr<thread>> threads; /* kept from kernel to kernel */
    std::vector<uint64_t> slots;                  /* of each thread, for shuffles */
    size_t n, current;
    const std::function<void()> *body;
    unsigned order; /* in which threads run, changed at each round */
};

scheduler all;

void wait_as(state how, unsigned mask)
{
    thread *me = all.threads[all.current].get();
    me->now = how;
    me->mask = mask;
    if (!_setjmp(me->paused))
        _longjmp(all.home, 1);
}

/* One kernel after the other: to begin a stack anew takes system calls. */
void enter()
{
    for (;;) {
        (*all.body)();
        wait_as(ended, 0);
    }
}

void resume(size_t i)
{
    thread *next = all.threads[i].get();
    all.current = i;
    threadIdx = next->index;
    if (_setjmp(all.home))
        return;
    if (next->begun)
        _longjmp(next->paused, 1);
    next->begun = true;
    swapcontext(&all.begun_from, &next->context);
}

/* Go up, down, or from somewhere in the middle on. */
size_t in_order(size_t i, size_t n)
{
    switch (all.order % 3) {
    case 0:
        return i;
    case 1:
        return n - 1 - i;
    default:
        return (i + n / 2 + all.order) % n;
    }
}

/* Lets a warp go on when all lanes that are waited for are there. */
bool release_warp(size_t first)
{
    size_t n = all.n - first < 32 ? all.n - first : 32;
    unsigned there = 0, mask = 0;
    for (size_t i = 0; i < n; i++) {
        thread *t = all.threads[first + i].get();
        if (t->now != at_warp)
            continue;
        there |= 1u << i;
        mask |= t->mask;
    }
    if (!there)
        return false;
    for (size_t i = 0; i < 32; i++)
        if (mask >> i & 1 && (i >= n || all.threads[first + i]->now == ended))
            cuda_fake_fail("a shuffle waits for lane %zu, which is not there", i);
    if (there != mask)
        return false;
    for (size_t i = 0; i < n; i++)
        if (there >> i & 1)
            all.threads[first + i]->now = ready;
    return true;
}

/* A warp runs as far as it can before another one does: to a barrier, or its end. */
void run_warp(size_t first)
{
    size_t n = all.n - first < 32 ? all.n - first : 32;
    do {
        all.order++;
        for (size_t i = 0; i < n; i++)
            if (all.threads[first + in_order(i, n)]->now == ready)
                resume(first + in_order(i, n));
    } while (release_warp(first));
}

/* Lets all go on when all are there. False: all ended. */
bool release()
{
    size_t waiting = 0, gone = 0;
    for (size_t i = 0; i < all.n; i++) {
        waiting += all.threads[i]->now == at_barrier;
        gone += all.threads[i]->now == ended;
    }
    if (gone == all.n)
        return false;
    if (waiting + gone != all.n)
        cuda_fake_fail("threads of a block wait for each other in different places");
    if (gone)
        cuda_fake_fail("%zu threads of %zu ended before a barrier", gone, all.n);
    for (size_t i = 0; i < all.n; i++)
        all.threads[i]->now = ready;
    return true;
}

void begin(thread *t, dim3 index)
{
    t->now = ready;
    t->index = index;
    if (t->begun)
        return;
    getcontext(&t->context);
    t->context.uc_stack.ss_sp = t->stack.get();
    t->context.uc_stack.ss_size = stack_bytes;
    t->context.uc_link = nullptr;
    makecontext(&t->context, enter, 0);
}

void run_block(dim3 block)
{
    for (unsigned i = 0; i < all.n; i++)
        begin(all.threads[i].get(),
              dim3(i % block.x, i / block.x % block.y, i / block.x / block.y));
    size_t warps = (all.n + 31) / 32;
    do {
        unsigned order = ++all.order;
        for (size_t w = 0; w < warps; w++) {
            all.order = order;
            run_warp(in_order(w, warps) * 32);
        }
    } while (release());
}

} // namespace

void cuda_run_kernel(dim3 grid, dim3 block, const std::function<void()> &body)
{
    all.n = size_t(block.x) * block.y * block.z;
    all.body = &body;
    while (all.threads.size() < all.n)
        all.threads.emplace_back(new thread);
    all.slots.resize(all.threads.size());
    gridDim = grid;
    blockDim = block;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = dim3(x, y, z);
                run_block(block);
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

void *cuda_warp_slot(unsigned lane)
{
    return &all.slots[all.current / 32 * 32 + lane];
}
