#include "wants.h"
#include "base/arena.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "core/catalog/region.h"
#include "core/integrity/fingerprint.h"
#include <string.h>

enum { KIND = 3, GAINS = 4, FITS = 8 }; /* in one byte */

static int bad_message(struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "a message between ranks is corrupt");
}

static int no_memory(struct dcp_error *err)
{
    return dcp_error_memory(err, "what the ranks of a load want");
}

void dcp_wants_pack(const struct dcp_tensor *tensor, const struct dcp_want *want,
                    struct dcp_buf *message)
{
    const struct dcp_region *region = &want->region;

    dcp_buf_add_varint(message, (uint64_t)want->tensor);
    dcp_buf_add_u8(message, (uint8_t)((unsigned)region->kind | (want->gains ? GAINS : 0) |
                                      (want->fits ? FITS : 0)));
    if (region->kind == DCP_FLAT) {
        dcp_buf_add_varint(message, (uint64_t)region->begin);
        dcp_buf_add_varint(message, (uint64_t)region->end);
    }
    for (int d = 0; region->kind == DCP_BOX && d < tensor->ndim; d++) {
        dcp_buf_add_varint(message, (uint64_t)region->offset[d]);
        dcp_buf_add_varint(message, (uint64_t)region->size[d]);
    }
}

void dcp_wants_pack_read(uint64_t part, bool read, struct dcp_buf *message)
{
    dcp_buf_add_u8(message, read);
    dcp_buf_add_le64(message, part);
}

static int unpack_region(struct dcp_wants *wants, const struct dcp_tensor *tensor,
                         struct dcp_cursor *in, struct dcp_region *region,
                         struct dcp_error *err)
{
    size_t n = (size_t)tensor->ndim;

    if (region->kind == DCP_FLAT) {
        region->begin = (int64_t)dcp_cursor_varint(in);
        region->end = (int64_t)dcp_cursor_varint(in);
    }
    if (region->kind == DCP_BOX) {
        int64_t *box = dcp_arena_alloc(wants->arena, 2 * n, sizeof *box);
        if (!box)
            return no_memory(err);
        for (size_t d = 0; d < n; d++) {
            box[d] = (int64_t)dcp_cursor_varint(in);
            box[n + d] = (int64_t)dcp_cursor_varint(in);
        }
        region->offset = box;
        region->size = box + n;
    }
    return in->bad ? bad_message(err) : dcp_region_check(tensor, region, err);
}

static int unpack(struct dcp_wants *wants, struct dcp_cursor *in, struct dcp_error *err)
{
    uint64_t tensor = dcp_cursor_varint(in);
    uint8_t how = dcp_cursor_u8(in);

    if (in->bad || tensor >= wants->catalog->n_tensors)
        return bad_message(err);
    struct dcp_want want = { .tensor = (int)tensor,
                             .region = { .kind = how & KIND },
                             .gains = how & GAINS,
                             .fits = how & FITS,
                             .turn = wants->n };
    DCP_TRY(
        unpack_region(wants, &wants->catalog->tensors[tensor], in, &want.region, err));
    struct dcp_want *items =
        dcp_mem_grow(wants->items, &wants->cap, wants->n + 1, sizeof *items);
    if (!items)
        return no_memory(err);
    wants->items = items;
    items[wants->n++] = want;
    return DCP_OK;
}

static int order(const struct dcp_wants *wants, const struct dcp_want *a,
                 const struct dcp_want *b)
{
    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    return dcp_region_order(&wants->catalog->tensors[a->tensor], &a->region, &b->region);
}

static int by_region(const void *a, const void *b, void *wants)
{
    return order(wants, a, b);
}

/* How many of the wants, from `first` on, are of the same tensor. */
static size_t n_of_tensor(const struct dcp_wants *wants, size_t first)
{
    size_t n = 1;

    while (first + n < wants->n &&
           wants->items[first + n].tensor == wants->items[first].tensor)
        n++;
    return n;
}

/* Whether n wants of one tensor are that tensor, each element once, can be read without
 * blocks, and one of them is worth it. */
static int judge(const struct dcp_wants *wants, const struct dcp_want *first, size_t n,
                 bool *out_chosen, struct dcp_error *err)
{
    const struct dcp_tensor *tensor = &wants->catalog->tensors[first->tensor];
    struct dcp_error why = { 0 };
    bool fit = true, gain = false;

    for (size_t i = 0; i < n; i++) {
        fit = fit && first[i].fits;
        gain = gain || first[i].gains;
    }
    *out_chosen = false;
    if (!fit || !gain)
        return DCP_OK;
    int rc = dcp_regions_check(tensor, &first->region, sizeof *first, n, &why);
    *out_chosen = !rc;
    if (rc == DCP_E_CORRUPT) /* ranks may load what they like */
        return DCP_OK;
    if (rc && err)
        *err = why;
    return rc;
}

int dcp_wants_choose(struct dcp_wants *wants, const void *messages, const size_t *sizes,
                     int n, struct dcp_buf *list, struct dcp_error *err)
{
    const unsigned char *at = messages;
    size_t kept = 0;
    int rc = DCP_OK;

    wants->arena = dcp_arena_new();
    if (!wants->arena)
        return no_memory(err);
    for (int r = 0; r < n && !rc; at += sizes[r++]) {
        struct dcp_cursor in = dcp_cursor_init(at, sizes[r]);
        while (dcp_cursor_left(&in) && !rc)
            rc = unpack(wants, &in, err);
    }
    if (!rc && wants->n)
        qsort_r(wants->items, wants->n, sizeof *wants->items, by_region, wants);
    for (size_t i = 0, of; i < wants->n && !rc; i += of) {
        struct dcp_want *first = &wants->items[i];
        bool chosen = false;
        of = n_of_tensor(wants, i);
        rc = judge(wants, first, of, &chosen, err);
        if (!chosen)
            continue;
        dcp_buf_add_le32(list, (uint32_t)first->tensor);
        memmove(&wants->items[kept], first, of * sizeof *first);
        kept += of;
    }
    wants->n = rc ? wants->n : kept;
    return rc;
}

static int by_turn(const void *a, const void *b)
{
    const struct dcp_want *const *x = a, *const *y = b;

    return (*x)->turn < (*y)->turn ? -1 : (*x)->turn > (*y)->turn;
}

/* Equal wants were read alike, and those that differ add up to the tensor. */
static bool proves(const struct dcp_wants *wants, const struct dcp_want *first, size_t n)
{
    const struct dcp_tensor *tensor = &wants->catalog->tensors[first->tensor];
    uint64_t parts = 0;
    bool good = true;

    for (size_t i = 0; i < n; i++) {
        bool replica = i > 0 && !order(wants, &first[i - 1], &first[i]);
        good = good && first[i].read;
        if (!replica)
            parts ^= first[i].part;
        else if (first[i].part != first[i - 1].part)
            good = false;
    }
    return good && dcp_fingerprint_whole(tensor, parts) == tensor->fingerprint;
}

int dcp_wants_prove(struct dcp_wants *wants, const void *messages, const size_t *sizes,
                    int n, struct dcp_buf *list, struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct dcp_want **turns = dcp_mem_calloc(wants->n, sizeof *turns);
    size_t total = 0;

    if (!turns)
        return no_memory(err);
    for (int r = 0; r < n; r++)
        total += sizes[r];
    struct dcp_cursor in = dcp_cursor_init(messages, total);
    for (size_t i = 0; i < wants->n; i++)
        turns[i] = &wants->items[i];
    qsort(turns, wants->n, sizeof(struct dcp_want *), by_turn);
    for (size_t i = 0; i < wants->n; i++) {
        turns[i]->read = dcp_cursor_u8(&in);
        turns[i]->part = dcp_cursor_le64(&in);
    }
    if (in.bad || dcp_cursor_left(&in))
        return bad_message(err);
    for (size_t i = 0, of; i < wants->n; i += of) {
        of = n_of_tensor(wants, i);
        if (!proves(wants, &wants->items[i], of))
            dcp_buf_add_le32(list, (uint32_t)wants->items[i].tensor);
    }
    return DCP_OK;
}

void dcp_wants_fini(struct dcp_wants *wants)
{
    free(wants->items);
    dcp_arena_free(wants->arena);
    *wants = (struct dcp_wants){ 0 };
}
