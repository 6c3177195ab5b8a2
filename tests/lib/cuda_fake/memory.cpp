/* Memory of the device, and what moves it. */
#include "fake.h"
#include <cstdlib>
#include <map>
#include <sys/mman.h>

/* One range of addresses for all that the host may not touch: opening it is one call. */
#define ARENA_BYTES (size_t(8) << 30)
#define POISON_BYTES (size_t(1) << 20) /* of what is given out and given back */

struct arena {
    char *begin;
    std::map<size_t, size_t> taken; /* begin → size */
    int users = 0;
    bool is_open = false;
    size_t used = 0; /* end of the last that was ever taken */
};

static arena &device()
{
    static arena *all = [] {
        auto *a = new arena;
        void *p = mmap(nullptr, ARENA_BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            cuda_fake_fail("no addresses for the memory of the device");
        a->begin = static_cast<char *>(p);
        return a;
    }();
    return *all;
}

size_t cuda_memory_bytes()
{
    return ARENA_BYTES;
}

static void protect(arena &a, int how)
{
    if (a.used && mprotect(a.begin, a.used, how))
        cuda_fake_fail("the memory of the device cannot be opened or closed");
}

cuda_open_memory::cuda_open_memory()
{
    arena &a = device();
    a.users++;
    if (!a.is_open)
        protect(a, PROT_READ | PROT_WRITE);
    a.is_open = true;
}

/* While streams run it stays open: closing it takes longer than most kernels. */
static int running;

static void close_memory()
{
    arena &a = device();
    if (a.users || running || !a.is_open || std::getenv("CUDA_FAKE_OPEN"))
        return;
    protect(a, PROT_NONE);
    a.is_open = false;
}

cuda_open_memory::~cuda_open_memory()
{
    device().users--;
    close_memory();
}

cuda_run_scope::cuda_run_scope()
{
    running++;
}

cuda_run_scope::~cuda_run_scope()
{
    running--;
    close_memory();
}

static const size_t page = 4096;

cudaError_t cudaMalloc(void **out, size_t size)
{
    cuda_lock lock(cuda_fake_get().mutex);
    arena &a = device();
    size_t at = 0, room = (size + page - 1) / page * page + page;
    *out = nullptr;
    for (auto &part : a.taken) { /* the first hole that fits */
        if (part.first - at >= room)
            break;
        at = part.first + part.second;
    }
    if (size > ARENA_BYTES || at + room > ARENA_BYTES)
        return cudaErrorMemoryAllocation;
    a.taken[at] = room;
    {
        cuda_open_memory open;
        if (at + room > a.used) {
            a.used = at + room;
            mprotect(a.begin, a.used, PROT_READ | PROT_WRITE);
        }
        std::memset(a.begin + at, 0xff, room < POISON_BYTES ? room : POISON_BYTES);
    }
    *out = a.begin + at;
    return cudaSuccess;
}

static std::map<void *, size_t> &managed()
{
    static auto *all = new std::map<void *, size_t>;
    return *all;
}

cudaError_t cudaMallocManaged(void **out, size_t size, unsigned flags)
{
    cuda_lock lock(cuda_fake_get().mutex);
    if (flags != cudaMemAttachGlobal)
        return cudaErrorInvalidValue;
    if (posix_memalign(out, 256, size + 256))
        return cudaErrorMemoryAllocation;
    std::memset(*out, 0xff, size + 256);
    managed()[*out] = size;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    cuda_lock lock(cuda_fake_get().mutex);
    if (!memory)
        return cudaSuccess;
    cuda_drive_all(lock);
    if (managed().erase(memory)) {
        std::free(memory);
        return cudaSuccess;
    }
    arena &a = device();
    auto found = a.taken.find(static_cast<size_t>(static_cast<char *>(memory) - a.begin));
    if (found == a.taken.end())
        cuda_fake_fail("cudaFree of what cudaMalloc did not give");
    {
        cuda_open_memory open;
        std::memset(memory, 0xff,
                    found->second < POISON_BYTES ? found->second : POISON_BYTES);
    }
    a.taken.erase(found);
    return cudaSuccess;
}

static bool is_device(const void *memory)
{
    const char *at = static_cast<const char *>(memory), *begin = device().begin;
    return at >= begin && at < begin + ARENA_BYTES;
}

static bool is_managed(const void *memory)
{
    const char *at = static_cast<const char *>(memory);
    auto behind = managed().upper_bound(const_cast<char *>(at));
    if (behind == managed().begin())
        return false;
    auto found = std::prev(behind);
    return at <= static_cast<char *>(found->first) + found->second;
}

static std::map<const char *, size_t> &pinned()
{
    static auto *all = new std::map<const char *, size_t>;
    return *all;
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags)
{
    cuda_lock lock(cuda_fake_get().mutex);
    (void)flags;
    if (posix_memalign(out, 4096, size + 1))
        return cudaErrorMemoryAllocation;
    std::memset(*out, 0xff, size + 1);
    pinned()[static_cast<const char *>(*out)] = size;
    return cudaSuccess;
}

/* What malloc gave: CUDA copies it itself, and may wait for that. */
static bool is_pageable(const void *host)
{
    auto behind = pinned().upper_bound(static_cast<const char *>(host));
    if (behind == pinned().begin())
        return true;
    auto found = std::prev(behind);
    return static_cast<const char *>(host) > found->first + found->second;
}

static bool is_host(const void *memory)
{
    return !is_device(memory) && !is_managed(memory) && is_pageable(memory);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *memory)
{
    cuda_lock lock(cuda_fake_get().mutex);
    *out = {};
    out->type = is_device(memory)    ? cudaMemoryTypeDevice
                : is_managed(memory) ? cudaMemoryTypeManaged
                : is_host(memory)    ? cudaMemoryTypeUnregistered
                                     : cudaMemoryTypeHost;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    cuda_lock lock(cuda_fake_get().mutex);
    cuda_drive_all(lock);
    pinned().erase(static_cast<const char *>(memory));
    std::free(memory);
    return cudaSuccess;
}

/* Pinned memory is both. */
static void check_way(const void *to, const void *from, cudaMemcpyKind kind)
{
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    bool wrong = to_device ? is_host(to) : is_device(to);
    wrong = wrong || (from_device ? is_host(from) : is_device(from));
    if (wrong && kind != cudaMemcpyDefault)
        cuda_fake_fail("a copy of kind %d from %s to %s", (int)kind,
                       is_device(from) ? "the device" : "the host",
                       is_device(to) ? "the device" : "the host");
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cuda_lock lock(cuda_fake_get().mutex);
    check_way(to, from, kind);
    const void *host = kind == cudaMemcpyDeviceToHost   ? to
                       : kind == cudaMemcpyHostToDevice ? from
                                                        : nullptr;
    cuda_give(lock, stream, [=](cuda_lock &) {
        cuda_open_memory open;
        std::memmove(to, from, size);
        return true;
    });
    if (host && is_pageable(host))
        cuda_drive(lock, stream, stream->given);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream)
{
    cuda_lock lock(cuda_fake_get().mutex);
    cuda_give(lock, stream, [=](cuda_lock &) {
        cuda_open_memory open;
        std::memset(to, value, size);
        return true;
    });
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind)
{
    cuda_lock lock(cuda_fake_get().mutex);
    (void)kind;
    cuda_open_memory open;
    std::memmove(to, from, size);
    return cudaSuccess;
}
