/* An entry of the manifest's tensors as dcp_native_finish writes it, read in one pass.
 * Any other spelling of the same is JSON, too, and is left to its parser. */
#include "base/str.h"
#include "native.h"
#include <string.h>

struct scan {
    const char *at, *end;
};

static bool take(struct scan *scan, const char *text)
{
    size_t n = strlen(text);
    bool is = (size_t)(scan->end - scan->at) >= n && !memcmp(scan->at, text, n);

    scan->at += is ? n : 0;
    return is;
}

/* A text without escapes, and its closing quote; *out begins in `texts`, by offset. */
static bool take_text(struct scan *scan, struct dcp_buf *texts, size_t *out)
{
    const char *begin = scan->at;

    while (scan->at < scan->end && *scan->at >= ' ' && *scan->at < 0x7f &&
           *scan->at != '"' && *scan->at != '\\')
        scan->at++;
    *out = texts->size_bytes;
    dcp_buf_add(texts, begin, (size_t)(scan->at - begin));
    dcp_buf_add_u8(texts, 0);
    return take(scan, "\"");
}

/* From 0 on, in at most 18 digits: what goes on behind them is not what follows. */
static bool take_number(struct scan *scan, int64_t *out)
{
    const char *begin = scan->at;

    *out = 0;
    for (; scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9' &&
           scan->at - begin < 18;
         scan->at++)
        *out = 10 * *out + (*scan->at - '0');
    return scan->at > begin && (*begin != '0' || scan->at == begin + 1);
}

static bool take_rank(struct scan *scan, int *out)
{
    int64_t number;
    bool is = take_number(scan, &number) && number <= INT32_MAX;

    *out = is ? (int)number : 0;
    return is;
}

static bool take_numbers(struct scan *scan, int64_t *out, size_t max, size_t *out_n)
{
    size_t n = 0;

    if (!take(scan, "["))
        return false;
    for (; !take(scan, "]"); n++)
        if (n == max || (n && !take(scan, ",")) || !take_number(scan, &out[n]))
            return false;
    *out_n = n;
    return true;
}

static bool take_hex64(struct scan *scan, uint64_t *out)
{
    char digits[17] = "";

    if (scan->end - scan->at < 16)
        return false;
    memcpy(digits, scan->at, 16);
    scan->at += 16;
    return dcp_str_parse_hex64(digits, out);
}

static bool take_grid(struct scan *scan, struct dcp_native_told *told)
{
    struct dcp_grid *grid = &told->grid;
    int64_t numbers[DCP_GRID_MOST_RANKS];
    size_t n;

    told->has_grid = true;
    grid->flat = take(scan, "flat");
    size_t ndim = grid->flat ? 1 : (size_t)told->ndim;
    if ((!grid->flat && !take(scan, "box")) || !take(scan, "\",\"lead\":") ||
        !take_numbers(scan, grid->lead, ndim, &n) || n != ndim ||
        !take(scan, ",\"size\":") || !take_numbers(scan, grid->size, ndim, &n) ||
        n != ndim)
        return false;
    if (take(scan, ",\"ranks\":")) {
        if (!take_numbers(scan, numbers, DCP_GRID_MOST_RANKS, &told->n_ranks))
            return false;
        for (size_t i = 0; i < told->n_ranks; i++) {
            told->ranks[i] = (int)numbers[i];
            if (numbers[i] > INT32_MAX)
                return false;
        }
        grid->ranks = told->ranks;
    } else {
        if (!take(scan, ",\"first\":") || !take_rank(scan, &grid->first) ||
            !take(scan, ",\"stride\":") || !take_numbers(scan, numbers, ndim, &n) ||
            n != ndim)
            return false;
        for (size_t d = 0; d < ndim; d++) {
            grid->stride[d] = (int)numbers[d];
            if (numbers[d] > INT32_MAX)
                return false;
        }
    }
    return take(scan, "}");
}

const char *dcp_native_scan_tensor(struct dcp_json_span text, struct dcp_buf *texts,
                                   struct dcp_native_told *out)
{
    struct scan scan = { text.text, text.text + text.size_bytes };
    size_t name, param, role, dtype, ndim;

    texts->size_bytes = 0;
    *out = (struct dcp_native_told){ .grid.flat = true };
    if (!take(&scan, "{\"name\":\"") || !take_text(&scan, texts, &name))
        return NULL;
    bool has_param = take(&scan, ",\"param\":\"");
    if (has_param && !take_text(&scan, texts, &param))
        return NULL;
    if (!take(&scan, ",\"role\":\"") || !take_text(&scan, texts, &role) ||
        !take(&scan, ",\"dtype\":\"") || !take_text(&scan, texts, &dtype) ||
        !take(&scan, ",\"shape\":") ||
        !take_numbers(&scan, out->shape, DCP_MAX_NDIM, &ndim) ||
        !take(&scan, ",\"group\":") || !take_number(&scan, &out->group) ||
        !take(&scan, ",\"crc64\":\"") || !take_hex64(&scan, &out->crc) ||
        !take(&scan, "\""))
        return NULL;
    out->ndim = (int)ndim;
    if (take(&scan, ",\"rank\":")) {
        out->has_rank = true;
        if (!take_rank(&scan, &out->grid.first))
            return NULL;
    } else if (take(&scan, ",\"grid\":{\"cut\":\"") && !take_grid(&scan, out)) {
        return NULL;
    }
    if (!take(&scan, "}") || texts->failed)
        return NULL;
    out->name = (const char *)texts->data + name;
    out->param = has_param ? (const char *)texts->data + param : NULL;
    out->role = (const char *)texts->data + role;
    out->dtype = (const char *)texts->data + dtype;
    return scan.at;
}
