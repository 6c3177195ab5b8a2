/* Coded streams of other programs: read from the beginning on, in any portions, alone and
 * as pieces of a checkpoint. */
#include "base/decoder.h"
#include "core/read/blocks.h"
#include "lib/acts.h"
#include <isa-l/igzip_lib.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include <cmocka.h>

enum { RAW = 5 << 20, STORED = 6 << 20, FIRST_FRAME = 1000003 };

static unsigned char raw[RAW], stored[STORED], got[RAW];

static void fill_raw(void)
{
    uint64_t seed = 7;

    for (size_t i = 0; i < RAW; i++)
        raw[i] = i % 3 ? (unsigned char)(i >> 12) : (unsigned char)acts_random(&seed);
}

/* Two frames, neither of which says how long its content is. */
static size_t encode_zstd(void)
{
    ZSTD_CCtx *ctx = ZSTD_createCCtx();
    size_t n = 0;

    assert_false(ZSTD_isError(ZSTD_CCtx_setParameter(ctx, ZSTD_c_contentSizeFlag, 0)));
    for (size_t part = 0; part < 2; part++) {
        size_t at = part * FIRST_FRAME, size = part ? RAW - at : FIRST_FRAME;
        size_t m = ZSTD_compress2(ctx, stored + n, STORED - n, raw + at, size);
        assert_false(ZSTD_isError(m));
        n += m;
    }
    ZSTD_freeCCtx(ctx);
    return n;
}

static size_t encode_deflate(void)
{
    struct isal_zstream *stream = malloc(sizeof *stream);

    assert_non_null(stream);
    isal_deflate_init(stream);
    stream->end_of_stream = 1;
    stream->next_in = raw;
    stream->avail_in = RAW;
    stream->next_out = stored;
    stream->avail_out = STORED;
    assert_int_equal(isal_deflate(stream), COMP_OK);
    size_t n = STORED - stream->avail_out;
    free(stream);
    return n;
}

static size_t encode(enum dcp_codec codec)
{
    fill_raw();
    return codec == DCP_CODEC_ZSTD_STREAM ? encode_zstd() : encode_deflate();
}

static int read_stored(void *self, uint64_t at, void *out, size_t n,
                       struct dcp_error *err)
{
    (void)self;
    (void)err;
    memcpy(out, stored + at, n);
    return 0;
}

static const enum dcp_codec codecs[] = { DCP_CODEC_ZSTD_STREAM,
                                         DCP_CODEC_DEFLATE_STREAM };

static enum dcp_decoder_kind kind_of(enum dcp_codec codec)
{
    return codec == DCP_CODEC_ZSTD_STREAM ? DCP_DECODE_ZSTD : DCP_DECODE_DEFLATE;
}

static void any_portions(void **state)
{
    (void)state;
    uint64_t seed = 8;

    for (int i = 0; i < 8; i++) {
        enum dcp_codec codec = codecs[i % 2];
        struct dcp_decoder_input input = { NULL, read_stored, encode(codec) };
        struct dcp_decoder *decoder;
        uint64_t at = 0;
        assert_int_equal(dcp_decoder_new(kind_of(codec), &input, &decoder, NULL), 0);
        while (at < RAW) {
            uint64_t n = (uint64_t)acts_pick(&seed, 1 << (5 + 2 * i)) + 1;
            bool skip = acts_pick(&seed, 3) == 0;
            n = n < RAW - at ? n : RAW - at;
            assert_int_equal(dcp_decoder_read(decoder, skip ? NULL : got, n, NULL), 0);
            if (!skip)
                assert_memory_equal(got, raw + at, n);
            at += n;
            assert_int_equal(dcp_decoder_at(decoder), at);
        }
        assert_int_equal(dcp_decoder_read(decoder, got, 1, NULL), DCP_E_CORRUPT);
        dcp_decoder_free(decoder);
    }
}

static void streams_that_are_cut_off(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        size_t whole = encode(codecs[i]);
        for (size_t n = 0; n < whole; n += n < 100 ? 1 : whole / 7) {
            struct dcp_decoder_input input = { NULL, read_stored, n };
            struct dcp_decoder *decoder;
            assert_int_equal(dcp_decoder_new(kind_of(codecs[i]), &input, &decoder, NULL),
                             0);
            assert_int_equal(dcp_decoder_read(decoder, got, RAW, NULL), DCP_E_CORRUPT);
            dcp_decoder_free(decoder);
        }
    }
}

/* The first frame ends where the second begins; what is deflated has one end. */
static void an_end_is_told(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct dcp_decoder_input input = { NULL, read_stored, encode(codecs[i]) };
        struct dcp_decoder *decoder;
        size_t at = 0, n;
        bool ended = false;
        assert_int_equal(dcp_decoder_new(kind_of(codecs[i]), &input, &decoder, NULL), 0);
        for (; !ended && at < RAW; at += n) {
            size_t room = RAW - at < 70001 ? RAW - at : 70001;
            assert_int_equal(dcp_decoder_some(decoder, got + at, room, &n, &ended, NULL),
                             0);
        }
        assert_true(ended);
        assert_int_equal(at, codecs[i] == DCP_CODEC_ZSTD_STREAM ? FIRST_FRAME : RAW);
        assert_memory_equal(got, raw, at);
        dcp_decoder_free(decoder);
    }
}

/* Two tensors in one stream, read in every order. */
static void pieces_of_a_stream(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        size_t n = encode(codecs[i]);
        struct dcp_catalog *catalog;
        struct dcp_store store;
        struct dcp_store_file *file;
        struct dcp_blocks *blocks;
        const struct dcp_source source = { .store = &store, .name = "", .is_dir = true };
        const int64_t shape[] = { 1500000 };
        const struct dcp_file entry = { .name = "x", .size_bytes = n + 5 };
        assert_int_equal(dcp_store_mem(&store, NULL), 0);
        assert_int_equal(store.ops->create(store.self, "x", n + 5, &file, NULL), 0);
        assert_int_equal(store.ops->write_at(store.self, file, 5, stored, n, NULL), 0);
        store.ops->close(store.self, file, NULL);
        assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
        assert_int_equal(dcp_catalog_add_file(catalog, &entry, NULL, NULL), 0);
        for (int t = 0; t < 2; t++) {
            const struct dcp_tensor tensor = {
                .name = t ? "b" : "a", .dtype = DCP_U8, .ndim = 1, .shape = shape
            };
            const struct dcp_piece piece = { .tensor = t,
                                             .codec = codecs[i],
                                             .offset = 5,
                                             .stored_size = n,
                                             .skip = t ? 3000000 : 17 };
            assert_int_equal(dcp_catalog_add_tensor(catalog, &tensor, NULL, NULL), 0);
            assert_int_equal(dcp_catalog_add_piece(catalog, &piece, NULL), 0);
        }
        assert_int_equal(dcp_catalog_sort(catalog, NULL), 0);
        assert_int_equal(dcp_blocks_new(&source, catalog, 1, true, &blocks, NULL), 0);
        for (int k = 0; k < 6; k++) {
            size_t p = (size_t)(k % 2), begin = k < 2 ? 0 : (size_t)(6 - k) * 200001;
            size_t size = k < 2 ? 1500000 : 100000;
            assert_int_equal(dcp_blocks_read(blocks, p, begin, size, got, NULL), 0);
            assert_memory_equal(got, raw + (p ? 3000000 : 17) + begin, size);
        }
        dcp_blocks_free(blocks);
        dcp_catalog_free(catalog);
        dcp_store_free(&store);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_portions),
        cmocka_unit_test(streams_that_are_cut_off),
        cmocka_unit_test(an_end_is_told),
        cmocka_unit_test(pieces_of_a_stream),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
