/* complete: completion scripts for shells, from the option tables. What a script offers
 * is fixed when it is made, but the names of tensors: for those it asks the program
 * (--help-tensors PATH). Names come from files: no script ever evaluates one. */
#ifndef DCP_CLI_COMPLETE_H
#define DCP_CLI_COMPLETE_H

#include "program.h"

struct dcp_complete_shell {
    const char *name;
    void (*script)(struct dcp_buf *out, const struct dcp_program *program,
                   const struct dcp_opt *common);
};
/* Ends with a NULL name. Static. */
extern const struct dcp_complete_shell dcp_complete_shells[];

/* The names of the tensors of a checkpoint, one a line; those a shell cannot hold are
 * left out. Errors: those of dcp_source_open and dcp_location_index. */
int dcp_complete_tensors(struct dcp_main *m, const char *path, struct dcp_buf *out,
                         struct dcp_error *err);

/* For the scripts. The words that may be the value of an option, with blanks between; ""
 * when it may be any file, or a tensor. */
void dcp_complete_words(struct dcp_buf *out, const struct dcp_opt *opt);
/* " --world -w" of every option that is shown, and " show ls" of every verb. */
void dcp_complete_options(struct dcp_buf *out, const struct dcp_opt *opts);
void dcp_complete_verbs(struct dcp_buf *out, const struct dcp_command *const *commands);
/* "dcp-inspect" as part of a function's name. */
void dcp_complete_identifier(struct dcp_buf *out, const char *name);
/* Whether operands behind the first are names of tensors. */
bool dcp_complete_names(const struct dcp_command *command);
void dcp_complete_bash(struct dcp_buf *out, const struct dcp_program *program,
                       const struct dcp_opt *common);
void dcp_complete_zsh(struct dcp_buf *out, const struct dcp_program *program,
                      const struct dcp_opt *common);
void dcp_complete_fish(struct dcp_buf *out, const struct dcp_program *program,
                       const struct dcp_opt *common);

#endif
