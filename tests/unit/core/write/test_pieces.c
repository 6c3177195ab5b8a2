/* Small pieces cost no call each, and progress counts the bytes of tensors, whatever
 * becomes of them. */
#include "base/clock.h"
#include "base/mem.h"
#include "lib/acts.h"
#include "lib/reshard_folder.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum {
    N_TENSORS = 400,
    USUAL_ELEMS = 500,
    MANY_ELEMS = 800000,
    SMALL_ELEMS = 2048,
    N_BYTES = 4
};

static struct dcp_store_forward wrapper;
static atomic_int n_writes;

static int counting_write(void *self, struct dcp_store_file *file, uint64_t offset,
                          const void *data, size_t n, struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;

    n_writes++;
    return inner->ops->write_at(inner->self, file, offset, data, n, err);
}

/* Small ones, with an empty one, a large one, and the largest small one among them. */
static int64_t elems_of(int t)
{
    switch (t) {
    case 100:
        return 0;
    case 200:
        return MANY_ELEMS;
    case 300:
        return SMALL_ELEMS;
    case 301:
        return SMALL_ELEMS + 1;
    default:
        return USUAL_ELEMS;
    }
}

struct model {
    struct dcp_local_tensor locals[N_TENSORS];
    char names[N_TENSORS][16];
    int64_t shapes[N_TENSORS];
    struct dcp_state state;
};

static float value(int t, int64_t i)
{
    return (float)t + (float)(i % 1000) / 1000;
}

static void make(struct model *m, bool fill)
{
    for (int t = 0; t < N_TENSORS; t++) {
        snprintf(m->names[t], sizeof m->names[t], "w.%d", t);
        m->shapes[t] = elems_of(t);
        float *data = dcp_mem_calloc((size_t)m->shapes[t] + 1, sizeof *data);
        assert_non_null(data);
        for (int64_t i = 0; i < m->shapes[t] && fill; i++)
            data[i] = value(t, i);
        m->locals[t] = (struct dcp_local_tensor){ .name = m->names[t],
                                                  .dtype = DCP_F32,
                                                  .ndim = 1,
                                                  .shape = &m->shapes[t],
                                                  .data = data };
    }
    m->state =
        (struct dcp_state){ .locals = m->locals, .n_locals = N_TENSORS, .layout = "" };
}

static void unmake(struct model *m)
{
    for (int t = 0; t < N_TENSORS; t++)
        free(m->locals[t].data);
}

static void neighbours_are_written_together(void **state)
{
    const struct dcp_store *store = *state;
    const struct dcp_source source = { store, "step-00000001", true };
    static struct model saved, loaded;
    struct dcp_store counting;
    struct dcp_comm self;

    dcp_comm_self(&self);
    dcp_store_forward(&counting, &wrapper, store);
    wrapper.ops.write_at = counting_write;
    make(&saved, true);
    make(&loaded, false);
    for (int threads = 1; threads <= 3; threads += 2) {
        struct dcp_context ctx = { .comm = &self,
                                   .store = &counting,
                                   .threads = threads };
        struct dcp_save_options save = { .step = threads };
        struct dcp_load_options load = { .step = threads };
        n_writes = 0;
        assert_int_equal(dcp_save(&ctx, &save, &saved.state, NULL, NULL), 0);
        /* A header, a table, a manifest, the large ones in slices; not 400. */
        assert_in_range(n_writes, 4, 100);
        assert_int_equal(dcp_load(&ctx, &load, &loaded.state, NULL, NULL), 0);
        for (int t = 0; t < N_TENSORS; t++) {
            const float *data = loaded.locals[t].data;
            for (int64_t i = 0; i < elems_of(t); i++)
                if (data[i] != value(t, i))
                    fail_msg("tensor %d, element %d", t, (int)i);
            memset(loaded.locals[t].data, 0, (size_t)elems_of(t) * N_BYTES);
        }
    }
    assert_int_equal(dcp_verify(&source, NULL, NULL, NULL), 0);
    unmake(&saved);
    unmake(&loaded);
}

struct seen {
    uint64_t done, total, calls;
    bool fell;
};

static bool see(void *self, uint64_t done, uint64_t total)
{
    struct seen *seen = self;

    seen->fell |= done < seen->done || done > total;
    seen->done = done;
    seen->total = total;
    seen->calls++;
    dcp_clock_sleep_us(300); /* others want to tell, too */
    return false;
}

static void progress_ends_at_its_total(void **state)
{
    const struct reshard_folder *f = *state;
    const enum dcp_codec codecs[] = { DCP_CODEC_NONE, DCP_CODEC_ZSTD };

    reshard_folder_save(f->source, "zero3", 4, DCP_CODEC_NONE);
    for (size_t c = 0; c < DCP_ARRAY_LEN(codecs); c++) {
        struct seen seen = { 0 };
        const struct dcp_reshard_options options = { .world_size = 3,
                                                     .codec = codecs[c],
                                                     .force = c > 0,
                                                     .dtype = -1,
                                                     .threads = 4,
                                                     .progress = { see, &seen } };
        reshard_folder_must_run(f->source, f->target, &options);
        assert_true(seen.calls > 1);
        assert_false(seen.fell);
        assert_int_equal(seen.done, seen.total);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(neighbours_are_written_together, acts_setup,
                                        acts_teardown),
        cmocka_unit_test_setup_teardown(progress_ends_at_its_total, reshard_folder_setup,
                                        reshard_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
