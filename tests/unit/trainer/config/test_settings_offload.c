/* Offloading: where the state waits, and what a configuration must say for it. */
#include "lib/parsed.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ZERO(inside) "{" NEEDED BATCH "\"zero_optimization\": {" inside "}}"
#define NVME(more) "{\"device\": \"nvme\"" more "}"
#define THERE ", \"nvme_path\": \"/disk\""

static void nothing_waits_unless_asked(void **state)
{
    (void)state;
    expect_read(ZERO("\"offload_optimizer\": {\"device\": \"none\"}, \"stage\": 3"));
    assert_false(got.swap_optim.host || got.swap_optimizer || got.swap_weights);
    expect_read(ZERO("\"cpu_offload\": true"));
    assert_true(got.swap_optim.host && !got.swap_param.host && !got.swap_optimizer);
}

static void files(void **state)
{
    (void)state;
    expect_read(ZERO("\"stage\": 3, \"sub_group_size\": 77, \"offload_optimizer\": " NVME(
        THERE) ", \"offload_param\": " NVME(THERE ", \"buffer_count\": 7, "
                                                  "\"buffer_size\": 1e6, "
                                                  "\"max_in_cpu\": 5")));
    assert_true(got.swap_optimizer && got.swap_weights && !got.swap_optim.host);
    assert_string_equal(got.swap_optim.path, "/disk");
    assert_int_equal(got.swap_optim.buffers, 4);
    assert_int_equal(got.sub_group_size, 77);
    assert_int_equal(got.swap_param.buffers, 7);
    assert_int_equal(got.swap_param.buffer_size, 1000000);
    assert_int_equal(got.swap_param.max_in_cpu, 5);
    assert_string_equal(logged, "");
}

static void the_host_s_memory(void **state)
{
    (void)state;
    expect_read(ZERO("\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\", "
                     "\"ratio\": 0.25}, \"offload_param\": {\"device\": \"cpu\", "
                     "\"pin_memory\": false}"));
    assert_true(got.swap_optim.host && got.swap_param.host && !got.swap_optimizer);
    assert_true(got.swap_optim.pinned && !got.swap_param.pinned);
    assert_true(got.swap_optim.ratio == 0.25);
    assert_string_equal(logged, "");
    expect_read(ZERO("\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\", "
                     "\"ratio\": 0.25}"));
    assert_non_null(strstr(logged, "W c.json: zero_optimization.offload_optimizer.ratio "
                                   "has no effect at stage 2"));
    expect_read(ZERO("\"stage\": 2, \"offload_optimizer\": {\"ratio\": 0.25}"));
    assert_string_equal(logged, "");
}

static void weights_are_offloaded_at_stage_3(void **state)
{
    (void)state;
    expect_read(ZERO("\"cpu_offload_param\": true, \"stage\": 2"));
    assert_false(got.swap_param.host);
    assert_non_null(strstr(logged, "offload_param has no effect at stage 2"));
    expect_read(ZERO("\"stage\": 2, \"offload_param\": " NVME("")));
    assert_false(got.swap_weights);
    assert_non_null(strstr(logged, "W c.json: zero_optimization.offload_param has no "
                                   "effect at stage 2"));
}

/* FSDP's CPUOffload: parameters, and the optimizer's step. */
static void fsdp_offloads_both(void **state)
{
    (void)state;
    expect_read("{" NEEDED BATCH "\"fsdp_config\": {\"offload_params\": true}}");
    assert_true(got.stage == 3 && got.swap_param.host && got.swap_optim.host);
    expect_read("{" NEEDED BATCH "\"fsdp_config\": {\"offload_params\": false}, "
                "\"zero_optimization\": {\"stage\": 3, \"cpu_offload_param\": true}}");
    assert_true(got.swap_param.host && !got.swap_optim.host);
}

static void a_folder_must_be_given(void **state)
{
    (void)state;
    expect_refused(ZERO("\"stage\": 3, \"offload_param\": " NVME("")), DCP_E_USAGE,
                   "'zero_optimization.offload_param.nvme_path' must say in which folder",
                   "/local_nvme");
    expect_refused(ZERO("\"offload_optimizer\": " NVME(", \"nvme_path\": \"\"")),
                   DCP_E_USAGE, "offload_optimizer.nvme_path' must say", "");
    expect_refused(ZERO("\"offload_optimizer\": " NVME(THERE ", \"buffer_count\": 0")),
                   DCP_E_USAGE, "buffer_count", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_waits_unless_asked),
        cmocka_unit_test(files),
        cmocka_unit_test(the_host_s_memory),
        cmocka_unit_test(weights_are_offloaded_at_stage_3),
        cmocka_unit_test(fsdp_offloads_both),
        cmocka_unit_test(a_folder_must_be_given),
    };
    return cmocka_run_group_tests(tests, NULL, forget_parsed);
}
