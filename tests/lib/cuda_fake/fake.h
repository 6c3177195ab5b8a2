/* The inside of the fake: what runs, and when. */
#ifndef CUDA_FAKE_FAKE_H
#define CUDA_FAKE_FAKE_H

#include "cuda_runtime.h"
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

/* One lock for all of it; whoever waits for work does it himself, holding the lock. */
struct cuda_fake {
    std::mutex mutex;
    std::condition_variable
        changed; /* something was given to a stream, or came to an end */
};
cuda_fake &cuda_fake_get();
using cuda_lock = std::unique_lock<std::mutex>;

/* Ends the test. */
[[noreturn]] void cuda_fake_fail(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));

/* A piece of work: true when it is done. Else it waits for others, and is called again.
 */
using cuda_work = std::function<bool(cuda_lock &)>;

struct cuda_stream {
    /* Every thread of a test is a rank, as if it had a device of its own. */
    std::thread::id owner = std::this_thread::get_id();
    std::deque<cuda_work> queue;
    uint64_t given = 0, done = 0;
    bool running = false; /* somebody runs its first */
};

/* The lock is held. Gives work to a stream; runs it at once when everything is eager. */
void cuda_give(cuda_lock &lock, cuda_stream *stream, cuda_work work);
/* Runs the stream until so much of it is done, or it waits for others: then false. */
bool cuda_advance(cuda_lock &lock, cuda_stream *stream, uint64_t until);
/* The same, and waits, too. */
void cuda_drive(cuda_lock &lock, cuda_stream *stream, uint64_t until);

/* All streams of this thread: what waits for the whole device. */
void cuda_drive_all(cuda_lock &lock);

/* The memory that the host cannot touch, open to whoever runs. */
struct cuda_open_memory {
    cuda_open_memory();
    ~cuda_open_memory();
};

size_t cuda_memory_bytes();
/* Streams run: what was opened stays open until they do not. */
struct cuda_run_scope {
    cuda_run_scope();
    ~cuda_run_scope();
};

/* Runs one kernel. */
void cuda_run_kernel(dim3 grid, dim3 block, const std::function<void()> &thread);

#endif
