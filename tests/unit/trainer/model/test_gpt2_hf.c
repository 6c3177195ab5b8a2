/* labels: peers */
/* Ten steps against Hugging Face's GPT2LMHeadModel and torch.optim.AdamW, from the same
 * weights and tokens, with clipping and with weight decay on matrices alone. The peer is
 * tests/oracle/gpt2_hf.py, run by the python that DCP_PEERS names. */
#include "base/fs.h"
#include "base/mem.h"
#include "lib/whole_model.h"
#include "trainer/ops/ops.h"
#include "trainer/ops/optim.h"
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 10, BATCH = 4, SEQ_LEN = 32, LOSS_SCALE = 1024 }; /* as in the peer */
enum { SKIPPED = 77 };
#define LR 3e-3
#define DECAY 0.1
#define CLIP 1.0

static const struct model_config config = { .family = "gpt2",
                                            .n_layer = 3,
                                            .n_head = 3,
                                            .n_embd = 48,
                                            .n_positions = 40,
                                            .vocab_size = 101 };
extern char **environ;
static char folder[] = "gpt2_hf.XXXXXX";

/* A file that the peer left. */
static void *read_file(const char *name, size_t *out_size)
{
    char *path = dcp_fs_join(folder, name);
    struct dcp_error err = { 0 };
    void *data;
    if (dcp_fs_read_file(path, 1 << 28, &data, out_size, &err))
        fail_msg("%s", err.message);
    free(path);
    return data;
}

static int run_peer(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    char *path = dcp_fs_join(folder, "config.json");
    char *json = model_config_json(&config, DCP_F32);
    FILE *file = fopen(path, "w");
    assert_true(json && file && fputs(json, file) >= 0 && fclose(file) == 0);
    free(json);
    free(path);

    char script[] = DCP_TESTS_DIR "/oracle/gpt2_hf.py";
    char *argv[] = { getenv("DCP_PEERS"), script, folder, NULL };
    pid_t pid;
    int status;
    assert_int_equal(posix_spawn(&pid, argv[0], NULL, NULL, argv, environ), 0);
    while (waitpid(pid, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    return status;
}

static int remove_folder(void **state)
{
    (void)state;
    return dcp_fs_remove_all(folder, NULL);
}

/* The biases of keys shift all scores of a row alike: their gradient is zero but for
 * rounding, of which Adam makes steps in a random direction. */
static bool is_noise(const char *param, long long i)
{
    return strstr(param, "attn.c_attn.bias") && i >= config.n_embd &&
           i < 2 * config.n_embd;
}

/* Calls `what` for each tensor of a .bin of the peer, by name: parameter k, which there
 * has the values at `at`. */
static void for_each_tensor(struct whole_model *w, const char *name,
                            void (*what)(struct whole_model *w, int k, const float *at))
{
    size_t size, names_size;
    float *values = read_file(name, &size), *at = values;
    char *names = read_file("names.txt", &names_size), *line = names;
    int n_found = 0;
    while (*line) {
        char param[96];
        long long n;
        int used;
        assert_int_equal(sscanf(line, "%95s %lld\n%n", param, &n, &used), 2);
        line += used;
        int k = 0;
        while (k < w->n_params && strcmp(w->params[k].name, param) != 0)
            k++;
        if (k == w->n_params || w->params[k].n_elems != n)
            fail_msg("%s of %lld elements is not in our model", param, n);
        what(w, k, at);
        at += n;
        n_found++;
    }
    assert_int_equal(n_found, w->n_params);
    assert_int_equal((char *)at - (char *)values, size);
    free(values);
    free(names);
}

static void take_weight(struct whole_model *w, int k, const float *at)
{
    memcpy(w->weights[k], at, (size_t)w->params[k].n_elems * sizeof *at);
}

/* Adam also makes large steps of the tiniest gradients: bound the mean. */
static void compare_weight(struct whole_model *w, int k, const float *at)
{
    double off = 0, n = (double)w->params[k].n_elems;
    for (int64_t i = 0; i < w->params[k].n_elems; i++) {
        double difference = (double)w->weights[k][i] - (double)at[i];
        off += is_noise(w->params[k].name, i) ? 0 : difference * difference;
    }
    if (sqrt(off / n) > 1e-3 * STEPS * LR)
        fail_msg("%s is off by %g in the mean", w->params[k].name, sqrt(off / n));
}

/* One number a line. */
static void read_lines(const char *name, double out[STEPS])
{
    size_t size;
    char *text = read_file(name, &size), *at = text;
    for (int i = 0; i < STEPS; i++)
        out[i] = strtod(at, &at);
    free(text);
}

static double clip(struct whole_model *w, float *out_scale)
{
    double squares = 0;
    for (int k = 0; k < w->n_params; k++)
        for (int64_t i = 0; i < w->params[k].n_elems; i++)
            squares += (double)w->grads[k][i] * (double)w->grads[k][i];
    double norm = sqrt(squares);
    *out_scale = norm > CLIP ? (float)(CLIP / (norm + 1e-6)) : 1;
    return norm;
}

static void test_same_configuration(void **state)
{
    (void)state;
    size_t size;
    char *text = read_file("hf_config.json", &size);
    struct model_config back;
    struct dcp_error err = { 0 };
    if (model_config_parse(text, size, &back, &err))
        fail_msg("%s", err.message);
    assert_string_equal(back.family, config.family);
    assert_int_equal(back.n_layer, config.n_layer);
    assert_int_equal(back.n_head, config.n_head);
    assert_int_equal(back.n_embd, config.n_embd);
    assert_int_equal(back.n_positions, config.n_positions);
    assert_int_equal(back.vocab_size, config.vocab_size);
    assert_true(back.layer_norm_epsilon == 1e-5);
    free(text);
}

/* After the steps: logits, at every length of a text, all at once and token by token. */
static void compare_logits(struct whole_model *w, const int32_t *tokens)
{
    size_t size;
    float *want = read_file("logits.bin", &size);
    float got[2][101];
    assert_int_equal(size, SEQ_LEN * config.vocab_size * (int)sizeof(float));
    for (int n = 1; n <= SEQ_LEN; n++) {
        assert_int_equal(model_logits(w->model, &w->hooks, tokens, n, got[0], NULL), 0);
        for (int v = 0; v < config.vocab_size; v++)
            assert_true(fabsf(got[0][v] - want[(n - 1) * 101 + v]) < 1e-4f);
    }
    for (int n = 1; n <= SEQ_LEN; n++) {
        int rc =
            n == 1 ? model_logits(w->model, &w->hooks, tokens, 1, got[1], NULL)
                   : model_logits_next(w->model, &w->hooks, tokens[n - 1], got[1], NULL);
        assert_int_equal(rc, 0);
        for (int v = 0; v < config.vocab_size; v++)
            assert_true(fabsf(got[1][v] - want[(n - 1) * 101 + v]) < 1e-4f);
    }
    free(want);
}

/* Of one step, in the order of the peer's files. */
static void take_batch(const int32_t *batch, int32_t *tokens, int32_t *targets)
{
    for (int b = 0; b < BATCH; b++) {
        const int32_t *row = batch + b * (SEQ_LEN + 1);
        memcpy(tokens + b * SEQ_LEN, row, SEQ_LEN * sizeof *row);
        memcpy(targets + b * SEQ_LEN, row + 1, SEQ_LEN * sizeof *row);
    }
}

static void train(const struct ops *ops)
{
    struct whole_model w;
    whole_model_init_with(&w, &config, DCP_F32, ops, BATCH, SEQ_LEN);
    for_each_tensor(&w, "first.bin", take_weight);
    size_t n_all = (size_t)whole_model_elems(&w);
    float *moments[2] = { dcp_mem_calloc(n_all, 4), dcp_mem_calloc(n_all, 4) };
    double losses[STEPS], norms[STEPS];
    read_lines("losses.txt", losses);
    read_lines("norms.txt", norms);
    size_t size;
    int32_t *all = read_file("tokens.bin", &size), tokens[BATCH * SEQ_LEN];
    int32_t targets[BATCH * SEQ_LEN];
    assert_int_equal(size, sizeof(int32_t) * STEPS * BATCH * (SEQ_LEN + 1));

    for (int step = 0; step < STEPS; step++) {
        const int32_t *batch = all + step * BATCH * (SEQ_LEN + 1);
        double loss;
        take_batch(batch, tokens, targets);
        whole_model_zero_grads(&w);
        assert_int_equal(model_train(w.model, &w.hooks, tokens, targets, BATCH, SEQ_LEN,
                                     1, &loss, NULL),
                         0);
        struct optim_params params = { .lr = LR,
                                       .beta1 = 0.9,
                                       .beta2 = 0.95,
                                       .eps = 1e-8,
                                       .step = step + 1,
                                       .bias_correction = true,
                                       .decoupled = true };
        double norm = clip(&w, &params.grad_scale);
        print_message("step %d: loss %.9g, there %.9g; norm %.6g\n", step + 1, loss,
                      losses[step], norm);
        assert_true(fabs(loss - losses[step]) < 1e-4);
        assert_true(fabs(norm - norms[step]) < 1e-4 * norms[step]);
        size_t at = 0;
        for (int k = 0; k < w.n_params; k++) {
            params.weight_decay = w.params[k].decay ? DECAY : 0;
            const struct optim_range range = { .master = w.weights[k],
                                               .state[0] = moments[0] + at,
                                               .state[1] = moments[1] + at,
                                               .grad = w.grads[k],
                                               .grad_dtype = DCP_F32,
                                               .n = w.params[k].n_elems };
            optim_step(&range, &params);
            at += (size_t)w.params[k].n_elems;
        }
    }
    for_each_tensor(&w, "last.bin", compare_weight);
    for (int t = 0; t < SEQ_LEN; t++)
        tokens[t] = all[t];
    compare_logits(&w, tokens);
    free(all);
    free(moments[0]);
    free(moments[1]);
    whole_model_fini(&w);
}

/* The gradients of the first step in fp16 under a loss scale, against those in fp32: the
 * weights are rounded, too. torch's own float16 is 0.003 of the norm away. */
#define HALF_BOUND 0.005

static void compare_grad(struct whole_model *w, int k, const float *at)
{
    double off = 0, squares = 0;
    for (int64_t i = 0; i < w->params[k].n_elems; i++) {
        double difference = (double)w->grads[k][i] / LOSS_SCALE - (double)at[i];
        if (is_noise(w->params[k].name, i))
            continue;
        off += difference * difference;
        squares += (double)at[i] * (double)at[i];
    }
    print_message("%s: %.2g of its norm\n", w->params[k].name, sqrt(off / squares));
    if (!(off <= HALF_BOUND * HALF_BOUND * squares))
        fail_msg("the gradient of %s is off by %g of its norm", w->params[k].name,
                 sqrt(off / squares));
}

static void train_half(const struct ops *ops)
{
    struct whole_model w;
    size_t size;
    int32_t *all = read_file("tokens.bin", &size);
    int32_t tokens[BATCH * SEQ_LEN], targets[BATCH * SEQ_LEN];
    double loss, losses[STEPS];
    whole_model_init_with(&w, &config, DCP_F16, ops, BATCH, SEQ_LEN);
    for_each_tensor(&w, "first.bin", take_weight);
    whole_model_sync(&w);
    take_batch(all, tokens, targets);
    assert_int_equal(model_train(w.model, &w.hooks, tokens, targets, BATCH, SEQ_LEN,
                                 LOSS_SCALE, &loss, NULL),
                     0);
    read_lines("losses.txt", losses);
    print_message("loss %.9g, there %.9g\n", loss, losses[0]);
    assert_true(fabs(loss - losses[0]) < 2e-4 * losses[0]);
    print_message("beside torch in fp32:\n");
    for_each_tensor(&w, "grads.bin", compare_grad);
    print_message("beside torch in float16:\n");
    for_each_tensor(&w, "grads_half.bin", compare_grad);
    free(all);
    whole_model_fini(&w);
}

static void test_half(void **state)
{
    (void)state;
    train_half(ops_best());
    train_half(ops_cpu());
}

static void test_fast(void **state)
{
    (void)state;
    train(ops_best());
}

static void test_plain(void **state)
{
    (void)state;
    train(ops_cpu());
}

int main(void)
{
    if (!getenv("DCP_PEERS")) {
        print_message("skipped: no peers (DCP_PEERS is not set; ./scripts/test.sh makes "
                      "them)\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_same_configuration),
                                        cmocka_unit_test(test_half),
                                        cmocka_unit_test(test_fast),
                                        cmocka_unit_test(test_plain) };
    return cmocka_run_group_tests(tests, run_peer, remove_folder);
}
