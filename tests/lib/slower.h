/* slower: how much slower a sanitizer makes a program, in whose build a campaign takes
 * only every so many of its cases: what they cannot find elsewhere they find in each. */
#ifndef TESTS_LIB_SLOWER_H
#define TESTS_LIB_SLOWER_H

/* A prime, so that every so many cases of nested loops are not all of one inner case. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 7
#else
#define SLOWER 1
#endif

#endif
