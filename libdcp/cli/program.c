#include "program.h"

#include "signals.h"
#include <stdio.h>

bool dcp_main_stopped(void)
{
    return dcp_signals_stopped();
}

static bool report_progress(void *self, uint64_t done, uint64_t total)
{
    struct dcp_main *m = self;
    pthread_mutex_lock(&m->lock);
    dcp_progress_show(&m->bar, done, total);
    pthread_mutex_unlock(&m->lock);
    return dcp_main_stopped();
}

struct dcp_progress dcp_main_progress(struct dcp_main *m, const char *label)
{
    pthread_mutex_lock(&m->lock);
    dcp_progress_begin(&m->bar, &m->note, m->progress, label);
    pthread_mutex_unlock(&m->lock);
    return (struct dcp_progress){ .report = report_progress, .self = m };
}

void dcp_main_progress_end(struct dcp_main *m)
{
    pthread_mutex_lock(&m->lock);
    dcp_progress_end(&m->bar);
    pthread_mutex_unlock(&m->lock);
}

void dcp_main_progress_hide(struct dcp_main *m)
{
    pthread_mutex_lock(&m->lock);
    dcp_progress_hide(&m->bar);
    pthread_mutex_unlock(&m->lock);
}

bool dcp_main_is_read(const struct dcp_main *m)
{
    return !ferror(m->out.file);
}
