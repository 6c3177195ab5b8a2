/* vectors: a function that is compiled once for each width of vectors. */
#ifndef DCP_BASE_VECTORS_H
#define DCP_BASE_VECTORS_H

#if defined(__SANITIZE_THREAD__)
#define DCP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DCP_TSAN 1
#endif
#endif

/* One of them is picked when the program is loaded; nothing, where the compiler or a
 * sanitizer does not take it. The thread sanitizer is not ready that early, and clang
 * before 18 gives the function a name that no other file finds. */
#if !defined(__x86_64__) || defined(DCP_TSAN) || \
    (defined(__clang__) && __clang_major__ < 18)
#define DCP_VECTORS
#elif defined(__clang__) || __GNUC__ >= 12
#define DCP_VECTORS \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DCP_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

#endif
