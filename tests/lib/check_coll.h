/* check_coll: what every implementation of trainer/coll/coll.h must do. */
#ifndef TESTS_LIB_CHECK_COLL_H
#define TESTS_LIB_CHECK_COLL_H

#include "trainer/coll/coll.h"

/* Every rank of the coll calls it; returns how many checks failed on this rank, and tells
 * which on stderr. The largest message has n_elems
 * elements. */
int check_coll(struct coll *coll, int64_t n_elems);

#endif
