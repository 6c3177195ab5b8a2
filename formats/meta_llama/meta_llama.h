/* meta_llama: Llama as Meta publishes it: consolidated.NN.pth of all ranks beside
 * params.json. */
#ifndef DCP_FORMATS_META_LLAMA_META_LLAMA_H
#define DCP_FORMATS_META_LLAMA_META_LLAMA_H

#include <dcp/format.h>

extern const struct dcp_format dcp_format_meta_llama;

#endif
