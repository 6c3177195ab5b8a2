#include "planes.h"

#include "vectors.h"
#include <stdint.h>
#include <string.h>

/* Numbers in memory have their lowest byte first, as everywhere in a checkpoint. The
 * loops are written so that compilers make vectors of them and take `turned` out of them.
 */

DCP_VECTORS static void split_2(const unsigned char *restrict in, size_t n, bool turned,
                                unsigned char *restrict low, unsigned char *restrict high)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t x;
        memcpy(&x, in + 2 * i, sizeof x);
        if (turned)
            x = (uint16_t)(x << 1 | x >> 15);
        low[i] = (unsigned char)x;
        high[i] = (unsigned char)(x >> 8);
    }
}

DCP_VECTORS static void join_2(const unsigned char *restrict low,
                               const unsigned char *restrict high, size_t n, bool turned,
                               unsigned char *restrict out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t x = (uint16_t)(low[i] | high[i] << 8);
        if (turned)
            x = (uint16_t)(x >> 1 | x << 15);
        memcpy(out + 2 * i, &x, sizeof x);
    }
}

DCP_VECTORS static void split_4(const unsigned char *restrict in, size_t n, bool turned,
                                unsigned char *restrict p0, unsigned char *restrict p1,
                                unsigned char *restrict p2, unsigned char *restrict p3)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t x;
        memcpy(&x, in + 4 * i, sizeof x);
        if (turned)
            x = x << 1 | x >> 31;
        p0[i] = (unsigned char)x;
        p1[i] = (unsigned char)(x >> 8);
        p2[i] = (unsigned char)(x >> 16);
        p3[i] = (unsigned char)(x >> 24);
    }
}

DCP_VECTORS static void join_4(const unsigned char *restrict p0,
                               const unsigned char *restrict p1,
                               const unsigned char *restrict p2,
                               const unsigned char *restrict p3, size_t n, bool turned,
                               unsigned char *restrict out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t x =
            p0[i] | (uint32_t)p1[i] << 8 | (uint32_t)p2[i] << 16 | (uint32_t)p3[i] << 24;
        if (turned)
            x = x >> 1 | x << 31;
        memcpy(out + 4 * i, &x, sizeof x);
    }
}

void dcp_planes_split(const unsigned char *in, size_t n, size_t width, bool turned,
                      unsigned char *const *planes)
{
    if (width == 1) {
        memcpy(planes[0], in, n);
    } else if (width == 2) {
        split_2(in, n, turned, planes[0], planes[1]);
    } else if (width == 4) {
        split_4(in, n, turned, planes[0], planes[1], planes[2], planes[3]);
    } else {
        for (size_t b = 0; b < width; b++)
            for (size_t i = 0; i < n; i++)
                planes[b][i] = in[i * width + b];
    }
}

void dcp_planes_join(const unsigned char *const *planes, size_t n, size_t width,
                     bool turned, unsigned char *out)
{
    if (width == 1) {
        memcpy(out, planes[0], n);
    } else if (width == 2) {
        join_2(planes[0], planes[1], n, turned, out);
    } else if (width == 4) {
        join_4(planes[0], planes[1], planes[2], planes[3], n, turned, out);
    } else {
        for (size_t b = 0; b < width; b++)
            for (size_t i = 0; i < n; i++)
                out[i * width + b] = planes[b][i];
    }
}
