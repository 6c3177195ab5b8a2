/* refuse: files that hold a text, and are none: archives, tables, JSON lines. */
#ifndef TRAINER_DATA_REFUSE_H
#define TRAINER_DATA_REFUSE_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>

/* Looks at the beginning of a file; `is_all`: it is the whole file. Errors: UNSUPPORTED,
 * which says what it is and how to make a text of it. */
int data_refuse(const char *path, const void *data, size_t size_bytes, bool is_all,
                struct dcp_error *err);

#endif
