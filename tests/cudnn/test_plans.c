/* The real cuDNN makes plans of our graphs of attention, for GPUs that are only
 * described: it knows them, has engines that give the same bits each time, and needs as
 * much memory as we reckon with. */
#include "trainer/ops/cuda/attention_cudnn.h"
#include <dcp/dcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GPU(name, version, sms, shared)                                              \
    "{\"deviceVer\":" version ",\"driverVer\":13000,\"cudaDeviceId\":0,"             \
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"      \
    "\"regsPerBlock\":65536,\"multiProcessorCount\":" sms ",\"smCountOrigin\":0,"    \
    "\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"                             \
    "\"maxSharedMemoryPerBlockOptin\":" shared ",\"oversizedSharedMemoryPerBlock\":" \
    "0,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"           \
    "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"      \
    "\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"                   \
    "\"smClockRateKHz\":1410000,\"memClockRateKHz\":1593000,\"memoryBusWidth\":"     \
    "5120,\"l2CacheSize\":41943040,\"deviceName\":\"" name                           \
    "\",\"totalGlobalMem\":80000000000}"

static const char *const gpus[] = {
    GPU("NVIDIA A100-SXM4-80GB", "800", "108", "166912"),
    GPU("NVIDIA H100 80GB HBM3", "900", "132", "232448"),
};

static const struct {
    struct cudnn_attention shape;
    bool possible;
} cases[] = {
    { { 4, 1024, 12, 64, false, DCP_BF16 }, true },
    { { 1, 2048, 16, 128, false, DCP_BF16 }, true },
    { { 1, 100, 6, 64, false, DCP_BF16 }, true },
    { { 2, 33, 3, 8, false, DCP_BF16 }, true },
    { { 2, 64, 3, 80, false, DCP_BF16 }, true },
    { { 3, 2, 1, 16, false, DCP_BF16 }, true },
    { { 2, 64, 3, 12, false, DCP_BF16 }, false }, /* a head is a multiple of 8 */
};

static cudnn_node device_of(const char *gpu)
{
    cudnn_node device;
    assert_int_equal(
        cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device), 0);
    assert_int_equal(
        cudnnBackendSetAttribute(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                 CUDNN_TYPE_CHAR, (int64_t)strlen(gpu) + 1, gpu),
        0);
    assert_int_equal(cudnnBackendFinalize(device), 0);
    return device;
}

static void plan_one(const struct cudnn_target *target, struct cudnn_attention shape,
                     bool backward, enum dcp_dtype dtype, bool possible)
{
    struct cudnn_plan plan;
    struct dcp_error err = { 0 };
    shape.backward = backward;
    shape.dtype = dtype;
    int rc = cudnn_attention_plan(&shape, target, &plan, &err);
    print_message("%s of %lld x %lld in %s, %lld heads of %lld: %s%.1f MiB\n",
                  backward ? "gradient" : "attention", (long long)shape.batch,
                  (long long)shape.seq_len, dcp_dtype_name(dtype),
                  (long long)shape.n_head, (long long)shape.head_size,
                  rc ? err.message : "", (double)plan.workspace_bytes / (1 << 20));
    assert_int_equal(rc, possible ? DCP_OK : DCP_E_UNSUPPORTED);
    assert_in_range(plan.workspace_bytes, 0,
                    shape.batch * cudnn_attention_bytes(&shape) + (1 << 12));
    cudnn_plan_fini(&plan);
}

static void test_plans(void **state)
{
    (void)state;
    print_message("cuDNN %zu\n", cudnnGetVersion());
    for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++) {
        const struct cudnn_target target = { .device = device_of(gpus[g]) };
        print_message("%s\n", strstr(gpus[g], "NVIDIA"));
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (int backward = 0; backward < 2; backward++) {
                plan_one(&target, cases[i].shape, backward, DCP_BF16, cases[i].possible);
                plan_one(&target, cases[i].shape, backward, DCP_F16, cases[i].possible);
            }
        cudnnBackendDestroyDescriptor(target.device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_plans) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
