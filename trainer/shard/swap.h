/* swap: arrays that lie in a file, of which little is in memory at a time.
 *
 * The file is mapped, so an array is used like any other. Who works through it says what
 * comes next and what is done with: the next is read ahead, and a thread writes what is
 * done with and takes it out of memory, while the work goes on. The file has no name, so
 * that nothing of it is left, however the process ends.
 *
 * Thread rule: one caller at a time. */
#ifndef TRAINER_SHARD_SWAP_H
#define TRAINER_SHARD_SWAP_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stdint.h>

struct swap;

/* In a folder, which is made when it is missing. most_bytes: so much that is done with
 * may still be in memory. Caller owns. Errors: IO, NO_SPACE, MEMORY. */
int swap_new(const char *folder, uint64_t most_bytes, struct swap **out,
             struct dcp_error *err);
/* Arrays go with it. NULL is fine. */
void swap_free(struct swap *swap);

/* A zeroed array, whose room on the disk is taken at once. `what` it is for. Errors:
 * NO_SPACE, IO, MEMORY. */
int swap_alloc(struct swap *swap, uint64_t size_bytes, const char *what, void **out,
               struct dcp_error *err);
/* Gives it back; NULL, and what is no array of this swap, are left alone: false. */
bool swap_drop(struct swap *swap, void *array);

/* Bytes of an array that are worked on next. */
void swap_want(struct swap *swap, const void *from, uint64_t size_bytes);
/* Bytes that are done with for now. Waits while too much of them is in memory. */
void swap_leave(struct swap *swap, const void *from, uint64_t size_bytes);

#endif
