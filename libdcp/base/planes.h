/* planes: numbers of one width, taken apart by the places of their bytes: plane 0 holds
 * byte 0 (the lowest) of every number, plane 1 byte 1, and so on. Signs and exponents
 * repeat, what is left of a number is nearly noise, and interleaved they hide each other.
 */
#ifndef DCP_CORE_FILES_PLANES_H
#define DCP_CORE_FILES_PLANES_H

#include <stdbool.h>
#include <stddef.h>

#define DCP_MAX_PLANES 16 /* the widest element, C128 */

/* Turned: numbers are first rotated left by one bit, which carries the sign to the lowest
 * bit. The exponent then begins with a byte, and that of BF16 and F32 fills it; behind a
 * sign its last bit stands among the mantissa's. Wider numbers gain nothing by it. */
static inline bool dcp_planes_can_turn(size_t width)
{
    return width == 2 || width == 4;
}

/* n numbers of width bytes (1 to DCP_MAX_PLANES) to width planes of n bytes, which lie
 * anywhere outside of in and of each other. */
void dcp_planes_split(const unsigned char *in, size_t n, size_t width, bool turned,
                      unsigned char *const *planes);
/* And back. */
void dcp_planes_join(const unsigned char *const *planes, size_t n, size_t width,
                     bool turned, unsigned char *out);

#endif
