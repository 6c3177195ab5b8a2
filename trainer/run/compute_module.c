/* compute_module: the module for CUDA, beside the program or where it is installed. */
#include "compute.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include <dlfcn.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

/* From the program's folder. */
static const char *const places[] = { "", DCP_MODULE_DIR "/" };

static int load(const char *path, const struct compute_module **out_module,
                struct dcp_error *err)
{
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *out_module = module ? dlsym(module, COMPUTE_MODULE_SYMBOL) : NULL;
    if (*out_module)
        return DCP_OK;
    dcp_error_set(err, DCP_E_UNSUPPORTED, "the kernels for CUDA cannot be loaded: %s",
                  dlerror());
    dcp_error_hint(err,
                   "--device cpu, or install the libraries of CUDA that are missing");
    return DCP_E_UNSUPPORTED;
}

/* Without the driver there is no GPU, and nothing worth loading. */
static int find_driver(struct dcp_error *err)
{
    if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL))
        return DCP_OK;
    dcp_error_set(err, DCP_E_UNSUPPORTED,
                  "no GPU is seen: there is no driver for CUDA (%s)", dlerror());
    dcp_error_hint(err, "--device cpu, or look at what nvidia-smi says");
    return DCP_E_UNSUPPORTED;
}

int compute_module(const struct compute_module **out_module, struct dcp_error *err)
{
    char exe[PATH_MAX];
    DCP_TRY(find_driver(err));
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    *out_module = NULL;
    exe[n < 0 ? 0 : n] = '\0';
    char *slash = strrchr(exe, '/');
    exe[slash ? slash + 1 - exe : 0] = '\0';
    for (size_t i = 0; i < DCP_ARRAY_LEN(places); i++) {
        DCP_CLEANUP_FREE char *path = dcp_str_join(exe, places[i], COMPUTE_MODULE);
        if (!path)
            return dcp_error_memory(err, "a path");
        if (dcp_fs_exists(path))
            return load(path, out_module, err);
    }
    dcp_error_set(err, DCP_E_UNSUPPORTED, "there is no '%s" DCP_MODULE_DIR "/%s'", exe,
                  COMPUTE_MODULE);
    dcp_error_hint(err, "--device cpu, or install all of libdcp");
    return DCP_E_UNSUPPORTED;
}
