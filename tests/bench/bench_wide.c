/* Makes a step of many ranks that takes little room, for tests/bench/scale.
 * usage: bench_wide flat|dim0|columns WORLD TENSORS FOLDER */
#include "lib/wide_step.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int main(int argc, char **argv)
{
    if (argc != 5 || mkdir(argv[4], 0777)) {
        fprintf(stderr, "usage: bench_wide flat|dim0|columns WORLD TENSORS FOLDER\n");
        return 2;
    }
    const struct wide_step step = { .layout = argv[1],
                                    .world_size = (int)strtol(argv[2], NULL, 10),
                                    .n_tensors = (int)strtol(argv[3], NULL, 10),
                                    .rows = 8192,
                                    .columns = 8192 };
    wide_step_write(&step, argv[4]);
    return 0;
}
