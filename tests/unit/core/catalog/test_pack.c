/* Catalogs as messages: what comes out is what went in, and a corrupt message is refused
 * or gives a valid catalog, never a crash. */
#include "core/catalog/pack.h"
#include "core/catalog/region.h"
#include "lib/acts.h"
#include "lib/naive.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/grid.h>

#define MOST 200

/* With everything a catalog can hold. */
static struct dcp_catalog *random_catalog(uint64_t *seed)
{
    struct dcp_catalog *catalog;
    struct dcp_block blocks[3];
    int64_t stride[DCP_MAX_NDIM];

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    catalog->format = "native";
    catalog->version = "v1";
    catalog->layout = "zero3";
    catalog->producer = "caf\xc3\xa9";
    catalog->step = acts_pick(seed, 1000) - 1;
    catalog->world_size = 1 + (int)acts_pick(seed, 8);
    catalog->mesh = (struct dcp_mesh){ 2, 3, 4 };
    catalog->weights_dtype = acts_pick(seed, 2) ? DCP_BF16 : -1;
    catalog->diverged = acts_pick(seed, 2);
    catalog->parity = acts_pick(seed, 2) ? "4+2" : NULL;
    catalog->assumed = acts_pick(seed, 2) ? "all are trained" : NULL;
    catalog->assumed_order = acts_pick(seed, 2) ? "in the model's order" : NULL;
    for (int f = 0; f < 3; f++) {
        char name[32];
        snprintf(name, sizeof name, "file-%d", f);
        struct dcp_file file = { .name = name,
                                 .rank = f - 1,
                                 .size_bytes = acts_random(seed),
                                 .has_crc = f != 1,
                                 .crc = acts_random(seed) };
        assert_int_equal(dcp_catalog_add_file(catalog, &file, NULL, NULL), 0);
    }
    for (int t = 0; t < 4; t++) {
        int64_t shape[DCP_MAX_NDIM];
        int ndim = naive_shape(seed, MOST, shape);
        naive_tensor(catalog, (enum dcp_dtype)acts_pick(seed, DCP_N_DTYPES), ndim, shape);
        struct dcp_tensor *tensor = &catalog->tensors[t];
        tensor->role = (enum dcp_role)acts_pick(seed, DCP_N_ROLES);
        tensor->group = (int)acts_pick(seed, 5);
        tensor->has_fingerprint = acts_pick(seed, 2);
        tensor->fingerprint = acts_random(seed);
        tensor->is_meta = acts_pick(seed, 2);
        tensor->quantized = acts_pick(seed, 2) ? "Q4_K" : NULL;
        tensor->quantized_bytes = acts_random(seed);
        tensor->tied_to = t ? catalog->tensors[0].name : NULL;
        naive_cut(seed, catalog, t, (enum naive_cut)acts_pick(seed, NAIVE_N_CUTS), 4,
                  true);
    }
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        struct dcp_piece *piece = &catalog->pieces[p];
        piece->file = (int)acts_pick(seed, 4) - 1;
        piece->codec = (enum dcp_codec)acts_pick(seed, DCP_N_CODECS);
        piece->offset = acts_random(seed);
        piece->stored_size = acts_random(seed);
        piece->skip = acts_random(seed);
        piece->swap_bytes = (int)acts_pick(seed, 9);
        piece->crc = acts_random(seed);
        piece->has_crc = acts_pick(seed, 2);
        piece->crc32 = (uint32_t)acts_random(seed);
        piece->has_crc32 = acts_pick(seed, 2);
        if (acts_pick(seed, 4) == 0 && piece->region.kind != DCP_FLAT) {
            int64_t *kept =
                dcp_catalog_alloc(catalog, DCP_MAX_NDIM, sizeof *piece->stride);
            const struct dcp_tensor *tensor = &catalog->tensors[piece->tensor];
            naive_strides(seed, tensor->ndim, tensor->shape, stride);
            memcpy(kept, stride, (size_t)tensor->ndim * sizeof *stride);
            piece->stride = kept;
        }
        piece->n_blocks = (size_t)acts_pick(seed, 4);
        struct dcp_block *kept =
            dcp_catalog_alloc(catalog, piece->n_blocks, sizeof *blocks);
        for (size_t b = 0; b < piece->n_blocks; b++)
            kept[b] = (struct dcp_block){ acts_random(seed), (uint32_t)b };
        piece->blocks = piece->n_blocks ? kept : NULL;
    }
    for (int r = 0; r < 3; r++) {
        const struct dcp_record record = {
            .name = "data/0",
            .file = (int)acts_pick(seed, 3),
            .codec = acts_pick(seed, 2) ? DCP_CODEC_DEFLATE_STREAM : DCP_CODEC_NONE,
            .offset = acts_random(seed),
            .stored_size = acts_random(seed),
            .skip = acts_random(seed),
            .size_bytes = acts_random(seed),
            .crc32 = (uint32_t)acts_random(seed),
            .crc32_behind = acts_pick(seed, 2),
        };
        assert_int_equal(dcp_catalog_add_record(catalog, &record, NULL), 0);
    }
    struct dcp_object objects[] = {
        { .name = "rng", .data = "{\"a\":1}", .size_bytes = 7 },
        { .name = "blob", .kind = DCP_OBJECT_BYTES, .data = "\0\1\2", .size_bytes = 3 },
        { .name = "", .kind = DCP_OBJECT_BYTES },
    };
    for (int o = 0; o < 3; o++)
        assert_int_equal(dcp_catalog_add_object(catalog, &objects[o], NULL), 0);
    assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
    return catalog;
}

/* Also when there is none. */
static void same_text(const char *a, const char *b)
{
    assert_int_equal(!a, !b);
    if (a)
        assert_string_equal(a, b);
}

static void same_piece(const struct dcp_catalog *catalog, const struct dcp_piece *a,
                       const struct dcp_piece *b)
{
    const struct dcp_tensor *tensor = &catalog->tensors[a->tensor];

    assert_int_equal(a->tensor, b->tensor);
    assert_int_equal(a->rank, b->rank);
    assert_int_equal(a->file, b->file);
    assert_int_equal(a->codec, b->codec);
    assert_int_equal(a->offset, b->offset);
    assert_int_equal(a->stored_size, b->stored_size);
    assert_int_equal(a->skip, b->skip);
    assert_int_equal(a->swap_bytes, b->swap_bytes);
    assert_int_equal(a->has_crc, b->has_crc);
    assert_int_equal(a->crc, b->crc);
    assert_int_equal(a->has_crc32, b->has_crc32);
    assert_int_equal(a->crc32, b->crc32);
    assert_int_equal(a->region.kind, b->region.kind);
    assert_int_equal(dcp_region_order(tensor, &a->region, &b->region), 0);
    assert_int_equal(!a->stride, !b->stride);
    if (a->stride && tensor->ndim)
        assert_memory_equal(a->stride, b->stride,
                            (size_t)tensor->ndim * sizeof *a->stride);
    assert_int_equal(a->n_blocks, b->n_blocks);
    for (size_t i = 0; i < a->n_blocks; i++) {
        assert_int_equal(a->blocks[i].xxh3, b->blocks[i].xxh3);
        assert_int_equal(a->blocks[i].stored_size, b->blocks[i].stored_size);
    }
}

static void same_record(const struct dcp_record *a, const struct dcp_record *b)
{
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->file, b->file);
    assert_int_equal(a->codec, b->codec);
    assert_int_equal(a->offset, b->offset);
    assert_int_equal(a->stored_size, b->stored_size);
    assert_int_equal(a->skip, b->skip);
    assert_int_equal(a->size_bytes, b->size_bytes);
    assert_int_equal(a->crc32, b->crc32);
    assert_int_equal(a->crc32_behind, b->crc32_behind);
}

static void same_catalog(const struct dcp_catalog *a, const struct dcp_catalog *b)
{
    assert_string_equal(a->format, b->format);
    assert_string_equal(a->version, b->version);
    assert_string_equal(a->layout, b->layout);
    assert_string_equal(a->producer, b->producer);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->world_size, b->world_size);
    assert_memory_equal(&a->mesh, &b->mesh, sizeof a->mesh);
    assert_int_equal(a->weights_dtype, b->weights_dtype);
    assert_int_equal(a->diverged, b->diverged);
    same_text(a->parity, b->parity);
    same_text(a->assumed, b->assumed);
    same_text(a->assumed_order, b->assumed_order);
    assert_int_equal(a->n_tensors, b->n_tensors);
    assert_int_equal(a->n_records, b->n_records);
    assert_int_equal(a->n_pieces, b->n_pieces);
    assert_int_equal(a->n_files, b->n_files);
    assert_int_equal(a->n_objects, b->n_objects);
    for (size_t t = 0; t < a->n_tensors; t++) {
        const struct dcp_tensor *x = &a->tensors[t], *y = &b->tensors[t];
        assert_string_equal(x->name, y->name);
        assert_string_equal(x->param, y->param);
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->role, y->role);
        assert_int_equal(x->group, y->group);
        assert_int_equal(x->ndim, y->ndim);
        assert_int_equal(x->n_elems, y->n_elems);
        assert_int_equal(x->has_fingerprint, y->has_fingerprint);
        assert_int_equal(x->fingerprint, y->fingerprint);
        assert_int_equal(x->is_meta, y->is_meta);
        same_text(x->quantized, y->quantized);
        assert_int_equal(x->quantized_bytes, y->quantized_bytes);
        same_text(x->tied_to, y->tied_to);
        assert_int_equal(x->first_piece, y->first_piece);
        for (int d = 0; d < x->ndim; d++)
            assert_int_equal(x->shape[d], y->shape[d]);
    }
    for (size_t r = 0; r < a->n_records; r++)
        same_record(&a->records[r], &b->records[r]);
    for (size_t p = 0; p < a->n_pieces; p++)
        same_piece(a, &a->pieces[p], &b->pieces[p]);
    for (size_t f = 0; f < a->n_files; f++) {
        const struct dcp_file *x = &a->files[f], *y = &b->files[f];
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->rank, y->rank);
        assert_int_equal(x->size_bytes, y->size_bytes);
        assert_int_equal(x->has_crc, y->has_crc);
        assert_int_equal(x->crc, y->crc);
    }
    for (size_t o = 0; o < a->n_objects; o++) {
        assert_string_equal(a->objects[o].name, b->objects[o].name);
        assert_int_equal(a->objects[o].kind, b->objects[o].kind);
        assert_int_equal(a->objects[o].size_bytes, b->objects[o].size_bytes);
        assert_memory_equal(a->objects[o].data, b->objects[o].data,
                            a->objects[o].size_bytes + 1);
    }
}

static void catalogs_come_back(void **state)
{
    (void)state;
    uint64_t seed = 91;

    for (int i = 0; i < 200; i++) {
        struct dcp_catalog *catalog = random_catalog(&seed), *again;
        struct dcp_buf buf = { 0 };
        struct dcp_error err = { 0 };
        assert_int_equal(dcp_pack_catalog(catalog, &buf, NULL), 0);
        assert_int_equal(dcp_unpack_catalog(buf.data, buf.size_bytes, &again, &err), 0);
        same_catalog(catalog, again);
        dcp_catalog_free(again);
        dcp_buf_fini(&buf);
        dcp_catalog_free(catalog);
    }
}

static int unpack(const unsigned char *data, size_t n)
{
    unsigned char *exact = malloc(n ? n : 1);
    struct dcp_catalog *catalog;

    assert_non_null(exact);
    if (n)
        memcpy(exact, data, n);
    int rc = dcp_unpack_catalog(exact, n, &catalog, NULL);
    assert_true(rc == 0 || catalog == NULL);
    dcp_catalog_free(catalog);
    free(exact);
    return rc;
}

static void corrupt_messages(void **state)
{
    (void)state;
    uint64_t seed = 92;
    struct dcp_catalog *catalog = random_catalog(&seed);
    struct dcp_buf buf = { 0 };

    assert_int_equal(dcp_pack_catalog(catalog, &buf, NULL), 0);
    for (size_t n = 0; n < buf.size_bytes; n++)
        assert_int_equal(unpack(buf.data, n), DCP_E_CORRUPT);
    dcp_buf_add_u8(&buf, 0);
    assert_int_equal(unpack(buf.data, buf.size_bytes), DCP_E_CORRUPT);
    buf.size_bytes--;
    /* The first text, "native", without its end. */
    assert_memory_equal(buf.data + 4, "native", 7);
    buf.data[10] = 'x';
    assert_int_equal(unpack(buf.data, buf.size_bytes), DCP_E_CORRUPT);
    buf.data[10] = '\0';
    buf.data[6] = '\0';
    assert_int_equal(unpack(buf.data, buf.size_bytes), DCP_E_CORRUPT);
    buf.data[6] = 't';
    assert_int_equal(unpack(buf.data, buf.size_bytes), 0);
    for (size_t at = 0; at < buf.size_bytes; at++)
        for (int bit = 0; bit < 8; bit += 7) {
            buf.data[at] ^= (unsigned char)(1 << bit);
            unpack(buf.data, buf.size_bytes);
            buf.data[at] ^= (unsigned char)(1 << bit);
        }
    dcp_buf_fini(&buf);
    dcp_catalog_free(catalog);
}

/* What rank 1 tells rank 0 after writing: its files, and its pieces, which become those
 * of another rank there. */
static void what_was_written(void **state)
{
    (void)state;
    uint64_t seed = 93;
    struct dcp_catalog *catalog = random_catalog(&seed), *other;
    struct dcp_buf all = { 0 }, buf = { 0 };
    struct dcp_file late = { .name = "late", .rank = 1, .size_bytes = 5 };

    assert_int_equal(dcp_catalog_add_file(catalog, &late, NULL, NULL), 0);
    dcp_pack_catalog(catalog, &all, NULL);
    assert_int_equal(dcp_unpack_catalog(all.data, all.size_bytes, &other, NULL), 0);
    other->n_pieces = 0;
    size_t n = 0, n_all = other->n_files;
    for (size_t f = 0; f < catalog->n_files; f++)
        n += catalog->files[f].rank == 1;
    assert_true(n > 1 && n < catalog->n_files);
    dcp_pack_files(catalog, 1, &buf);
    dcp_pack_pieces(catalog, &buf);
    struct dcp_cursor in = dcp_cursor_init(buf.data, buf.size_bytes);
    assert_int_equal(dcp_unpack_files(&in, other, NULL), 0);
    assert_int_equal(other->n_files, n_all + n);
    assert_string_equal(other->files[n_all + n - 1].name, "late");
    assert_int_equal(other->files[n_all + n - 1].size_bytes, 5);
    assert_int_equal(dcp_unpack_pieces(&in, other, 6, NULL), 0);
    assert_int_equal(in.at, in.size_bytes);
    assert_int_equal(other->n_pieces, catalog->n_pieces);
    for (size_t p = 0; p < other->n_pieces; p++) {
        assert_int_equal(other->pieces[p].rank, 6);
        assert_int_equal(other->pieces[p].crc, catalog->pieces[p].crc);
        assert_int_equal(other->pieces[p].n_blocks, catalog->pieces[p].n_blocks);
    }
    assert_int_equal(dcp_unpack_files(&in, other, NULL), DCP_E_CORRUPT);
    dcp_buf_fini(&all);
    dcp_buf_fini(&buf);
    dcp_catalog_free(catalog);
    dcp_catalog_free(other);
}

/* A tensor whose cells have 50 elements, of one rank after the other. */
static void add_cut(struct dcp_catalog *catalog, const char *name, int64_t n_elems,
                    int first)
{
    struct dcp_grid grid = { .flat = true, .lead = { 50 }, .size = { 50 } };
    struct dcp_tensor tensor = { .name = name, .ndim = 1, .shape = &n_elems };
    int t;

    grid.first = first;
    grid.stride[0] = n_elems > 50;
    assert_int_equal(dcp_catalog_add_tensor(catalog, &tensor, &t, NULL), 0);
    struct dcp_tensor *added = &catalog->tensors[t];
    assert_true(dcp_grid_ok(added, &grid, 0, catalog->world_size));
    added->grid = dcp_grid_copy(catalog, added, &grid);
    assert_non_null(added->grid);
}

static void grids_that_are_equal_are_told_once(void **state)
{
    (void)state;
    struct dcp_catalog *catalog, *other;
    struct dcp_buf buf = { 0 };

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    catalog->world_size = 4;
    add_cut(catalog, "a", 100, 1);
    add_cut(catalog, "b", 100, 1);
    add_cut(catalog, "c", 100, 2);
    add_cut(catalog, "d", 10, 2);
    assert_int_equal(dcp_pack_catalog(catalog, &buf, NULL), 0);
    assert_int_equal(dcp_unpack_catalog(buf.data, buf.size_bytes, &other, NULL), 0);
    for (const struct dcp_catalog *c = catalog; c; c = c == other ? NULL : other) {
        assert_ptr_equal(c->tensors[1].grid, c->tensors[0].grid);
        assert_int_equal(c->tensors[1].grid->first, 1);
        assert_ptr_not_equal(c->tensors[2].grid, c->tensors[1].grid);
        assert_int_equal(c->tensors[2].grid->first, 2);
        assert_int_equal(c->tensors[3].grid->stride[0], 0);
    }
    dcp_catalog_free(other);
    /* As a message may say it that is wrong: two cells of 50 of ranks 2 and 3, of more.
     */
    int64_t more[] = { 1000 };
    catalog->tensors[3].shape = more;
    catalog->tensors[3].grid = catalog->tensors[2].grid;
    buf.size_bytes = 0;
    assert_int_equal(dcp_pack_catalog(catalog, &buf, NULL), 0);
    assert_int_equal(dcp_unpack_catalog(buf.data, buf.size_bytes, &other, NULL),
                     DCP_E_CORRUPT);
    dcp_buf_fini(&buf);
    dcp_catalog_free(catalog);
}

/* Equal lists of tensors, and only they, are equal bytes. */
static void lists_of_tensors(void **state)
{
    (void)state;
    uint64_t seed = 94;
    struct dcp_catalog *catalog = random_catalog(&seed);
    uint64_t a, b;

    assert_int_equal(dcp_pack_tensors_digest(catalog, &a, NULL), 0);
    assert_int_equal(dcp_pack_tensors_digest(catalog, &b, NULL), 0);
    assert_true(a == b);
    catalog->tensors[1].group++;
    assert_int_equal(dcp_pack_tensors_digest(catalog, &b, NULL), 0);
    assert_true(a != b);
    dcp_catalog_free(catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(catalogs_come_back),
        cmocka_unit_test(corrupt_messages),
        cmocka_unit_test(what_was_written),
        cmocka_unit_test(grids_that_are_equal_are_told_once),
        cmocka_unit_test(lists_of_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
