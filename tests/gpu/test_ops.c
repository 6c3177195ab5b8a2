/* Every kernel of ops_cuda() against the plain ones. */
#include "lib/check_ops.h"
#include "lib/cuda.h"

int main(void)
{
    cuda_need();
    cuda_use_arrays();
    return check_ops(ops_cuda(), 1e-5, false);
}
