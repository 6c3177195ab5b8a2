#include "help.h"

#include "base/mem.h"
#include "base/str.h"
#include "cli/text.h"
#include "draft.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH 73 /* a man page indents by 7 */
#define INDENT 4

/* What each used key means; `standard` is the default where the table of keys cannot say
 * it. */
static const struct {
    const char *path, *about, *standard;
} texts[] = {
    { "seed", "of initial weights and of the order of samples", NULL },
    { "steps", "train up to this step in all; 0: until stopped (--steps N)", NULL },
    { "timeout_s", "a rank that is silent for so many seconds has failed", NULL },
    { "fingerprint_every",
      "every so many steps metrics.jsonl has \"weights\", a fingerprint of all weights: "
      "equal for equal weights at any number of ranks and any ZeRO stage; 0: never",
      NULL },
    { "max_skipped_steps",
      "a run ends when the gradients of so many steps in a row are not finite: it has "
      "diverged; 0: never",
      NULL },
    { "stochastic_rounding",
      "with bf16: the optimizer rounds weights to one of the two nearest at random, the "
      "nearer the likelier; the same at every number of ranks",
      NULL },
    { "model.family", "the kind of model", NULL },
    { "model.n_layer", "layers", "of model.init, or 12" },
    { "model.n_head", "attention heads; they divide n_embd", "of model.init, or 12" },
    { "model.n_embd", "width", "of model.init, or 768" },
    { "model.n_positions", "tokens that the model can look at at once",
      "of model.init, or 1024" },
    { "model.vocab_size", "different tokens",
      "of model.init, or 256 for bytes and 50257 else" },
    { "model.layer_norm_epsilon", "is added to the variance in layer norms",
      "of model.init, or 1e-05" },
    { "model.init",
      "a checkpoint of any known format whose weights a new run begins with; a run that "
      "is "
      "resumed ignores it",
      "none" },
    { "model.activation_checkpointing",
      "what of a layer the backward pass computes again, to the same bits, instead of "
      "having kept it; full: all but its input; n: of n layers at a time all but the "
      "first one's input; selective: what attention makes",
      "none; full with \"activation_checkpointing\": true; as many layers as "
      "activation_checkpointing.number_checkpoints says" },
    { "data.train", "a glob of token files or texts to train on", "must be given" },
    { "data.val", "a glob of files to measure the loss on", "none" },
    { "data.tokenizer", "\"bytes\", or \"gpt2:FOLDER\" with vocab.json and merges.txt",
      NULL },
    { "data.seq_len", "tokens of a sample", "model.n_positions" },
    { "data.eval_every", "steps between two losses on data.val; 0: never", NULL },
    { "data.eval_batches", "batches that such a loss is measured on", NULL },
    { "checkpoint.dir", "the run folder, relative to where dcp-train is started", NULL },
    { "checkpoint.save_every", "steps between two saves; 0: only at the end", NULL },
    { "checkpoint.keep",
      "newest steps that are kept; 0: all. Behind steps that diverged the two newest "
      "that did not are kept, too",
      NULL },
    { "checkpoint.keep_every",
      "steps whose number is a multiple of this are kept, too; 0: none", NULL },
    { "checkpoint.keep_optimizer",
      "newest steps whose optimizer state is kept: older ones that stay hold their "
      "weights alone, and nothing can be resumed from them; 0: all",
      NULL },
    { "checkpoint.pin_timeout",
      "seconds that a step which is to go waits for those who read it; 0: none", NULL },
    { "checkpoint.parity",
      "files beside the shards, so that as many of all of them can be lost; 0: none",
      NULL },
    { "checkpoint.delta",
      "of so many saves one is full, and of the others is written what differs from it "
      "alone, as deltas; 0: all are full",
      NULL },
    { "checkpoint.verify_after_save",
      "read each step back from the disk before it is published, of a delta also the "
      "step "
      "that it is on; without this it is read back through the page cache",
      NULL },
    { "checkpoint.async", "train on while a save is written", NULL },
    { "checkpoint.codec",
      "compress blocks; split codes each byte of the numbers by itself, is the fastest "
      "and makes weights smallest",
      NULL },
    { "checkpoint.staging",
      "memory of a rank for a save in the background; 0: what is "
      "needed",
      NULL },
    { "checkpoint.fail_after",
      "so many failed saves in a row end the run, with exit status 6; 0: training goes "
      "on "
      "without them",
      NULL },
    { "checkpoint.on_save",
      "a command for /bin/sh, run beside the training when a step is complete: DCP_STEP "
      "is its number, DCP_PATH its folder. What makes a process a rank, and the job's "
      "secret, are not in its environment",
      NULL },
    { "checkpoint.on_failure", "the same when a save failed: DCP_MESSAGE says why",
      NULL },
    { "checkpoint.metrics_textfile",
      "a file for the textfile collector of Prometheus's node exporter (NAME.prom), "
      "relative to where dcp-train is started",
      NULL },
    { "train_batch_size", "samples of a step, of all ranks",
      "product of micro-batch, accumulation and ranks" },
    { "train_micro_batch_size_per_gpu",
      "samples that a rank computes at once; losses are the same bits at any number of "
      "ranks while this and train_batch_size are the same",
      "train_batch_size / accumulation / ranks" },
    { "gradient_accumulation_steps",
      "micro-batches of a rank in a step; where train_batch_size says otherwise, or the "
      "ranks do not divide it, that counts",
      "train_batch_size / micro-batch / ranks, rounded up" },
    { "optimizer.type",
      "Adam decouples the decay too, unless adam_w_mode is false; SGD and Adagrad are "
      "those of torch.optim, Lion and Lamb are DeepSpeed's. Muon is that of torch.optim "
      "for matrices within layers; embeddings, norms and biases have AdamW, as in "
      "DeepSpeed. Adafactor is torch.optim's, with some names of that of transformers. A "
      "parameter of another one is an error",
      NULL },
    { "optimizer.params.lr", "the learning rate",
      "0.001; 0.01 with Adagrad and Adafactor; with Muon as muon_lr and adam_lr" },
    { "optimizer.params.betas",
      "Adam, AdamW: decay of the two moments; Lion: weights of the moment in the step, "
      "and of its decay; Muon: of AdamW's moments",
      "[0.9, 0.999]; [0.9, 0.95] with Muon" },
    { "optimizer.params.eps",
      "Adam, AdamW, Adagrad, Lamb, and Muon's AdamW: is added to the root of the second "
      "moment. Adafactor: [number, number], the least root of a variance, which null "
      "makes "
      "that of fp32, and the least size of weights that steps follow",
      "1e-08; 1e-10 with Adagrad and Muon; [null, 0.001] with Adafactor" },
    { "optimizer.params.beta2_decay",
      "Adafactor: the newest square has the weight of the step to this power in a "
      "variance; also called decay_rate",
      NULL },
    { "optimizer.params.d",
      "Adafactor: the largest root of the mean square of a direction; also called "
      "clip_threshold",
      NULL },
    { "optimizer.params.scale_parameter",
      "Adafactor: steps are multiplied by the root of the mean square of the weights",
      NULL },
    { "optimizer.params.relative_step",
      "Adafactor: the rate of step n is at most 1 / root of n", NULL },
    { "optimizer.params.weight_decay", "of weights of two dimensions, see decay_all",
      "0, or 0.01 with torch_adam" },
    { "optimizer.params.adam_w_mode", "decouple the decay from the gradient", NULL },
    { "optimizer.params.torch_adam", "take the default decay of torch.optim.AdamW",
      NULL },
    { "optimizer.params.bias_correction", "correct moments for their beginning at zero",
      NULL },
    { "optimizer.params.momentum",
      "SGD: decay of the sum of gradients; 0: no sum; Muon: decay of their mean",
      "0; 0.95 with Muon" },
    { "optimizer.params.dampening",
      "SGD: gradients after the first are multiplied by 1 minus this", NULL },
    { "optimizer.params.max_coeff",
      "Lamb: the most that a parameter's step is scaled by, which is the norm of its "
      "weights by that of the step",
      NULL },
    { "optimizer.params.min_coeff", "Lamb: the least", NULL },
    { "optimizer.params.nesterov", "SGD, Muon: look one step ahead",
      "false; true with Muon" },
    { "optimizer.params.muon_lr", "Muon: the rate of matrices within layers",
      "optimizer.params.lr, or 0.02" },
    { "optimizer.params.adam_lr", "Muon: the rate of the rest, which has AdamW",
      "optimizer.params.lr, or 0.0003" },
    { "optimizer.params.adjust_lr_fn",
      "Muon: the rate of a matrix of A rows and B columns is multiplied by the root of "
      "max(1, A / B), or by 0.2 times that of max(A, B), which suits the rate and decay "
      "of "
      "AdamW",
      NULL },
    { "optimizer.params.ns_coefficients",
      "Muon: of Newton-Schulz, which makes momenta orthogonal",
      "[3.4445, -4.775, 2.0315]" },
    { "optimizer.params.ns_steps", "Muon: its steps", NULL },
    { "optimizer.params.ns_eps",
      "Muon: the least norm that a matrix is divided by before, eps of torch.optim.Muon",
      NULL },
    { "optimizer.params.lr_decay",
      "Adagrad: the rate of step n is divided by 1 + (n - 1) times this", NULL },
    { "optimizer.decay_all",
      "weight_decay is of all parameters, biases and norms too, as when a PyTorch "
      "optimizer gets them in one group",
      NULL },
    { "scheduler.type",
      "how the learning rate changes; parameters are those of the class, in DeepSpeed or "
      "in PyTorch, and it is stepped after every update that is not skipped. Without a "
      "schedule the rate is constant",
      NULL },
    { "scheduler.params.warmup_min_lr", "where the climb begins", NULL },
    { "scheduler.params.warmup_max_lr", "where it ends",
      "optimizer.params.lr, with Muon each group's own; 0.001 with WarmupDecayLR" },
    { "scheduler.params.warmup_num_steps", "steps of the climb", NULL },
    { "scheduler.params.warmup_type", "its form", NULL },
    { "scheduler.params.total_num_steps", "where the schedule ends",
      "must be given to decay; \"auto\": steps" },
    { "scheduler.params.warmup_min_ratio", "share of lr where the climb begins", NULL },
    { "scheduler.params.cos_min_ratio", "share of lr that is left at the end", NULL },
    { "scheduler.params.cycle_min_lr", "OneCycle: where the rate begins and ends",
      "must be given with OneCycle" },
    { "scheduler.params.cycle_max_lr", "OneCycle: where it turns",
      "must be given with OneCycle" },
    { "scheduler.params.decay_lr_rate",
      "OneCycle: n times decay_step_size steps after the cycle the rate is divided by 1 "
      "+ n "
      "times this",
      NULL },
    { "scheduler.params.cycle_first_step_size", "OneCycle: steps of the way up", NULL },
    { "scheduler.params.cycle_second_step_size", "OneCycle: steps of the way down",
      "cycle_first_step_size" },
    { "scheduler.params.cycle_first_stair_count",
      "OneCycle: stairs of the way up; 0: none", NULL },
    { "scheduler.params.cycle_second_stair_count",
      "OneCycle: stairs of the way down; 0: none", "cycle_first_stair_count" },
    { "scheduler.params.decay_step_size", "OneCycle: steps of a decay; 0: none", NULL },
    { "scheduler.params.cycle_momentum",
      "OneCycle: beta1 goes the other way, and, as in DeepSpeed, beta2 is 0.99", NULL },
    { "scheduler.params.cycle_min_mom",
      "OneCycle: beta1 of the first step and where the rate turns", NULL },
    { "scheduler.params.cycle_max_mom", "OneCycle: beta1 where the rate is least", NULL },
    { "scheduler.params.decay_mom_rate",
      "OneCycle: then beta1 is multiplied by 1 + n times this", NULL },
    { "scheduler.params.lr_range_test_min_lr", "LRRangeTest: where the rate begins",
      NULL },
    { "scheduler.params.lr_range_test_step_size",
      "LRRangeTest: steps in which it grows by lr_range_test_step_rate times that",
      NULL },
    { "scheduler.params.lr_range_test_step_rate", "LRRangeTest: how fast it grows",
      NULL },
    { "scheduler.params.lr_range_test_staircase",
      "LRRangeTest: grow once in lr_range_test_step_size steps, not in each", NULL },
    { "scheduler.params.step_size", "StepLR: steps between two decays",
      "must be given with StepLR" },
    { "scheduler.params.gamma", "StepLR: what the rate is multiplied by", NULL },
    { "scheduler.params.T_max", "CosineAnnealingLR: steps of half a wave",
      "must be given with CosineAnnealingLR; \"auto\": steps" },
    { "scheduler.params.eta_min", "CosineAnnealingLR: the least rate", NULL },
    { "scheduler.params.factor", "ConstantLR: share of lr in the first steps", "1/3" },
    { "scheduler.params.total_iters", "ConstantLR: how many these are", NULL },
    { "gradient_clipping", "the largest norm of all gradients; 0: any", NULL },
    { "steps_per_print", "steps between two lines on the terminal; 0 or 1: each", NULL },
    { "activation_checkpointing.number_checkpoints",
      "keep the inputs of so many layers: the same as model.activation_checkpointing "
      "with "
      "n_layer divided by this, rounded up; 0 or null: as that key says",
      NULL },
    { "activation_checkpointing.cpu_checkpointing",
      "keep these inputs in the memory of the host, where the CPU has them in any case",
      NULL },
    { "bf16.enabled", "weights and gradients in bf16, with fp32 master weights", NULL },
    { "fp16.enabled",
      "weights and gradients in fp16, with fp32 master weights and a loss scale; a step "
      "whose gradients overflow is skipped",
      NULL },
    { "fp16.loss_scale", "what losses are multiplied with; 0: found out on the way",
      NULL },
    { "fp16.initial_scale_power", "it begins with 2 to this power", NULL },
    { "fp16.loss_scale_window", "steps without an overflow after which it doubles",
      NULL },
    { "fp16.hysteresis", "overflows up to the one that halves it", NULL },
    { "fp16.consecutive_hysteresis",
      "each step without an overflow begins to count them anew", NULL },
    { "fp16.min_loss_scale",
      "the least it can get; a run that needs less ends: it has diverged", NULL },
    { "data_types.param_dtype",
      "what weights are in, as bf16.enabled and fp16.enabled say it: another is refused",
      "theirs" },
    { "data_types.grad_accum_dtype",
      "with 16-bit weights: fp32 rounds no gradient; their own dtype keeps partial sums "
      "of "
      "gradients in it, which takes least memory, but other numbers of ranks then differ "
      "by rounding",
      "gradients and their sum are rounded, partial sums exact" },
    { "zero_optimization.stage",
      "0: each rank holds all; 1: cuts the optimizer; 2: gradients, too; 3: weights, too",
      "0, or 3 where fsdp_config says anything" },
    { "zero_optimization.offload_param.device",
      "at stage 3 weights wait in the memory of the host (cpu) or in a file (nvme), and "
      "come "
      "to a GPU a layer ahead; on the CPU they are in host memory already",
      NULL },
    { "zero_optimization.offload_param.nvme_path",
      "folder of the file, which has no name: nothing of it is left", NULL },
    { "zero_optimization.offload_param.buffer_count",
      "buffers that may be in memory at once", NULL },
    { "zero_optimization.offload_param.buffer_size", "weights in a buffer", NULL },
    { "zero_optimization.offload_param.max_in_cpu", "so many weights stay in memory",
      NULL },
    { "zero_optimization.offload_param.pin_memory",
      "cpu with a GPU: weights are pinned, so that they are copied while it computes; "
      "else "
      "through buffers that are",
      NULL },
    { "zero_optimization.offload_optimizer.device",
      "the same of the optimizer's state, at every stage, and of the gradients from "
      "stage 2 "
      "on; with a GPU the CPU updates what is offloaded, to the same bits",
      NULL },
    { "zero_optimization.offload_optimizer.nvme_path", "folder of the file", NULL },
    { "zero_optimization.offload_optimizer.buffer_count",
      "buffers that may be in memory at once beside those that are worked on", NULL },
    { "zero_optimization.offload_optimizer.ratio",
      "stage 3: so much of the state is offloaded; the first parameters' stays in "
      "memory, "
      "with a GPU in its own, which updates it while the CPU does the rest",
      NULL },
    { "zero_optimization.offload_optimizer.pin_memory",
      "cpu with a GPU: gradients are pinned, so that they are copied while it computes; "
      "masters and moments need not be, nothing copies them",
      NULL },
    { "zero_optimization.sub_group_size",
      "parameters that the optimizer works on at a time where its state is in a file, or "
      "with a GPU on the host, between 4,096 and 4,194,304",
      NULL },
    { "zero_optimization.overlap_comm",
      "true: ranks exchange weights and gradients beside the computing, over MPI on a "
      "thread of its own, which wants a core; false: nothing overlaps",
      "where the network works by itself (NCCL)" },
    { "zero_optimization.reduce_bucket_size",
      "elements of gradients that are exchanged at a time, at most; they wait in a "
      "buffer "
      "of this size",
      "what 4 MiB hold, or 64 MiB where that overlaps" },
    { "zero_optimization.stage3_prefetch_bucket_size",
      "stage 3, where communication overlaps: elements of weights that are gathered "
      "ahead of use, rounded up to whole layers; 0: none",
      "the next layer" },
    { "zero_optimization.stage3_max_live_parameters",
      "stage 3: elements of weights that stay gathered until they change, as long as "
      "they "
      "are used again within stage3_max_reuse_distance elements; more memory, and less "
      "to communicate",
      "two layers; 1e+09 beside a stage3_max_reuse_distance" },
    { "zero_optimization.stage3_max_reuse_distance",
      "see stage3_max_live_parameters; 0: none stays", "without limit" },
    { "fsdp_config.sharding_strategy",
      "full_shard is stage 3, shard_grad_op stage 2, no_shard stage 0; of a copy on each "
      "machine see --sharding hybrid_shard",
      "what zero_optimization.stage says, or else full_shard where fsdp_config says "
      "anything" },
    { "fsdp_config.reshard_after_forward",
      "stage 3; false: all layers stay gathered until the weights change, as with a "
      "large "
      "stage3_max_live_parameters",
      "true" },
    { "fsdp_config.backward_prefetch",
      "stage 3, where communication overlaps: whether the next layer is gathered while "
      "one's gradients are made",
      "backward_pre, as is backward_post" },
    { "fsdp_config.forward_prefetch", "likewise in the forward pass", "true" },
    { "fsdp_config.offload_params",
      "the same as offload_param and offload_optimizer to the cpu", "false" },
    { "fsdp_config.activation_checkpointing",
      "the same as model.activation_checkpointing full", "false" },
    { "zero_optimization.cpu_offload", "an older name of offload_optimizer to the cpu",
      NULL },
    { "zero_optimization.cpu_offload_param", "an older name of offload_param to the cpu",
      NULL },
    { "zero_optimization.zero_hpz_partition_size",
      "stage 3: ranks side by side, those of a machine, that keep a second copy of the "
      "weights among them: what was gathered from all ranks once in a step is gathered "
      "from these again; the same bits. 1: none",
      NULL },
    { "zero_optimization.zero_quantized_weights",
      "stage 3: weights are gathered with 8 bits a number and a step for each block of "
      "128, and the model sees what comes of that, at any number of ranks; masters and "
      "checkpoints are as ever. Norms and biases are not quantized",
      NULL },
    { "zero_optimization.zero_quantized_gradients",
      "stages 2 and 3: the gradients of a micro-batch go to their owners with 4 bits a "
      "number and a step for each block of 128, and are summed exactly; the same bits at "
      "any number of ranks. Norms and biases are not quantized",
      NULL },
    { "zero_optimization.mics_shard_size",
      "stage 3: ranks that share one copy of the model", "all" },
    { "zero_optimization.stage3_gather_16bit_weights_on_model_save",
      "put pytorch_model.bin with bf16 weights beside each step", NULL },
};

struct walk {
    struct dcp_buf *out, *list; /* list: names of keys without effect */
    enum settings_use use;
    const char *why; /* of those: their reason */
};

static void add_type(struct dcp_buf *out, const struct settings_key *key)
{
    static const char *const kinds[] = { [KEY_FLAG] = "true|false",
                                         [KEY_SWITCH] = "true|false",
                                         [KEY_INT] = "integer",
                                         [KEY_LONG] = "integer",
                                         [KEY_SEED] = "integer",
                                         [KEY_REAL] = "number",
                                         [KEY_SIZE] = "bytes, as \"64M\"",
                                         [KEY_TEXT] = "text",
                                         [KEY_DTYPE] = "fp32|bf16|fp16",
                                         [KEY_LAYERS] = "none|full|selective|n",
                                         [KEY_PAIR] = "[number, number]",
                                         [KEY_TRIPLE] = "[number, number, number]" };
    if (key->kind != KEY_CHOICE) {
        dcp_buf_add_text(out, kinds[key->kind]);
        return;
    }
    size_t width = 0; /* a list that is wider than a line needs blanks */
    for (int i = 0; key->choices[i]; i++)
        width += strlen(key->choices[i]) + 1;
    const char *between = width > WIDTH / 2 ? ", " : "|";
    for (int i = 0; key->choices[i]; i++)
        dcp_buf_add_fmt(out, "%s%s", i ? between : "", key->choices[i]);
}

static void add_default(struct dcp_buf *out, const struct settings_key *key)
{
    char real[DCP_STR_F64_CAP];
    if (key->kind == KEY_FLAG)
        dcp_buf_add_text(out, key->fallback > 0 ? "true" : "false");
    else if (key->kind == KEY_CHOICE)
        dcp_buf_add_text(out, key->choices[(int)key->fallback]);
    else if (key->kind == KEY_TEXT)
        dcp_buf_add_text(out, key->text ? key->text : "none");
    else
        dcp_buf_add_text(out, dcp_str_format_f64(real, key->fallback));
}

static void add_used(struct dcp_buf *out, const struct settings_key *key,
                     const char *path)
{
    size_t i = 0;
    while (i < DCP_ARRAY_LEN(texts) && strcmp(texts[i].path, path))
        i++;
    bool known = i < DCP_ARRAY_LEN(texts);
    dcp_buf_add_fmt(out, "%s\n    ", path);
    DCP_CLEANUP_BUF struct dcp_buf line = { 0 };
    add_type(&line, key);
    const char *standard = known ? texts[i].standard : NULL;
    dcp_buf_add_text(&line,
                     standard && dcp_str_starts(standard, "must ") ? "; " : "; default ");
    if (standard)
        dcp_buf_add_text(&line, standard);
    else
        add_default(&line, key);
    dcp_text_add_wrapped(out, line.failed ? "" : (char *)line.data, INDENT, INDENT,
                         WIDTH);
    dcp_buf_add_text(out, "\n    ");
    dcp_text_add_wrapped(out, known ? texts[i].about : "(no text)", INDENT, INDENT,
                         WIDTH);
    dcp_buf_add_text(out, "\n");
    out->failed = out->failed || line.failed;
}

static void add_refused(struct dcp_buf *out, const struct settings_key *key,
                        const char *path)
{
    char line[512];
    snprintf(line, sizeof line, "%s: %s", path, key->why);
    dcp_text_add_wrapped(out, line, 0, INDENT, WIDTH);
    dcp_buf_add_text(out, "\n");
}

/* A name in two rows is told once. */
static bool is_told(const struct settings_key *keys, const struct settings_key *key)
{
    while (keys != key && strcmp(keys->name, key->name) != 0)
        keys++;
    return keys != key;
}

/* All keys of a use, sections in the order of the table. Sections nest four deep. */
static void add_keys(const struct walk *walk, const struct settings_key *keys,
                     const char *above)
{
    for (const struct settings_key *key = keys; key->name; key++) {
        char path[SETTINGS_PATH_CAP];
        snprintf(path, sizeof path, "%s%s%s", above, *above ? "." : "", key->name);
        if (key->kind == KEY_SECTION && !key->alias)
            add_keys(walk, key->keys, path);
        else if (key->alias || key->kind == KEY_SECTION || key->use != walk->use ||
                 is_told(keys, key))
            continue;
        else if (walk->use == KEY_USED)
            add_used(walk->out, key, path);
        else if (walk->use == KEY_REJECTED)
            add_refused(walk->out, key, path);
        else if (settings_reason(key->name) == walk->why)
            dcp_buf_add_fmt(walk->list, "%s%s", walk->list->size_bytes ? ", " : "", path);
    }
}

/* Keys without effect, by their reasons. */
static void add_idle(struct dcp_buf *out)
{
    const char *why;
    for (size_t r = 0; (why = settings_reason_at(r)); r++) {
        DCP_CLEANUP_BUF struct dcp_buf list = { 0 };
        const struct walk walk = { .list = &list, .use = KEY_NO_EFFECT, .why = why };
        char line[200];
        add_keys(&walk, settings_root, "");
        snprintf(line, sizeof line, "Because %s:", why);
        dcp_buf_add_text(out, r ? "\n" : "");
        dcp_text_add_wrapped(out, line, 0, 0, WIDTH);
        dcp_buf_add_text(out, "\n\n");
        if (list.failed || !list.size_bytes)
            out->failed = out->failed || list.failed;
        else
            dcp_text_add_wrapped(out, (const char *)list.data, 0, 0, WIDTH);
        dcp_buf_add_text(out, "\n");
    }
}

int settings_help(struct dcp_buf *out, struct dcp_error *err)
{
    static const struct {
        enum settings_use use;
        const char *heading;
    } parts[] = {
        { KEY_USED, "Keys that decide something:\n\n" },
        { KEY_NO_EFFECT,
          "\nKeys of DeepSpeed that are checked and cannot matter here; a value that is\n"
          "not off is told once.\n\n" },
        { KEY_REJECTED, "\nKeys of DeepSpeed that are refused unless they are off:\n\n" },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(parts); i++) {
        const struct walk walk = { .out = out, .use = parts[i].use };
        dcp_buf_add_text(out, parts[i].heading);
        if (parts[i].use == KEY_NO_EFFECT)
            add_idle(out);
        else
            add_keys(&walk, settings_root, "");
    }
    return dcp_buf_check(out, err);
}
