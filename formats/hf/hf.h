/* hf: a folder of a model as transformers has it: config.json and weights. */
#ifndef DCP_FORMATS_HF_HF_H
#define DCP_FORMATS_HF_HF_H

#include <dcp/format.h>

extern const struct dcp_format dcp_format_hf;

#endif
