/* formats: what the files of this folder share. One file per format; each is a table of
 * functions (see <dcp/format.h>) that reads headers and writes headers, nothing else. */
#ifndef DCP_FORMATS_H
#define DCP_FORMATS_H

#include <dcp/format.h>

/* A folder's index or configuration is never longer than this. */
#define DCP_FORMAT_JSON_MAX_BYTES (64u << 20)

extern const struct dcp_format dcp_format_native;
extern const struct dcp_format dcp_format_bundle;
extern const struct dcp_format dcp_format_safetensors;
extern const struct dcp_format dcp_format_safetensors_sharded;
extern const struct dcp_format dcp_format_torch;
extern const struct dcp_format dcp_format_npy;
extern const struct dcp_format dcp_format_npz;
extern const struct dcp_format dcp_format_hf;
extern const struct dcp_format dcp_format_hf_trainer;
extern const struct dcp_format dcp_format_fsdp_ranks;
extern const struct dcp_format dcp_format_dcp;
extern const struct dcp_format dcp_format_gguf;
extern const struct dcp_format dcp_format_llmc;
extern const struct dcp_format dcp_format_llmc_run;
extern const struct dcp_format dcp_format_meta_llama;
extern const struct dcp_format dcp_format_deepspeed;
extern const struct dcp_format dcp_format_universal;

/* One sentence about a file that no format reads: "is a NumPy array file, …", or NULL
 * when its first bytes tell nothing. Static. */
const char *dcp_foreign_kind(const struct dcp_source *source);
/* Why no format knows a source; never DCP_OK. Errors: those of dcp_format_probe. */
int dcp_format_unknown(const struct dcp_source *source, struct dcp_error *err);

/* What a tensor is, from its name: "optimizer.<role>.<param>" (dcp_tensor_default_name)
 * gives that role and parameter, everything else is a weight. *out_param points into
 * name. */
enum dcp_role dcp_role_of_name(const char *name, const char **out_param);

/* For formats that hold whole tensors: every tensor has one piece, DCP_WHOLE and without
 * a codec. `what` names the target in the message. The catalog is sorted. Errors:
 * MISMATCH. */
int dcp_check_whole(const struct dcp_catalog *catalog, const char *what,
                    struct dcp_error *err);

#endif
