#include "progress.h"

#include "base/clock.h"
#include "base/mem.h"
#include "human.h"
#include <inttypes.h>
#include <string.h>

#define MS UINT64_C(1000000) /* nanoseconds */
#define FIRST_NS (500 * MS)  /* quicker work needs no bar */
#define BAR_NS (1000 * MS / 6)
#define LINE_NS (10000 * MS)
#define RATE_NS (3000 * MS)      /* the rate is that of about so long */
#define MOVED_NS (2000 * MS)     /* bytes were done for so long when the end is told */
#define LONGEST_S (100 * 3600.0) /* and it is not told when it is further than that */
#define BAR_MOST 40              /* cells */
#define BAR_LEAST 8

void dcp_progress_begin(struct dcp_progress_bar *bar, const struct dcp_term *term,
                        enum dcp_when when, const char *label)
{
    uint64_t now = dcp_clock_ns();
    *bar = (struct dcp_progress_bar){
        .term = term,
        .label = when == DCP_WHEN_NEVER ? NULL : label,
        .lines = when == DCP_WHEN_AUTO && !term->tty,
        .begin_ns = now,
        .shown_ns = now,
        .seen_ns = now,
    };
}

/* Moves the smoothed rate on: the newest look counts by the share of RATE_NS it took. */
static void look_at_rate(struct dcp_progress_bar *bar, uint64_t now, uint64_t done)
{
    uint64_t passed = now - bar->seen_ns;
    if (passed == 0 || done < bar->seen)
        return;
    double seconds = (double)passed / 1e9, rate = (double)(done - bar->seen) / seconds;
    double weight = (double)passed / (double)(passed + RATE_NS);
    if (bar->rate <= 0)
        weight = 1;
    bar->rate += weight * (rate - bar->rate);
    bar->seen_ns = now;
    bar->seen = done;
}

/* " 64 %  1.04 GiB  1.8 GiB/s  0:00:01 left" */
static void format_facts(const struct dcp_progress_bar *bar, uint64_t done,
                         uint64_t total, char *out, size_t cap)
{
    int percent = total ? (int)((double)done / (double)total * 100) : 100;
    char left[80] = "";
    double seconds = bar->rate > 0 ? (double)(total - done) / bar->rate : LONGEST_S;
    if (bar->shown_ns - bar->moved_ns >= MOVED_NS && done < total && seconds < LONGEST_S)
        snprintf(left, sizeof left, "  %s left", dcp_human_clock(seconds).text);
    snprintf(out, cap, "%3d %%  %s  %s%s", percent, dcp_human_size(done).text,
             dcp_human_rate(bar->rate).text, left);
}

static void draw(struct dcp_progress_bar *bar, uint64_t done, uint64_t total)
{
    char facts[256], cells[BAR_MOST + 1];
    format_facts(bar, done, total, facts, sizeof facts);
    int columns = bar->term->width ? bar->term->width : 80;
    /* "label  [cells]  facts", one column kept free so that no terminal wraps */
    int room = columns - 1 - (int)strlen(bar->label) - (int)strlen(facts) - 6;
    int n = room > BAR_MOST ? BAR_MOST : room;
    const char *clear = bar->term->tty ? "\033[K" : "";
    if (n < BAR_LEAST) {
        fprintf(bar->term->file, "\r%.*s%s", columns - 1, facts, clear);
    } else {
        int full = total ? (int)((double)done / (double)total * n) : n;
        for (int i = 0; i < n; i++)
            cells[i] = i < full ? '=' : i == full ? '>' : ' ';
        cells[n] = '\0';
        fprintf(bar->term->file, "\r%s  [%s]  %s%s", bar->label, cells, facts, clear);
    }
    fflush(bar->term->file);
    bar->drawn = true;
}

void dcp_progress_show(struct dcp_progress_bar *bar, uint64_t done, uint64_t total)
{
    if (bar->label)
        dcp_progress_show_at(bar, dcp_clock_ns(), done, total);
}

void dcp_progress_show_at(struct dcp_progress_bar *bar, uint64_t now, uint64_t done,
                          uint64_t total)
{
    uint64_t since = now - bar->shown_ns;
    if (!bar->label)
        return;
    if (done > total)
        done = total;
    if (done && !bar->moved_ns) {
        bar->moved_ns = bar->seen_ns = now;
        bar->seen = done;
    }
    if (now - bar->begin_ns < FIRST_NS || since < (bar->lines ? LINE_NS : BAR_NS))
        return;
    if (bar->moved_ns)
        look_at_rate(bar, now, done);
    bar->shown_ns = now;
    if (!bar->lines) {
        draw(bar, done, total);
        return;
    }
    char facts[256];
    format_facts(bar, done, total, facts, sizeof facts);
    fprintf(bar->term->file, "%s  %s\n", bar->label, facts);
}

void dcp_progress_hide(struct dcp_progress_bar *bar)
{
    if (!bar->drawn)
        return;
    fputs(bar->term->tty ? "\r\033[K" : "\n", bar->term->file);
    fflush(bar->term->file);
    bar->drawn = false;
}

void dcp_progress_end(struct dcp_progress_bar *bar)
{
    dcp_progress_hide(bar);
    bar->label = NULL;
}
