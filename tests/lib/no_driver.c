/* What cuDNN asks of CUDA's driver while it plans for a GPU that is only described: a
 * library that is loaded as libcuda.so.1, where there is none. All calls succeed, and
 * what is loaded is never run. */

#pragma GCC visibility push(default)

/* Of these the first argument is where to put what was loaded. */
#define LOADS(name)         \
    int name(void **out);   \
    int name(void **out)    \
    {                       \
        *out = (void *)out; \
        return 0;           \
    }
#define DOES_NOTHING(name) \
    int name(void);        \
    int name(void)         \
    {                      \
        return 0;          \
    }

LOADS(cuKernelGetFunction)
LOADS(cuLibraryGetKernel)
LOADS(cuLibraryLoadData)
LOADS(cuModuleGetFunction)
LOADS(cuModuleLoadData)

DOES_NOTHING(cuCtxGetCurrent)
DOES_NOTHING(cuCtxGetLimit)
DOES_NOTHING(cuCtxPopCurrent)
DOES_NOTHING(cuCtxPushCurrent)
DOES_NOTHING(cuDeviceGet)
DOES_NOTHING(cuDeviceGetCount)
DOES_NOTHING(cuDriverGetVersion)
DOES_NOTHING(cuGetErrorName)
DOES_NOTHING(cuGetErrorString)
DOES_NOTHING(cuKernelGetAttribute)
DOES_NOTHING(cuKernelSetAttribute)
DOES_NOTHING(cuLaunchCooperativeKernel)
DOES_NOTHING(cuLaunchKernel)
DOES_NOTHING(cuLaunchKernelEx)
DOES_NOTHING(cuLibraryLoadFromFile)
DOES_NOTHING(cuLibraryUnload)
DOES_NOTHING(cuLinkAddData)
DOES_NOTHING(cuLinkComplete)
DOES_NOTHING(cuLinkCreate)
DOES_NOTHING(cuLinkDestroy)
DOES_NOTHING(cuModuleUnload)
DOES_NOTHING(cuOccupancyMaxPotentialClusterSize)
DOES_NOTHING(cuStreamGetCtx)
DOES_NOTHING(cuTensorMapEncodeIm2col)
DOES_NOTHING(cuTensorMapEncodeTiled)
