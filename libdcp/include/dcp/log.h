/* Messages and progress: the library prints nothing; it tells the caller, who decides. */
#ifndef DCP_LOG_H
#define DCP_LOG_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dcp_log_level { DCP_LOG_ERROR, DCP_LOG_WARN, DCP_LOG_INFO, DCP_LOG_DEBUG };

/* A sink for messages. Zero means silence. `write` may be called from several threads. */
struct dcp_log {
    void (*write)(void *self, enum dcp_log_level level, const char *message);
    void *self;
    enum dcp_log_level level; /* messages above it are not formatted */
};

/* Formats one line and hands it to the sink. log may be NULL. */
DCP_PUBLIC void dcp_log_write(const struct dcp_log *log, enum dcp_log_level level,
                              const char *fmt, ...) DCP_PRINTF(3, 4);

/* Called now and then during long work, from one thread at a time. Return true to stop
 * the work: it then ends with DCP_E_INTERRUPTED and leaves nothing behind. Zero means no
 * calls. */
struct dcp_progress {
    bool (*report)(void *self, uint64_t done_bytes, uint64_t total_bytes);
    void *self;
};

#ifdef __cplusplus
}
#endif
#endif
