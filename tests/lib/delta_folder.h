/* delta_folder: deltas in a store, made block by block with the library's coder. */
#ifndef TESTS_LIB_DELTA_FOLDER_H
#define TESTS_LIB_DELTA_FOLDER_H

#include <dcp/store.h>

#define DELTA_FOLDER_BYTES ((2u << 20) + 12345) /* of the coded file, "f" */

/* Makes the folders "base", "one" (a delta on it) and "two" (one on "one"), each standing
 * for the files "f" and "sub/note". Aborts when something fails. */
void delta_folder_make(const struct dcp_store *store);
/* What "f" is in the folder of that number: 0 is "base". Static. */
const unsigned char *delta_folder_bytes(int number);

#endif
