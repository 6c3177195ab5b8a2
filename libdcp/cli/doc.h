/* doc: the JSON document that --json prints, one for each run. */
#ifndef DCP_CLI_DOC_H
#define DCP_CLI_DOC_H

#include "base/json.h"
#include <dcp/checkpoint.h>
#include <stdint.h>
#include <stdio.h>

/* { "schema": "dcp.<verb>/1" }; NULL: out of memory. */
json_t *dcp_doc_new(const char *verb);
/* A string; bytes that are no UTF-8 come escaped. NULL text is null. */
json_t *dcp_doc_text(const char *text);
/* A number; one that JSON has no word for is "NaN", "Infinity", "-Infinity". */
json_t *dcp_doc_real(double v);
/* A whole number; above 2^63-1 it is a string. */
json_t *dcp_doc_u64(uint64_t v);
/* 16 hex digits. */
json_t *dcp_doc_hex(uint64_t v);
json_t *dcp_doc_shape(int ndim, const int64_t *shape);
json_t *dcp_doc_tags(const struct dcp_marks *marks);

/* Puts a new value (reference taken, also on failure) under a key, at the end of a list.
 * A NULL value, from memory that ran out, makes them return DCP_E_MEMORY. */
int dcp_doc_set(json_t *object, const char *key, json_t *value);
int dcp_doc_add(json_t *list, json_t *value);

/* Writes doc and a line end. NULL doc is out of memory. Errors: MEMORY. */
int dcp_doc_print(FILE *file, const json_t *doc, struct dcp_error *err);

#endif
