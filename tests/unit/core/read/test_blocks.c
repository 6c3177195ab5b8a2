/* The block reader: any part of any piece, from many files and with every codec, in
 * little memory; and what it says of corruption. */
#include "base/hash.h"
#include "base/mem.h"
#include "core/files/codec.h"
#include "core/read/blocks.h"
#include "lib/acts.h"
#include "lib/fault.h"
#include "lib/naive.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_FILES 40 /* more than are kept open */
#define N_PIECES 120
#define BLOCK DCP_BLOCK_BYTES

/* A checkpoint whose bytes are known. */
struct checkpoint {
    struct dcp_store store;
    struct dcp_catalog *catalog;
    struct dcp_source source;
    unsigned char *raw[N_PIECES];  /* of each piece */
    unsigned char *files[N_FILES]; /* as they lie in the store */
    size_t n_files, n_pieces;
};

static void add_file(struct checkpoint *c, size_t size)
{
    char name[32];

    snprintf(name, sizeof name, "file-%zu", c->n_files);
    c->files[c->n_files] = calloc(1, size + 1);
    assert_non_null(c->files[c->n_files++]);
    assert_int_equal(
        dcp_catalog_add_file(c->catalog,
                             &(struct dcp_file){ .name = name, .size_bytes = size }, NULL,
                             NULL),
        0);
}

/* A tensor of one dimension with one piece, appended to a file whose size is its end. */
static void add_piece(struct checkpoint *c, uint64_t *seed, int64_t n_elems,
                      enum dcp_dtype dtype, enum dcp_codec codec)
{
    size_t elem = dcp_dtype_size(dtype), raw_n = (size_t)n_elems * elem, at = 0;
    size_t n_blocks = (raw_n + BLOCK - 1) / BLOCK;
    int file = (int)c->n_files - 1, tensor;
    struct dcp_block *blocks = calloc(n_blocks + 1, sizeof *blocks);
    struct dcp_coder *coder;
    unsigned char *raw = malloc(raw_n + 1);

    assert_true(blocks && raw && dcp_coder_new(&coder, NULL) == 0);
    for (size_t i = 0; i < raw_n; i++) /* a third of it compresses */
        raw[i] = (unsigned char)(i % 3 ? acts_random(seed) : 7);
    c->raw[c->n_pieces++] = raw;
    tensor = naive_tensor(c->catalog, dtype, 1, &n_elems);
    struct dcp_piece piece = { .tensor = tensor,
                               .file = file,
                               .codec = codec,
                               .offset = c->catalog->files[file].size_bytes,
                               .blocks = blocks,
                               .n_blocks = n_blocks };
    unsigned char *data = realloc(c->files[file], piece.offset + raw_n + 1);
    assert_non_null(data);
    c->files[file] = data;
    for (size_t b = 0; b < n_blocks; b++) {
        size_t n = raw_n - b * BLOCK < BLOCK ? raw_n - b * BLOCK : BLOCK, stored_n;
        const void *stored;
        assert_int_equal(dcp_coder_encode(coder, codec, elem, raw + b * BLOCK, n, &stored,
                                          &stored_n, NULL),
                         0);
        memcpy(data + piece.offset + at, stored, stored_n);
        blocks[b].xxh3 = dcp_hash_xxh3(stored, stored_n);
        blocks[b].stored_size = (uint32_t)stored_n;
        at += stored_n;
    }
    piece.stored_size = at;
    c->catalog->files[file].size_bytes += at;
    assert_int_equal(dcp_catalog_add_piece(c->catalog, &piece, NULL), 0);
    dcp_coder_free(coder);
    free(blocks);
}

/* Writes a file anew, `size` bytes of it. */
static void write_file(struct checkpoint *c, size_t file, size_t size)
{
    char name[64];

    snprintf(name, sizeof name, "step/%s", c->catalog->files[file].name);
    c->store.ops->remove(c->store.self, name, NULL);
    assert_int_equal(dcp_store_write_file(&c->store, name, c->files[file], size, NULL),
                     0);
}

static struct checkpoint *begin(void)
{
    struct checkpoint *c = calloc(1, sizeof *c);

    assert_non_null(c);
    assert_int_equal(dcp_store_mem(&c->store, NULL), 0);
    assert_int_equal(c->store.ops->make_dir(c->store.self, "step", NULL), 0);
    assert_int_equal(dcp_catalog_new(&c->catalog, NULL), 0);
    c->source = (struct dcp_source){ &c->store, "step", true };
    return c;
}

static void finish(struct checkpoint *c)
{
    for (size_t f = 0; f < c->n_files; f++)
        write_file(c, f, (size_t)c->catalog->files[f].size_bytes);
    assert_int_equal(dcp_catalog_sort(c->catalog, NULL), 0);
}

static void end(struct checkpoint *c)
{
    for (size_t p = 0; p < c->n_pieces; p++)
        free(c->raw[p]);
    for (size_t f = 0; f < c->n_files; f++)
        free(c->files[f]);
    dcp_catalog_free(c->catalog);
    dcp_store_free(&c->store);
    free(c);
}

static struct dcp_blocks *reader(const struct checkpoint *c, uint64_t memory, bool verify)
{
    struct dcp_blocks *blocks;

    assert_int_equal(
        dcp_blocks_new(&c->source, c->catalog, memory, verify, &blocks, NULL), 0);
    return blocks;
}

/* --- */

static void any_part_of_any_piece(void **state)
{
    (void)state;
    uint64_t seed = 71;
    struct checkpoint *c = begin();
    unsigned char *out = malloc(3 * BLOCK);

    assert_non_null(out);
    for (int f = 0; f < N_FILES; f++) {
        add_file(c, (size_t)acts_pick(&seed, 5000));
        for (int p = 0; p < N_PIECES / N_FILES; p++) {
            bool large = f % 10 == 3 && p == 1;
            add_piece(c, &seed, large ? 700000 : acts_pick(&seed, 3000),
                      acts_pick(&seed, 2) ? DCP_F32 : DCP_BF16,
                      (enum dcp_codec)acts_pick(&seed, DCP_N_CODECS));
        }
    }
    finish(c);
    struct dcp_blocks *blocks = reader(c, 1, true);
    for (int i = 0; i < 6000; i++) {
        size_t p = (size_t)acts_pick(&seed, N_PIECES);
        size_t raw = (size_t)dcp_piece_span(c->catalog, &c->catalog->pieces[p]);
        size_t at = (size_t)acts_pick(&seed, (int64_t)raw + 1);
        size_t n = (size_t)acts_pick(&seed, (int64_t)(raw - at) + 1);
        if (acts_pick(&seed, 2) && n > 4000)
            n = 4000;
        assert_int_equal(dcp_blocks_read(blocks, p, at, n, out, NULL), 0);
        if (n)
            assert_memory_equal(out, c->raw[p] + at, n);
    }
    assert_int_equal(dcp_blocks_read(blocks, 5, 0, (size_t)1 << 40, out, NULL),
                     DCP_E_CORRUPT);
    assert_int_equal(dcp_blocks_read(blocks, 5, UINT64_MAX, 2, out, NULL), DCP_E_CORRUPT);
    dcp_blocks_free(blocks);
    dcp_blocks_free(NULL);
    free(out);
    end(c);
}

/* Small neighbours cost one read of the file, a large piece no byte more than its own. */
static void bytes_read(void **state)
{
    (void)state;
    uint64_t seed = 72;
    struct checkpoint *c = begin();
    unsigned char *out = malloc(3 * BLOCK);

    assert_non_null(out);
    add_file(c, 0);
    for (int p = 0; p < 50; p++)
        add_piece(c, &seed, 500, DCP_F32, DCP_CODEC_NONE);
    add_file(c, 0);
    add_piece(c, &seed, 700000, DCP_F32, DCP_CODEC_NONE);
    finish(c);
    struct dcp_blocks *blocks = reader(c, 1, true);
    for (size_t p = 0; p < 50; p++)
        assert_int_equal(dcp_blocks_read(blocks, p, 0, 2000, out, NULL), 0);
    assert_int_equal(dcp_blocks_bytes(blocks), 50 * 2000);
    assert_int_equal(dcp_blocks_read(blocks, 50, 0, 2800000, out, NULL), 0);
    assert_int_equal(dcp_blocks_bytes(blocks), 50 * 2000 + 2800000);
    assert_int_equal(dcp_blocks_read(blocks, 50, 10, 4, out, NULL), 0);
    assert_int_equal(dcp_blocks_read(blocks, 50, 900, 4, out, NULL), 0); /* cached */
    assert_int_equal(dcp_blocks_bytes(blocks), 50 * 2000 + 2800000 + BLOCK);
    dcp_blocks_free(blocks);
    free(out);
    end(c);
}

/* What is read ahead is enough for what is read, however that grows, and nothing is read
 * twice. */
static void ahead_of_growing_reads(void **state)
{
    (void)state;
    static const int64_t elems[] = { 2, 10, 15000, 38366, 5, 60000, 16000, 65000, 3 };
    uint64_t seed = 75, all = 0;
    struct checkpoint *c = begin();
    unsigned char *out = malloc(BLOCK);

    assert_non_null(out);
    add_file(c, 0);
    for (size_t p = 0; p < DCP_ARRAY_LEN(elems); p++)
        add_piece(c, &seed, elems[p], DCP_F32, DCP_CODEC_NONE);
    finish(c);
    struct dcp_blocks *blocks = reader(c, 1, true);
    for (size_t p = 0; p < DCP_ARRAY_LEN(elems); p++) {
        size_t n = (size_t)elems[p] * sizeof(float);
        assert_int_equal(dcp_blocks_read(blocks, p, 0, n, out, NULL), 0);
        assert_memory_equal(out, c->raw[p], n);
        all += n;
    }
    assert_int_equal(dcp_blocks_bytes(blocks), all);
    dcp_blocks_free(blocks);
    free(out);
    end(c);
}

/* A flipped bit is found by whoever reads its block, and by nobody else. */
static void damage(void **state)
{
    (void)state;
    uint64_t seed = 73;
    unsigned char *out = malloc(3 * BLOCK);

    assert_non_null(out);
    for (int codec = 0; codec < DCP_N_CODECS; codec++) {
        struct checkpoint *c = begin();
        add_file(c, 100);
        add_piece(c, &seed, 700000, DCP_F32, (enum dcp_codec)codec);
        finish(c);
        const struct dcp_piece *piece = &c->catalog->pieces[0];
        size_t at = 100 + piece->blocks[0].stored_size + 5000; /* in block 1 */
        c->files[0][at] ^= 16;
        write_file(c, 0, (size_t)c->catalog->files[0].size_bytes);
        struct dcp_blocks *blocks = reader(c, 1, true);
        struct dcp_error err = { 0 };
        char want[300];
        assert_int_equal(dcp_blocks_read(blocks, 0, 0, BLOCK, out, NULL), 0);
        assert_int_equal(dcp_blocks_read(blocks, 0, 2 * BLOCK, 1000, out, NULL), 0);
        assert_int_equal(dcp_blocks_read(blocks, 0, BLOCK, BLOCK, out, &err),
                         DCP_E_CORRUPT);
        snprintf(want, sizeof want,
                 "tensor 'tensor.0' elements 262144..524287 are corrupt: the block "
                 "digest differs (file 'file-0', bytes %u..%u)",
                 100 + piece->blocks[0].stored_size,
                 100 + piece->blocks[0].stored_size + piece->blocks[1].stored_size - 1);
        assert_string_equal(err.message, want);
        assert_string_equal(err.tensor, "tensor.0");
        assert_int_equal(dcp_blocks_read(blocks, 0, BLOCK + 40, 4, out, NULL),
                         DCP_E_CORRUPT);
        assert_int_equal(dcp_blocks_read(blocks, 0, BLOCK + 40, 4, out, NULL),
                         DCP_E_CORRUPT); /* and it is not cached now */
        dcp_blocks_free(blocks);
        if (codec == DCP_CODEC_NONE) {
            blocks = reader(c, 1, false);
            assert_int_equal(dcp_blocks_read(blocks, 0, BLOCK, BLOCK, out, NULL), 0);
            assert_memory_not_equal(out, c->raw[0] + BLOCK, BLOCK);
            dcp_blocks_free(blocks);
        }
        end(c);
    }
    free(out);
}

static void files_that_are_not_as_said(void **state)
{
    (void)state;
    uint64_t seed = 74;
    struct checkpoint *c = begin();
    struct dcp_error err = { 0 };
    unsigned char out[4000];

    add_file(c, 0);
    add_piece(c, &seed, 1000, DCP_F32, DCP_CODEC_NONE);
    finish(c);
    write_file(c, 0, 3999);
    struct dcp_blocks *blocks = reader(c, 1, true);
    assert_int_equal(dcp_blocks_read(blocks, 0, 0, 4, out, &err), DCP_E_CORRUPT);
    assert_non_null(strstr(err.message, "are corrupt: a file in 'memory' has 3999"));
    dcp_blocks_free(blocks);
    assert_int_equal(c->store.ops->remove(c->store.self, "step/file-0", NULL), 0);
    blocks = reader(c, 1, true);
    err = (struct dcp_error){ 0 };
    assert_int_equal(dcp_blocks_read(blocks, 0, 0, 4, out, &err), DCP_E_NOT_FOUND);
    assert_string_equal(err.tensor, "tensor.0");
    dcp_blocks_free(blocks);
    end(c);
}

/* Bytes of a piece of the file, over a store each of whose operations fails once: how
 * many failures were seen. The reader goes on after each. */
static int reads_that_fail(struct checkpoint *c, size_t p, size_t at, size_t n)
{
    struct fault fault = { .kind = FAULT_FAIL };
    struct dcp_store faulty;
    unsigned char *out = malloc(n);
    int failed = 0, rc = 1;

    assert_non_null(out);
    assert_int_equal(fault_store(&faulty, &c->store, &fault, NULL), 0);
    c->source.store = &faulty;
    for (fault.at = 1; rc; fault.at++) {
        struct dcp_error err = { 0 };
        fault.count = 0;
        struct dcp_blocks *blocks = reader(c, 1, true);
        rc = dcp_blocks_read(blocks, p, at, n, out, &err);
        if (rc) {
            assert_int_equal(rc, DCP_E_IO);
            assert_string_equal(err.tensor, p ? "tensor.1" : "tensor.0");
            failed++;
            assert_int_equal(dcp_blocks_read(blocks, p, at, n, out, NULL), 0);
        }
        assert_memory_equal(out, c->raw[p] + at, n);
        dcp_blocks_free(blocks);
    }
    c->source.store = &c->store;
    dcp_store_free(&faulty);
    free(out);
    return failed;
}

/* A disk that fails is no corruption: IO, every time but the failure goes away. */
static void a_disk_that_fails(void **state)
{
    (void)state;
    uint64_t seed = 75;
    struct checkpoint *c = begin();

    add_file(c, 0);
    add_piece(c, &seed, 1000, DCP_F32, DCP_CODEC_ZSTD);
    add_piece(c, &seed, BLOCK / 4, DCP_F32, DCP_CODEC_NONE);
    finish(c);
    assert_int_equal(reads_that_fail(c, 0, 8, 400), 2);   /* open and read */
    assert_int_equal(reads_that_fail(c, 1, 0, BLOCK), 5); /* in four slices */
    end(c);
}

static void pieces_in_memory(void **state)
{
    (void)state;
    struct checkpoint *c = begin();
    const int64_t shape[] = { 10 };
    float data[10] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 }, out[4];

    naive_tensor(c->catalog, DCP_F32, 1, shape);
    struct dcp_piece piece = { .file = -1, .data = data };
    assert_int_equal(dcp_catalog_add_piece(c->catalog, &piece, NULL), 0);
    struct dcp_blocks *blocks = reader(c, 1, true);
    assert_int_equal(dcp_blocks_read(blocks, 0, 8, 16, out, NULL), 0);
    assert_memory_equal(out, data + 2, 16);
    assert_int_equal(dcp_blocks_read(blocks, 0, 28, 16, out, NULL), DCP_E_CORRUPT);
    dcp_blocks_free(blocks);
    end(c);
}

/* Where bytes of a piece are in its tensor, against counting. */
static void places(void **state)
{
    (void)state;
    uint64_t seed = 76;

    for (int i = 0; i < 2000; i++) {
        struct dcp_catalog *catalog;
        int64_t shape[DCP_MAX_NDIM], dims[2][DCP_MAX_NDIM], elems[300], first, last;
        int ndim = naive_shape(&seed, 300, shape);
        enum dcp_dtype dtype = (enum dcp_dtype)acts_pick(&seed, DCP_N_DTYPES);
        int64_t elem = (int64_t)dcp_dtype_size(dtype);
        assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
        naive_tensor(catalog, dtype, ndim, shape);
        struct dcp_piece piece = { .file = -1 };
        piece.region = naive_region(&seed, &catalog->tensors[0], dims);
        int64_t n = naive_elems(&catalog->tensors[0], &piece.region, elems);
        if (n) {
            int64_t begin = acts_pick(&seed, n * elem);
            int64_t bytes = 1 + acts_pick(&seed, n * elem - begin);
            begin -= begin % elem; /* blocks begin with an element */
            dcp_blocks_locate(catalog, &piece, (uint64_t)begin, (uint64_t)bytes, &first,
                              &last);
            assert_int_equal(first, elems[begin / elem]);
            assert_int_equal(last, elems[(begin + bytes - 1) / elem]);
        }
        dcp_catalog_free(catalog);
    }
}

/* Whoever makes many ranks of few comes back to each piece for each of them. */
static void small_pieces_are_read_once(void **state)
{
    (void)state;
    enum { ELEMS = 8192, RANKS = 64, SHARE = ELEMS * 4 / RANKS };
    uint64_t seed = 76;
    struct checkpoint *c = begin();
    unsigned char out[SHARE];

    for (int p = 0; p < N_PIECES; p++) {
        if (p % (N_PIECES / 8) == 0)
            add_file(c, 0);
        add_piece(c, &seed, ELEMS, DCP_F32, DCP_CODEC_NONE);
    }
    finish(c);
    struct dcp_blocks *blocks = reader(c, 16 << 20, true);
    for (size_t r = 0; r < RANKS; r++)
        for (size_t p = 0; p < N_PIECES; p++) {
            assert_int_equal(dcp_blocks_read(blocks, p, r * SHARE, SHARE, out, NULL), 0);
            assert_memory_equal(out, c->raw[p] + r * SHARE, SHARE);
        }
    assert_int_equal(dcp_blocks_bytes(blocks), N_PIECES * ELEMS * 4);
    dcp_blocks_free(blocks);
    end(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_part_of_any_piece),
        cmocka_unit_test(bytes_read),
        cmocka_unit_test(ahead_of_growing_reads),
        cmocka_unit_test(damage),
        cmocka_unit_test(files_that_are_not_as_said),
        cmocka_unit_test(a_disk_that_fails),
        cmocka_unit_test(small_pieces_are_read_once),
        cmocka_unit_test(pieces_in_memory),
        cmocka_unit_test(places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
