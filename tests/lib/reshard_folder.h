/* reshard_folder: a folder with a source and a target, and reshards between them. For
 * cmocka tests: what is not as it must be fails the test. */
#ifndef TESTS_LIB_RESHARD_FOLDER_H
#define TESTS_LIB_RESHARD_FOLDER_H

#include <dcp/reshard.h>

#define RESHARD_SALT 3 /* of the sample state that is saved */

struct reshard_folder {
    char path[256], source[512], target[512];
};

/* Setup and teardown of a cmocka test; *state is the folder. */
int reshard_folder_setup(void **state);
int reshard_folder_teardown(void **state);

/* Saves the sample as step 5 of the run folder `path`. */
void reshard_folder_save(const char *path, const char *layout, int world_size,
                         enum dcp_codec codec);
int reshard_folder_run(const char *source, const char *target,
                       const struct dcp_reshard_options *options, struct dcp_error *err);
void reshard_folder_must_run(const char *source, const char *target,
                             const struct dcp_reshard_options *options);
/* Complete by its digests, and every fingerprint is the sample's. Returns the tensors. */
size_t reshard_folder_check(const char *path, const char *layout, int world_size);
/* How many names in a folder begin so. */
int reshard_folder_count(const char *path, const char *prefix);

#endif
