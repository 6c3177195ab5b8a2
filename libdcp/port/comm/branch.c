#include "branch.h"

#include <stdint.h>

/* How many ranks a tree of so many levels has room for; no more than matter. */
static int64_t room_of(int fanout, int levels)
{
    int64_t all = 1, level = 1;
    for (int i = 0; i < levels && all <= INT32_MAX; i++) {
        level *= fanout;
        all += level;
    }
    return all;
}

static void choose_shape(struct dcp_branch *branch, int largest_fanout)
{
    while (room_of(largest_fanout, branch->levels) < branch->world_size)
        branch->levels++;
    while (room_of(branch->fanout, branch->levels) < branch->world_size)
        branch->fanout++;
}

static void count_children(struct dcp_branch *branch)
{
    int others = branch->end - branch->rank - 1;
    branch->n_children = others < branch->fanout ? others : branch->fanout;
}

/* Where the subtree of a child begins, and that of the one before it ends. */
static int begin_of(const struct dcp_branch *branch, int slot)
{
    int64_t others = branch->end - branch->rank - 1;
    return branch->rank + 1 + (int)(others * (slot - 1) / branch->n_children);
}

struct dcp_span dcp_branch_span(const struct dcp_branch *branch, int slot)
{
    if (!slot)
        return (struct dcp_span){ branch->rank, branch->end };
    return (struct dcp_span){ begin_of(branch, slot), begin_of(branch, slot + 1) };
}

int dcp_branch_rank(const struct dcp_branch *branch, int slot)
{
    return slot ? begin_of(branch, slot) : branch->parent;
}

int dcp_branch_find(const struct dcp_branch *branch, int rank)
{
    if (rank <= branch->rank || rank >= branch->end)
        return 0;
    int64_t others = branch->end - branch->rank - 1, before = rank - branch->rank - 1;
    int slot = (int)(before * branch->n_children / others) + 1; /* or the next */
    while (begin_of(branch, slot + 1) <= rank)
        slot++;
    return slot;
}

struct dcp_branch dcp_branch_of(int rank, int world_size, int largest_fanout)
{
    struct dcp_branch at = {
        .world_size = world_size, .end = world_size, .parent = -1, .fanout = 1
    };
    choose_shape(&at, largest_fanout);
    count_children(&at);
    while (at.rank != rank) {
        struct dcp_span ranks = dcp_branch_span(&at, dcp_branch_find(&at, rank));
        at.parent = at.rank;
        at.rank = ranks.begin;
        at.end = ranks.end;
        at.depth++;
        count_children(&at);
    }
    return at;
}
