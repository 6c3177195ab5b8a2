/* node: the files and folders of the store in memory, each twice: as it is, and as its
 * last sync left it. Thread rule: the store's lock is held. Functions that allocate
 * return false when there is no memory, and have then changed nothing. */
#ifndef DCP_PORT_STORE_NODE_H
#define DCP_PORT_STORE_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_node_bytes {
    unsigned char *data;
    size_t size, cap;
};

struct dcp_node_entry {
    char *name;
    struct dcp_node *node; /* holds a reference */
};

struct dcp_node_names {
    struct dcp_node_entry *entries; /* sorted by name */
    size_t n, cap;
};

struct dcp_node {
    int n_refs; /* entries of folders, open files, and the caller of new */
    bool is_dir;
    struct dcp_node_bytes now, synced;    /* of a file */
    struct dcp_node_names names, durable; /* of a folder */
};

/* With one reference; NULL: no memory. */
struct dcp_node *dcp_node_new(bool is_dir);
/* Gives a reference back; NULL is fine. */
void dcp_node_drop(struct dcp_node *node);

/* The entry with a name of n bytes in a folder, or NULL. */
struct dcp_node *dcp_node_find(const struct dcp_node *dir, const char *name, size_t n);
/* Gives a folder a name for a node, in the place of what had that name before. */
bool dcp_node_put(struct dcp_node *dir, const char *name, struct dcp_node *node);
void dcp_node_remove(struct dcp_node *dir, const char *name);

/* Sets the size of a file; new bytes are zero. */
bool dcp_node_resize(struct dcp_node *file, size_t size);
/* Makes the bytes of a file, or the names in a folder, durable. */
bool dcp_node_sync(struct dcp_node *node);
/* All below goes back to what is durable. False: the tree is between both states. */
bool dcp_node_crash(struct dcp_node *node);
/* Sizes of all files below. */
uint64_t dcp_node_used(const struct dcp_node *node);

#endif
