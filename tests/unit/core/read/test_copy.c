/* labels: tsan */
/* The copy engine: any part of any target piece, cast or not, and the proof that finds a
 * plan that is wrong. */
#include "base/hash.h"
#include "core/catalog/region.h"
#include "core/integrity/fingerprint.h"
#include "core/plan/contents.h"
#include "core/plan/target.h"
#include "core/read/copy.h"
#include "core/write/stream.h"
#include "lib/acts.h"
#include "lib/naive.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/reshard.h>

#define MOST 300

static struct dcp_catalog *new_catalog(void)
{
    struct dcp_catalog *catalog;

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    return catalog;
}

/* Memory for every piece of a catalog, with the bytes of its elements. Freed with
 * free_data. */
static void fill_data(struct dcp_catalog *catalog, const unsigned char *bytes)
{
    int64_t elems[MOST];

    for (size_t p = 0; p < catalog->n_pieces; p++) {
        struct dcp_piece *piece = &catalog->pieces[p];
        const struct dcp_tensor *tensor = &catalog->tensors[piece->tensor];
        size_t elem = dcp_dtype_size(tensor->dtype), span = 1;
        int64_t n = naive_elems(tensor, &piece->region, elems);
        for (int64_t k = 0; k < n; k++) {
            size_t place = (size_t)naive_place(tensor, piece, elems[k], k);
            span = place + 1 > span ? place + 1 : span;
        }
        unsigned char *data = calloc(span, elem);
        assert_non_null(data);
        for (int64_t k = 0; k < n; k++)
            memcpy(data + (size_t)naive_place(tensor, piece, elems[k], k) * elem,
                   bytes + (size_t)elems[k] * elem, elem);
        piece->data = data;
        piece->stored_size = span * elem; /* what a strided piece spans */
    }
}

static void free_data(struct dcp_catalog *catalog)
{
    for (size_t p = 0; p < catalog->n_pieces; p++)
        free(catalog->pieces[p].data);
}

/* Those of a source may have gaps, those of a target have none. */
static void give_strides(uint64_t *seed, struct dcp_catalog *catalog, bool gaps)
{
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        struct dcp_piece *piece = &catalog->pieces[p];
        const struct dcp_tensor *tensor = &catalog->tensors[piece->tensor];
        int64_t *stride = dcp_catalog_alloc(catalog, DCP_MAX_NDIM, sizeof *stride);
        const int64_t *size =
            piece->region.kind == DCP_BOX ? piece->region.size : tensor->shape;
        if (gaps)
            naive_strides(seed, tensor->ndim, size, stride);
        else
            naive_permute(seed, tensor->ndim, size, stride);
        piece->stride = stride;
    }
}

/* Every piece in random parts; with a cast the expected elements are cast one by one. */
static void any_part_with_any_cast(void **state)
{
    (void)state;
    static const enum dcp_dtype dtypes[] = { DCP_F32, DCP_BF16, DCP_F16, DCP_F64 };
    uint64_t seed = 81;

    for (int i = 0; i < 1500; i++) {
        struct dcp_catalog *src = new_catalog(), *dst = new_catalog();
        int64_t shape[DCP_MAX_NDIM], elems[MOST];
        unsigned char bytes[8 * MOST], got[8 * MOST], want[8 * MOST];
        int ndim = naive_shape(&seed, MOST, shape);
        enum dcp_dtype from = dtypes[acts_pick(&seed, 4)];
        enum dcp_dtype to = i % 2 ? from : dtypes[acts_pick(&seed, 4)];
        size_t from_size = dcp_dtype_size(from), to_size = dcp_dtype_size(to);
        struct dcp_plan *plan;
        bool strides = i % 5 == 0, permuted = i % 3 == 0;
        naive_tensor(src, from, ndim, shape);
        naive_tensor(dst, to, ndim, shape);
        for (size_t b = 0; b < sizeof bytes; b++)
            bytes[b] = (unsigned char)acts_random(&seed);
        naive_cut(&seed, src, 0,
                  strides ? NAIVE_BOXES : (enum naive_cut)acts_pick(&seed, NAIVE_N_CUTS),
                  3, !strides);
        naive_cut(&seed, dst, 0,
                  permuted ? NAIVE_BOXES : (enum naive_cut)acts_pick(&seed, NAIVE_N_CUTS),
                  3, !permuted);
        if (strides)
            give_strides(&seed, src, true);
        if (permuted)
            give_strides(&seed, dst, false);
        assert_int_equal(dcp_catalog_sort(src, NULL), 0);
        assert_int_equal(dcp_catalog_sort(dst, NULL), 0);
        fill_data(src, bytes);
        assert_int_equal(dcp_plan_new(src, dst, NULL, &plan, NULL), 0);
        _Atomic uint64_t parts[1] = { 0 };
        struct dcp_source nowhere = { 0 };
        struct dcp_copier copier = { .plan = plan,
                                     .src = src,
                                     .dst = dst,
                                     .scratch = malloc(DCP_COPY_SCRATCH),
                                     .src_parts = parts };
        assert_int_equal(dcp_blocks_new(&nowhere, src, 1, true, &copier.blocks, NULL), 0);
        bool replicas = false;
        for (size_t p = 0; p < dst->n_pieces; p++) {
            const struct dcp_region *region = &dst->pieces[p].region;
            int64_t n = naive_elems(&dst->tensors[0], region, elems), at = 0;
            replicas |= p > 0 && !dcp_region_order(&dst->tensors[0],
                                                   &dst->pieces[p - 1].region, region);
            for (int64_t k = 0; k < n; k++) {
                int64_t place =
                    naive_place(&dst->tensors[0], &dst->pieces[p], elems[k], k);
                dcp_cast(from, to, bytes + (size_t)elems[k] * from_size,
                         want + (size_t)place * to_size, 1, NULL);
            }
            uint64_t part = 0;
            while (at < n) {
                int64_t run = 1 + acts_pick(&seed, n - at);
                assert_int_equal(dcp_copy_piece(&copier, p, at, at + run,
                                                got + (size_t)at * to_size, NULL),
                                 0);
                const unsigned char *data = got + (size_t)at * to_size;
                part ^= dcp_fingerprint_piece(
                    &dst->tensors[0], &dst->pieces[p], at, run, data,
                    dcp_hash_crc64(0, data, (size_t)run * to_size));
                at += run;
            }
            if (n)
                assert_memory_equal(got, want, (size_t)n * to_size);
            for (int64_t k = 0; k < n; k++) {
                const unsigned char *one =
                    want +
                    (size_t)naive_place(&dst->tensors[0], &dst->pieces[p], elems[k], k) *
                        to_size;
                part ^= dcp_fingerprint_part(&dst->tensors[0], region, k, 1, one,
                                             dcp_hash_crc64(0, one, to_size));
            }
            assert_int_equal(part, 0);
        }
        if (!replicas) { /* each element was read once */
            uint64_t one = 0;
            struct dcp_region whole = { .kind = DCP_WHOLE };
            const struct dcp_tensor *tensor = &src->tensors[0];
            for (int64_t e = 0; e < tensor->n_elems; e++) {
                const unsigned char *at = bytes + (size_t)e * from_size;
                one ^= dcp_fingerprint_part(tensor, &whole, e, 1, at,
                                            dcp_hash_crc64(0, at, from_size));
            }
            assert_int_equal(parts[0], one);
        }
        dcp_blocks_free(copier.blocks);
        free(copier.scratch);
        dcp_plan_free(plan);
        free_data(src);
        dcp_catalog_free(src);
        dcp_catalog_free(dst);
    }
}

/* --- wrong plans --- */

/* A tensor of 4 x 300 floats in memory, cut by layout. */
static struct dcp_catalog *rows(unsigned char bytes[4800], bool fingerprint)
{
    struct dcp_catalog *catalog = new_catalog();
    const int64_t shape[] = { 4, 300 };
    uint64_t seed = 82;

    naive_tensor(catalog, DCP_F32, 2, shape);
    for (int r = 0; r < 4; r++) {
        struct dcp_region region = { .kind = DCP_FLAT,
                                     .begin = r * 300,
                                     .end = r * 300 + 300 };
        struct dcp_piece piece = { .region = region, .file = -1 };
        assert_int_equal(dcp_catalog_add_piece(catalog, &piece, NULL), 0);
    }
    assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
    for (int b = 0; b < 4800; b++)
        bytes[b] = (unsigned char)acts_random(&seed);
    for (int r = 0; r < 4; r++)
        catalog->pieces[r].data = bytes + 1200 * r;
    catalog->tensors[0].has_fingerprint = fingerprint;
    catalog->tensors[0].fingerprint = dcp_hash_crc64(0, bytes, 4800);
    return catalog;
}

/* Streams into a store in memory after `spoil` had its hands on the plan. */
static int stream(bool fingerprint, bool verify, const char *layout,
                  void (*spoil)(struct dcp_plan *plan), struct dcp_error *err)
{
    unsigned char bytes[4800];
    struct dcp_catalog *src = rows(bytes, fingerprint), *target;
    struct dcp_reshard_options options = { .dtype = -1,
                                           .world_size = 3,
                                           .layout = layout };
    const struct dcp_format *format = dcp_format_of_steps();
    struct dcp_reshard_plan facts = { 0 };
    struct dcp_store store;
    struct dcp_plan *plan;
    int *src_tensor;
    struct dcp_source nowhere = { 0 };

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    assert_int_equal(
        dcp_contents_new(src, format, &options, &facts, &target, &src_tensor, NULL), 0);
    struct dcp_target open = { .format = format,
                               .catalog = target,
                               .options = &options.target };
    assert_int_equal(dcp_partition_by_layout(&open, NULL), 0);
    if (!strcmp(layout, "replicated")) { /* one rank has it: the others get it, too */
        int has = target->pieces[0].rank;
        for (int r = 1; r < 3; r++)
            assert_int_equal(dcp_catalog_add_piece(
                                 target,
                                 &(struct dcp_piece){ .rank = (has + r) % 3, .file = -1 },
                                 NULL),
                             0);
        assert_int_equal(dcp_catalog_sort(target, NULL), 0);
    }
    assert_int_equal(dcp_plan_new(src, target, src_tensor, &plan, NULL), 0);
    assert_int_equal(dcp_target_open_cut(&open, NULL), 0);
    spoil(plan);
    int rc = dcp_stream_run(&(struct dcp_stream_setup){ .source = &nowhere,
                                                        .src = src,
                                                        .target = &open,
                                                        .src_tensor = src_tensor,
                                                        .plan = plan,
                                                        .store = &store,
                                                        .prefix = "",
                                                        .threads = 2,
                                                        .memory_bytes = 1,
                                                        .verify = verify },
                            err);
    bool is_dir;
    uint64_t size;
    int found = store.ops->stat(store.self, "manifest.json", &is_dir, &size, NULL);
    assert_int_equal(found, rc ? DCP_E_NOT_FOUND : DCP_OK);
    dcp_plan_free(plan);
    dcp_target_close(&open);
    dcp_catalog_free(target);
    dcp_catalog_free(src);
    free(src_tensor);
    dcp_store_free(&store);
    return rc;
}

static void leave_as_it_is(struct dcp_plan *plan)
{
    (void)plan;
}

static void read_elsewhere(struct dcp_plan *plan)
{
    plan->copies[1].src_at = (plan->copies[1].src_at + 1) % 100;
}

static void read_another_piece(struct dcp_plan *plan)
{
    for (size_t c = 0; c < plan->n_copies; c++)
        if (plan->copies[c].src_at == 0 && plan->copies[c].n <= 300) {
            plan->copies[c].src = (plan->copies[c].src + 1) % 4;
            return;
        }
}

static void leave_one_out(struct dcp_plan *plan)
{
    plan->copies[plan->first[1]].n--;
}

/* Every element is read once and written once; only the places of 200 are exchanged. */
static void exchange(struct dcp_plan *plan)
{
    struct dcp_copy *a = &plan->copies[1], *b = &plan->copies[4], kept = *a;

    assert_true(a->n == 100 && b->n == 100);
    a->src = b->src;
    a->src_at = b->src_at;
    b->src = kept.src;
    b->src_at = kept.src_at;
}

static void wrong_plans_are_found(void **state)
{
    (void)state;
    static void (*const spoils[])(struct dcp_plan *) = { read_elsewhere,
                                                         read_another_piece,
                                                         leave_one_out, exchange };

    for (int fingerprint = 0; fingerprint < 2; fingerprint++) {
        struct dcp_error err = { 0 };
        assert_int_equal(stream(fingerprint, true, "zero3", leave_as_it_is, &err), 0);
        for (size_t i = 0; i < sizeof spoils / sizeof spoils[0]; i++) {
            err = (struct dcp_error){ 0 };
            assert_int_equal(stream(fingerprint, true, "zero3", spoils[i], &err),
                             DCP_E_CORRUPT);
            assert_string_equal(err.tensor, "tensor.0");
            assert_non_null(strstr(err.message, "nothing was published"));
        }
    }
}

/* The last of three ranks gets two rows in the wrong order. */
static void spoil_a_replica(struct dcp_plan *plan)
{
    struct dcp_copy *a = &plan->copies[plan->first[2]];
    size_t src = a[0].src;

    assert_int_equal(a[0].n, a[1].n);
    a[0].src = a[1].src;
    a[1].src = src;
}

/* No fingerprint counts them; who wants nothing verified gets what was read. */
static void replicas_are_verified(void **state)
{
    struct dcp_error err = { 0 };

    (void)state;
    assert_int_equal(stream(true, true, "replicated", leave_as_it_is, &err), 0);
    assert_int_equal(stream(true, true, "replicated", spoil_a_replica, &err),
                     DCP_E_CORRUPT);
    assert_non_null(strstr(err.message, "differently for ranks 1 and 2; nothing"));
    err = (struct dcp_error){ 0 };
    assert_int_equal(stream(true, false, "replicated", spoil_a_replica, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_part_with_any_cast),
        cmocka_unit_test(wrong_plans_are_found),
        cmocka_unit_test(replicas_are_verified),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
