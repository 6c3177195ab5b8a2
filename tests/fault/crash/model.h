/* model: what a folder may be after a power cut, on any file system.
 *
 * A trace is applied record by record. At any point a file has content that is durable,
 * and changes that may have reached the disk or not; a folder has names that are durable,
 * and changes of names each of which may have reached the disk or not, in any order. A
 * sync of a file makes its content durable and none of its names; a sync of a folder its
 * names. A rename is atomic; between two folders of which one was synced it may also be
 * done in that one alone: then the file has two names, or none. fdatasync does not make a
 * file shorter. */
#ifndef TESTS_FAULT_MODEL_H
#define TESTS_FAULT_MODEL_H

#include "tests/fault/shim/trace.h"

#include <stdbool.h>
#include <stddef.h>

struct model;

/* A model of an empty folder, whose inode is `root`. Aborts without memory. */
struct model *model_new(uint64_t root);
void model_free(struct model *model);
/* Applies a record; names and data are behind it, as in the file. False, with a word on
 * stderr: it speaks of what the model does not know, the shim missed a call. */
bool model_apply(struct model *model, const struct trace_record *record);

/* Everything that was done so far is a file or folder of this tree; for equal trees the
 * texts are equal, and no others. */
struct tree_item {
    char *path; /* "" is the root, and first; sorted */
    bool is_dir;
    unsigned char *data;
    size_t size;
};
struct tree {
    struct tree_item *items;
    size_t n, cap;
};
void tree_free(struct tree *tree);
uint64_t tree_hash(const struct tree *tree);
/* The content of a folder, or of a file, below a path of the tree: equal in both? */
bool tree_same(const struct tree *a, const char *a_path, const struct tree *b,
               const char *b_path);
const struct tree_item *tree_find(const struct tree *tree, const char *path);
/* Reads a folder; writes one, which must not exist. False with errno. */
bool tree_read(struct tree *tree, const char *folder);
bool tree_write(const struct tree *tree, const char *folder);

/* What has happened to what is not durable: a choice for each. */
size_t model_choices(const struct model *model);
/* How many ways choice i can go; 0 is always "nothing of it", 1 "all of it". */
unsigned model_ways(const struct model *model, size_t i);
/* The tree when choice i went the way ways[i]; `seed` is for those that are cut short at
 * random. */
void model_tree(const struct model *model, const unsigned char *ways, uint64_t seed,
                struct tree *out);
/* The tree as a running program sees it. */
void model_live(const struct model *model, struct tree *out);

#endif
