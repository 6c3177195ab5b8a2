/* human: numbers as people read them. Each returns its text by value, so that
 * printf("%s", dcp_human_size(n).text) needs no buffer. */
#ifndef DCP_CLI_HUMAN_H
#define DCP_CLI_HUMAN_H

#include <stdint.h>

struct dcp_human {
    char text[64];
};

/* "1.62 GiB": three digits; none after the point when it is exact: "64 MiB". */
struct dcp_human dcp_human_size(uint64_t bytes);
/* "1.8 GiB/s": two digits. */
struct dcp_human dcp_human_rate(double bytes_per_s);
/* "124,439,808" */
struct dcp_human dcp_human_count(uint64_t n);
/* "1 shard", "1,184 copies" */
struct dcp_human dcp_human_items(uint64_t n, const char *one, const char *many);
/* "41 ms", "3.1 s", "12 min 5 s", "3 h 12 min" */
struct dcp_human dcp_human_time(double seconds);
/* "0:00:01" */
struct dcp_human dcp_human_clock(double seconds);
/* "[4, 768]" */
struct dcp_human dcp_human_shape(int ndim, const int64_t *shape);

#endif
