#include "deal.h"
#include "base/mem.h"
#include "core/write/stream.h"

/* The part in whose share of all bytes the middle of a writer's lies. */
static int part_at(uint64_t before, uint64_t bytes, uint64_t total, int n)
{
    __extension__ typedef unsigned __int128 wide;
    wide middle = (wide)before * 2u + bytes;

    return (int)(middle * (unsigned)n / ((wide)total * 2u));
}

static int deal(const struct dcp_catalog *target, struct dcp_deal *out,
                struct dcp_error *err)
{
    int n = out->shares.n_writers;
    DCP_CLEANUP_FREE uint64_t *bytes = dcp_mem_calloc((size_t)n, sizeof *bytes);
    uint64_t total = 0, before = 0;

    if (!bytes)
        return dcp_error_memory(err, "the parts of a reshard");
    for (int w = 0; w < n; w++)
        bytes[w] = 1; /* a file without bytes is work, too */
    for (size_t f = 0; f < target->n_files; f++)
        bytes[target->files[f].rank] += target->files[f].size_bytes;
    for (int w = 0; w < n; w++)
        total += bytes[w];
    for (int w = 0; w < n; w++) {
        out->part_of[w] = part_at(before, bytes[w], total, out->n);
        before += bytes[w];
    }
    for (size_t f = 0; f < target->n_files; f++) {
        struct dcp_reshard_part *part = &out->parts[out->part_of[target->files[f].rank]];
        part->n_files++;
        part->size_bytes += target->files[f].size_bytes;
    }
    return DCP_OK;
}

int dcp_deal(struct dcp_target *target, int n, struct dcp_deal *out,
             struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;

    *out = (struct dcp_deal){ .n = n };
    if (!target->format->finalize)
        for (size_t f = 0; f < catalog->n_files; f++)
            catalog->files[f].rank = (int)f;
    int n_writers = dcp_stream_writers(catalog);
    out->part_of = dcp_mem_calloc((size_t)n_writers, sizeof *out->part_of);
    out->parts = dcp_mem_calloc((size_t)n, sizeof *out->parts);
    out->shares = (struct dcp_shares){ out->part_of, n_writers, catalog->n_files };
    if (!out->part_of || !out->parts)
        return dcp_error_memory(err, "the parts of a reshard");
    return deal(catalog, out, err);
}

void dcp_deal_fini(struct dcp_deal *deal)
{
    free(deal->part_of);
    free(deal->parts);
    *deal = (struct dcp_deal){ 0 };
}
