/* step_files: the files of a step as they were saved, to corrupt some and to see whether
 * they are whole again. */
#ifndef TESTS_LIB_STEP_FILES_H
#define TESTS_LIB_STEP_FILES_H

#include <dcp/store.h>

struct step_files {
    const struct dcp_store *store;
    char step[64];
    struct {
        char name[80];
        unsigned char *data;
        size_t n;
    } files[64];
    size_t n;
};

/* Reads them all. */
void step_files_read(struct step_files *out, const struct dcp_store *store,
                     const char *step);
void step_files_free(struct step_files *files);
/* The index of a file by its name. */
size_t step_files_find(const struct step_files *files, const char *name);
/* Writes a file anew with other bytes, or removes it. */
void step_files_put(const struct step_files *files, const char *name, const void *data,
                    size_t n);
void step_files_remove(const struct step_files *files, const char *name);
/* As it was. */
void step_files_restore(const struct step_files *files, size_t file);
void step_files_restore_all(const struct step_files *files);
/* Whether the step has these files with these bytes, and no others. */
bool step_files_same(const struct step_files *files);

#endif
