/* npy: arrays of Python objects, which are a pickle behind the header of NumPy. */
#include "formats/numpy/npy.h"
#include "base/bytes.h"
#include "scan.h"
#include <string.h>

enum { LONG_LENGTH_BYTES = 12 };

uint64_t dcp_scan_npy_head(const unsigned char *data, size_t n)
{
    struct dcp_cursor in = dcp_cursor_init(data, n);
    const void *magic = dcp_cursor_take(&in, DCP_NPY_MAGIC_BYTES);
    unsigned major = dcp_cursor_u8(&in);

    dcp_cursor_u8(&in);
    if (in.bad || memcmp(magic, DCP_NPY_MAGIC, DCP_NPY_MAGIC_BYTES) != 0)
        return 0;
    uint64_t text = major == 1 ? dcp_cursor_le16(&in) : dcp_cursor_le32(&in);
    return in.bad ? 0 : in.at + text;
}

/* NumPy spells objects "O", "object" and "object_", and "T" texts that it pickles; in a
 * structure such a type may stand anywhere. The literal may also be written in escapes.
 */
bool dcp_scan_npy_objects(const unsigned char *head, size_t n)
{
    const char *text = (const char *)head + LONG_LENGTH_BYTES - 2;
    size_t left = n < LONG_LENGTH_BYTES ? 0 : n - (LONG_LENGTH_BYTES - 2);

    for (; left; text++, left--)
        if (*text == 'O' || *text == '\\' ||
            (*text == 'T' && (left < 4 || memcmp(text, "True", 4) != 0)) ||
            (*text == 'o' && left >= 3 && !memcmp(text, "obj", 3)))
            return true;
    return false;
}
