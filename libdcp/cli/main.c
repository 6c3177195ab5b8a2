#include "main.h"

#include "base/mem.h"
#include "base/str.h"
#include "complete.h"
#include "doc.h"
#include "report.h"
#include "signals.h"
#include <dcp/dcp.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define VERBS_MAX 32

/* What all commands take. */
struct common {
    bool help, version, man, json, quiet;
    const char *complete, *tensors;
    int verbose, color, progress;
    int64_t threads;
    uint64_t limit_header;
    const char *trusted_keys;
};

#define AT(field) .at = offsetof(struct common, field)
static const struct dcp_opt common_opts[] = {
    { 'h', "help", NULL, "show this help", "Common", DCP_OPT_FLAG, AT(help) },
    { 'V', "version", NULL, "show the versions of this program and its libraries", NULL,
      DCP_OPT_FLAG, AT(version) },
    { 0, "json", NULL, "print the result, or the error, as JSON", NULL, DCP_OPT_FLAG,
      AT(json) },
    { 'q', "quiet", NULL, "no progress, no warnings", NULL, DCP_OPT_FLAG, AT(quiet) },
    { 'v', "verbose", NULL, "say what is done; twice, say more", NULL, DCP_OPT_COUNT,
      AT(verbose) },
    { 'j', "threads", "N", "worker threads (default 2)", NULL, DCP_OPT_INT, AT(threads),
      .min = 1, .max = 1024 },
    { 0, "limit-header", "SIZE",
      "read headers and manifests up to this size into memory (default: what real files "
      "need)",
      NULL, DCP_OPT_SIZE, AT(limit_header), .min = 4096 },
    { 0, "trusted-keys", "FILE",
      "accept only native steps signed by one of these public keys; all of a step is "
      "hashed before it is used",
      NULL, DCP_OPT_TEXT, AT(trusted_keys) },
    { 0, "color", "auto|always|never", "colours (auto: on a terminal, without NO_COLOR)",
      NULL, DCP_OPT_CHOICE, AT(color) },
    { 0, "progress", "auto|always|never",
      "progress bar (auto: on a terminal; else a line every 10 s)", NULL, DCP_OPT_CHOICE,
      AT(progress) },
    { 0, "help-man", NULL, "print the manual page as roff", NULL, DCP_OPT_FLAG,
      .hidden = true, AT(man) },
    { 0, "help-complete", "SHELL", "print a completion script for bash, zsh or fish",
      NULL, DCP_OPT_TEXT, .hidden = true, AT(complete) },
    { 0, "help-tensors", "PATH",
      "print the names of a checkpoint's tensors, for completion", NULL, DCP_OPT_TEXT,
      .hidden = true, AT(tensors) },
    { 0 }
};

/* The common options as the program has them. */
static void adapt(struct dcp_opt *opts, const struct dcp_common *common)
{
    for (; opts->name; opts++)
        for (const struct dcp_common *c = common; c && c->name; c++)
            if (strcmp(c->name, opts->name) == 0) {
                opts->hidden = !c->help;
                opts->help = c->help ? c->help : opts->help;
            }
}

/* A verb that checks no signature has no option for it. */
static void adapt_to_verb(struct dcp_opt *opts, const struct dcp_command *verb)
{
    static const struct dcp_common without[] = { { .name = "trusted-keys" }, { 0 } };
    if (verb && verb->checks_no_signature)
        adapt(opts, without);
}

/* A file that the program opens must not become its standard output. */
static void fill_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0)
            _exit(dcp_error_exit(DCP_E_IO));
}

static const struct dcp_command *find_verb(const struct dcp_program *program,
                                           const char *word)
{
    for (const struct dcp_command *const *c = program->commands; *c; c++)
        if ((*c)->name && strcmp((*c)->name, word) == 0)
            return *c;
    return NULL;
}

/* Index in argv of the first word that is no common option nor its value; argc when there
 * is none. */
static int first_word(const struct dcp_opt *common, int argc, char *const *argv)
{
    int i = 1;
    for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
        if (strcmp(argv[i], "--") == 0)
            return argc;
        for (const struct dcp_opt *o = common; o->name; o++) {
            bool is_long = argv[i][1] == '-' && strcmp(argv[i] + 2, o->name) == 0;
            bool is_short = o->letter && argv[i][1] == o->letter && !argv[i][2];
            if (o->arg && (is_long || is_short))
                i++;
        }
    }
    return i < argc ? i : argc;
}

/* The verb that a word was meant to be, or NULL. */
static const char *near_verb(const struct dcp_program *program, const char *word)
{
    const char *verbs[VERBS_MAX + 1];
    size_t n = 0;
    for (const struct dcp_command *const *c = program->commands; *c; c++)
        if ((*c)->name && n < VERBS_MAX)
            verbs[n++] = (*c)->name;
    verbs[n] = NULL;
    return dcp_str_nearest(word, verbs);
}

/* The i-th word of "SRC DST", for a message. */
static void operand_name(const char *operands, int i, char *out, size_t cap)
{
    for (; i > 0 && *operands; i--) {
        operands += strcspn(operands, " ");
        operands += strspn(operands, " ");
    }
    snprintf(out, cap, "%.*s", (int)strcspn(operands, " "), operands);
}

static int check_operands(const struct dcp_main *m, bool has_verb, struct dcp_error *err)
{
    const struct dcp_command *command = m->command;
    int n = (int)m->operands.n;
    char text[64];
    if (n < command->min_operands) {
        operand_name(command->operands, n, text, sizeof text);
        return dcp_error_set(err, DCP_E_USAGE, "%s is missing", text);
    }
    if (command->max_operands < 0 || n <= command->max_operands)
        return DCP_OK;
    const char *first = m->operands.items[0];
    if (!has_verb && m->program->commands[1] && access(first, F_OK) != 0) {
        dcp_error_set(err, DCP_E_USAGE, "unknown verb '%s'", first);
        const char *near = near_verb(m->program, first);
        if (near)
            dcp_error_hint(err, "did you mean '%s %s'?", m->program->name, near);
        return DCP_E_USAGE;
    }
    return dcp_error_set(err, DCP_E_USAGE, "unexpected argument '%s'",
                         m->operands.items[command->max_operands]);
}

static int read_keys(struct dcp_main *m, const char *path, struct dcp_error *err)
{
    if (!path)
        return DCP_OK;
    if (!m->command->checks_no_signature)
        return dcp_keys_read(path, &m->trusted, err);
    dcp_error_set(err, DCP_E_USAGE,
                  "'%s %s' does not check signatures: --trusted-keys does not apply",
                  m->program->name, m->command->name);
    dcp_error_hint(err, "'dcp-reshard verify STEP --key FILE' checks that of a step");
    return DCP_E_USAGE;
}

static void add_usage_hint(const struct dcp_main *m, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf usage = { 0 }, name = { 0 };
    const struct dcp_command *command = m->command;
    if (err->code != DCP_E_USAGE || err->hint[0] || !command)
        return;
    dcp_help_usage(&usage, m->program, command);
    dcp_help_name(&name, m->program, command);
    if (!usage.failed && !name.failed)
        dcp_error_hint(err, "%s; '%s --help' explains", (const char *)usage.data,
                       (const char *)name.data);
}

/* --help, --version and their hidden sisters. */
static int print_help(struct dcp_main *m, const struct common *common, bool has_verb,
                      struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    int rc = DCP_OK;
    const struct dcp_help_style style = {
        .heading = dcp_term_style(&m->out, DCP_STYLE_BOLD),
        .code = dcp_term_style(&m->out, DCP_STYLE_NAME),
        .off = dcp_term_style(&m->out, DCP_STYLE_OFF),
    };
    const struct dcp_complete_shell *shell = dcp_complete_shells;
    while (common->complete && shell->name && strcmp(common->complete, shell->name) != 0)
        shell++;
    if (!shell->name)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "there is no completion for the shell '%s', only for bash, "
                             "zsh and fish",
                             common->complete);
    if (common->help)
        dcp_help(&text, m->program, has_verb ? m->command : NULL, m->common, &style);
    else if (common->version)
        dcp_buf_add_fmt(&text, "%s %s\n%s\n", m->program->name, dcp_version(),
                        dcp_version_libraries());
    else if (common->man)
        rc = dcp_man(&text, m->program, m->common, dcp_version(), err);
    else if (common->tensors)
        rc = dcp_complete_tensors(m, common->tensors, &text, err);
    else
        shell->script(&text, m->program, m->common);
    rc = rc ? rc : dcp_buf_check(&text, err);
    if (rc == DCP_OK)
        dcp_term_put(&m->out, (const char *)text.data);
    return rc;
}

static void apply_common(struct dcp_main *m, const struct common *common)
{
    m->verbose = common->quiet ? -1 : common->verbose;
    m->threads = (int)common->threads;
    m->max_header_bytes = common->limit_header;
    m->progress = common->quiet ? DCP_WHEN_NEVER : (enum dcp_when)common->progress;
    m->log.level = m->verbose < 0    ? DCP_LOG_ERROR
                   : m->verbose == 0 ? DCP_LOG_WARN
                   : m->verbose == 1 ? DCP_LOG_INFO
                                     : DCP_LOG_DEBUG;
    dcp_term_init(&m->out, stdout, (enum dcp_when)common->color);
    dcp_term_init(&m->note, stderr, (enum dcp_when)common->color);
}

/* Whoever asks for help gets it, whatever else is wrong. */
static bool asks_for_help(int argc, char *const *argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

/* Fills the settings from the words and runs the command. */
static int run(struct dcp_main *m, int argc, char *const *argv, void *settings,
               bool has_verb, struct dcp_error *err)
{
    struct common common = { 0 };
    const struct dcp_opt_table tables[] = { { m->command->opts, settings },
                                            { m->common, &common } };
    int rc = dcp_opt_parse(tables, DCP_ARRAY_LEN(tables), argc, argv, &m->operands, err);
    apply_common(m, &common);
    m->json = common.json || (rc && m->json);
    common.help = common.help || (rc && asks_for_help(argc, argv));
    if (common.help ||
        (!rc && (common.version || common.man || common.complete || common.tensors))) {
        *err = (struct dcp_error){ .rank = -1 };
        return print_help(m, &common, has_verb, err);
    }
    if (rc == DCP_OK)
        rc = check_operands(m, has_verb, err);
    if (rc == DCP_OK)
        rc = read_keys(m, common.trusted_keys, err);
    if (rc)
        return rc;
    dcp_signals_watch(m->command->stops);
    rc = m->command->run(m, settings, err);
    const char *near = rc == DCP_E_NOT_FOUND && !has_verb && m->operands.n &&
                               access(m->operands.items[0], F_OK) != 0
                           ? near_verb(m->program, m->operands.items[0])
                           : NULL;
    if (near) {
        err->hint[0] = '\0';
        dcp_error_hint(err, "or was the verb '%s' meant?", near);
    }
    return rc;
}

/* Takes the verb out of the words, so that what is left is its own. */
static int start(struct dcp_main *m, int argc, char **argv, struct dcp_error *err)
{
    const struct dcp_program *program = m->program;
    int at = first_word(m->common, argc, argv);
    const struct dcp_command *verb = at < argc ? find_verb(program, argv[at]) : NULL;
    m->command = verb ? verb : program->commands[0];
    adapt_to_verb(m->common, verb);
    DCP_CLEANUP_FREE char **words = dcp_mem_calloc((size_t)argc + 1, sizeof *words);
    DCP_CLEANUP_FREE void *settings = dcp_mem_calloc(1, m->command->settings_size_bytes);
    if (!words || !settings)
        return dcp_error_memory(err, "the arguments");
    int n = 0;
    for (int i = 1; i < argc; i++)
        if (!verb || i != at)
            words[n++] = argv[i];
    if (m->command->defaults)
        memcpy(settings, m->command->defaults, m->command->settings_size_bytes);
    int rc = run(m, n, words, settings, verb != NULL, err);
    dcp_opt_free(m->command->opts, settings);
    return rc;
}

/* Whether the reader of a pipe has gone, which is no failure of ours. */
static bool reader_is_gone(int fd)
{
    struct pollfd wait = { .fd = fd };
    return poll(&wait, 1, 0) == 1 && (wait.revents & (POLLERR | POLLHUP)) != 0;
}

/* The answer counts only when it arrived. */
static int flush_answer(int rc, struct dcp_error *err)
{
    bool failed = ferror(stdout) != 0;
    int why = 0;
    if (fflush(stdout) != 0) {
        why = errno;
        failed = true;
    }
    if (!failed || (rc && rc != DCP_E_DIFFERS) || why == EPIPE ||
        reader_is_gone(STDOUT_FILENO))
        return rc;
    if (why)
        return dcp_error_sys(err, DCP_E_IO, why, "cannot write to standard output");
    return dcp_error_set(err, DCP_E_IO, "cannot write all to standard output");
}

/* A target may have thousands of files, which are all open until they are sealed: as many
 * are allowed as the system's administrator allows. */
static void allow_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int dcp_main(const struct dcp_program *program, int argc, char **argv)
{
    struct dcp_error err = { .rank = -1 };
    struct dcp_opt common[DCP_ARRAY_LEN(common_opts)];
    struct dcp_main m = { .program = program,
                          .lock = PTHREAD_MUTEX_INITIALIZER,
                          .common = common };
    memcpy(common, common_opts, sizeof common);
    adapt(common, program->common);
    fill_streams();
    allow_files();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* the write fails, which is told */
    m.log =
        (struct dcp_log){ .write = dcp_report_log, .self = &m, .level = DCP_LOG_WARN };
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        m.json =
            m.json || strcmp(argv[i], "--json") == 0; /* failures before it is read */
    dcp_term_init(&m.out, stdout, DCP_WHEN_AUTO);
    dcp_term_init(&m.note, stderr, DCP_WHEN_AUTO);
    int rc = start(&m, argc, argv, &err);
    dcp_main_progress_end(&m);
    rc = flush_answer(rc, &err);
    add_usage_hint(&m, &err);
    if (rc && !m.mute)
        dcp_report_error(&m, rc, &err);
    dcp_keys_free(m.trusted);
    free(m.operands.items);
    pthread_mutex_destroy(&m.lock);
    return dcp_error_exit(rc);
}
