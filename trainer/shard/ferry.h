/* ferry: copies between the host and the memory of kernels that have one of their own,
 * beside the kernels (ops/ops.h: carry). What is pinned goes as it is, while the caller
 * goes on. What is not goes through two pinned buffers for each way, one of which the
 * caller fills or empties while the other is on its way: he is busy until the end.
 *
 * Copies of a way are numbered; one is done when those before it are. Thread rule: that
 * of the kernels. */
#ifndef TRAINER_SHARD_FERRY_H
#define TRAINER_SHARD_FERRY_H

#include "trainer/ops/ops.h"
#include <stdbool.h>
#include <stdint.h>

struct ferry;

#define FERRY_BUFFER ((uint64_t)8 << 20) /* bytes: enough for PCIe to be fast */

/* buffers: something that it will carry is not pinned. Caller owns. Errors: MEMORY. */
int ferry_new(const struct kernels *kernels, bool buffers, struct ferry **out,
              struct dcp_error *err);
/* NULL is fine. */
void ferry_free(struct ferry *ferry);
/* Host memory that it takes. */
uint64_t ferry_bytes(const struct ferry *ferry);

/* From the kernels called so far to the host. Errors: those of kernels. */
int ferry_down(struct ferry *ferry, void *host, bool pinned, const void *from,
               uint64_t size_bytes, uint64_t *out_copy, struct dcp_error *err);
/* To the kernels, when so many copies to the host are done. */
int ferry_up(struct ferry *ferry, void *to, const void *host, bool pinned,
             uint64_t size_bytes, uint64_t after_down, uint64_t *out_copy,
             struct dcp_error *err);

#endif
