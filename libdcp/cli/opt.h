/* opt: what a user may type. One table for each command parses the arguments, and makes
 * the usage line, --help, the man page and the shell completion. */
#ifndef DCP_CLI_OPT_H
#define DCP_CLI_OPT_H

#include "base/buf.h"
#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_main;

/* What an option is given, and the type of the field it is put into. */
enum dcp_opt_kind {
    DCP_OPT_FLAG,   /* bool: nothing; true when it is there */
    DCP_OPT_COUNT,  /* int: nothing; how often it is there */
    DCP_OPT_TEXT,   /* const char *: any text, borrowed from argv */
    DCP_OPT_LIST,   /* struct dcp_opt_list: any text; may be there again */
    DCP_OPT_INT,    /* int64_t: a whole number, min .. max */
    DCP_OPT_REAL,   /* double: a number */
    DCP_OPT_SIZE,   /* uint64_t: bytes, as "256M" */
    DCP_OPT_CHOICE, /* int: one of the words of `arg` ("size|name"), as its index */
};

/* What completion offers for a value that is no choice. */
enum dcp_opt_values {
    DCP_VALUES_FILES,
    DCP_VALUES_FORMATS, /* that can be written */
    DCP_VALUES_LAYOUTS,
    DCP_VALUES_DTYPES,  /* to cast to */
    DCP_VALUES_PRESETS, /* of names; or a file */
    DCP_VALUES_TENSORS  /* names in the checkpoint that is named before */
};

struct dcp_opt {
    char letter;       /* 't' for -t; 0: none */
    const char *name;  /* "tensors" for --tensors */
    const char *arg;   /* what help calls the value, "GLOB"; NULL for FLAG and COUNT */
    const char *help;  /* what it does: one or two clauses, without a full stop */
    const char *group; /* the heading it is the first under; NULL: as the one before */
    enum dcp_opt_kind kind;
    bool hidden;                /* left out of help, man page and completion */
    size_t at;                  /* offset of the field in the settings */
    int64_t min, max;           /* of INT; min also of SIZE */
    enum dcp_opt_values values; /* of TEXT and LIST */
};

/* The values of a LIST; items is NULL or ends with NULL. Freed by dcp_opt_free. */
struct dcp_opt_list {
    const char **items;
    size_t n, cap;
};

struct dcp_example {
    const char *command, *what; /* ends with a NULL command */
};

/* A row of "Exit status". */
struct dcp_exit {
    int status;
    const char *text; /* NULL ends the table */
};

/* One thing a program does: a verb, or the program itself. */
struct dcp_command {
    const char *name;     /* the verb; NULL: what the program does without one */
    const char *operands; /* "SRC DST", "PATH [NAME[SLICE]]..."; "" for none */
    int min_operands, max_operands; /* max -1: any number */
    const char *purpose;            /* one line without a full stop */
    const char *about;              /* paragraphs, with '\n' between them; may be NULL */
    const struct dcp_opt *opts;     /* ends with a NULL name; may be NULL */
    size_t settings_size_bytes;     /* of the struct the options fill, at least 1 */
    const void *defaults;           /* such a struct; NULL: zeros */
    const struct dcp_example *examples; /* may be NULL */
    const struct dcp_exit *exits;
    bool checks_no_signature; /* it lists or keeps house: --trusted-keys is refused */
    bool stops; /* asks dcp_main_stopped and cleans up; else a signal ends it at once */
    /* Does it. DCP_E_DIFFERS without a message is an answer, not a failure. */
    int (*run)(struct dcp_main *m, const void *settings, struct dcp_error *err);
};

/* What a common option is in one program. */
struct dcp_common {
    const char *name; /* of the option; NULL ends the table */
    const char *help; /* its help here; NULL: it has no effect, and help is silent */
};

struct dcp_program {
    const char *name; /* "dcp-inspect" */
    const char *purpose;
    const char *about; /* as in a command; may be NULL */
    const struct dcp_command *const
        *commands;                      /* ends with NULL; the first is the default */
    const struct dcp_example *examples; /* of a program whose commands are all verbs */
    const struct dcp_exit *exits;       /* likewise */
    const struct dcp_common *common;    /* options that mean less here; may be NULL */
    const char *section;                /* heading of one more section of the man page */
    int (*text)(struct dcp_buf *out, struct dcp_error *err); /* its text, in lines */
};

/* Options and the struct that they fill. */
struct dcp_opt_table {
    const struct dcp_opt *opts;
    void *settings;
};

/* Reads argv[0 .. argc): options, in any order, to their fields in one of the tables, and
 * all other words to out_operands; "--" ends the options. Errors: USAGE, with the nearest
 * name where one is near; MEMORY. */
int dcp_opt_parse(const struct dcp_opt_table *tables, size_t n_tables, int argc,
                  char *const *argv, struct dcp_opt_list *out_operands,
                  struct dcp_error *err);
/* Frees the lists in settings. */
void dcp_opt_free(const struct dcp_opt *opts, void *settings);
int dcp_opt_list_add(struct dcp_opt_list *list, const char *item, struct dcp_error *err);

/* The index of `text` among the words of "a|b|c", or -1. */
int dcp_opt_choice(const char *words, const char *text);

/* How help is coloured: escape sequences or "". */
struct dcp_help_style {
    const char *heading, *code, *off;
};
/* The text of --help: of one command, or with NULL of the program. Never wider than 79
 * columns. `common` are the options that all commands have. */
void dcp_help(struct dcp_buf *out, const struct dcp_program *program,
              const struct dcp_command *command, const struct dcp_opt *common,
              const struct dcp_help_style *style);
/* "dcp-inspect ls [OPTION]... PATH" */
void dcp_help_usage(struct dcp_buf *out, const struct dcp_program *program,
                    const struct dcp_command *command);
/* "dcp-inspect ls", or "dcp-reshard" for a command without a name. */
void dcp_help_name(struct dcp_buf *out, const struct dcp_program *program,
                   const struct dcp_command *command);

/* The program's man page, as roff. Errors: those of the program's text. */
int dcp_man(struct dcp_buf *out, const struct dcp_program *program,
            const struct dcp_opt *common, const char *version, struct dcp_error *err);

#endif
