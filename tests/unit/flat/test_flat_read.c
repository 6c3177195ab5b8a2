/* flat: a checkpoint through the calls of other languages: its tables, random boxes on
 * several threads at once, what is wrong with it, and callers that know less or more of
 * a struct than the library. */
/* labels: tsan */
#include "base/fs.h"
#include "base/hash.h"
#include "lib/acts.h"
#include "lib/reshard_folder.h"
#include "lib/sample.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

static struct dcp_flat_checkpoint *open_path(const char *path, int threads)
{
    const struct dcp_flat_open_options options = {
        .struct_size = sizeof options, .path = path, .step = -1, .threads = threads
    };
    struct dcp_flat_error err = { .struct_size = sizeof err };
    struct dcp_flat_checkpoint *checkpoint;

    int rc = dcp_flat_checkpoint_open(&options, &checkpoint, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(rc, 0);
    return checkpoint;
}

static struct dcp_flat_tensors list(struct dcp_flat_checkpoint *checkpoint)
{
    struct dcp_flat_tensors tensors = { .struct_size = sizeof tensors };

    assert_int_equal(dcp_flat_tensors_list(checkpoint, &tensors, NULL), 0);
    return tensors;
}

static const char *text(const struct dcp_flat_texts *texts, uint64_t i)
{
    const char *at = texts->blob + texts->offsets[i];

    assert_true(i < texts->n);
    assert_int_equal(strlen(at) + 1, texts->offsets[i + 1] - texts->offsets[i]);
    return at;
}

static uint64_t find(const struct dcp_flat_tensors *tensors, const char *name)
{
    for (uint64_t t = 0; t < tensors->n; t++)
        if (!strcmp(text(&tensors->names, t), name))
            return t;
    fail_msg("there is no %s", name);
    return 0;
}

/* The tensor of the sample with that name, and where its shape stands. */
static int sample_of(const struct sample *sample, const struct dcp_flat_tensors *tensors,
                     uint64_t t, const int64_t **out_shape)
{
    *out_shape = tensors->shapes;
    for (uint64_t i = 0; i < t; i++)
        *out_shape += tensors->ndims[i];
    return dcp_catalog_find(sample->catalog, text(&tensors->names, t));
}

/* -- tables ------------------------------------------------------------------------ */

static void tables_are_the_catalog(void **state)
{
    const struct reshard_folder *folder = *state;
    struct dcp_flat_info info = { .struct_size = sizeof info };
    struct dcp_flat_piece piece = { .struct_size = sizeof piece };
    struct dcp_flat_object object = { .struct_size = sizeof object };
    struct sample sample;

    reshard_folder_save(folder->source, "zero1", 3, DCP_CODEC_SPLIT);
    sample_make(&sample, "replicated", 1, 0, false, RESHARD_SALT);
    struct dcp_flat_checkpoint *checkpoint = open_path(folder->source, 2);
    const struct dcp_flat_tensors tensors = list(checkpoint);
    assert_int_equal(tensors.n, sample_n_tensors());
    for (uint64_t t = 0; t < tensors.n; t++) {
        const int64_t *shape;
        int s = sample_of(&sample, &tensors, t, &shape);
        const struct dcp_tensor *want = &sample.catalog->tensors[s];
        assert_string_equal(text(&tensors.params, t), want->param);
        assert_string_equal(text(&tensors.tied, t), "");
        assert_int_equal(tensors.roles[t], want->role);
        assert_int_equal(tensors.dtypes[t], want->dtype);
        assert_int_equal(tensors.ndims[t], want->ndim);
        for (int d = 0; d < want->ndim; d++)
            assert_int_equal(shape[d], want->shape[d]);
        assert_int_equal(tensors.flags[t], DCP_FLAT_HAS_FINGERPRINT);
        assert_true(tensors.fingerprints[t] ==
                    sample_fingerprint(&sample, s, RESHARD_SALT));
    }
    uint64_t big = find(&tensors, "optimizer.master.wte.weight");
    assert_int_equal(tensors.n_pieces[big], 3);
    assert_int_equal(dcp_flat_piece_get(checkpoint, big, 2, &piece), 0);
    assert_int_equal(piece.rank, 2);
    assert_int_equal(piece.end, 67 * 12);
    assert_string_equal(piece.file, "shard-00002-of-00003.safetensors");
    assert_string_equal(piece.codec, "split");
    assert_int_equal(dcp_flat_piece_get(checkpoint, big, 3, &piece), DCP_E_NOT_FOUND);
    assert_int_equal(dcp_flat_object_get(checkpoint, 0, &object), 0);
    assert_string_equal(object.name, "trainer");
    assert_true(object.is_json);
    assert_int_equal(dcp_flat_object_get(checkpoint, 2, &object), DCP_E_NOT_FOUND);
    dcp_flat_checkpoint_info(checkpoint, &info);
    assert_string_equal(info.format, "native");
    assert_string_equal(info.layout, "zero1");
    assert_int_equal(info.step, 5);
    assert_int_equal(info.world_size, 3);
    assert_int_equal(info.dp, 3);
    assert_int_equal(info.n_objects, 2);
    assert_string_equal(info.corruption, "");
    dcp_flat_checkpoint_close(checkpoint);
    sample_free(&sample);
}

/* -- boxes ------------------------------------------------------------------------- */

struct reader {
    struct dcp_flat_checkpoint *checkpoint;
    uint64_t seed;
    int64_t n_wrong;
    int rc;
};

enum { N_BOXES = 24 };

/* Elements of a box that are not the sample's. */
static int64_t wrong_in(int s, const struct dcp_tensor *of, const int64_t *offset,
                        const int64_t *size, const unsigned char *data)
{
    size_t elem = dcp_dtype_size(of->dtype);
    int64_t n = 1, n_wrong = 0;

    for (int d = 0; d < of->ndim; d++)
        n *= size[d];
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, flat = 0, stride = 1;
        for (int d = of->ndim - 1; d >= 0; d--) {
            flat += (offset[d] + rest % size[d]) * stride;
            rest /= size[d];
            stride *= of->shape[d];
        }
        bool wrong = false;
        for (size_t b = 0; b < elem; b++)
            wrong |= data[(size_t)i * elem + b] != sample_byte(s, flat, b, RESHARD_SALT);
        n_wrong += wrong;
    }
    return n_wrong;
}

/* A batch of random boxes; the last is all of the largest tensor. */
static void *read_boxes(void *arg)
{
    struct reader *reader = arg;
    const struct dcp_flat_tensors tensors = list(reader->checkpoint);
    uint64_t indices[N_BOXES];
    int64_t offsets[N_BOXES * 4], sizes[N_BOXES * 4];
    void *data[N_BOXES];
    struct sample sample;
    size_t at = 0;

    sample_make(&sample, "replicated", 1, 0, false, RESHARD_SALT);
    for (int i = 0; i < N_BOXES; i++) {
        const int64_t *shape;
        indices[i] = i < N_BOXES - 1
                         ? (uint64_t)acts_pick(&reader->seed, (int64_t)tensors.n)
                         : find(&tensors, "big");
        sample_of(&sample, &tensors, indices[i], &shape);
        size_t bytes = 16;
        for (int d = 0; d < tensors.ndims[indices[i]]; d++, at++) {
            offsets[at] = i < N_BOXES - 1 ? acts_pick(&reader->seed, shape[d] + 1) : 0;
            sizes[at] = i < N_BOXES - 1
                            ? acts_pick(&reader->seed, shape[d] - offsets[at] + 1)
                            : shape[d];
            bytes *= (size_t)sizes[at];
        }
        data[i] = malloc(bytes + 1);
    }
    const struct dcp_flat_boxes boxes = { sizeof boxes, N_BOXES, indices,
                                          offsets,      sizes,   data };
    reader->rc = dcp_flat_boxes_read(reader->checkpoint, &boxes, NULL, NULL);
    at = 0;
    for (int i = 0; i < N_BOXES; i++) {
        const int64_t *shape;
        int s = sample_of(&sample, &tensors, indices[i], &shape);
        const struct dcp_tensor *of = &sample.catalog->tensors[s];
        reader->n_wrong += wrong_in(s, of, offsets + at, sizes + at, data[i]);
        at += (size_t)of->ndim;
        free(data[i]);
    }
    sample_free(&sample);
    return NULL;
}

static void boxes_are_read_on_many_threads(void **state)
{
    static const struct {
        const char *layout;
        int world_size;
        enum dcp_codec codec;
        const char *format; /* of another program; NULL: the step that was saved */
    } kinds[] = { { "zero2", 3, DCP_CODEC_NONE, NULL },
                  { "dim0", 4, DCP_CODEC_SPLIT, NULL },
                  { "replicated", 1, DCP_CODEC_NONE, "torch" } };
    const struct reshard_folder *folder = *state;
    char target[600];

    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        snprintf(target, sizeof target, "%s-%zu%s", folder->source, k,
                 kinds[k].format ? ".pt" : "");
        const char *saved = kinds[k].format ? folder->source : target;
        reshard_folder_save(saved, kinds[k].layout, kinds[k].world_size, kinds[k].codec);
        if (kinds[k].format) { /* its records have one checksum each */
            const struct dcp_reshard_options to = { .dtype = -1,
                                                    .format = kinds[k].format,
                                                    .world_size = 1 };
            reshard_folder_must_run(saved, target, &to);
        }
        struct dcp_flat_checkpoint *checkpoint = open_path(target, 3);
        struct reader readers[4];
        pthread_t threads[4];
        for (uint64_t i = 0; i < 4; i++) {
            readers[i] = (struct reader){ checkpoint, k * 100 + i + 1, 0, -1 };
            assert_int_equal(pthread_create(&threads[i], NULL, read_boxes, &readers[i]),
                             0);
        }
        for (int i = 0; i < 4; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(readers[i].rc, 0);
            assert_int_equal(readers[i].n_wrong, 0);
        }
        dcp_flat_checkpoint_close(checkpoint);
    }
}

static void boxes_outside_are_refused(void **state)
{
    const struct reshard_folder *folder = *state;
    struct dcp_flat_error err = { .struct_size = sizeof err };
    unsigned char data[64];
    void *places[] = { data };
    int64_t offsets[] = { 66, 0 }, sizes[] = { 2, 1 };

    reshard_folder_save(folder->source, "zero1", 2, DCP_CODEC_NONE);
    struct dcp_flat_checkpoint *checkpoint = open_path(folder->source, 1);
    const struct dcp_flat_tensors tensors = list(checkpoint);
    uint64_t wte = find(&tensors, "wte.weight"), none = tensors.n;
    struct dcp_flat_boxes boxes = { sizeof boxes, 1, &wte, offsets, sizes, places };
    assert_int_equal(dcp_flat_boxes_read(checkpoint, &boxes, NULL, &err), DCP_E_USAGE);
    assert_string_equal(err.tensor, "wte.weight");
    assert_string_equal(err.name, "USAGE");
    offsets[0] = -1;
    assert_int_equal(dcp_flat_boxes_read(checkpoint, &boxes, NULL, &err), DCP_E_USAGE);
    offsets[0] = 65;
    assert_int_equal(dcp_flat_boxes_read(checkpoint, &boxes, NULL, &err), 0);
    boxes.tensors = &none;
    assert_int_equal(dcp_flat_boxes_read(checkpoint, &boxes, NULL, &err), DCP_E_USAGE);
    dcp_flat_checkpoint_close(checkpoint);
}

/* -- what is wrong ----------------------------------------------------------------- */

static void flip(const char *path, long from_end)
{
    FILE *file = fopen(path, "r+b");

    assert_non_null(file);
    fseek(file, -from_end, SEEK_END);
    int byte = fgetc(file);
    fseek(file, -from_end, SEEK_END);
    fputc(byte ^ 4, file);
    fclose(file);
}

static int read_all(struct dcp_flat_checkpoint *checkpoint, const char *name,
                    const struct dcp_flat_hooks *hooks, struct dcp_flat_error *err)
{
    const struct dcp_flat_tensors tensors = list(checkpoint);
    uint64_t t = find(&tensors, name);
    void *data[] = { malloc(4 << 20) };
    const struct dcp_flat_boxes boxes = { sizeof boxes, 1, &t, NULL, NULL, data };

    *err = (struct dcp_flat_error){ .struct_size = sizeof *err };
    int rc = dcp_flat_boxes_read(checkpoint, &boxes, hooks, err);
    free(data[0]);
    return rc;
}

static void corruption_is_named_every_time(void **state)
{
    const struct reshard_folder *folder = *state;
    struct dcp_flat_error err;
    char path[700];

    reshard_folder_save(folder->source, "replicated", 1, DCP_CODEC_NONE);
    const struct dcp_reshard_options to = { .dtype = -1,
                                            .format = "torch",
                                            .world_size = 1 };
    snprintf(path, sizeof path, "%s.pt", folder->source);
    reshard_folder_must_run(folder->source, path, &to);
    struct {
        const char *open, *flip;
        long from_end;
        const char *tensor, *file;
    } kinds[] = { { folder->source, "step-00000005/shard-00000-of-00001.safetensors", 4,
                    NULL, "shard-00000-of-00001.safetensors" },
                  { path, "", 300000, "big", NULL } };
    for (size_t k = 0; k < 2; k++) {
        char damaged[1500];
        snprintf(damaged, sizeof damaged, "%s%s%s", kinds[k].open,
                 kinds[k].flip[0] ? "/" : "", kinds[k].flip);
        flip(damaged, kinds[k].from_end);
        struct dcp_flat_checkpoint *checkpoint = open_path(kinds[k].open, 2);
        const struct dcp_flat_tensors tensors = list(checkpoint);
        int n_corrupt[2] = { 0 };
        for (int round = 0; round < 2; round++)
            for (uint64_t t = 0; t < tensors.n; t++) {
                const char *name = text(&tensors.names, t);
                if (!read_all(checkpoint, name, NULL, &err))
                    continue;
                assert_int_equal(err.code, DCP_E_CORRUPT);
                assert_int_equal(err.exit_status, 4);
                assert_non_null(strstr(err.message, kinds[k].open));
                if (kinds[k].tensor)
                    assert_string_equal(name, kinds[k].tensor);
                else
                    assert_string_equal(err.tensor, name);
                if (kinds[k].file)
                    assert_string_equal(err.file, kinds[k].file);
                else
                    assert_string_not_equal(err.file, "");
                n_corrupt[round]++;
            }
        assert_int_equal(n_corrupt[0], 1);
        assert_int_equal(n_corrupt[1], 1);
        dcp_flat_checkpoint_close(checkpoint);
    }
}

/* A part of a record is not handed out when the record is corrupt elsewhere. */
static void records_are_read_to_their_end(void **state)
{
    const struct reshard_folder *folder = *state;
    const struct dcp_reshard_options to = { .dtype = -1,
                                            .format = "torch",
                                            .world_size = 1 };
    const int64_t offsets[] = { 0, 3 }, sizes[] = { 2, 5 };
    unsigned char row[2 * 5 * 4];
    void *data[] = { row };
    char path[600];

    reshard_folder_save(folder->source, "replicated", 1, DCP_CODEC_NONE);
    snprintf(path, sizeof path, "%s.pt", folder->source);
    reshard_folder_must_run(folder->source, path, &to);
    flip(path, 300000); /* in the last rows of the largest tensor */
    for (int no_verify = 0; no_verify < 2; no_verify++) {
        const struct dcp_flat_open_options options = { .struct_size = sizeof options,
                                                       .path = path,
                                                       .step = -1,
                                                       .no_verify = no_verify };
        struct dcp_flat_error err = { .struct_size = sizeof err };
        struct dcp_flat_checkpoint *checkpoint;
        assert_int_equal(dcp_flat_checkpoint_open(&options, &checkpoint, &err), 0);
        const struct dcp_flat_tensors tensors = list(checkpoint);
        uint64_t big = find(&tensors, "big");
        const struct dcp_flat_boxes boxes = {
            sizeof boxes, 1, &big, offsets, sizes, data
        };
        assert_int_equal(dcp_flat_boxes_read(checkpoint, &boxes, NULL, &err),
                         no_verify ? 0 : DCP_E_CORRUPT);
        dcp_flat_checkpoint_close(checkpoint);
    }
}

static void files_that_are_replaced(void **state)
{
    const struct reshard_folder *folder = *state;
    const struct dcp_reshard_options to = { .dtype = -1,
                                            .format = "safetensors",
                                            .world_size = 1 };
    char path[600], other[600];

    reshard_folder_save(folder->source, "replicated", 1, DCP_CODEC_NONE);
    snprintf(path, sizeof path, "%s.safetensors", folder->source);
    snprintf(other, sizeof other, "%s.other.safetensors", folder->source);
    reshard_folder_must_run(folder->source, path, &to);
    reshard_folder_must_run(folder->source, other, &to);
    struct dcp_flat_checkpoint *checkpoint = open_path(path, 1);
    struct dcp_flat_error err;
    assert_int_equal(read_all(checkpoint, "big", NULL, &err), 0);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(read_all(checkpoint, "big", NULL, &err), DCP_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "was replaced since it was opened"));
    dcp_flat_checkpoint_close(checkpoint);
}

static int32_t stop(void *self, uint64_t done_bytes, uint64_t total_bytes)
{
    *(uint64_t *)self = done_bytes;
    assert_true(done_bytes <= total_bytes);
    return 1;
}

static void reads_are_stopped(void **state)
{
    const struct reshard_folder *folder = *state;
    uint64_t done = 0;
    const int32_t one = 1;
    struct dcp_flat_error err;

    reshard_folder_save(folder->source, "zero1", 2, DCP_CODEC_NONE);
    struct dcp_flat_checkpoint *checkpoint = open_path(folder->source, 1);
    const struct dcp_flat_hooks asked = { sizeof asked, stop, &done, NULL };
    const struct dcp_flat_hooks set = { sizeof set, NULL, NULL, &one };
    assert_int_equal(read_all(checkpoint, "big", &asked, &err), DCP_E_INTERRUPTED);
    assert_int_equal(done, 269 * 1031 * 4);
    assert_string_equal(err.message, "interrupted");
    assert_int_equal(read_all(checkpoint, "big", &set, &err), DCP_E_INTERRUPTED);
    assert_int_equal(read_all(checkpoint, "big", NULL, &err), 0);
    dcp_flat_checkpoint_close(checkpoint);
}

static void open_says_why(void **state)
{
    const struct reshard_folder *folder = *state;
    struct dcp_flat_open_options options = { .struct_size = sizeof options,
                                             .path = folder->target,
                                             .step = -1 };
    struct dcp_flat_error err = { .struct_size = sizeof err };
    struct dcp_flat_checkpoint *checkpoint;

    assert_int_equal(dcp_flat_checkpoint_open(&options, &checkpoint, &err),
                     DCP_E_NOT_FOUND);
    assert_null(checkpoint);
    assert_non_null(strstr(err.message, folder->target));
    reshard_folder_save(folder->source, "zero1", 2, DCP_CODEC_NONE);
    options.path = folder->source;
    options.step = 4;
    assert_int_equal(dcp_flat_checkpoint_open(&options, &checkpoint, &err),
                     DCP_E_NOT_FOUND);
    assert_non_null(strstr(err.hint, "the newest of its 1 is 5"));
    options.step = 5;
    assert_int_equal(dcp_flat_checkpoint_open(&options, &checkpoint, &err), 0);
    dcp_flat_checkpoint_close(checkpoint);
    assert_int_equal(dcp_flat_checkpoint_open(NULL, &checkpoint, NULL), DCP_E_USAGE);
}

/* -- structs of other versions ----------------------------------------------------- */

static void structs_grow_at_their_end(void **state)
{
    const struct reshard_folder *folder = *state;
    struct {
        struct dcp_flat_info known;
        char later[16]; /* of a library to come */
    } more = { .known.struct_size = sizeof more };
    struct dcp_flat_info less;

    reshard_folder_save(folder->source, "zero1", 2, DCP_CODEC_NONE);
    struct dcp_flat_checkpoint *checkpoint = open_path(folder->source, 1);
    memset(more.later, 'x', sizeof more.later);
    dcp_flat_checkpoint_info(checkpoint, &more.known);
    assert_int_equal(more.known.step, 5);
    assert_int_equal(more.known.struct_size, sizeof more);
    assert_int_equal(more.later[0] | more.later[15], 0);
    memset(&less, 'x', sizeof less);
    less.struct_size = offsetof(struct dcp_flat_info, world_size);
    dcp_flat_checkpoint_info(checkpoint, &less);
    assert_int_equal(less.step, 5);
    assert_memory_equal(&less.world_size, "xxxx", 4);
    dcp_flat_checkpoint_close(checkpoint);
}

static void words_have_numbers(void **state)
{
    struct dcp_flat_dtype dtype = { .struct_size = sizeof dtype };
    struct dcp_flat_format format = { .struct_size = sizeof format };
    const char *role;
    int n = 0, n_native = 0;

    (void)state;
    assert_int_equal(dcp_flat_dtype_get(DCP_BF16, &dtype), 0);
    assert_string_equal(dtype.torch_name, "bfloat16");
    assert_int_equal(dtype.size_bytes, 2);
    assert_int_equal(dcp_flat_dtype_get(DCP_N_DTYPES, &dtype), DCP_E_NOT_FOUND);
    assert_int_equal(dcp_flat_dtype_get(-1, &dtype), DCP_E_NOT_FOUND);
    assert_int_equal(dcp_flat_role_get(DCP_ROLE_MASTER, &role), 0);
    assert_string_equal(role, "master");
    assert_int_equal(dcp_flat_role_get(DCP_N_ROLES, &role), DCP_E_NOT_FOUND);
    for (; !dcp_flat_format_get(n, &format); n++)
        n_native += !strcmp(format.name, "native") && format.reads && format.writes;
    assert_true(n > 10);
    assert_int_equal(n_native, 1);
    uint64_t digest;
    dcp_flat_bytes_digest("libdcp", 6, &digest);
    assert_int_equal(digest, dcp_hash_xxh3("libdcp", 6));
    dcp_flat_bytes_digest(NULL, 0, &digest);
    assert_int_equal(digest, 0x2d06800538d394c2); /* XXH3-64 of nothing */
}

int main(void)
{
#define TEST(function)                                              \
    cmocka_unit_test_setup_teardown(function, reshard_folder_setup, \
                                    reshard_folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(tables_are_the_catalog),
        TEST(boxes_are_read_on_many_threads),
        TEST(boxes_outside_are_refused),
        TEST(corruption_is_named_every_time),
        TEST(records_are_read_to_their_end),
        TEST(files_that_are_replaced),
        TEST(reads_are_stopped),
        TEST(open_says_why),
        TEST(structs_grow_at_their_end),
        cmocka_unit_test(words_have_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
