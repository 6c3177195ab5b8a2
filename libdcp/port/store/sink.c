#include "sink.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/pool.h"
#include "tape.h"
#include <pthread.h>
#include <string.h>
#include <zstd.h>

#define LEVEL 3 /* zstd's own default, as of `tar --zstd` */
#define ENTRY_BYTES 8
#define FLUSH_BYTES ((uint64_t)8 << 20)

/* A compressor; free ones are a list. */
struct press {
    struct press *next;
    ZSTD_CCtx *zstd;
};

/* A frame on its way. Slots are a ring: they are filled and written in turn. */
struct slot {
    struct dcp_sink *sink;
    struct dcp_group *group; /* NULL: compressed on the caller */
    unsigned char *raw, *stored;
    size_t raw_n, stored_n;
};

struct dcp_sink {
    const struct dcp_store *store;
    struct dcp_store_file *file;
    char *name;
    struct dcp_pool *pool; /* NULL: one thread */
    struct slot *slots;
    size_t n_slots, first, n_waiting; /* the oldest, and how many were not written */
    unsigned char *table;             /* entries of the seek table */
    size_t n_frames, cap_table;
    uint64_t at, flushed; /* bytes of the file */
    uint64_t crc;         /* of its first `at` bytes */
    pthread_mutex_t lock; /* of presses */
    struct press *presses;
};

static struct press *take_press(struct dcp_sink *sink)
{
    pthread_mutex_lock(&sink->lock);
    struct press *press = sink->presses;
    if (press)
        sink->presses = press->next;
    pthread_mutex_unlock(&sink->lock);
    if (press || !(press = calloc(1, sizeof *press)))
        return press;
    press->zstd = ZSTD_createCCtx();
    if (press->zstd) {
        ZSTD_CCtx_setParameter(press->zstd, ZSTD_c_compressionLevel, LEVEL);
        ZSTD_CCtx_setParameter(press->zstd, ZSTD_c_checksumFlag, 1);
        return press;
    }
    free(press);
    return NULL;
}

static void give_press(struct dcp_sink *sink, struct press *press)
{
    pthread_mutex_lock(&sink->lock);
    press->next = sink->presses;
    sink->presses = press;
    pthread_mutex_unlock(&sink->lock);
}

static int compress(void *arg, struct dcp_error *err)
{
    struct slot *slot = arg;
    struct press *press = take_press(slot->sink);

    if (!press)
        return dcp_error_memory(err, "the compression of an archive");
    slot->stored_n =
        ZSTD_compress2(press->zstd, slot->stored, ZSTD_compressBound(SINK_FRAME_BYTES),
                       slot->raw, slot->raw_n);
    give_press(slot->sink, press);
    return ZSTD_isError(slot->stored_n)
               ? dcp_error_memory(err, "the compression of an archive")
               : DCP_OK;
}

static int make_slots(struct dcp_sink *sink, int threads, uint64_t memory_bytes,
                      struct dcp_error *err)
{
    uint64_t n = memory_bytes / (2 * SINK_FRAME_BYTES);
    uint64_t most = 2 * (uint64_t)threads + 1;

    sink->n_slots = n < 2 ? 2 : n > most ? (size_t)most : (size_t)n;
    sink->slots = dcp_mem_calloc(sink->n_slots, sizeof *sink->slots);
    if (!sink->slots)
        return dcp_error_memory(err, "the compression of an archive");
    for (size_t i = 0; i < sink->n_slots; i++) {
        struct slot *slot = &sink->slots[i];
        slot->sink = sink;
        slot->raw = malloc(SINK_FRAME_BYTES);
        slot->stored = malloc(ZSTD_compressBound(SINK_FRAME_BYTES));
        if (!slot->raw || !slot->stored)
            return dcp_error_memory(err, "the compression of an archive");
        if (sink->pool)
            DCP_TRY(dcp_group_new(sink->pool, &slot->group, err));
    }
    return DCP_OK;
}

int dcp_sink_new(const struct dcp_store *store, const char *name, int threads,
                 uint64_t memory_bytes, struct dcp_sink **out_sink, struct dcp_error *err)
{
    struct dcp_sink *sink = calloc(1, sizeof *sink);
    int rc = DCP_OK;

    *out_sink = NULL;
    if (!sink)
        return dcp_error_memory(err, "an archive");
    sink->store = store;
    pthread_mutex_init(&sink->lock, NULL);
    if (!(sink->name = strdup(name)))
        rc = dcp_error_memory(err, "an archive");
    if (!rc && threads > 1)
        rc = dcp_pool_new(threads, &sink->pool, err); /* the caller only feeds them */
    if (!rc)
        rc = make_slots(sink, threads, memory_bytes, err);
    if (!rc)
        rc = store->ops->create(store->self, name, 0, &sink->file, err);
    if (rc) {
        dcp_sink_free(sink);
        return rc;
    }
    *out_sink = sink;
    return DCP_OK;
}

static int put(struct dcp_sink *sink, const void *data, size_t n, struct dcp_error *err)
{
    const struct dcp_store_ops *ops = sink->store->ops;
    int rc = ops->write_at(sink->store->self, sink->file, sink->at, data, n, err);

    sink->at += n;
    sink->crc = dcp_hash_crc64(sink->crc, data, n);
    if (!rc && ops->flush_hint && sink->at - sink->flushed >= FLUSH_BYTES) {
        ops->flush_hint(sink->store->self, sink->file, sink->flushed,
                        sink->at - sink->flushed);
        sink->flushed = sink->at;
    }
    return rc;
}

static int note_frame(struct dcp_sink *sink, const struct slot *slot,
                      struct dcp_error *err)
{
    size_t at = sink->n_frames * ENTRY_BYTES;

    if (sink->n_frames >= TAPE_MAX_FRAMES)
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "an archive cannot hold: more than %zu MiB",
                             TAPE_MAX_FRAMES * (SINK_FRAME_BYTES >> 20));
    unsigned char *grown =
        dcp_mem_grow(sink->table, &sink->cap_table, at + ENTRY_BYTES, 1);
    if (!grown)
        return dcp_error_memory(err, "the seek table of an archive");
    sink->table = grown;
    dcp_put_le32(grown + at, (uint32_t)slot->stored_n);
    dcp_put_le32(grown + at + 4, (uint32_t)slot->raw_n);
    sink->n_frames++;
    return DCP_OK;
}

/* Waits for the oldest frame and writes it. */
static int write_oldest(struct dcp_sink *sink, struct dcp_error *err)
{
    struct slot *slot = &sink->slots[sink->first];
    int rc = slot->group ? dcp_group_wait(slot->group, err) : DCP_OK;

    if (!rc)
        rc = note_frame(sink, slot, err);
    if (!rc)
        rc = put(sink, slot->stored, slot->stored_n, err);
    slot->raw_n = 0;
    sink->first = (sink->first + 1) % sink->n_slots;
    sink->n_waiting--;
    return rc;
}

/* The frame being filled goes on its way; afterwards there is an empty one to fill. */
static int send(struct dcp_sink *sink, struct dcp_error *err)
{
    struct slot *slot = &sink->slots[(sink->first + sink->n_waiting) % sink->n_slots];
    int rc = DCP_OK;

    if (slot->group)
        dcp_group_start(slot->group, compress, slot);
    else
        rc = compress(slot, err);
    sink->n_waiting++;
    while (!rc && sink->n_waiting) {
        const struct slot *oldest = &sink->slots[sink->first];
        bool full = sink->n_waiting == sink->n_slots;
        if (!full && oldest->group && !dcp_group_done(oldest->group))
            break;
        rc = write_oldest(sink, err);
    }
    return rc;
}

int dcp_sink_write(struct dcp_sink *sink, const void *data, size_t n,
                   struct dcp_error *err)
{
    const unsigned char *from = data;

    while (n) {
        struct slot *slot = &sink->slots[(sink->first + sink->n_waiting) % sink->n_slots];
        size_t room = SINK_FRAME_BYTES - slot->raw_n, take = n < room ? n : room;
        memcpy(slot->raw + slot->raw_n, from, take);
        slot->raw_n += take;
        from += take;
        n -= take;
        if (slot->raw_n == SINK_FRAME_BYTES)
            DCP_TRY(send(sink, err));
    }
    return DCP_OK;
}

static int put_table(struct dcp_sink *sink, struct dcp_error *err)
{
    size_t n = sink->n_frames * ENTRY_BYTES;
    unsigned char header[8], footer[9] = { 0 };

    dcp_put_le32(header, 0x184d2a5eu);
    dcp_put_le32(header + 4, (uint32_t)(n + sizeof footer));
    dcp_put_le32(footer, (uint32_t)sink->n_frames);
    dcp_put_le32(footer + 5, 0x8f92eab1u);
    DCP_TRY(put(sink, header, sizeof header, err));
    if (n)
        DCP_TRY(put(sink, sink->table, n, err));
    return put(sink, footer, sizeof footer, err);
}

int dcp_sink_finish(struct dcp_sink *sink, uint64_t *out_size_bytes,
                    struct dcp_error *err)
{
    const struct dcp_store_ops *ops = sink->store->ops;
    struct dcp_store_file *file = sink->file;
    size_t filling = (sink->first + sink->n_waiting) % sink->n_slots;
    int rc = sink->slots[filling].raw_n ? send(sink, err) : DCP_OK;

    while (sink->n_waiting && !rc)
        rc = write_oldest(sink, err);
    if (!rc)
        rc = put_table(sink, err);
    if (!rc)
        rc = ops->sync(sink->store->self, file, sink->at, err);
    if (!rc)
        rc = dcp_store_read_back(sink->store, file, sink->name, sink->at, sink->crc, err);
    sink->file = NULL;
    int closed = ops->close(sink->store->self, file, rc ? NULL : err);
    *out_size_bytes = sink->at;
    return rc ? rc : closed;
}

void dcp_sink_free(struct dcp_sink *sink)
{
    if (!sink)
        return;
    for (size_t i = 0; sink->slots && i < sink->n_slots; i++) {
        dcp_group_free(sink->slots[i].group);
        free(sink->slots[i].raw);
        free(sink->slots[i].stored);
    }
    free(sink->slots);
    dcp_pool_free(sink->pool);
    while (sink->presses) {
        struct press *next = sink->presses->next;
        ZSTD_freeCCtx(sink->presses->zstd);
        free(sink->presses);
        sink->presses = next;
    }
    if (sink->file)
        sink->store->ops->close(sink->store->self, sink->file, NULL);
    free(sink->table);
    free(sink->name);
    pthread_mutex_destroy(&sink->lock);
    free(sink);
}
