/* Records with one checksum: read in any order, in part, by several readers, plain and
 * compressed; a changed byte anywhere is found before the proof is complete. */
#include "base/hash.h"
#include "core/read/blocks.h"
#include <dcp/reshard.h>
#include <isa-l/igzip_lib.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RAW = 3 * 1024 * 1024 + 4567, AT = 100, N_PIECES = 3 };

static unsigned char raw[RAW], stored[RAW + 1000];
static size_t stored_n;

struct checkpoint {
    struct dcp_store store;
    struct dcp_source source;
    struct dcp_catalog *catalog;
};

static void fill(void)
{
    uint32_t x = 1;

    for (size_t i = 0; i < RAW; i++) {
        x = x * 1664525 + 1013904223;
        raw[i] = (unsigned char)(x >> 27); /* small numbers, which can be compressed */
    }
}

static void put(struct checkpoint *c, size_t at, const void *data, size_t n)
{
    struct dcp_store_file *file;

    assert_int_equal(c->store.ops->create(c->store.self, "x", AT + n, &file, NULL), 0);
    assert_int_equal(c->store.ops->write_at(c->store.self, file, at, data, n, NULL), 0);
    assert_int_equal(c->store.ops->close(c->store.self, file, NULL), 0);
}

/* One record, and in it a tensor in the middle, one at the end, and one with strides. */
static void make(struct checkpoint *c, enum dcp_codec codec, const void *data, size_t n)
{
    static const int64_t shapes[N_PIECES][2] = { { 1000, 1000 }, { 17, 3 }, { 5, 7 } };
    static const int64_t stride[] = { 1, 1000 };
    static const uint64_t begin[N_PIECES] = { 1500000, RAW - 51, 40 };
    static const char *const names[] = { "middle", "end", "strided" };

    assert_int_equal(dcp_store_mem(&c->store, NULL), 0);
    put(c, AT, data, n);
    c->source = (struct dcp_source){ .store = &c->store, .name = "", .is_dir = true };
    assert_int_equal(dcp_catalog_new(&c->catalog, NULL), 0);
    const struct dcp_file file = { .name = "x", .size_bytes = AT + n };
    assert_int_equal(dcp_catalog_add_file(c->catalog, &file, NULL, NULL), 0);
    for (int t = 0; t < N_PIECES; t++) {
        const struct dcp_tensor tensor = {
            .name = names[t], .dtype = DCP_U8, .ndim = 2, .shape = shapes[t]
        };
        struct dcp_piece piece = { .tensor = t, .codec = codec };
        piece.offset = AT + (codec ? 0 : begin[t]);
        piece.skip = codec ? begin[t] : 0;
        piece.stored_size = codec    ? n
                            : t == 2 ? 4 + 6 * 1000 + 1
                                     : (uint64_t)(shapes[t][0] * shapes[t][1]);
        piece.stride = t == 2 ? stride : NULL;
        assert_int_equal(dcp_catalog_add_tensor(c->catalog, &tensor, NULL, NULL), 0);
        assert_int_equal(dcp_catalog_add_piece(c->catalog, &piece, NULL), 0);
    }
    const struct dcp_record record = { .name = "data/0",
                                       .codec = codec,
                                       .offset = AT,
                                       .stored_size = n,
                                       .size_bytes = RAW,
                                       .crc32 = dcp_hash_crc32(0, raw, RAW) };
    assert_int_equal(dcp_catalog_add_record(c->catalog, &record, NULL), 0);
    assert_int_equal(dcp_catalog_sort(c->catalog, NULL), 0);
}

static void unmake(struct checkpoint *c)
{
    dcp_catalog_free(c->catalog);
    dcp_store_free(&c->store);
}

/* Reads the tensors that are set in `which`, by two readers in turn, and checks. */
static int read_some(struct checkpoint *c, unsigned which, bool sound,
                     struct dcp_error *err)
{
    static unsigned char out[1000000];
    struct dcp_reader *readers[2];

    assert_int_equal(dcp_reader_new(&c->source, c->catalog, 1, true, &readers[0], NULL),
                     0);
    assert_int_equal(dcp_reader_clone(readers[0], 1, &readers[1], NULL), 0);
    int rc = DCP_OK;
    for (int t = 0; t < N_PIECES && !rc; t++) {
        int64_t n = c->catalog->tensors[t].n_elems, half = n / 2;
        if (!(which >> t & 1))
            continue;
        rc = dcp_reader_read(readers[0], t, half, n, out + half, err);
        if (!rc)
            rc = dcp_reader_read(readers[1], t, 0, half, out, err);
        if (!rc && sound && t == 0)
            assert_memory_equal(out, raw + 1500000, (size_t)n);
        for (int64_t i = 0; !rc && sound && t == 2 && i < n; i++)
            assert_int_equal(out[i], raw[40 + i / 7 + i % 7 * 1000]);
    }
    if (!rc)
        rc = dcp_reader_check(readers[1], err);
    dcp_reader_free(readers[0]);
    dcp_reader_free(readers[1]);
    return rc;
}

static void sound_records(void **state)
{
    (void)state;
    struct dcp_error err = { 0 };
    struct checkpoint c;

    for (int coded = 0; coded < 2; coded++) {
        make(&c, coded ? DCP_CODEC_DEFLATE_STREAM : DCP_CODEC_NONE, coded ? stored : raw,
             coded ? stored_n : RAW);
        for (unsigned which = 0; which < 1 << N_PIECES; which++)
            if (read_some(&c, which, true, &err))
                fail_msg("%s", err.message);
        unmake(&c);
    }
}

/* Wherever the byte is, also where no tensor lies. */
static void a_changed_byte(void **state)
{
    (void)state;
    static unsigned char corrupt[RAW];

    for (size_t at = 0; at < RAW; at += RAW / 23)
        for (unsigned which = 0; which < 1 << N_PIECES; which++) {
            struct dcp_error err = { 0 };
            struct checkpoint c;
            memcpy(corrupt, raw, RAW);
            corrupt[at] ^= 4;
            make(&c, DCP_CODEC_NONE, corrupt, RAW);
            assert_int_equal(read_some(&c, which, false, &err),
                             which ? DCP_E_CORRUPT : 0);
            if (which)
                assert_non_null(strstr(err.message, "data/0"));
            unmake(&c);
        }
}

/* A block that changes between two reads was never what was proved. */
static void a_block_that_changes(void **state)
{
    (void)state;
    struct checkpoint c;
    struct dcp_proof *proof;

    make(&c, DCP_CODEC_NONE, raw, RAW);
    assert_int_equal(dcp_proof_new(c.catalog, &proof, NULL), 0);
    assert_int_equal(dcp_proof_add(proof, 0, 1, raw, DCP_BLOCK_BYTES, NULL, NULL), 0);
    assert_int_equal(dcp_proof_add(proof, 0, 1, raw, DCP_BLOCK_BYTES, NULL, NULL), 0);
    assert_false(dcp_proof_is_broken(proof, 0));
    assert_int_equal(dcp_proof_add(proof, 0, 1, raw + 1, DCP_BLOCK_BYTES, NULL, NULL),
                     DCP_E_CORRUPT);
    assert_true(dcp_proof_is_broken(proof, 0));
    dcp_proof_free(proof);
    unmake(&c);
}

/* The checksum that stands behind a record comes with its last block, in whatever order
 * the blocks are read. */
static void a_checksum_behind(void **state)
{
    (void)state;
    enum { N = RAW / DCP_BLOCK_BYTES + 1 };
    const uint32_t crc32 = dcp_hash_crc32(0, raw, RAW), wrong = crc32 ^ 1;

    for (size_t last = 0; last < N; last++)
        for (int sound = 0; sound < 2; sound++) {
            struct checkpoint c;
            struct dcp_proof *proof;
            int rc = DCP_OK;
            make(&c, DCP_CODEC_NONE, raw, RAW);
            c.catalog->records[0].crc32 = 0;
            c.catalog->records[0].crc32_behind = true;
            assert_int_equal(dcp_proof_new(c.catalog, &proof, NULL), 0);
            for (size_t i = 0; i < N; i++) { /* the block `last` is read last */
                size_t b = (last + 1 + i) % N, at = b * DCP_BLOCK_BYTES;
                size_t n = RAW - at < DCP_BLOCK_BYTES ? RAW - at : DCP_BLOCK_BYTES;
                const uint32_t *behind = sound ? &crc32 : &wrong;
                assert_int_equal(rc, 0);
                rc = dcp_proof_add(proof, 0, b, raw + at, n, b + 1 == N ? behind : NULL,
                                   NULL);
            }
            assert_int_equal(rc, sound ? 0 : DCP_E_CORRUPT);
            assert_int_equal(dcp_proof_is_broken(proof, 0), !sound);
            dcp_proof_free(proof);
            unmake(&c);
        }
}

/* More blocks than can be counted are no memory of few. */
static void more_than_there_can_be(void **state)
{
    (void)state;
    struct checkpoint c;
    struct dcp_proof *proof;
    struct dcp_record record;
    struct dcp_error err = { 0 };

    make(&c, DCP_CODEC_NONE, raw, RAW);
    record = c.catalog->records[0];
    record.size_bytes = UINT64_MAX;
    for (int i = 0; i < 1 << 20; i++) /* 2^44 blocks each */
        assert_int_equal(dcp_catalog_add_record(c.catalog, &record, NULL), 0);
    assert_int_equal(dcp_proof_new(c.catalog, &proof, &err), DCP_E_MEMORY);
    assert_null(proof);
    unmake(&c);
}

static void tensors_that_nothing_proves(void **state)
{
    (void)state;
    struct checkpoint c;
    struct dcp_proof *proof;

    make(&c, DCP_CODEC_NONE, raw, RAW);
    assert_int_equal(dcp_proof_new(c.catalog, &proof, NULL), 0);
    assert_true(dcp_proof_covers(proof, &c.catalog->tensors[0]));
    dcp_proof_free(proof);
    c.catalog->records[0].size_bytes = 2000000; /* it ends within the first tensor */
    assert_int_equal(dcp_proof_new(c.catalog, &proof, NULL), 0);
    assert_false(dcp_proof_covers(proof, &c.catalog->tensors[0]));
    assert_true(dcp_proof_covers(proof, &c.catalog->tensors[2]));
    dcp_proof_free(proof);
    unmake(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_records),
        cmocka_unit_test(a_changed_byte),
        cmocka_unit_test(a_block_that_changes),
        cmocka_unit_test(a_checksum_behind),
        cmocka_unit_test(more_than_there_can_be),
        cmocka_unit_test(tensors_that_nothing_proves),
    };
    struct isal_zstream *deflate = calloc(1, sizeof *deflate);

    if (!deflate)
        return 1;
    fill();
    isal_deflate_stateless_init(deflate);
    deflate->next_in = raw;
    deflate->avail_in = RAW;
    deflate->next_out = stored;
    deflate->avail_out = sizeof stored;
    deflate->end_of_stream = 1;
    if (isal_deflate_stateless(deflate) != COMP_OK)
        return 1;
    stored_n = deflate->total_out;
    free(deflate);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
