#include "report.h"

#include "base/mem.h"
#include "doc.h"
#include "text.h"
#include <stdio.h>

static void report_json(int code, const struct dcp_error *err, const char *message)
{
    json_t *tensor = err->tensor[0] ? dcp_doc_text(err->tensor) : json_null();
    json_t *rank = err->rank >= 0 ? json_integer(err->rank) : json_null();
    json_t *hint = err->hint[0] ? dcp_doc_text(err->hint) : json_null();
    DCP_CLEANUP_JSON json_t *line =
        json_pack("{s:s, s:s, s:i, s:o, s:o, s:o, s:o}", "message_type", "error", "code",
                  dcp_error_name(code), "exit", dcp_error_exit(code), "tensor", tensor,
                  "rank", rank, "message", dcp_doc_text(message), "hint", hint);
    DCP_CLEANUP_FREE char *text = line ? dcp_json_text(line, 0) : NULL;
    if (text)
        fprintf(stderr, "%s\n", text);
    else /* no memory even for that: the same line, without what may be long */
        fprintf(stderr, "{\"message_type\":\"error\",\"code\":\"%s\",\"exit\":%d}\n",
                dcp_error_name(code), dcp_error_exit(code));
}

static void put_escaped(const struct dcp_term *term, const char *text)
{
    DCP_CLEANUP_BUF struct dcp_buf escaped = { 0 };
    dcp_text_add_escaped(&escaped, text);
    if (!escaped.failed && escaped.size_bytes)
        dcp_term_put(term, (const char *)escaped.data);
}

void dcp_report_error(struct dcp_main *m, int code, const struct dcp_error *err)
{
    const char *message = err->message[0] ? err->message : dcp_error_text(code);
    const struct dcp_term *term = &m->note;
    if (code == DCP_E_DIFFERS && !err->message[0])
        return;
    if (m->json) {
        report_json(code, err, message);
        return;
    }
    dcp_term_printf(term, "%s%s:%s ", dcp_term_style(term, DCP_STYLE_BAD),
                    m->program->name, dcp_term_style(term, DCP_STYLE_OFF));
    put_escaped(term, message);
    if (err->hint[0]) {
        dcp_term_printf(term, "\n  %shint:%s ", dcp_term_style(term, DCP_STYLE_NOTE),
                        dcp_term_style(term, DCP_STYLE_OFF));
        put_escaped(term, err->hint);
    }
    dcp_term_put(term, "\n");
}

void dcp_report_log(void *self, enum dcp_log_level level, const char *message)
{
    static const char *const words[] = {
        [DCP_LOG_ERROR] = "",
        [DCP_LOG_WARN] = "warning: ",
        [DCP_LOG_INFO] = "",
        [DCP_LOG_DEBUG] = "debug: ",
    };
    struct dcp_main *m = self;
    pthread_mutex_lock(&m->lock);
    dcp_progress_hide(&m->bar);
    dcp_term_printf(&m->note, "%s: %s%s%s", m->program->name,
                    level == DCP_LOG_WARN ? dcp_term_style(&m->note, DCP_STYLE_NOTE) : "",
                    words[level],
                    level == DCP_LOG_WARN ? dcp_term_style(&m->note, DCP_STYLE_OFF) : "");
    put_escaped(&m->note, message);
    dcp_term_put(&m->note, "\n");
    pthread_mutex_unlock(&m->lock);
}
