#include "shorten.h"

#include "base/mem.h"
#include "text.h"
#include <string.h>

#define HEAD_MOST 3
#define TRIES 8 /* widths, from the one that is wanted to that of all names */
#define MANY ((size_t)50000) /* names, for which one width is tried */

/* Behind the first n parts of a name. */
static const char *behind(const char *name, int n)
{
    for (; n > 0 && *name; n--) {
        name += strcspn(name, "./");
        name += *name != '\0';
    }
    return name;
}

/* As many of the last parts of a name, which ends at `end`, as fit into `room`. */
static const char *last_parts(const char *name, const char *end, int room)
{
    const char *tail = end, *part = end;
    while (part > name) {
        part--;
        while (part > name && part[-1] != '.' && part[-1] != '/')
            part--;
        room -= dcp_text_width_of(part, (size_t)(tail - part));
        if (room < 0)
            break;
        tail = part;
    }
    return tail;
}

void dcp_shorten_add(struct dcp_buf *out, const char *name,
                     const struct dcp_shortener *how)
{
    size_t n = strlen(name);
    if (dcp_text_width_of(name, n) <= how->width) {
        dcp_buf_add(out, name, n);
        return;
    }
    const char *rest = behind(name, how->head);
    int room = how->width - 1 - dcp_text_width_of(name, (size_t)(rest - name));
    const char *tail = last_parts(rest, name + n, room);
    if (!*tail) { /* not even the last part */
        dcp_text_add_cut(out, name, how->width, how->width > 0 ? how->width - 1 : 0);
        return;
    }
    dcp_buf_add(out, name, (size_t)(rest - name));
    dcp_buf_add_text(out, "…");
    dcp_buf_add_text(out, tail);
}

struct short_name {
    const char *whole;
    size_t at; /* in the buffer */
    const char *text;
};

static int by_text(const void *a, const void *b)
{
    return strcmp(((const struct short_name *)a)->text,
                  ((const struct short_name *)b)->text);
}

static bool stay_distinct(const char *const *names, size_t n, struct short_name *made,
                          const struct dcp_shortener *how)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    for (size_t i = 0; i < n; i++) {
        made[i] = (struct short_name){ names[i], text.size_bytes, NULL };
        dcp_shorten_add(&text, names[i], how);
        dcp_buf_add_u8(&text, 0);
    }
    if (text.failed)
        return false;
    for (size_t i = 0; i < n; i++)
        made[i].text = (const char *)text.data + made[i].at;
    if (n)
        qsort(made, n, sizeof *made, by_text);
    for (size_t i = 1; i < n; i++)
        if (by_text(&made[i - 1], &made[i]) == 0 &&
            strcmp(made[i - 1].whole, made[i].whole) != 0)
            return false;
    return true;
}

struct dcp_shortener dcp_shorten_choose(const char *const *names, size_t n, int width)
{
    struct dcp_shortener how = { .width = width };
    int longest = 0;
    for (size_t i = 0; i < n; i++) {
        int w = dcp_text_width(names[i]);
        longest = w > longest ? w : longest;
    }
    DCP_CLEANUP_FREE struct short_name *made = dcp_mem_calloc(n, sizeof *made);
    int step = n > MANY ? longest : (longest - width) / TRIES + 1;
    for (; made && how.width < longest; how.width += step)
        for (how.head = 0; how.head <= HEAD_MOST; how.head++)
            if (stay_distinct(names, n, made, &how))
                return how;
    return (struct dcp_shortener){ .width = longest };
}
