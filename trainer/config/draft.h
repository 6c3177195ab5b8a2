/* draft: the table of all keys, and the draft that reading them fills. */
#ifndef TRAINER_CONFIG_DRAFT_H
#define TRAINER_CONFIG_DRAFT_H

#include "settings.h"

enum settings_kind {
    KEY_SECTION, /* an object with `keys` */
    KEY_ANY,     /* whatever; never used */
    KEY_FLAG,    /* bool */
    KEY_SWITCH,  /* int: 1, 0, or -1 when not given */
    KEY_INT,     /* int */
    KEY_LONG,    /* int64_t */
    KEY_SEED,    /* uint64_t */
    KEY_REAL,    /* double */
    KEY_SIZE,    /* uint64_t bytes, from a number or "64M" */
    KEY_TEXT,    /* char *, owned by the settings */
    KEY_CHOICE,  /* int, index into `choices`; case does not matter */
    KEY_DTYPE,   /* int, enum dcp_dtype */
    KEY_PAIR,    /* two doubles from 0 to below 1; null is NaN where that is a default */
    KEY_TRIPLE,  /* three doubles */
    KEY_LAYERS   /* int, enum settings_layers, or n: every n-th layer; true is ALL */
};

enum settings_layers {
    LAYERS_NOT_GIVEN = -2,
    LAYERS_SELECTIVE = -1,
    LAYERS_NONE = 0,
    LAYERS_ALL = 1 /* every single one */
};

/* What becomes of a key's value. Off is the default, "none", "auto", null, or an object
 * that is empty or not enabled. */
enum settings_use {
    KEY_USED,
    KEY_NO_EFFECT, /* checked, and told once unless it is off */
    KEY_REJECTED   /* UNSUPPORTED unless it is off */
};

struct settings_key {
    const char *name;
    enum settings_kind kind;
    enum settings_use use;
    bool alias;                      /* a key further down says the same, and wins */
    unsigned only;                   /* bits of the schedules that take it; 0: all */
    unsigned only_optims;            /* likewise of settings_optimizer; a name may stand
                                      * in two rows, for some of them each */
    size_t at;                       /* KEY_USED: offset of the value in the draft */
    double fallback;                 /* default of a number, flag or choice */
    double min, max;                 /* range of a number; max 0: that of its kind */
    const char *text;                /* default of a text, NULL: none */
    const char *const *choices;      /* ends with NULL */
    const struct settings_key *keys; /* of a section; ends with a NULL name */
    bool no_auto; /* its default turns something off: "auto" is refused */
    const char
        *auto_by;    /* who chooses it elsewhere: "auto" is off here, with a warning */
    bool or_flag;    /* a section, or true or false: a bool at `at` */
    const char *why; /* not supported: one clause. With KEY_CHOICE: other values are */
    const char *hint;
};

enum settings_strategy { STRATEGY_NO_SHARD, STRATEGY_GRAD_OP, STRATEGY_FULL };
enum settings_offload { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_NVME };
enum settings_optimizer {
    OPTIMIZER_ADAM,
    OPTIMIZER_ADAMW,
    OPTIMIZER_SGD,
    OPTIMIZER_LION,
    OPTIMIZER_ADAGRAD,
    OPTIMIZER_LAMB,
    OPTIMIZER_MUON,
    OPTIMIZER_ADAFACTOR
};
enum { SETTINGS_MAX_AUTOS = 64, SETTINGS_PATH_CAP = 128 };

/* The settings, values that become settings only together with others, and what to tell
 * at the end. */
struct settings_draft {
    struct settings out;
    int family, optimizer, schedule, warmup_type, codec;
    int accumulation_dtype, param_dtype;               /* enum dcp_dtype; -1: not given */
    int scale_power, offload_param, offload_optimizer; /* enum settings_offload */
    bool cpu_offload, cpu_offload_param;               /* older names */
    /* Of fsdp_config; -1: not given. */
    int strategy, reshard_after_forward, fsdp_offload, fsdp_checkpoint;
    bool fp16, bf16, adam_w_mode, torch_adam;
    double betas[2];
    double muon_lr, ns_coefficients[3], eps_pair[2];
    bool muon_nesterov;
    int adjust_lr; /* index into its choices */
    int recompute; /* enum settings_layers, or every n-th */
    int number_checkpoints;
    bool checkpoint_all;   /* "activation_checkpointing": true, as FSDP has it */
    double host_cache_gib; /* of DataStates, which becomes staging */

    const char *what; /* name of the configuration, in messages; borrowed */
    const struct dcp_log *log;
    bool no_data; /* data.train may be missing */
    struct {
        const struct settings_key *key;
        char path[SETTINGS_PATH_CAP];
    } autos[SETTINGS_MAX_AUTOS]; /* keys that said "auto" */
    size_t n_autos;
};

/* The top level, and its sections "optimizer", "scheduler" and "fsdp_config". */
extern const struct settings_key settings_root[], settings_optimizer_keys[],
    settings_scheduler_keys[], settings_fsdp_keys[];

/* Keys of "fsdp_config" that begin with "fsdp_", as accelerate writes them, lose that, as
 * in transformers. */
int settings_plain_fsdp(json_t *root, struct dcp_error *err);

/* Why a key without effect cannot matter here; NULL when nothing is known of it. */
const char *settings_reason(const char *name);
/* The reasons one by one; NULL behind the last. */
const char *settings_reason_at(size_t i);

/* Sets every used key to its default. Errors: MEMORY. */
int settings_set_defaults(struct settings_draft *draft, const struct settings_key *keys,
                          struct dcp_error *err);
/* Whether a key is one of another schedule or optimizer. */
bool settings_is_others(const struct settings_draft *draft,
                        const struct settings_key *key);
/* Reads an object by its keys; `path` is its own, "" at the top. Errors: USAGE,
 * UNSUPPORTED, MEMORY. */
int settings_walk(struct settings_draft *draft, const struct settings_key *keys,
                  const json_t *object, const char *path, struct dcp_error *err);
/* An override must name a key of the top level. Errors: USAGE. */
int settings_check_override(const struct settings_draft *draft, const char *text,
                            struct dcp_error *err);
/* True when the key at `path` said "auto". */
bool settings_was_auto(const struct settings_draft *draft, const char *path);

/* Parses the text, in which comments (//, #, slash-star) and commas before a closing
 * bracket are allowed as in DeepSpeed's files, and applies overrides. *out is freed with
 * json_decref. Errors: USAGE (no JSON: line and column), MEMORY. */
int settings_load(const char *text, size_t size_bytes, const char *what,
                  const char *const *overrides, json_t **out, struct dcp_error *err);
/* Turns the draft into settings: "auto", defaults that depend on others, checks.
 * `folder` is where relative paths begin. Errors: USAGE, UNSUPPORTED, MISMATCH, MEMORY.
 */
int settings_resolve(struct settings_draft *draft, const char *folder, int world_size,
                     struct dcp_error *err);
/* The part of it that is the schedule's, after the optimizer's. */
int settings_resolve_scheduler(struct settings_draft *draft, struct dcp_error *err);
/* That of fsdp_config, before what depends on the stage, which it sets. */
int settings_resolve_fsdp(struct settings_draft *draft, struct dcp_error *err);
/* The used keys as JSON text; caller frees. NULL: out of memory. */
char *settings_text(const struct settings_draft *draft);
/* Whether a key says something: a text or number that is not given does not, nor do
 * parameters of another schedule or optimizer. */
bool settings_has_value(const struct settings_draft *draft,
                        const struct settings_key *key);
/* A used key's value as JSON text, cut to cap. */
void settings_show(const struct settings_draft *draft, const struct settings_key *key,
                   char *out, size_t cap);

#endif
