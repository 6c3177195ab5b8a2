/* globals: the classes and functions that pickles name. Whoever loads a pickle imports
 * the modules and calls what it names, so that these names are all that tells a
 * checkpoint from a program. See docs/decisions/known-safe-globals.md. */
#ifndef DCP_GLOBALS_H
#define DCP_GLOBALS_H

#include <dcp/format.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dcp_global_kind {
    DCP_GLOBAL_SAFE,     /* known to build data, whatever its arguments are */
    DCP_GLOBAL_UNKNOWN,  /* a class of somebody's */
    DCP_GLOBAL_DANGEROUS /* known to run code, to open files or sockets, to import */
};
/* "known safe", "unknown", "dangerous". Static. */
DCP_PUBLIC const char *dcp_global_kind_name(enum dcp_global_kind kind);
/* By the full name in Python 3, "module.name"; "module:Outer.name" where it stands in a
 * class. */
DCP_PUBLIC enum dcp_global_kind dcp_global_judge(const char *name);

struct dcp_global {
    const char *file;  /* in the source, "" where that is the file; NULL: an object */
    const char *where; /* the record in the file, or the path in the object; "": all */
    const char *name;
    enum dcp_global_kind kind;
};
/* Called for what is found, in order, a name perhaps several times; texts are borrowed
 * for the call. A code other than 0 ends the search. */
struct dcp_global_visit {
    int (*take)(void *self, const struct dcp_global *global, struct dcp_error *err);
    void *self;
};

/* The name of a pickle that cannot be read to its end. */
#define DCP_GLOBAL_UNREADABLE "(a pickle that cannot be read)"
/* The unknown name of what is not searched: compressed files, archives that are no
 * checkpoints, folders that are too deep. */
#define DCP_GLOBAL_UNSEARCHED "(not searched: unpack it first)"
/* What an object names: JSON that stands for values of Python, or an archive of
 * torch.save. A pickle that cannot be read is visited as a dangerous name. Errors:
 * MEMORY, those of take. */
DCP_PUBLIC int dcp_object_globals(const struct dcp_object *object,
                                  const struct dcp_global_visit *visit,
                                  struct dcp_error *err);
/* What all pickles of a source name: those of torch.save in its three containers, and of
 * NumPy; files of pickles; the items of distributed checkpoints; the objects of a step. A
 * source of no known format is searched, too. What cannot be is visited as an unknown
 * name. *out_pickles (may be NULL): how many there
 * are. Errors: NOT_FOUND, IO, MEMORY, those of take. */
DCP_PUBLIC int dcp_source_globals(const struct dcp_source *source,
                                  const struct dcp_global_visit *visit,
                                  uint64_t *out_pickles, struct dcp_error *err);

#ifdef __cplusplus
}
#endif
#endif
