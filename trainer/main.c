/* dcp-train: trains a GPT-2, sharded over ranks, and takes up what was saved. */
#include "cli/main.h"
#include "base/mem.h"
#include "trainer/config/help.h"
#include "trainer/launch/join.h"
#include "trainer/run/certify.h"
#include "trainer/run/estimate.h"
#include "trainer/run/eval.h"
#include "trainer/run/generate.h"
#include "trainer/run/plan.h"
#include "trainer/run/run.h"
#include "trainer/run/train.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define AT(field) .at = offsetof(struct run_options, field)
static const struct dcp_opt opts[] = {
    { 'c', "config", "FILE",
      "a DeepSpeed JSON file with \"model\", \"data\", "
      "\"checkpoint\"",
      "What to train", DCP_OPT_TEXT, AT(config) },
    { 's', "set", "KEY=VALUE", "override a key, as in zero_optimization.stage=2", NULL,
      DCP_OPT_LIST, AT(set) },
    { 0, "steps", "N", "train up to step N, save there, and exit", NULL, DCP_OPT_INT,
      .min = 1, .max = INT64_MAX, AT(steps) },
    { 'r', "resume", "auto|never|STEP",
      "the newest complete step that did not diverge, if there is one (auto), none, a "
      "number, or a path",
      NULL, DCP_OPT_TEXT, AT(resume) },
    { 'n', "dry-run", NULL, "print what would be done, and do nothing", NULL,
      DCP_OPT_FLAG, AT(dry_run) },
    { 0, "ranks", "N", "start N ranks on this machine (not under mpirun or srun)",
      "On what", DCP_OPT_INT, .min = 1, .max = 4096, AT(ranks) },
    { 0, "job-secret", "FILE",
      "by what ranks that torchrun or srun started know each other: the same on all, and "
      "nobody else's; else DCP_JOB_SECRET, or the file DCP_JOB_SECRET_FILE",
      NULL, DCP_OPT_TEXT, AT(job_secret) },
    { 0, "sharding", "no_shard|shard_grad_op|full_shard|hybrid_shard",
      "ZeRO stage 0, 2, 3, or 3 on each machine, by the names of FSDP", NULL,
      DCP_OPT_CHOICE, AT(sharding) },
    { 0, "device", "auto|cpu|cuda",
      "where to compute; auto: a GPU when every rank sees one; ranks share those of "
      "their machine",
      NULL, DCP_OPT_CHOICE, AT(device) },
    { 0, "estimate", NULL,
      "print the memory of a rank at each ZeRO stage and at several numbers of ranks; "
      "needs no data and makes nothing",
      "Instead of training", DCP_OPT_FLAG, AT(estimate) },
    { 0, "worlds", "N,...",
      "the numbers of ranks for --estimate (default 1,8,64,512,1024; --ranks N is added)",
      NULL, DCP_OPT_TEXT, AT(worlds) },
    { 0, "eval", NULL, "evaluate the checkpoint on data.val", NULL, DCP_OPT_FLAG,
      AT(eval) },
    { 0, "certify", "STEP",
      "train again from a saved step on, and compare every loss and every saved step "
      "after it, bit for bit; writes nothing",
      NULL, DCP_OPT_INT, .min = 0, .max = INT64_MAX, AT(certify) },
    { 0, "help-config", NULL, "list the keys of a configuration, and what they mean",
      NULL, DCP_OPT_FLAG, AT(help_config) },
    { 0, "generate", "TEXT", "go on with a text by what was saved", NULL, DCP_OPT_TEXT,
      AT(generate) },
    { 0, "max-tokens", "N", "tokens to generate (default 200)", NULL, DCP_OPT_INT,
      .min = 1, .max = 1000000, AT(max_tokens) },
    { 0, "temperature", "X", "sampling temperature; 0: greedy (default 0.8)", NULL,
      DCP_OPT_REAL, AT(temperature) },
    { 0, "top-k", "N", "sample from the N likeliest tokens", NULL, DCP_OPT_INT, .min = 0,
      .max = INT32_MAX, AT(top_k) },
    { 0, "top-p", "X", "sample from the likeliest tokens whose probabilities sum to X",
      NULL, DCP_OPT_REAL, AT(top_p) },
    { 0, "seed", "N", "sampling seed (default 0)", NULL, DCP_OPT_INT, .min = 0,
      .max = INT64_MAX, AT(seed) },
    { 0 }
};

static const struct run_options defaults = { .steps = -1,
                                             .certify = -1,
                                             .sharding = -1,
                                             .max_tokens = 200,
                                             .temperature = 0.8,
                                             .top_p = 1 };

static int print_keys(const struct dcp_main *m, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    DCP_TRY(settings_help(&text, err));
    dcp_term_put(&m->out, (const char *)text.data);
    return DCP_OK;
}

static int check(const struct run_options *o, struct dcp_error *err)
{
    if (!o->config)
        return dcp_error_set(err, DCP_E_USAGE, "--config is missing");
    if (o->estimate && (o->eval || o->dry_run || o->generate))
        return dcp_error_set(err, DCP_E_USAGE, "--estimate goes alone");
    if (o->worlds && !o->estimate)
        return dcp_error_set(err, DCP_E_USAGE, "--worlds is for --estimate");
    if (o->estimate) /* of any device, here or not */
        return DCP_OK;
    DCP_TRY(compute_check((enum compute_device)o->device, err));
    if ((o->eval || o->dry_run) && o->generate)
        return dcp_error_set(err, DCP_E_USAGE, "--generate goes alone");
    if (o->temperature < 0 || o->top_p <= 0 || o->top_p > 1)
        return dcp_error_set(err, DCP_E_USAGE,
                             "--temperature must be 0 or more, --top-p above 0 and at "
                             "most 1");
    if (o->certify >= 0 && (o->eval || o->dry_run || o->generate || o->resume))
        return dcp_error_set(err, DCP_E_USAGE,
                             "--certify goes alone: it names the step to begin with");
    if (o->generate && o->ranks > 1)
        return dcp_error_set(err, DCP_E_USAGE, "--generate runs in a single process");
    return DCP_OK;
}

/* What a rank does. */
static int work(struct dcp_main *m, struct join *join, const struct run_options *given,
                struct dcp_error *err)
{
    struct run_options options = *given, *o = &options;
    char step[24];
    snprintf(step, sizeof step, "%lld", (long long)o->certify);
    if (o->certify >= 0)
        o->resume = step;
    enum run_purpose purpose = o->dry_run    ? RUN_PLAN
                               : o->generate ? RUN_GENERATE
                               : o->eval     ? RUN_EVAL
                                             : RUN_TRAIN;
    struct run run;
    DCP_TRY(run_open(m, join, o, purpose, &run, err));
    int rc = purpose == RUN_PLAN       ? plan_print(&run, err)
             : purpose == RUN_GENERATE ? generate_run(&run, err)
             : purpose == RUN_EVAL     ? eval_run(&run, err)
             : o->certify >= 0         ? certify_run(&run, err)
                                       : train_run(&run, err);
    run_close(&run, rc);
    return rc;
}

/* Who tells a failure: the launcher, which hears all; else rank 0, or the lowest rank
 * that is left; and a rank that failed alone. */
static bool is_teller(const struct join *join, bool launched, int rc,
                      const struct dcp_error *err)
{
    bool alone = err->rank < 0 && rc != DCP_E_STOPPED;
    bool zero_died = rc == DCP_E_COMM && err->rank == 0 && join->world_size > 1;
    return !launched && (join->rank == (zero_died ? 1 : 0) || alone);
}

/* A mistake in the configuration is told before anything is started, and one in the
 * secret's file. */
static int launch(const struct run_options *o, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *secret = NULL;
    struct settings settings;
    int n = (int)o->ranks;
    DCP_TRY(join_secret(o->job_secret, false, &secret, err));
    DCP_TRY(run_read_settings(o, n, n, NULL, &settings, err));
    settings_fini(&settings);
    return launch_ranks(n, err);
}

static int run(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    const struct run_options *o = settings;
    enum join_kind kind = JOIN_ALONE;
    struct join join;
    if (o->help_config)
        return print_keys(m, err);
    DCP_TRY(check(o, err));
    if (o->estimate)
        return estimate_print(m, o, err);
    if (!o->dry_run && !o->generate)
        DCP_TRY(join_kind(o->ranks, &kind, err));
    if (kind == JOIN_LAUNCH)
        return launch(o, err);
    int rc = join_open(kind, o->ranks, o->job_secret, &join, err);
    bool launched = join.line.fd >= 0;
    if (!rc)
        rc = work(m, &join, o, err);
    m->mute = !is_teller(&join, launched, rc, err);
    join_close(&join, rc, err);
    return rc;
}

static const struct dcp_example examples[] = {
    { "dcp-train --config gpt2.json --ranks 8", "train on 8 ranks of this machine" },
    { "dcp-train --config gpt2.json --ranks 4 --resume auto",
      "go on with 4, from what 8 saved" },
    { "mpirun -np 64 dcp-train --config gpt2.json", "train on several machines" },
    { "dcp-train --config gpt2.json --set bf16.enabled=true --dry-run",
      "what it would do" },
    { "dcp-train --config gpt2.json --estimate --worlds 8,64",
      "how much memory it would take, at every ZeRO stage" },
    { "dcp-train --config gpt2.json --generate 'It was a'",
      "sample from the trained model" },
    { 0 },
};

static const struct dcp_exit exits[] = {
    { 0, "done" },
    { 1, "what --certify trained again is not what was trained" },
    { 2, "the command or the configuration is wrong" },
    { 3, "a file or step is not there" },
    { 4, "a checkpoint is corrupt" },
    { 5, "a checkpoint does not fit, or another run holds the folder" },
    { 6, "reading or writing failed" },
    { 7, "a rank died; the newest complete step can be resumed" },
    { 8, "not supported by this build or on this machine" },
    { 9, "out of memory" },
    { 75, "stopped by a signal, after a save: it can be resumed" },
    { 130, "stopped before it began, or at once by a second signal" },
    { 0 },
};

static const struct dcp_command train = {
    .operands = "",
    .purpose = "train GPT-2 models, sharded over any number of ranks",
    .about =
        "Reads a DeepSpeed configuration as it is. The state is cut over the ranks "
        "as ZeRO stages 0 to 3 do it, and saved in the background; any number of "
        "ranks takes up what any other saved.\n"
        "OMP_NUM_THREADS is how many threads of a rank compute; without it the ranks "
        "of a machine share its cores. --help-config lists the keys of a "
        "configuration.\n"
        "SIGTERM or Ctrl-C ends the run after the step under way, which is saved. "
        "Losses and times of every step are in metrics.jsonl in the run folder.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct run_options),
    .defaults = &defaults,
    .examples = examples,
    .exits = exits,
    .stops = true,
    .run = run,
};

static const struct dcp_command *const commands[] = { &train, NULL };

static const struct dcp_common common[] = {
    { "threads", "threads a rank that write and read checkpoints (default 2); those that "
                 "compute are OMP_NUM_THREADS" },
    { "progress", NULL }, /* there is a line a step */
    { 0 },
};

static const struct dcp_program program = {
    .name = "dcp-train",
    .purpose = "train GPT-2 models, sharded over any number of ranks",
    .commands = commands,
    .common = common,
    .section = "CONFIGURATION",
    .text = settings_help,
};

/* OpenMP's threads spin for milliseconds where they wait. That takes the cores from
 * whoever shares the machine, and from each other: beside others training is ten times
 * slower. libgomp reads whether to from the environment, when the program is loaded. */
static void wait_asleep(char **argv)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0 || getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return;
    exe[n] = '\0';
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv(exe, argv); /* when that fails it goes on as it is */
}

int main(int argc, char **argv)
{
    wait_asleep(argv);
    return dcp_main(&program, argc, argv);
}
