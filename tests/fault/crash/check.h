/* check: what is in a run folder is what was saved, by the library's own eyes. */
#ifndef TESTS_FAULT_CHECK_H
#define TESTS_FAULT_CHECK_H

#include <dcp/checkpoint.h>
#include <stdarg.h>

/* Writes why and returns false. */
bool wrong(char why[512], const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The state that is saved as a step. */
#define STEP_SALT(step) ((unsigned)((step) % 40))

/* Every step has its salt, but one may have another. */
struct run_want {
    int64_t least, most; /* of the newest; least 0: there may be none */
    int keep;            /* steps that must be there at least, 0: all up to `least` */
    int64_t first;       /* of the run */
    int64_t again;       /* this step may also hold the salt `again_salt`; 0: none */
    unsigned again_salt;
    bool latest; /* the file "latest" names a step that is there, `least` or newer */
};

/* A folder of a step is complete, every digest holds, and every tensor has the
 * fingerprint of the sample with this salt (or the other). */
bool step_is(const struct dcp_store *store, const char *name, unsigned salt,
             unsigned other, char why[512]);
bool run_is(const char *folder, const struct run_want *want, char why[512]);

#endif
