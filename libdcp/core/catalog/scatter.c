#include "scatter.h"
#include <string.h>

#define SCATTER(bytes)                                            \
    for (int64_t i = 0; i < n; i++)                               \
    memcpy((unsigned char *)to + (size_t)(i * to_step) * (bytes), \
           (const unsigned char *)from + (size_t)(i * from_step) * (bytes), (bytes))

void dcp_scatter(void *to, int64_t to_step, const void *from, int64_t from_step,
                 int64_t n, size_t elem)
{
    if (to_step == 1 && from_step == 1) {
        memcpy(to, from, (size_t)n * elem);
        return;
    }
    switch (elem) {
    case 1:
        SCATTER(1);
        break;
    case 2:
        SCATTER(2);
        break;
    case 4:
        SCATTER(4);
        break;
    case 8:
        SCATTER(8);
        break;
    default:
        SCATTER(16);
    }
}

#define TURN(bytes, n_columns)                       \
    for (int64_t r = 0; r < n_rows; r++)             \
        for (int64_t c = 0; c < (n_columns); c++)    \
    memcpy(out + (size_t)(r * to_row + c) * (bytes), \
           in + (size_t)(c * from_column + r) * (bytes), (bytes))

void dcp_turn(void *to, int64_t to_row, const void *from, int64_t from_column,
              int64_t n_rows, int64_t n_columns, size_t elem)
{
    unsigned char *restrict out = to;
    const unsigned char *restrict in = from;

    if (n_columns != DCP_TURN_COLUMNS || (elem != 2 && elem != 4)) {
        for (int64_t r = 0; r < n_rows; r++)
            dcp_scatter(out + (size_t)(r * to_row) * elem, 1, in + (size_t)r * elem,
                        from_column, n_columns, elem);
    } else if (elem == 2) {
        TURN(2, DCP_TURN_COLUMNS);
    } else {
        TURN(4, DCP_TURN_COLUMNS);
    }
}

/* The smallest i with i * step >= distance. */
static int64_t first_at(int64_t distance, int64_t step)
{
    return distance <= 0 ? 0 : (distance + step - 1) / step;
}

void dcp_scatter_clip(int64_t base, int64_t step, int64_t n, int64_t begin, int64_t end,
                      int64_t *out_from, int64_t *out_to)
{
    if (step == 0) {
        *out_from = 0;
        *out_to = base >= begin && base < end ? n : 0;
        return;
    }
    *out_from = first_at(begin - base, step);
    *out_to = first_at(end - base, step);
    if (*out_to > n)
        *out_to = n;
    if (*out_from > *out_to)
        *out_from = *out_to;
}
