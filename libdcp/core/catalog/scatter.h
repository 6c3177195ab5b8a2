/* scatter: elements that do not lie side by side. Pure. */
#ifndef DCP_CORE_CATALOG_SCATTER_H
#define DCP_CORE_CATALOG_SCATTER_H

#include <stddef.h>
#include <stdint.h>

/* Copies n elements of 1, 2, 4, 8 or 16 bytes from every from_step-th place to every
 * to_step-th. */
void dcp_scatter(void *to, int64_t to_step, const void *from, int64_t from_step,
                 int64_t n, size_t elem);

/* Columns, from_column elements apart, become rows, to_row elements apart: element
 * (r, c) of `to` is element r of column c. Quickest with so many columns at once, which
 * do not begin a power of two apart: that many lines would share a set of the cache. */
#define DCP_TURN_COLUMNS 16
void dcp_turn(void *to, int64_t to_row, const void *from, int64_t from_column,
              int64_t n_rows, int64_t n_columns, size_t elem);

/* Of the places base + i * step, 0 <= i < n, those in begin .. end: *out_from <= i <
 * *out_to. step >= 0; with step 0 all or none. */
void dcp_scatter_clip(int64_t base, int64_t step, int64_t n, int64_t begin, int64_t end,
                      int64_t *out_from, int64_t *out_to);

#endif
