#include "textfile.h"

#include "base/buf.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/scrub_file.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The value of a label. */
static void add_label(struct dcp_buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"')
            dcp_buf_add_u8(out, '\\');
        if (*text == '\n')
            dcp_buf_add_text(out, "\\n");
        else
            dcp_buf_add_u8(out, (uint8_t)*text);
    }
}

static void add(struct dcp_buf *out, const struct textfile *facts, const char *name,
                const char *type, const char *help, const char *step, double value)
{
    char number[DCP_STR_F64_CAP];
    dcp_buf_add_fmt(out, "# HELP %s %s\n# TYPE %s %s\n%s{run=\"", name, help, name, type,
                    name);
    add_label(out, facts->run);
    if (step) {
        dcp_buf_add_text(out, "\",step=\"");
        add_label(out, step);
    }
    dcp_buf_add_fmt(out, "\"} %s\n", dcp_str_format_f64(number, value));
}

/* What `dcp-inspect verify --subset` remembers of the run, if it can be read. */
static void add_scrub(struct dcp_buf *out, const struct textfile *facts)
{
    DCP_CLEANUP_JSON json_t *states = NULL;
    struct dcp_scrub_file file;
    double from = 0;
    if (!dcp_scrub_file_find(NULL, &file, NULL))
        dcp_scrub_file_read(&file, &states, NULL);
    dcp_scrub_file_fini(&file);
    const char *last = dcp_scrub_last(states, facts->run, &from);
    if (last)
        add(out, facts, "dcp_scrub_position_ratio", "gauge",
            "How much dcp-inspect verify --subset has read of the step it read last.",
            last, from > 0 ? from : 1);
}

/* Below the other's name, which the collector does not read. */
static int replace(const char *path, const struct dcp_buf *text, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL, *name = NULL, *temporary = NULL;
    if (!dcp_fs_split(path, &dir, &name) ||
        !(temporary = dcp_str_join(".", name, ".tmp")))
        return dcp_error_memory(err, path);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = DCP_OK;
    if (fd < 0 || dcp_fs_write_new(fd, temporary, text->data, text->size_bytes) != 0 ||
        renameat(fd, temporary, fd, name) != 0)
        rc = dcp_error_sys(err, DCP_E_IO, errno, "cannot write '%s'", path);
    if (rc && fd >= 0)
        unlinkat(fd, temporary, 0);
    if (fd >= 0)
        close(fd);
    return rc;
}

int textfile_write(const char *path, const struct textfile *facts, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf out = { 0 };
    if (facts->step >= 0) {
        add(&out, facts, "dcp_last_complete_step", "gauge",
            "Number of the last step that is complete and durable.", NULL,
            (double)facts->step);
        add(&out, facts, "dcp_last_complete_step_timestamp_seconds", "gauge",
            "When it was, in seconds since 1970; time() minus this is its age.", NULL,
            facts->step_time_s);
    }
    add(&out, facts, "dcp_saves_total", "counter",
        "Saves of this process that ended, well or not.", NULL, (double)facts->n_saves);
    add(&out, facts, "dcp_failed_saves_total", "counter",
        "Saves of this process that failed.", NULL, (double)facts->n_failed);
    add(&out, facts, "dcp_failed_saves_in_a_row", "gauge",
        "Saves that failed since the last one that did not.", NULL,
        (double)facts->n_failed_in_a_row);
    if (facts->stall_s >= 0)
        add(&out, facts, "dcp_last_save_stall_seconds", "gauge",
            "How long the last complete save held the training.", NULL, facts->stall_s);
    add_scrub(&out, facts);
    DCP_TRY(dcp_buf_check(&out, err));
    return replace(path, &out, err);
}
