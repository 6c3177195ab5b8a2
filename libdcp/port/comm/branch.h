/* branch: where a rank stands in the tree of a comm.
 *
 * The ranks behind a rank, up to an end, are its subtree: it divides them evenly among
 * its children, each of which is the first of its part. So what the ranks of a subtree
 * say lies in rank order, without sorting. The levels are as few as the largest fan-out
 * allows, and the fan-out as small as these levels allow. Where one level does, this is a
 * star: every rank is a child of rank 0.
 *
 * A slot is a neighbour: 0 the parent, 1 to n_children the children in order. */
#ifndef DCP_PORT_COMM_BRANCH_H
#define DCP_PORT_COMM_BRANCH_H

#define DCP_BRANCH_FANOUT 32 /* the largest, unless a test wants another */

struct dcp_branch {
    int rank, world_size;
    int end;           /* of its subtree, which begins with it */
    int parent;        /* -1: it is rank 0 */
    int depth, levels; /* its own, 0 for rank 0; below rank 0 */
    int fanout;
    int n_children;
};

struct dcp_span {
    int begin, end;
};

struct dcp_branch dcp_branch_of(int rank, int world_size, int largest_fanout);
/* The subtree of a child or, with slot 0, its own. */
struct dcp_span dcp_branch_span(const struct dcp_branch *branch, int slot);
/* The rank in a slot. */
int dcp_branch_rank(const struct dcp_branch *branch, int slot);
/* The child in whose subtree a rank is, or 0. */
int dcp_branch_find(const struct dcp_branch *branch, int rank);

#endif
