#include "metrics.h"

#include "base/buf.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

struct metrics {
    int fd;
    char *path;
    bool torn; /* the file ends inside a line */
};

/* Looks whether a crash left half a line behind. */
static int find_incomplete_line(struct metrics *metrics, struct dcp_error *err)
{
    struct stat st;
    char last = '\n';
    if (fstat(metrics->fd, &st) != 0 ||
        (st.st_size > 0 &&
         dcp_fs_read_at(metrics->fd, &last, 1, (uint64_t)st.st_size - 1) != 0))
        return dcp_error_sys(err, DCP_E_IO, errno, "cannot read '%s'", metrics->path);
    metrics->torn = last != '\n';
    return DCP_OK;
}

/* Whoever may write in the run folder must not lead what is appended elsewhere. */
static int open_file(struct metrics *metrics, struct dcp_error *err)
{
    const int flags =
        O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    struct stat st;
    metrics->fd = open(metrics->path, flags, 0666);
    if (metrics->fd < 0 && errno != ELOOP)
        return dcp_error_sys(err, DCP_E_IO, errno, "cannot open '%s'", metrics->path);
    if (metrics->fd < 0 || fstat(metrics->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        dcp_error_set(err, DCP_E_UNSUPPORTED,
                      "cannot open '%s': it is a link, or no file", metrics->path);
        dcp_error_hint(err, "remove it: dcp-train makes a file of that name");
        return DCP_E_UNSUPPORTED;
    }
    return find_incomplete_line(metrics, err);
}

static void close_file(struct metrics *metrics)
{
    if (metrics->fd >= 0)
        close(metrics->fd);
    metrics->fd = -1;
}

int metrics_open(const char *dir, struct metrics **out, struct dcp_error *err)
{
    int rc;
    struct metrics *metrics = dcp_mem_calloc(1, sizeof *metrics);
    if (!metrics)
        return dcp_error_memory(err, "the metrics file");
    metrics->fd = -1;
    metrics->path = dcp_fs_join(dir, "metrics.jsonl");
    if (!metrics->path) {
        rc = dcp_error_memory(err, "the metrics file");
        goto fail;
    }
    rc = open_file(metrics, err);
    if (rc)
        goto fail;
    *out = metrics;
    return DCP_OK;
fail:
    metrics_close(metrics);
    return rc;
}

void metrics_close(struct metrics *metrics)
{
    if (!metrics)
        return;
    close_file(metrics);
    free(metrics->path);
    free(metrics);
}

/* With `digits`, or with as many as it takes to read back equal (0). JSON has no word for
 * infinity or NaN: both become null. */
static void add_real(struct dcp_buf *line, const char *key, int digits, double value)
{
    char text[DCP_STR_F64_CAP];
    if (!isfinite(value))
        dcp_buf_add_fmt(line, ",\"%s\":null", key);
    else if (digits)
        dcp_buf_add_fmt(line, ",\"%s\":%.*g", key, digits, value);
    else
        dcp_buf_add_fmt(line, ",\"%s\":%s", key, dcp_str_format_f64(text, value));
}

static void add_count(struct dcp_buf *line, const char *key, uint64_t value)
{
    dcp_buf_add_fmt(line, ",\"%s\":%" PRIu64, key, value);
}

static void add_step(struct dcp_buf *line, const struct metrics_step *step)
{
    dcp_buf_add_fmt(line, "{\"step\":%" PRId64, step->step);
    add_real(line, "loss", 9, step->loss);
    add_real(line, "grad_norm", 9, step->grad_norm);
    add_real(line, "lr", 0, step->lr);
    add_real(line, "val_loss", 9, step->val_loss);
    dcp_buf_add_fmt(line, ",\"samples\":%" PRId64, step->samples);
    dcp_buf_add_fmt(line, ",\"tokens\":%" PRId64, step->tokens);
    add_real(line, "step_s", 0, step->step_s);
    add_real(line, "save_stall_s", 0, step->save_stall_s);
    add_real(line, "loss_scale", 0, step->loss_scale);
    add_count(line, "state_bytes", step->state_bytes);
    add_count(line, "weight_bytes", step->weight_bytes);
    add_count(line, "gradient_bytes", step->gradient_bytes);
    add_count(line, "optimizer_bytes", step->optimizer_bytes);
    add_count(line, "peak_rss_bytes", step->peak_rss_bytes);
    add_count(line, "received_bytes", step->received_bytes);
    dcp_buf_add_fmt(line, ",\"world\":%d,\"stage\":%d", step->world_size, step->stage);
    if (step->weights)
        dcp_buf_add_fmt(line, ",\"weights\":\"%016" PRIx64 "\"", step->weights);
    dcp_buf_add_text(line, "}\n");
}

int metrics_write(struct metrics *metrics, const struct metrics_step *step,
                  struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf line = { 0 };
    int rc = metrics->fd < 0 ? open_file(metrics, err) : DCP_OK;
    if (rc) {
        close_file(metrics);
        return rc;
    }
    if (metrics->torn)
        dcp_buf_add_u8(&line, '\n');
    add_step(&line, step);
    rc = dcp_buf_check(&line, err);
    /* One write a line, so that a reader of the growing file never sees half of one; it
     * comes back short only when the disk is full or a signal interrupts it. */
    for (size_t done = 0; !rc && done < line.size_bytes;) {
        ssize_t n = write(metrics->fd, line.data + done, line.size_bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            rc = dcp_error_sys(err, DCP_E_IO, errno, "cannot write '%s'", metrics->path);
            break;
        }
        done += (size_t)n;
        metrics->torn = line.data[done - 1] != '\n';
    }
    if (rc)
        close_file(metrics);
    return rc;
}

uint64_t metrics_peak_rss(void)
{
    /* getrusage also counts what the process was before exec, so it comes second. */
    FILE *file = fopen("/proc/self/status", "re");
    uint64_t kib = 0;
    if (file) {
        char line[256];
        while (fgets(line, sizeof line, file))
            if (sscanf(line, "VmHWM: %" SCNu64 " kB", &kib) == 1)
                break;
        fclose(file);
    }
    struct rusage usage;
    if (!kib && getrusage(RUSAGE_SELF, &usage) == 0)
        kib = (uint64_t)usage.ru_maxrss;
    return kib * 1024;
}
