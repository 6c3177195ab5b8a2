/* Streams and events. */
#include "fake.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>

cuda_fake &cuda_fake_get()
{
    static cuda_fake *all = new cuda_fake;
    return *all;
}

void cuda_fake_fail(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    std::fputs("CUDA's fake: ", stderr);
    std::vfprintf(stderr, fmt, args);
    std::fputs("\n", stderr);
    va_end(args);
    std::abort();
}

static bool is_way(const char *name)
{
    const char *way = std::getenv("CUDA_FAKE");
    return way && !std::strcmp(way, name);
}

/* --- streams --- */

static std::map<cuda_stream *, bool> &streams()
{
    static auto *all = new std::map<cuda_stream *, bool>;
    return *all;
}

bool cuda_advance(cuda_lock &lock, cuda_stream *stream, uint64_t until)
{
    if (stream->done >= until || stream->running)
        return stream->done >= until;
    cuda_run_scope scope;
    while (stream->done < until) {
        if (stream->running)
            return false;
        stream->running = true;
        cuda_work work = stream->queue.front();
        bool is_done = work(lock);
        stream->running = false;
        if (!is_done)
            return false;
        stream->queue.pop_front();
        stream->done++;
        cuda_fake_get().changed.notify_all();
    }
    return true;
}

/* What nobody waits for runs first, or not before somebody does. */
static void advance_others(cuda_lock &lock, cuda_stream *stream)
{
    std::map<cuda_stream *, bool> all = streams();
    for (auto &other : all)
        if (is_way("others") && other.first != stream && streams().count(other.first))
            cuda_advance(lock, other.first, other.first->given);
}

void cuda_drive(cuda_lock &lock, cuda_stream *stream, uint64_t until)
{
    advance_others(lock, stream);
    auto begin = std::chrono::steady_clock::now();
    while (!cuda_advance(lock, stream, until)) {
        cuda_fake_get().changed.wait_for(lock, std::chrono::milliseconds(50));
        if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(60))
            cuda_fake_fail("a stream does not move: what it waits for never comes");
    }
}

void cuda_give(cuda_lock &lock, cuda_stream *stream, cuda_work work)
{
    if (!stream)
        cuda_fake_fail("the default stream is not used here");
    stream->queue.push_back(std::move(work));
    stream->given++;
    cuda_fake_get().changed.notify_all();
    if (is_way("eager"))
        cuda_advance(lock, stream, stream->given);
}

void cuda_drive_all(cuda_lock &lock)
{
    std::map<cuda_stream *, bool> all = streams();
    for (auto &stream : all)
        if (streams().count(stream.first) &&
            stream.first->owner == std::this_thread::get_id())
            cuda_drive(lock, stream.first, stream.first->given);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    cuda_lock lock(cuda_fake_get().mutex);
    if (flags != cudaStreamNonBlocking)
        return cudaErrorInvalidValue;
    *out = new cuda_stream;
    streams()[*out] = true;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cuda_lock lock(cuda_fake_get().mutex);
    cuda_drive(lock, stream, stream->given);
    streams().erase(stream);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cuda_lock lock(cuda_fake_get().mutex);
    cuda_drive(lock, stream, stream->given);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    cuda_lock lock(cuda_fake_get().mutex);
    cuda_drive_all(lock);
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
    cuda_lock lock(cuda_fake_get().mutex);
    event->stream = stream;
    event->at = stream->given;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    cuda_lock lock(cuda_fake_get().mutex);
    cuda_event then = *event; /* what is recorded later does not count */
    if (flags)
        return cudaErrorInvalidValue;
    if (then.stream)
        cuda_give(lock, stream, [then](cuda_lock &held) {
            return cuda_advance(held, then.stream, then.at);
        });
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cuda_lock lock(cuda_fake_get().mutex);
    if (event->stream)
        cuda_drive(lock, event->stream, event->at);
    return cudaSuccess;
}

/* Whoever asks again and again must get it at last. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cuda_lock lock(cuda_fake_get().mutex);
    bool is_done = !event->stream || cuda_advance(lock, event->stream, event->at);
    return is_done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cuda_lock lock(cuda_fake_get().mutex);
    advance_others(lock, stream);
    if (cuda_advance(lock, stream, stream->given))
        return cudaSuccess;
    cuda_fake_get().changed.wait_for(lock, std::chrono::milliseconds(1));
    return cudaErrorNotReady; /* others have the lock meanwhile */
}

cudaError_t cuda_launch(const cudaLaunchConfig_t *config, std::function<void()> thread)
{
    cuda_lock lock(cuda_fake_get().mutex);
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
    std::strcpy(out->name, "CUDA's fake");
    out->uuid.bytes[0] = (char)(1 + number);
    out->totalGlobalMem = cuda_memory_bytes();
    out->major = 9;
    out->multiProcessorCount = 4;
    return cudaSetDevice(number);
}

cudaError_t cudaMemGetInfo(size_t *out_free, size_t *out_total)
{
    *out_free = *out_total = cuda_memory_bytes();
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
