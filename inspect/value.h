/* value: elements of any dtype as numbers and as text. */
#ifndef INSPECT_VALUE_H
#define INSPECT_VALUE_H

#include <dcp/tensor.h>
#include <jansson.h>

/* A complex element counts as two numbers, every other as one. */
size_t inspect_value_parts(enum dcp_dtype dtype);
/* The dtype of those numbers: F32 for C64, F64 for C128, else the dtype itself. */
enum dcp_dtype inspect_value_part(enum dcp_dtype dtype);
/* n elements to n × parts doubles. */
int inspect_value_read(enum dcp_dtype dtype, const void *data, size_t n, double *out,
                       struct dcp_error *err);

struct inspect_value {
    char text[64];
};
/* One element as text: with so many digits, or with 0 as few as read back to the same
 * element. "nan", "inf", "True", "1+2j". */
struct inspect_value inspect_value_format(enum dcp_dtype dtype, const void *element,
                                          int digits);
/* One element for a document: a number, a boolean, [re, im]; see dcp_doc_real. */
json_t *inspect_value_json(enum dcp_dtype dtype, const void *element);

/* The distance between neighbours of `dtype` at x, or 0 for integers. */
double inspect_value_ulp(enum dcp_dtype dtype, double x);

#endif
