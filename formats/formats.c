/* formats: the table of formats, and which of them a file or a name belongs to. */
#include "formats.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

static const struct dcp_format *const formats[] = {
    &dcp_format_native,
    &dcp_format_bundle,
    &dcp_format_safetensors,
    &dcp_format_safetensors_sharded,
    &dcp_format_torch,
    &dcp_format_hf,
    &dcp_format_hf_trainer,
    &dcp_format_fsdp_ranks,
    &dcp_format_npy,
    &dcp_format_npz,
    &dcp_format_dcp,
    &dcp_format_gguf,
    &dcp_format_llmc,
    &dcp_format_llmc_run,
    &dcp_format_meta_llama,
    &dcp_format_deepspeed,
    &dcp_format_universal,
    NULL,
};

const struct dcp_format *const *dcp_formats(void)
{
    return formats;
}

const struct dcp_format *dcp_format_find(const char *name)
{
    for (size_t i = 0; formats[i]; i++)
        if (!strcmp(formats[i]->name, name))
            return formats[i];
    return NULL;
}

/* Whether one of the blank-separated suffixes ends the name. */
static bool has_suffix(const char *name, const char *suffixes)
{
    size_t name_len = strlen(name);

    while (*suffixes) {
        size_t n = strcspn(suffixes, " ");
        if (n && n < name_len && !memcmp(name + name_len - n, suffixes, n))
            return true;
        suffixes += n + (suffixes[n] == ' ');
    }
    return false;
}

const struct dcp_format *dcp_format_for_suffix(const char *name)
{
    for (size_t i = 0; formats[i]; i++)
        if ((formats[i]->flags & DCP_FORMAT_WRITES) &&
            has_suffix(name, formats[i]->suffixes))
            return formats[i];
    return NULL;
}

int dcp_format_probe(const struct dcp_source *source,
                     const struct dcp_format **out_format, struct dcp_error *err)
{
    const struct dcp_format *best = NULL;
    int best_bid = 0;

    for (size_t i = 0; formats[i]; i++) {
        int bid = formats[i]->flags & DCP_FORMAT_READS ? formats[i]->probe(source) : 0;
        if (bid > best_bid) {
            best_bid = bid;
            best = formats[i];
        }
    }
    *out_format = best;
    return best ? DCP_OK : dcp_format_unknown(source, err);
}

int dcp_format_probe_links(struct dcp_store *store, const struct dcp_source *source,
                           const struct dcp_format **out_format, struct dcp_error *err)
{
    dcp_store_dir_follow(store, true);
    int rc = dcp_format_probe(source, out_format, err);
    if (!rc && *out_format == &dcp_format_native)
        dcp_store_dir_follow(store, false);
    return rc;
}

enum dcp_role dcp_role_of_name(const char *name, const char **out_param)
{
    static const char prefix[] = "optimizer.";

    *out_param = name;
    if (!dcp_str_starts(name, prefix))
        return DCP_ROLE_MODEL;
    name += sizeof prefix - 1;
    for (int role = 0; role < DCP_N_ROLES; role++) {
        const char *role_name = dcp_role_name((enum dcp_role)role);
        size_t n = strlen(role_name);
        if (dcp_role_is_optim((enum dcp_role)role) && !strncmp(name, role_name, n) &&
            name[n] == '.' && name[n + 1]) {
            *out_param = name + n + 1;
            return (enum dcp_role)role;
        }
    }
    return DCP_ROLE_MODEL;
}

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
