/* Streams, events and memory. */
#include "double.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sys/mman.h>
#include <thread>

cuda_double &cuda_double_get()
{
    static cuda_double *all = new cuda_double;
    return *all;
}

void cuda_double_fail(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    std::fputs("CUDA's double: ", stderr);
    std::vfprintf(stderr, fmt, args);
    std::fputs("\n", stderr);
    va_end(args);
    std::abort();
}

static bool is_eager()
{
    const char *way = std::getenv("CUDA_DOUBLE");
    return way && !std::strcmp(way, "eager");
}

/* --- streams --- */

static std::map<cuda_stream *, bool> &streams()
{
    static auto *all = new std::map<cuda_stream *, bool>;
    return *all;
}

void cuda_drive(cuda_lock &lock, cuda_stream *stream, uint64_t until)
{
    auto &all = cuda_double_get();
    while (stream->done < until) {
        if (stream->running) { /* another thread of the test does it */
            if (all.changed.wait_for(lock, std::chrono::seconds(60)) ==
                std::cv_status::timeout)
                cuda_double_fail("stream %s does not move", stream->name);
            continue;
        }
        stream->running = 1;
        cuda_work work = stream->queue.front();
        bool is_done = work(lock);
        stream->running = 0;
        if (is_done) {
            stream->queue.pop_front();
            stream->done++;
        }
        all.changed.notify_all();
    }
}

void cuda_give(cuda_lock &lock, cuda_stream *stream, cuda_work work)
{
    if (!stream)
        cuda_double_fail("the default stream is not used here");
    stream->queue.push_back(std::move(work));
    stream->given++;
    cuda_double_get().changed.notify_all();
    if (is_eager())
        cuda_drive(lock, stream, stream->given);
}

static void drive_all(cuda_lock &lock)
{
    std::map<cuda_stream *, bool> all = streams();
    for (auto &stream : all)
        if (streams().count(stream.first))
            cuda_drive(lock, stream.first, stream.first->given);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    cuda_lock lock(cuda_double_get().mutex);
    if (flags != cudaStreamNonBlocking)
        return cudaErrorInvalidValue;
    *out = new cuda_stream;
    streams()[*out] = true;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cuda_lock lock(cuda_double_get().mutex);
    cuda_drive(lock, stream, stream->given);
    streams().erase(stream);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cuda_lock lock(cuda_double_get().mutex);
    cuda_drive(lock, stream, stream->given);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    cuda_lock lock(cuda_double_get().mutex);
    drive_all(lock);
    return cudaSuccess;
}

/* --- events --- */

struct cuda_event {
    cuda_stream *stream = nullptr;
    uint64_t at = 0; /* work of the stream that is done when the event is */
};

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    *out = new cuda_event;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cuda_lock lock(cuda_double_get().mutex);
    event->stream = stream;
    event->at = stream->given;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    cuda_lock lock(cuda_double_get().mutex);
    cuda_event then = *event; /* what is recorded later does not count */
    if (flags)
        return cudaErrorInvalidValue;
    if (then.stream)
        cuda_give(lock, stream, [then](cuda_lock &held) {
            cuda_drive(held, then.stream, then.at);
            return true;
        });
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cuda_lock lock(cuda_double_get().mutex);
    if (event->stream)
        cuda_drive(lock, event->stream, event->at);
    return cudaSuccess;
}

/* Whoever asks again and again must get it at last. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return cudaEventSynchronize(event);
}

/* --- memory --- */

/* One range of addresses for all that the host may not touch: opening it is one call. */
#define ARENA_BYTES (size_t(8) << 30)

struct arena {
    char *begin;
    std::map<size_t, size_t> taken; /* begin → size */
    int open = 0;
    size_t used = 0; /* end of the last that was ever taken */
};

static arena &device()
{
    static arena *all = [] {
        auto *a = new arena;
        void *p = mmap(nullptr, ARENA_BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            cuda_double_fail("no addresses for the memory of the device");
        a->begin = static_cast<char *>(p);
        return a;
    }();
    return *all;
}

cuda_open_memory::cuda_open_memory()
{
    arena &a = device();
    if (!a.open++ && a.used && mprotect(a.begin, a.used, PROT_READ | PROT_WRITE))
        cuda_double_fail("the memory of the device cannot be opened");
}

cuda_open_memory::~cuda_open_memory()
{
    arena &a = device();
    if (!--a.open && a.used && mprotect(a.begin, a.used, PROT_NONE))
        cuda_double_fail("the memory of the device cannot be closed");
}

static const size_t page = 4096;

cudaError_t cudaMalloc(void **out, size_t size)
{
    cuda_lock lock(cuda_double_get().mutex);
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
        std::memset(a.begin + at, 0xff, room);
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
    cuda_lock lock(cuda_double_get().mutex);
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
    cuda_lock lock(cuda_double_get().mutex);
    if (!memory)
        return cudaSuccess;
    drive_all(lock);
    if (managed().erase(memory)) {
        std::free(memory);
        return cudaSuccess;
    }
    arena &a = device();
    auto found = a.taken.find(static_cast<size_t>(static_cast<char *>(memory) - a.begin));
    if (found == a.taken.end())
        cuda_double_fail("cudaFree of what cudaMalloc did not give");
    {
        cuda_open_memory open;
        std::memset(memory, 0xff, found->second);
    }
    a.taken.erase(found);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags)
{
    (void)flags;
    return posix_memalign(out, 4096, size ? size : 1) ? cudaErrorMemoryAllocation
                                                      : cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    cuda_lock lock(cuda_double_get().mutex);
    drive_all(lock);
    std::free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cuda_lock lock(cuda_double_get().mutex);
    (void)kind;
    cuda_give(lock, stream, [=](cuda_lock &) {
        cuda_open_memory open;
        std::memmove(to, from, size);
        return true;
    });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream)
{
    cuda_lock lock(cuda_double_get().mutex);
    cuda_give(lock, stream, [=](cuda_lock &) {
        cuda_open_memory open;
        std::memset(to, value, size);
        return true;
    });
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind)
{
    cuda_lock lock(cuda_double_get().mutex);
    (void)kind;
    cuda_open_memory open;
    std::memmove(to, from, size);
    return cudaSuccess;
}

cudaError_t cuda_launch(const cudaLaunchConfig_t *config, std::function<void()> thread)
{
    cuda_lock lock(cuda_double_get().mutex);
    dim3 grid = config->gridDim, block = config->blockDim;
    size_t threads = size_t(block.x) * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffff || grid.y > 65535 ||
        grid.z > 65535 || !threads || threads > 1024 || config->dynamicSmemBytes)
        return cudaErrorInvalidValue;
    cuda_give(lock, config->stream, [=](cuda_lock &) {
        cuda_open_memory open;
        cuda_run_kernel(grid, block, thread);
        return true;
    });
    return cudaSuccess;
}

/* --- the device, and what went wrong --- */

cudaError_t cudaGetDeviceCount(int *out_n)
{
    const char *none = std::getenv("CUDA_VISIBLE_DEVICES");
    *out_n = none && !*none ? 0 : 1;
    return *out_n ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDevice(int *out_number)
{
    *out_number = 0;
    int n;
    return cudaGetDeviceCount(&n);
}

cudaError_t cudaSetDevice(int number)
{
    int n;
    cudaError_t why = cudaGetDeviceCount(&n);
    return why ? why : number >= 0 && number < n ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int number)
{
    std::memset(out, 0, sizeof *out);
    std::strcpy(out->name, "CUDA's double");
    out->totalGlobalMem = ARENA_BYTES;
    out->major = 9;
    out->multiProcessorCount = 4;
    return cudaSetDevice(number);
}

cudaError_t cudaMemGetInfo(size_t *out_free, size_t *out_total)
{
    *out_free = *out_total = ARENA_BYTES;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t why)
{
    switch (why) {
    case cudaErrorInvalidValue:
        return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
        return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
        return "cudaErrorInvalidDevice";
    default:
        return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t why)
{
    switch (why) {
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    default:
        return "unknown error";
    }
}
