/* format_pieces: pieces that are parts of their tensors, or have strides, element by
 * element. Used by format_io. */
#ifndef TESTS_LIB_FORMAT_PIECES_H
#define TESTS_LIB_FORMAT_PIECES_H

#include <dcp/tensor.h>
#include <stdbool.h>

/* Whether a tensor is more than one plain piece in the order of its elements. */
bool format_has_parts(const struct dcp_catalog *catalog, const struct dcp_tensor *tensor);
/* Between the elements of a piece's extent and those of its whole, dense tensor. */
void format_move_elements(const struct dcp_tensor *tensor, const struct dcp_piece *piece,
                          unsigned char *extent, unsigned char *dense, bool to_extent);

#endif
