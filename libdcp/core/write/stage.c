#include "stage.h"
#include "base/hash.h"
#include "base/mem.h"
#include <string.h>

#define CHUNK ((uint64_t)4 << 20)  /* a job of the pool */
#define SLICE ((uint64_t)32 << 10) /* copied, and then digested out of the cache */

struct chunk {
    const struct dcp_device *device; /* NULL: the host can read it */
    const unsigned char *from;
    unsigned char *to;
    uint64_t n, crc;
};

static int stage_chunk(void *arg, int worker, size_t i, struct dcp_error *err)
{
    (void)worker;
    struct chunk *chunk = &((struct chunk *)arg)[i];
    const struct dcp_device *device = chunk->device;

    if (device) {
        DCP_TRY(device->ops->to_host(device->self, chunk->to, chunk->from,
                                     (size_t)chunk->n, err));
        chunk->crc = dcp_hash_crc64(0, chunk->to, (size_t)chunk->n);
        return DCP_OK;
    }
    for (uint64_t at = 0; at < chunk->n; at += SLICE) {
        size_t n = (size_t)(chunk->n - at < SLICE ? chunk->n - at : SLICE);
        memcpy(chunk->to + at, chunk->from + at, n);
        chunk->crc = dcp_hash_crc64(chunk->crc, chunk->from + at, n);
    }
    return DCP_OK;
}

static int reserve(struct dcp_stage *stage, const struct dcp_device *device,
                   uint64_t bytes, struct dcp_error *err)
{
    if (bytes <= stage->size_bytes)
        return DCP_OK;
    dcp_stage_fini(stage, device);
    DCP_TRY(device->ops->alloc_staging(device->self, (size_t)bytes, &stage->memory, err));
    stage->size_bytes = bytes;
    return DCP_OK;
}

static bool is_readable(const struct dcp_piece *piece, const struct dcp_device *device)
{
    return piece->on_host || dcp_device_reads(device, piece->data);
}

static bool is_copied(const struct dcp_piece *piece, const struct dcp_device *device,
                      bool in_place)
{
    return !(in_place && is_readable(piece, device));
}

bool dcp_stage_holds(const struct dcp_stage *stage, const struct dcp_piece *piece)
{
    uintptr_t begin = (uintptr_t)stage->memory, at = (uintptr_t)piece->data;

    return begin && at >= begin && at - begin < stage->size_bytes;
}

/* Where a piece is staged, from `at` on: as it lies in its file, modulo what reading and
 * writing past the page cache asks for; a small one on a cache line. */
static uintptr_t place_of(const struct dcp_catalog *catalog,
                          const struct dcp_piece *piece, uintptr_t at)
{
    bool large = dcp_piece_bytes(catalog, piece) >= DCP_BLOCK_BYTES / 4;

    return large ? at + (piece->offset - at) % DCP_STORE_DIRECT_ALIGN
                 : (at + 63) / 64 * 64;
}

int dcp_stage_fill(struct dcp_stage *stage, const struct dcp_device *device,
                   struct dcp_pool *pool, struct dcp_catalog *catalog, bool in_place,
                   uint64_t *crc, struct dcp_error *err)
{
    uint64_t total = 0; /* the memory begins on a page */
    size_t n_chunks = 0, c = 0;

    for (size_t p = 0; p < catalog->n_pieces; p++)
        if (is_copied(&catalog->pieces[p], device, in_place)) {
            uint64_t bytes = dcp_piece_bytes(catalog, &catalog->pieces[p]);
            total = place_of(catalog, &catalog->pieces[p], total) + bytes;
            n_chunks += (size_t)((bytes + CHUNK - 1) / CHUNK);
        }
    DCP_CLEANUP_FREE struct chunk *chunks = dcp_mem_calloc(n_chunks, sizeof *chunks);
    if (!chunks)
        return dcp_error_memory(err, "a snapshot");
    DCP_TRY(reserve(stage, device, total, err));
    uintptr_t end = (uintptr_t)stage->memory;
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        struct dcp_piece *piece = &catalog->pieces[p];
        if (!is_copied(piece, device, in_place))
            continue;
        uint64_t bytes = dcp_piece_bytes(catalog, piece);
        bool readable = is_readable(piece, device);
        unsigned char *to = (unsigned char *)place_of(catalog, piece, end);
        for (uint64_t at = 0; at < bytes; at += CHUNK)
            chunks[c++] = (struct chunk){ .device = readable ? NULL : device,
                                          .from = (unsigned char *)piece->data + at,
                                          .to = to + at,
                                          .n = bytes - at < CHUNK ? bytes - at : CHUNK };
        piece->data = to;
        end = (uintptr_t)to + bytes;
    }
    DCP_TRY(dcp_pool_for(pool, n_chunks, stage_chunk, chunks, err));
    c = 0;
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        if (!dcp_stage_holds(stage, piece))
            continue;
        crc[p] = 0;
        for (uint64_t left = dcp_piece_bytes(catalog, piece); left; left -= chunks[c++].n)
            crc[p] = dcp_hash_crc64_combine(crc[p], chunks[c].crc, chunks[c].n);
    }
    return DCP_OK;
}

void dcp_stage_fini(struct dcp_stage *stage, const struct dcp_device *device)
{
    if (stage->memory)
        device->ops->free_staging(device->self, stage->memory, (size_t)stage->size_bytes);
    *stage = (struct dcp_stage){ 0 };
}
