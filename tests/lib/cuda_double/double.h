/* The inside of the double: what runs, and when. */
#ifndef CUDA_DOUBLE_DOUBLE_H
#define CUDA_DOUBLE_DOUBLE_H

#include "cuda_runtime.h"
#include <condition_variable>
#include <deque>
#include <mutex>

/* One lock for all of it; whoever waits for work does it himself, holding the lock. */
struct cuda_double {
    std::mutex mutex;
    std::condition_variable
        changed; /* something was given to a stream, or came to an end */
};
cuda_double &cuda_double_get();
using cuda_lock = std::unique_lock<std::mutex>;

/* Ends the test. */
[[noreturn]] void cuda_double_fail(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));

/* A piece of work. Called again and again until it is done; in between others may run. */
using cuda_work = std::function<bool(cuda_lock &)>;

struct cuda_stream {
    const char *name = "";
    std::deque<cuda_work> queue;
    uint64_t given = 0, done = 0;
    std::deque<cuda_work>::size_type running = 0; /* 1 while somebody runs its first */
};

/* The lock is held. Gives work to a stream; runs it at once when everything is eager. */
void cuda_give(cuda_lock &lock, cuda_stream *stream, cuda_work work);
/* Runs the stream until so much of it is done. False: a wait for itself. */
void cuda_drive(cuda_lock &lock, cuda_stream *stream, uint64_t until);

/* The memory that the host cannot touch, open to whoever runs. */
struct cuda_open_memory {
    cuda_open_memory();
    ~cuda_open_memory();
};

/* Runs one kernel. */
void cuda_run_kernel(dim3 grid, dim3 block, const std::function<void()> &thread);

#endif
