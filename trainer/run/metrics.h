/* metrics: metrics.jsonl in the run folder, one object a line, appended to on resume
 * (readers take the last line of a step). */
#ifndef TRAINER_RUN_METRICS_H
#define TRAINER_RUN_METRICS_H

#include <dcp/error.h>
#include <stdint.h>

struct metrics_step {
    int64_t step, samples, tokens; /* tokens: seen in all */
    double loss, grad_norm, lr;
    double val_loss; /* NaN: not measured in this step */
    double step_s, save_stall_s;
    double loss_scale;
    uint64_t state_bytes; /* model state of this rank: weights, gradients, optimizer */
    uint64_t weight_bytes, gradient_bytes, optimizer_bytes; /* its parts */
    uint64_t peak_rss_bytes;                                /* of this process */
    uint64_t received_bytes; /* from other ranks, by this one, since the step before */
    int world_size, stage;
    uint64_t weights; /* their fingerprint, 0: not taken */
};

struct metrics;
/* Errors: UNSUPPORTED (it is a link, or no file), IO, MEMORY. */
int metrics_open(const char *dir, struct metrics **out, struct dcp_error *err);
/* Appends one line and flushes it. After a failure the file is opened anew by the next
 * call, and a line that was cut short is ended before the next one. loss, grad_norm,
 * val_loss as "%.9g", others in the shortest form that reads back equal. */
int metrics_write(struct metrics *metrics, const struct metrics_step *step,
                  struct dcp_error *err);
void metrics_close(struct metrics *metrics);
/* Peak resident memory of this process. */
uint64_t metrics_peak_rss(void);

#endif
