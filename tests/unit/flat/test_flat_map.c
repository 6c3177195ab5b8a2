/* flat: boxes that lie in a file as they are, and those that do not. */
#include "lib/acts.h"
#include "lib/reshard_folder.h"
#include "lib/sample.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { MOST = 1 << 16 };

static struct dcp_flat_checkpoint *open_path(const char *path)
{
    const struct dcp_flat_open_options options = { .struct_size = sizeof options,
                                                   .path = path,
                                                   .step = -1 };
    struct dcp_flat_checkpoint *checkpoint;

    assert_int_equal(dcp_flat_checkpoint_open(&options, &checkpoint, NULL), 0);
    return checkpoint;
}

/* The elements of a box by its mapping, one read for each. */
static void gather(const struct dcp_flat_mapping *mapping, int ndim, const int64_t *size,
                   size_t item, unsigned char *out)
{
    int64_t at[8] = { 0 };

    for (;;) {
        uint64_t offset = mapping->offset;
        int d = ndim - 1;
        for (int k = 0; k < ndim; k++)
            offset += (uint64_t)(at[k] * mapping->strides[k]);
        assert_int_equal(pread(mapping->fd, out, item, (off_t)offset), item);
        out += item;
        while (d >= 0 && ++at[d] == size[d])
            at[d--] = 0;
        if (d < 0)
            return;
    }
}

/* How many of some boxes of all tensors can be mapped, each being what is read. */
static int count_mapped(struct dcp_flat_checkpoint *checkpoint, int *out_refused)
{
    struct dcp_flat_tensors list = { .struct_size = sizeof list };
    static unsigned char mapped[MOST], read[MOST];
    const int64_t *shape;
    int n = 0;

    assert_int_equal(dcp_flat_tensors_list(checkpoint, &list, NULL), 0);
    shape = list.shapes;
    *out_refused = 0;
    for (uint64_t t = 0; t < list.n; shape += list.ndims[t++])
        for (int cut = 0; cut < 4; cut++) {
            struct dcp_flat_dtype dtype = { .struct_size = sizeof dtype };
            struct dcp_flat_mapping mapping = { .struct_size = sizeof mapping };
            int64_t offset[8] = { 0 }, size[8] = { 0 }, elems = 1;
            assert_int_equal(dcp_flat_dtype_get(list.dtypes[t], &dtype), 0);
            for (int d = 0; d < list.ndims[t]; d++) {
                offset[d] = shape[d] * cut / 5;
                size[d] = cut == 0 ? shape[d] : (shape[d] - offset[d] + 1) / (cut + 1);
                elems *= size[d];
            }
            size_t bytes = (size_t)elems * dtype.size_bytes;
            if (!elems || bytes > MOST)
                continue;
            int32_t rc = dcp_flat_box_map(checkpoint, t, offset, size, &mapping, NULL);
            if (rc) {
                assert_int_equal(rc, DCP_E_UNSUPPORTED);
                assert_int_equal(mapping.fd, -1);
                ++*out_refused;
                continue;
            }
            gather(&mapping, list.ndims[t], size, dtype.size_bytes, mapped);
            close(mapping.fd);
            const struct dcp_flat_boxes boxes = { .struct_size = sizeof boxes,
                                                  .n = 1,
                                                  .tensors = &t,
                                                  .offsets = offset,
                                                  .sizes = size,
                                                  .data = (void *[]){ read } };
            assert_int_equal(dcp_flat_boxes_read(checkpoint, &boxes, NULL, NULL), 0);
            assert_memory_equal(mapped, read, bytes);
            n++;
        }
    return n;
}

static void boxes_in_one_piece(void **state)
{
    static const struct {
        const char *layout;
        int world_size;
        enum dcp_codec codec;
        bool all;
    } rows[] = { { "replicated", 1, DCP_CODEC_NONE, true },
                 { "zero3", 3, DCP_CODEC_NONE, false },
                 { "dim0", 3, DCP_CODEC_NONE, false },
                 { "replicated", 1, DCP_CODEC_ZSTD, false } };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct reshard_folder *folder = *state;
        int refused;
        reshard_folder_save(folder->source, rows[i].layout, rows[i].world_size,
                            rows[i].codec);
        struct dcp_flat_checkpoint *checkpoint = open_path(folder->source);
        int n = count_mapped(checkpoint, &refused);
        assert_true(n > 5 || rows[i].codec);
        assert_int_equal(refused == 0, rows[i].all);
        dcp_flat_checkpoint_close(checkpoint);
        reshard_folder_teardown(state);
        reshard_folder_setup(state);
    }
}

static void what_is_no_box(void **state)
{
    const struct reshard_folder *folder = *state;
    struct dcp_flat_mapping mapping = { .struct_size = sizeof mapping };
    int64_t offset[8] = { 0 }, size[8] = { 0 };

    reshard_folder_save(folder->source, "replicated", 1, DCP_CODEC_NONE);
    struct dcp_flat_checkpoint *checkpoint = open_path(folder->source);
    struct dcp_flat_tensors list = { .struct_size = sizeof list };
    assert_int_equal(dcp_flat_tensors_list(checkpoint, &list, NULL), 0);
    uint64_t t = 0, at = 0;
    while (list.ndims[t] < 2)
        at += (uint64_t)list.ndims[t++];
    const int64_t *shape = list.shapes + at;
    for (int wrong = 0; wrong < 4; wrong++) {
        for (int d = 0; d < list.ndims[t]; d++) {
            offset[d] = 0;
            size[d] = 1;
        }
        if (wrong < 2)
            size[1] = wrong ? shape[1] + 1 : 0;
        else
            offset[0] = wrong == 2 ? -1 : INT64_MAX;
        assert_int_equal(dcp_flat_box_map(checkpoint, t, offset, size, &mapping, NULL),
                         DCP_E_USAGE);
    }
    assert_int_equal(dcp_flat_box_map(checkpoint, list.n, offset, size, &mapping, NULL),
                     DCP_E_USAGE);
    dcp_flat_checkpoint_close(checkpoint);
}

int main(void)
{
#define TEST(function)                                              \
    cmocka_unit_test_setup_teardown(function, reshard_folder_setup, \
                                    reshard_folder_teardown)
    const struct CMUnitTest tests[] = { TEST(boxes_in_one_piece), TEST(what_is_no_box) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
