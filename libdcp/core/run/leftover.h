/* leftover: temporary and trash folders, which a dead process may have left behind.
 *
 * Who makes a temporary folder holds it (dcp_store_ops.hold, exclusively) as long as it
 * lives, and who removes one holds it before: so none goes that a living process makes,
 * with the lease of the run or without. */
#ifndef DCP_CORE_RUN_LEFTOVER_H
#define DCP_CORE_RUN_LEFTOVER_H

#include <dcp/store.h>

/* A reshard in parts: its folder waits, while nobody is at work, for parts that other
 * machines make. Who is holds this file in it; see core/parts. */
#define DCP_PARTS_PREFIX ".parts-"
#define DCP_PARTS_LOCK "/lock"

/* Removes what has the name. Errors: BUSY (a living process holds it), NOT_FOUND (there
 * is nothing, or others removed it), and those of remove. */
int dcp_leftover_remove(const struct dcp_store *store, const char *name,
                        struct dcp_error *err);
/* Finds a name for a new one: PREFIX NAME, where what a dead process left is removed.
 * When somebody holds that, or it cannot be removed, it stays, and the name is
 * PREFIX NAME~2, or ~3, and so on. Caller frees *out_name. Errors: MEMORY, and those of
 * dcp_leftover_remove when nothing helps. */
int dcp_leftover_clear(const struct dcp_store *store, const char *prefix,
                       const char *name, char **out_name, struct dcp_error *err);
/* The same, and makes the folder and holds it: *out_held is given back with dcp_unpin,
 * and is NULL where nothing can be held. Errors: also those of make_dir. */
int dcp_leftover_make(const struct dcp_store *store, const char *prefix, const char *name,
                      char **out_name, struct dcp_store_file **out_held,
                      struct dcp_error *err);
/* Removes a whole folder: it gets a name that no discovery looks at, durably, before its
 * files go one by one. Errors: those of dcp_leftover_clear, publish and remove. */
int dcp_leftover_bury(const struct dcp_store *store, const char *name,
                      struct dcp_error *err);

#endif
