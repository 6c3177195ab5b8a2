/* rename: rules for the names of tensors, as --rename takes them.
 *
 * A text of rules, one a line; blank lines and lines that begin with '#' mean nothing:
 *
 *   strip TEXT        a name that begins with TEXT loses it
 *   prefix TEXT       every name gets TEXT in front
 *   s/REGEX/TEXT/     the first match becomes TEXT; with s/…/…/g every match. REGEX is a
 *                     POSIX extended regular expression, \1 to \9 in TEXT are its groups,
 *                     any character may stand for '/'
 *   preset NAME       the names that another program uses: hf, llmc, gguf, meta,
 *                     deepspeed
 *
 * Every rule is applied to every name, in order. A weight and the optimizer's tensors of
 * it stay together: the parameter is renamed, and what is named after it follows. */
#ifndef DCP_RENAME_H
#define DCP_RENAME_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dcp_rename_rules; /* rules; thread rule: one thread at a time */

/* Reads rules. `what` names the text in messages. Caller owns. Errors: USAGE (names the
 * line), MEMORY. */
DCP_PUBLIC int dcp_rename_new(const char *text, const char *what,
                              struct dcp_rename_rules **out_rename,
                              struct dcp_error *err);
DCP_PUBLIC void dcp_rename_free(struct dcp_rename_rules *rename);
/* The new name; caller frees. Errors: MISMATCH (an empty name), MEMORY. */
DCP_PUBLIC int dcp_rename_apply(const struct dcp_rename_rules *rename, const char *name,
                                char **out_name, struct dcp_error *err);

/* How another program names the tensors of the models this library knows. */
struct dcp_name_preset {
    const char *name; /* "hf" */
    const char *help; /* one line for people */
    /* Writes the new name, false when the name is none it knows or is longer than cap. */
    bool (*rename)(const char *name, char *out, size_t cap);
};
/* NULL-terminated. Static. */
DCP_PUBLIC const struct dcp_name_preset *const *dcp_name_presets(void);

#ifdef __cplusplus
}
#endif
#endif
