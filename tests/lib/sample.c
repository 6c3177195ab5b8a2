#include "sample.h"
#include "base/hash.h"
#include "core/catalog/region.h"
#include "must.h"
#include <dcp/reshard.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    enum dcp_role role;
    enum dcp_dtype dtype;
    int ndim;
    int64_t shape[4];
    int group;
} tensors[] = {
    { "wte.weight", DCP_ROLE_MODEL, DCP_BF16, 2, { 67, 12 }, 0 },
    { "h.0.attn.weight", DCP_ROLE_MODEL, DCP_BF16, 2, { 12, 36 }, 0 },
    { "h.0.attn.bias", DCP_ROLE_MODEL, DCP_BF16, 1, { 36 }, 1 },
    { "h.0.conv", DCP_ROLE_MODEL, DCP_F32, 4, { 3, 5, 2, 7 }, 0 },
    { "h.0.few_rows", DCP_ROLE_MODEL, DCP_F32, 2, { 2, 9 }, 0 },
    { "one", DCP_ROLE_MODEL, DCP_F32, 1, { 1 }, 1 },
    { "scalar", DCP_ROLE_MODEL, DCP_F64, 0, { 0 }, 1 },
    { "empty", DCP_ROLE_MODEL, DCP_F32, 2, { 0, 5 }, 0 },
    { "empty_inside", DCP_ROLE_MODEL, DCP_F16, 3, { 4, 0, 3 }, 0 },
    { "mask", DCP_ROLE_BUFFER, DCP_BOOL, 2, { 5, 5 }, 0 },
    { "counter", DCP_ROLE_BUFFER, DCP_I64, 0, { 0 }, 0 },
    { "optimizer.master.wte.weight", DCP_ROLE_MASTER, DCP_F32, 2, { 67, 12 }, 0 },
    { "optimizer.exp_avg.wte.weight", DCP_ROLE_EXP_AVG, DCP_F32, 2, { 67, 12 }, 0 },
    { "optimizer.exp_avg.h.0.attn.weight", DCP_ROLE_EXP_AVG, DCP_F32, 2, { 12, 36 }, 0 },
    { "optimizer.exp_avg.h.0.attn.bias", DCP_ROLE_EXP_AVG, DCP_F32, 1, { 36 }, 1 },
    { "optimizer.exp_avg_sq.scalar", DCP_ROLE_EXP_AVG_SQ, DCP_F32, 0, { 0 }, 1 },
    /* Over one block, so that blocks, chunks and windows have borders to get wrong. */
    { "big", DCP_ROLE_MODEL, DCP_F32, 2, { 269, 1031 }, 0 },
};
enum { N_TENSORS = sizeof tensors / sizeof tensors[0] };

static const char *const objects[][2] = {
    { "trainer", "{\"step\":7,\"tokens\":12345678901,\"lr\":0.0006}" },
    { "note", "{\"text\":\"caf\\u00e9\"}" },
};

unsigned char sample_byte(int tensor, int64_t elem, size_t byte, unsigned salt)
{
    uint64_t x = (uint64_t)elem * 0x9E3779B97F4A7C15u ^ (uint64_t)tensor << 48 ^
                 (uint64_t)byte << 40 ^ (uint64_t)salt << 32;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return (unsigned char)(x >> 56);
}

int sample_n_tensors(void)
{
    return N_TENSORS;
}

static struct dcp_catalog *make_catalog(const char *layout, int world_size)
{
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };

    must(dcp_catalog_new(&catalog, &err) == 0);
    for (int t = 0; t < N_TENSORS; t++) {
        const char *param = tensors[t].name;
        if (!strncmp(param, "optimizer.", 10))
            param = strchr(param + 10, '.') + 1;
        struct dcp_tensor tensor = { .name = tensors[t].name,
                                     .param = param,
                                     .role = tensors[t].role,
                                     .dtype = tensors[t].dtype,
                                     .ndim = tensors[t].ndim,
                                     .shape = tensors[t].shape,
                                     .group = tensors[t].group };
        must(dcp_catalog_add_tensor(catalog, &tensor, NULL, &err) == 0);
    }
    must(dcp_layout_apply(catalog, layout, world_size, &err) == 0);
    return catalog;
}

static void each_byte(const struct dcp_tensor *tensor, int t,
                      const struct dcp_local_tensor *local, unsigned salt, bool fill,
                      int64_t *out_wrong)
{
    size_t elem = dcp_dtype_size(tensor->dtype);
    unsigned char *data = local->data;
    struct dcp_region_walk walk;
    int64_t flat, at, n;

    dcp_region_walk_init(&walk, tensor, &local->region, 0);
    while (dcp_region_walk_next(&walk, INT64_MAX, &flat, &at, &n))
        for (int64_t i = 0; i < n; i++) {
            bool wrong = false;
            for (size_t b = 0; b < elem; b++) {
                unsigned char want = sample_byte(t, flat + i, b, salt);
                unsigned char *byte = &data[(size_t)(at + i) * elem + b];
                if (fill)
                    *byte = want;
                wrong |= *byte != want;
            }
            *out_wrong += wrong;
        }
}

void sample_make(struct sample *out, const char *layout, int world_size, int rank,
                 bool fill, unsigned salt)
{
    sample_make_first(out, N_TENSORS, layout, world_size, rank, fill, salt);
}

void sample_make_first(struct sample *out, int n, const char *layout, int world_size,
                       int rank, bool fill, unsigned salt)
{
    *out = (struct sample){ .catalog = make_catalog(layout, world_size) };
    out->locals = calloc(N_TENSORS, sizeof *out->locals);
    must(out->locals);
    for (int t = 0; t < n; t++) {
        const struct dcp_tensor *tensor = &out->catalog->tensors[t];
        struct dcp_local_tensor *local = &out->locals[t];
        int64_t wrong = 0;
        *local = (struct dcp_local_tensor){ .name = tensor->name,
                                            .param = tensor->param,
                                            .role = tensor->role,
                                            .dtype = tensor->dtype,
                                            .ndim = tensor->ndim,
                                            .shape = tensor->shape,
                                            .group = tensor->group,
                                            .region = { .kind = DCP_FLAT } };
        for (size_t i = 0; i < tensor->n_pieces; i++) {
            const struct dcp_piece *piece =
                &out->catalog->pieces[tensor->first_piece + i];
            if (piece->rank != rank)
                continue;
            local->region = piece->region;
            size_t bytes = (size_t)dcp_piece_bytes(out->catalog, piece);
            local->data = malloc(bytes + 1);
            must(local->data);
            memset(local->data, 0xA5, bytes);
            if (fill)
                each_byte(tensor, t, local, salt, true, &wrong);
        }
    }
    for (int o = 0; o < 2; o++)
        out->objects[o] = (struct dcp_object){ .name = objects[o][0],
                                               .data = objects[o][1],
                                               .size_bytes = strlen(objects[o][1]) };
    out->state = (struct dcp_state){ .locals = out->locals,
                                     .n_locals = (size_t)n,
                                     .objects = out->objects,
                                     .n_objects = 2,
                                     .layout = layout,
                                     .mesh = { world_size, 1, 1 } };
}

void sample_free(struct sample *sample)
{
    for (size_t t = 0; t < sample->state.n_locals; t++)
        free(sample->locals[t].data);
    free(sample->locals);
    dcp_catalog_free(sample->catalog);
}

int64_t sample_wrong(const struct sample *sample, unsigned salt)
{
    int64_t wrong = 0;

    for (int t = 0; t < (int)sample->state.n_locals; t++)
        each_byte(&sample->catalog->tensors[t], t, &sample->locals[t], salt, false,
                  &wrong);
    return wrong;
}

uint64_t sample_fingerprint(const struct sample *sample, int t, unsigned salt)
{
    const struct dcp_tensor *tensor = &sample->catalog->tensors[t];
    uint64_t crc = 0;

    for (int64_t e = 0; e < tensor->n_elems; e++)
        for (size_t b = 0; b < dcp_dtype_size(tensor->dtype); b++) {
            unsigned char byte = sample_byte(t, e, b, salt);
            crc = dcp_hash_crc64(crc, &byte, 1);
        }
    return crc;
}
