#include "whole.h"
#include "base/str.h"

int dcp_check_whole(const struct dcp_catalog *catalog, const char *what,
                    struct dcp_error *err)
{
    for (size_t i = 0; i < catalog->n_tensors; i++) {
        const struct dcp_tensor *tensor = &catalog->tensors[i];
        const struct dcp_piece *piece = &catalog->pieces[tensor->first_piece];
        char name[160];
        if (tensor->tied_to) /* a second name: its bytes lie elsewhere */
            continue;
        if (tensor->n_pieces == 1 && piece->region.kind == DCP_WHOLE &&
            piece->codec == DCP_CODEC_NONE)
            continue;
        dcp_str_escape(name, sizeof name, tensor->name);
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "%s cannot hold: tensor '%s' in parts or compressed", what,
                             name);
    }
    return DCP_OK;
}
