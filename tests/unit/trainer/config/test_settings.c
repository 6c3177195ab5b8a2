/* settings: what a DeepSpeed file becomes, and what is said when it cannot be.
 *
 * `test_unit_settings resolve FILE WORLD` prints the resolved configuration, for the test
 * against DeepSpeed itself. */
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "lib/parsed.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void test_the_documented_example(void **state)
{
    (void)state;
    expect_read_by(
        "{\"seed\": 7, \"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4,"
        " \"model\": {\"family\": \"gpt2\", \"n_layer\": 4, \"n_head\": 4,"
        "   \"n_embd\": 128, \"n_positions\": 128, \"vocab_size\": 256},"
        " \"data\": {\"train\": \"text/*.txt\", \"val\": \"/v/x.txt\","
        "   \"tokenizer\": \"bytes\", \"seq_len\": 64},"
        " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-4,"
        "   \"betas\": [0.8, 0.95], \"eps\": 1e-9, \"weight_decay\": 0.1}},"
        " \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {"
        "   \"warmup_min_lr\": 1e-5, \"warmup_max_lr\": 3e-4, \"warmup_num_steps\": 10,"
        "   \"total_num_steps\": 100, \"warmup_type\": \"linear\"}},"
        " \"zero_optimization\": {\"stage\": 3,"
        "   \"stage3_gather_16bit_weights_on_model_save\": true},"
        " \"bf16\": {\"enabled\": true}, \"gradient_clipping\": 0.5,"
        " \"stochastic_rounding\": true,"
        " \"data_types\": {\"grad_accum_dtype\": \"fp32\"},"
        " \"checkpoint\": {\"dir\": \"out/run\", \"save_every\": 50, \"keep\": 2,"
        "   \"async\": false, \"parity\": 0, \"codec\": \"zstd\", \"staging\": \"64M\"}}",
        4);
    assert_int_equal(got.seed, 7);
    assert_int_equal(got.train_batch_size, 32);
    assert_int_equal(got.micro_batch, 4);
    assert_int_equal(got.accumulation, 2);
    assert_string_equal(got.model.family, "gpt2");
    assert_int_equal(got.model.n_layer, 4);
    assert_int_equal(got.model.vocab_size, 256);
    assert_string_equal(got.data_train, "/srv/conf/text/*.txt");
    assert_string_equal(got.data_val, "/v/x.txt");
    assert_int_equal(got.seq_len, 64);
    assert_true(is(got.lr, 3e-4) && is(got.beta1, 0.8) && is(got.beta2, 0.95));
    assert_true(is(got.eps, 1e-9) && is(got.weight_decay, 0.1));
    assert_true(got.decoupled_decay && got.bias_correction);
    assert_int_equal(got.scheduler.type, SCHEDULE_WARMUP_DECAY);
    assert_true(got.scheduler.warmup_linear);
    assert_true(is(got.scheduler.warmup_min_lr, 1e-5));
    assert_int_equal(got.scheduler.warmup_num_steps, 10);
    assert_int_equal(got.scheduler.total_num_steps, 100);
    assert_int_equal(got.stage, 3);
    assert_true(got.dtype == DCP_BF16 && got.grad_accum_fp32 && got.gather_16bit_on_save);
    assert_true(got.stochastic_rounding);
    assert_true(is(got.gradient_clipping, 0.5));
    assert_string_equal(got.checkpoint_dir, "out/run");
    assert_int_equal(got.save_every, 50);
    assert_int_equal(got.keep, 2);
    assert_false(got.checkpoint_async);
    assert_int_equal(got.codec, DCP_CODEC_ZSTD);
    assert_int_equal(got.staging_bytes, 64 << 20);
    assert_string_equal(logged, "");
}

static void test_defaults_are_deepspeeds(void **state)
{
    (void)state;
    expect_read("{" NEEDED BATCH "\"scheduler\": {\"type\": \"WarmupLR\"}}");
    assert_int_equal(got.seed, 1337);
    assert_true(is(got.lr, 1e-3) && is(got.beta1, 0.9) && is(got.beta2, 0.999));
    assert_true(is(got.eps, 1e-8) && is(got.weight_decay, 0));
    assert_true(got.decoupled_decay && got.bias_correction);
    assert_true(is(got.gradient_clipping, 1));
    assert_int_equal(got.stage, 0);
    assert_int_equal(got.shard_size, 0);
    assert_true(got.dtype == DCP_F32 && !got.stochastic_rounding);
    assert_true(got.grad_accum_fp32);
    assert_true(is(got.scheduler.warmup_max_lr, 1e-3));
    assert_true(is(got.scheduler.warmup_min_lr, 0));
    assert_int_equal(got.scheduler.warmup_num_steps, 1000);
    assert_false(got.scheduler.warmup_linear);
    assert_string_equal(got.checkpoint_dir, "run");
    assert_string_equal(got.tokenizer, "bytes");
    assert_int_equal(got.model.n_layer, 12);
    assert_int_equal(got.model.vocab_size, 256);
    assert_int_equal(got.seq_len, 1024);
    assert_int_equal(got.eval_every, 0);
    assert_true(got.timeout_s > 0);
    expect_read("{" NEEDED BATCH "\"scheduler\": {\"type\": \"WarmupCosineLR\","
                "\"params\": {\"total_num_steps\": 5}}}");
    assert_true(is(got.scheduler.cos_min_ratio, 1e-4));
    assert_true(is(got.scheduler.warmup_min_ratio, 0));
}

static void test_optimizers(void **state)
{
    static const struct {
        const char *optimizer;
        bool decoupled;
        double decay;
    } rows[] = {
        { "{\"type\": \"Adam\"}", true, 0 },
        { "{\"type\": \"adam\", \"params\": {\"adam_w_mode\": false}}", false, 0 },
        { "{\"type\": \"AdamW\", \"params\": {\"adam_w_mode\": false}}", true, 0 },
        { "{\"type\": \"AdamW\", \"params\": {\"torch_adam\": true}}", true, 0.01 },
        { "{\"type\": \"AdamW\", \"params\": {\"torch_adam\": true,"
          " \"weight_decay\": 0}}",
          true, 0 },
        { "{\"type\": \"Adam\", \"params\": {\"torch_adam\": true,"
          " \"adam_w_mode\": false}}",
          false, 0 },
        { "{\"type\": \"Muon\", \"params\": {\"torch_adam\": true}}", true, 0 },
    };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        char text[256];
        snprintf(text, sizeof text, "{" NEEDED BATCH "\"optimizer\": %s}",
                 rows[i].optimizer);
        expect_read(text);
        assert_int_equal(got.decoupled_decay, rows[i].decoupled);
        assert_true(is(got.weight_decay, rows[i].decay));
    }
    expect_refused("{" NEEDED BATCH "\"optimizer\": {\"type\": \"OneBitAdam\"}}",
                   DCP_E_UNSUPPORTED,
                   "'optimizer.type' is \"OneBitAdam\", but there is no such optimizer",
                   "Adam, AdamW, SGD, Lion, Adagrad, Lamb, Muon or Adafactor");
    expect_refused("{" NEEDED BATCH "\"optimizer\": {\"type\": \"AdmW\"}}",
                   DCP_E_UNSUPPORTED, "AdmW", "did you mean AdamW");
    expect_refused("{" NEEDED BATCH
                   "\"optimizer\": {\"params\": {\"max_grad_norm\": 1.5}}}",
                   DCP_E_UNSUPPORTED, "max_grad_norm", "gradient_clipping");
    expect_refused("{" NEEDED BATCH "\"optimizer\": {\"params\": {\"betas\": [0.9]}}}",
                   DCP_E_USAGE, "'optimizer.params.betas' is [0.9]", "");
    expect_refused("{" NEEDED BATCH "\"optimizer\": {\"params\": {\"betas\": [0.9, 1]}}}",
                   DCP_E_USAGE, "below 1", "");
}

static void test_auto_becomes_something_and_says_so(void **state)
{
    (void)state;
    expect_read_by(
        "{" NEEDED "\"train_batch_size\": \"auto\","
        "\"train_micro_batch_size_per_gpu\": \"auto\","
        "\"gradient_accumulation_steps\": \"auto\","
        "\"gradient_clipping\": \"auto\", \"steps\": 400,"
        "\"bf16\": {\"enabled\": false}, \"fp16\": {\"enabled\": false,"
        "  \"loss_scale\": 0, \"initial_scale_power\": 12},"
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\","
        "  \"betas\": \"auto\", \"eps\": \"auto\", \"weight_decay\": \"auto\"}},"
        "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {"
        "  \"warmup_min_lr\": \"auto\", \"warmup_max_lr\": \"auto\","
        "  \"warmup_num_steps\": \"auto\", \"total_num_steps\": \"auto\"}},"
        "\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\","
        "  \"stage3_prefetch_bucket_size\": \"auto\"}}",
        2);
    assert_int_equal(got.train_batch_size, 16);
    assert_int_equal(got.micro_batch, 8);
    assert_int_equal(got.scheduler.total_num_steps, 400);
    assert_int_equal(got.scheduler.warmup_num_steps, 20);
    assert_true(is(got.scheduler.warmup_max_lr, 1e-3));
    static const char *const lines[] = {
        "I c.json: train_batch_size is \"auto\": 16\n",
        "I c.json: gradient_accumulation_steps is \"auto\": 1\n",
        "I c.json: optimizer.params.lr is \"auto\": 0.001\n",
        "I c.json: optimizer.params.betas is \"auto\": [0.9, 0.999]\n",
        "I c.json: optimizer.params.weight_decay is \"auto\": 0\n",
        "I c.json: scheduler.params.total_num_steps is \"auto\": 400\n",
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(lines); i++)
        assert_non_null(strstr(logged, lines[i]));
    assert_null(strstr(logged, "bucket"));
    assert_null(strstr(logged, "loss_scale"));
}

static void test_keys_without_effect_are_told_once(void **state)
{
    (void)state;
    expect_read(
        "{" NEEDED BATCH "\"zero_optimization\": {\"stage\": 2,"
        "\"reduce_scatter\": false, \"allgather_bucket_size\": 5e8,"
        "\"contiguous_gradients\": true, \"round_robin_gradients\": false,"
        "\"offload_optimizer\": {\"device\": \"none\"}},"
        "\"tensorboard\": {\"enabled\": true}, \"wandb\": {\"enabled\": false},"
        "\"prescale_gradients\": true, \"wall_clock_breakdown\": false,"
        "\"fp16\": {\"enabled\": false, \"loss_scale\": 5},"
        "\"checkpoint\": {\"load_universal\": true, \"writer\": {\"type\": \"fast\"}}"
        "}");
    assert_non_null(strstr(logged,
                           "W c.json: zero_optimization: without effect here: "
                           "reduce_scatter, allgather_bucket_size: a layer at a "));
    assert_non_null(strstr(logged, "W c.json: without effect here: prescale_gradients: "
                                   "gradients are given"));
    assert_non_null(strstr(logged, "W c.json: without effect here: tensorboard: what"));
    assert_non_null(strstr(logged, "checkpoint: without effect here: "
                                   "load_universal: steps"));
    assert_null(strstr(logged, "fp16"));
    assert_null(strstr(logged, "wandb"));
    assert_null(strstr(logged, "offload"));
}

static void test_fp16(void **state)
{
    (void)state;
    expect_read("{" NEEDED BATCH "\"fp16\": {\"enabled\": true}}");
    assert_int_equal(got.dtype, DCP_F16);
    assert_true(got.loss_scale.scales && loss_scale_is_dynamic(&got.loss_scale));
    assert_true(is(got.loss_scale.initial, 65536) && is(got.loss_scale.least, 1));
    assert_int_equal(got.loss_scale.window, 1000);
    assert_int_equal(got.loss_scale.tolerance, 2);
    assert_false(got.loss_scale.refills);
    expect_read("{" NEEDED BATCH "\"fp16\": {\"enabled\": true, \"loss_scale\": 128,"
                "\"consecutive_hysteresis\": true},"
                "\"data_types\": {\"grad_accum_dtype\": \"fp16\"}}");
    assert_true(is(got.loss_scale.static_to, 128) && got.loss_scale.refills);
    assert_true(got.grad_accum_bf16);
    expect_read("{" NEEDED BATCH "\"fp16\": {\"enabled\": false, \"loss_scale\": 128}}");
    assert_false(got.loss_scale.scales);
    expect_read("{" NEEDED BATCH "\"fp16\": {\"enabled\": \"auto\"}}");
    assert_int_equal(got.dtype, DCP_F32);
    assert_non_null(strstr(logged,
                           "W c.json: 'fp16.enabled' is \"auto\", which the Hugging "
                           "Face Trainer takes from its options: it is off here"));
    static const struct {
        const char *text, *message;
    } rows[] = {
        { "\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}",
          "exclude each other" },
        { "\"fp16\": {\"enabled\": true, \"min_loss_scale\": 0}", "min_loss_scale" },
        { "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 200}", "power" },
        { "\"fp16\": {\"enabled\": true, \"hysteresis\": 0}", "hysteresis" },
        { "\"data_types\": {\"grad_accum_dtype\": \"fp16\"}",
          "'data_types.grad_accum_dtype' is float16; with weights in fp32" },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        char text[256];
        snprintf(text, sizeof text, "{" NEEDED BATCH "%s}", rows[i].text);
        expect_refused(text, DCP_E_USAGE, rows[i].message, "");
    }
}

static void test_what_is_not_supported_says_why(void **state)
{
    static const struct {
        const char *text, *message, *hint;
    } rows[] = {
        { "\"zero_optimization\": {\"zeropp_loco_param\": {\"err_beta\": 0.8}}",
          "'zero_optimization.zeropp_loco_param' is enabled, but a rank's rounding "
          "errors",
          "" },
        { "\"gradient_allreduce_op\": \"sum\"", "averaged", "optimizer.params.lr" },
        { "\"elasticity\": {\"enabled\": true}", "elasticity", "train_batch_size" },
        { "\"sparse_attention\": {\"mode\": \"fixed\"}",
          "'sparse_attention' is enabled, but it does not exist", "" },
        { "\"amp\": {\"enabled\": true, \"opt_level\": \"O1\"}", "amp", "" },
        { "\"model\": {\"family\": \"llama\"}", "'model.family' is \"llama\"", "gpt2" },
    };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        char text[512];
        snprintf(text, sizeof text, "{" NEEDED BATCH "%s}", rows[i].text);
        expect_refused(text, DCP_E_UNSUPPORTED, rows[i].message, rows[i].hint);
    }
    expect_read("{" NEEDED BATCH "\"amp\": {\"enabled\": false}, \"elasticity\": {},"
                "\"sequence_parallel_size\": 1, \"sparse_gradients\": false,"
                "\"gradient_allreduce_op\": \"Mean\", \"checkpoint\": {\"parity\": 0}}");
    assert_string_equal(logged, "");
}

/* From the stage on where they make something smaller. */
static void test_quantized(void **state)
{
    (void)state;
    for (int stage = 0; stage < 4; stage++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{" NEEDED BATCH "\"zero_optimization\": {\"stage\": %d, "
                 "\"zero_quantized_weights\": true, \"zero_quantized_gradients\": true}}",
                 stage);
        expect_read(text);
        assert_int_equal(got.quantized_weights, stage == 3);
        assert_int_equal(got.quantized_grads, stage >= 2);
        assert_true(!strstr(logged, "quantized_weights has no effect") == (stage == 3));
        assert_true(!strstr(logged, "quantized_gradients has no effect") == (stage >= 2));
    }
    expect_read("{" NEEDED BATCH "\"zero_optimization\": {"
                "\"zero_quantized_nontrainable_weights\": true}}");
    assert_non_null(strstr(logged, "all weights are trained"));
}

static void test_unknown_keys(void **state)
{
    (void)state;
    expect_refused("{" NEEDED BATCH "\"zero_optimization\": {\"stag\": 1}}", DCP_E_USAGE,
                   "c.json: unknown key 'zero_optimization.stag'",
                   "did you mean 'zero_optimization.stage'?");
    expect_refused("{" NEEDED BATCH "\"optimizer\": {\"params\": {\"weigth_decay\": 1}}}",
                   DCP_E_USAGE, "'optimizer.params.weigth_decay'",
                   "did you mean 'optimizer.params.weight_decay'?");
    expect_refused("{" NEEDED BATCH "\"model\": {\"\\u001b[2J\": 1}}", DCP_E_USAGE,
                   "\\x1b", "");
    expect_read("{" NEEDED BATCH "\"name\": 5, \"entirely_else\": {\"a\": 1}}");
    assert_non_null(strstr(logged, "W c.json: unknown key 'name' is ignored\n"));
    assert_non_null(strstr(logged, "W c.json: unknown key 'entirely_else' is ignored\n"));
}

static void test_wrong_values(void **state)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        { "\"zero_optimization\": {\"stage\": 4}",
          "'zero_optimization.stage' is 4; it must be a whole number from 0 to 3" },
        { "\"zero_optimization\": {\"stage\": 1.5}", "a whole number from 0 to 3" },
        { "\"zero_optimization\": {\"stage\": \"3\"}", "is \"3\"; it must be a whole" },
        { "\"zero_optimization\": 3", "'zero_optimization' is 3; it must be an object" },
        { "\"zero_optimization\": {\"overlap_comm\": \"yes\"}", "true or false" },
        { "\"optimizer\": {\"params\": {\"lr\": -1}}", "a number, 0 or more" },
        { "\"checkpoint\": {\"staging\": \"many\"}", "a size such as 64M" },
        { "\"checkpoint\": {\"codec\": \"lz4\"}", "none, zstd, planes or split" },
        { "\"checkpoint\": {\"dir\": 7}", "a text" },
        { "\"data_types\": {\"grad_accum_dtype\": \"f17\"}", "fp32, bf16 or fp16" },
        { "\"data_types\": {\"grad_accum_dtype\": \"bf16\"}", "with weights in fp32" },
        { "\"stochastic_rounding\": true", "'stochastic_rounding' needs bf16.enabled" },
        { "\"seed\": 1e300", "'seed' is 1e300" },
        { "\"seed\": -1", "'seed' is -1" },
        { "\"model\": {\"n_head\": 5, \"n_embd\": 128}", "128 is not a multiple of" },
        { "\"model\": {\"n_positions\": 8}, \"data\": {\"train\": \"x\","
          " \"seq_len\": 9}",
          "'data.seq_len' 9 is more than 'model.n_positions' 8" },
        { "\"data\": {\"val\": \"x\"}", "'data.train' must say" },
        { "\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 3}",
          "2 ranks cannot be divided into sharding groups of 3" },
        { "\"zero_optimization\": {\"stage\": 2, \"mics_shard_size\": 2}",
          "needs stage 3, not 2" },
    };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(rows); i++) {
        char text[512];
        const char *needed = strstr(rows[i].text, "\"data\":") ? "" : NEEDED;
        snprintf(text, sizeof text, "{%s" BATCH "%s}", needed, rows[i].text);
        expect_refused(text, DCP_E_USAGE, rows[i].message, "");
    }
    assert_int_equal(read_settings("{" NEEDED BATCH "\"seed\": 1}", NULL, 0),
                     DCP_E_USAGE);
}

static void test_overrides(void **state)
{
    static const char *const overrides[] = { "zero_optimization.stage=2",
                                             "optimizer.params.lr=0.25",
                                             "checkpoint.dir=other=run",
                                             "data.train=/x/y*.txt",
                                             "steps=12",
                                             "bf16={\"enabled\": true}",
                                             "train_batch_size=null",
                                             "train_micro_batch_size_per_gpu=3",
                                             NULL };
    (void)state;
    assert_int_equal(read_settings("{" NEEDED BATCH
                                   "\"zero_optimization\": {\"stage\": 1}}",
                                   overrides, 2),
                     0);
    assert_int_equal(got.stage, 2);
    assert_true(is(got.lr, 0.25));
    assert_string_equal(got.checkpoint_dir, "other=run");
    assert_string_equal(got.data_train, "/x/y*.txt");
    assert_int_equal(got.steps, 12);
    assert_int_equal(got.dtype, DCP_BF16);
    assert_int_equal(got.train_batch_size, 6);

    static const char *const typo[] = { "zero_optimization.stge=2", NULL };
    assert_int_equal(read_settings("{" NEEDED BATCH "\"seed\": 1}", typo, 2),
                     DCP_E_USAGE);
    assert_string_equal(why.message, "c.json: unknown key 'zero_optimization.stge'");
    static const char *const text[] = { "seed=one", NULL };
    assert_int_equal(read_settings("{" NEEDED BATCH "\"seed\": 1}", text, 2),
                     DCP_E_USAGE);
    assert_non_null(strstr(why.message, "'seed' is \"one\""));
}

/* The resolved text is a configuration that resolves to itself. */
static void test_the_text_is_a_fixed_point(void **state)
{
    static const char *const texts[] = {
        "{" NEEDED BATCH "\"seed\": 1}",
        "{" NEEDED BATCH "\"model\": {\"n_layer\": 2}, \"datastates_ckpt\":"
        "{\"host_cache_size\": 0.5}, \"scheduler\": {\"type\": \"WarmupLR\"},"
        "\"optimizer\": {\"params\": {\"lr\": 0.30000000000000004}}}",
        "{\"data\": {\"train\": \"a\", \"val\": \"b\", \"tokenizer\": \"gpt2:vocab\"},"
        "\"train_micro_batch_size_per_gpu\": \"auto\", \"bfloat16\": {\"enabled\": true},"
        "\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {"
        "\"total_num_steps\": 7777, \"warmup_type\": \"linear\"}},"
        "\"data_types\": {\"grad_accum_dtype\": \"torch.bfloat16\"},"
        "\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 2}}",
    };
    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(texts); i++) {
        expect_read_by(texts[i], 4);
        char first[4096];
        snprintf(first, sizeof first, "%s", got.text);
        expect_read_by(first, 4);
        assert_string_equal(got.text, first);
        assert_string_equal(logged, "");
    }
    assert_non_null(strstr(got.text, "\"tokenizer\": \"gpt2:/srv/conf/vocab\""));
    assert_true(got.dtype == DCP_BF16 && !got.grad_accum_fp32 && got.grad_accum_bf16);
    assert_int_equal(got.shard_size, 2);
}

/* Paths begin at the configuration's folder, whose own name is no pattern; sizes can come
 * from the model to start from. */
static void test_read_a_file(void **state)
{
    char dir[] = "settings[x].XXXXXX", path[128], here[4096];
    struct settings read = { 0 };
    struct dcp_error err = { 0 };
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_non_null(getcwd(here, sizeof here));
    snprintf(path, sizeof path, "%s/start", dir);
    assert_int_equal(dcp_fs_make_dirs(path, &err), 0);
    snprintf(path, sizeof path, "%s/start/config.json", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_head\": 2, \"n_embd\": 32,"
          " \"n_positions\": 64, \"vocab_size\": 300, \"layer_norm_epsilon\": 1e-5}",
          file);
    fclose(file);
    snprintf(path, sizeof path, "%s/c.json", dir);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("{" NEEDED BATCH "\"model\": {\"init\": \"start\", \"n_layer\": 3}}", file);
    fclose(file);

    assert_int_equal(settings_read(path, NULL, 1, NULL, &read, &err), 0);
    char want[8192];
    snprintf(want, sizeof want, "%s/settings\\[x].%s/a.txt", here, dir + 12);
    assert_string_equal(read.data_train, want);
    snprintf(want, sizeof want, "%s/%s/start", here, dir);
    assert_string_equal(read.model_init, want);
    assert_int_equal(read.model.n_embd, 32);
    assert_int_equal(read.model.vocab_size, 300);
    assert_int_equal(read.seq_len, 64);
    settings_fini(&read);

    const char *const other[] = { "model.n_layer=4", NULL };
    assert_int_equal(settings_read(path, other, 1, NULL, &read, &err), DCP_E_MISMATCH);
    assert_non_null(strstr(err.message, "'model.n_layer' is 4, but"));
    err = (struct dcp_error){ 0 };
    assert_int_equal(settings_read("no/c.json", NULL, 1, NULL, &read, &err),
                     DCP_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "no/c.json"));
    assert_int_equal(dcp_fs_remove_all(dir, NULL), 0);
}

static int print_resolved(const char *path, const char *world_size)
{
    struct settings settings;
    struct dcp_error err = { 0 };
    int64_t ranks;
    if (!dcp_str_parse_i64(world_size, &ranks) || ranks > 1 << 20)
        return 2;
    int rc = settings_read(path, NULL, (int)ranks, NULL, &settings, &err);
    if (rc)
        fprintf(stderr, "%s\n", err.message);
    else
        printf("%s\n", settings.text);
    settings_fini(&settings);
    return dcp_error_exit(rc);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_documented_example),
        cmocka_unit_test(test_defaults_are_deepspeeds),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_auto_becomes_something_and_says_so),
        cmocka_unit_test(test_keys_without_effect_are_told_once),
        cmocka_unit_test(test_fp16),
        cmocka_unit_test(test_what_is_not_supported_says_why),
        cmocka_unit_test(test_quantized),
        cmocka_unit_test(test_unknown_keys),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_the_text_is_a_fixed_point),
        cmocka_unit_test(test_read_a_file),
    };
    if (argc == 4 && strcmp(argv[1], "resolve") == 0)
        return print_resolved(argv[2], argv[3]);
    return cmocka_run_group_tests(tests, NULL, forget_parsed);
}
