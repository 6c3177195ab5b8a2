/* run_folder: a run of a small GPT-2 as a trainer leaves it: three steps of four ranks,
 * and the temporary folder of a save that did not end. Its numbers are a function of
 * tensor, element and step, so that what is printed of them can be written down. */
#ifndef TESTS_LIB_RUN_FOLDER_H
#define TESTS_LIB_RUN_FOLDER_H

#define RUN_FOLDER_WORLD_SIZE 4
#define RUN_FOLDER_PARAMS 3152 /* elements of its weights */

/* Makes it at `path`, which does not exist. Returns 0, or prints why and returns 1. */
int run_folder_make(const char *path);

#endif
