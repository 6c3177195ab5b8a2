/* The fast kernels of the CPU. */
#include "lib/check_ops.h"

int main(void)
{
    return check_ops(ops_best(), 2e-6, true);
}
