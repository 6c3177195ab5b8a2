/* Parts of a reshard: how files are dealt out, and what a receipt may say: anything but
 * what a part wrote of its own files is refused. */
#include "base/mem.h"
#include "core/parts/deal.h"
#include "core/parts/receipt.h"
#include "core/write/share.h"
#include "lib/two_parts.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* -- receipts ------------------------------------------------------------------------ */

enum { JOB = 77, PART = 2 };

static const struct dcp_receipt_file files[] = { { "a/b", 10, 0x1234 }, { "c", 0, 5 } };

static int parse(const void *data, size_t n, uint64_t job, int part,
                 struct dcp_receipt *out)
{
    struct dcp_error err = { 0 };
    unsigned char *copy = malloc(n + 1);

    memcpy(copy, data, n);
    int rc = dcp_receipt_parse(copy, n, job, part, out, &err);
    assert_int_equal(rc != 0, err.message[0] != '\0');
    return rc;
}

static void a_receipt_says_what_was_packed(void **state)
{
    DCP_CLEANUP_BUF struct dcp_buf told = { 0 }, packed = { 0 };
    struct dcp_receipt receipt;

    (void)state;
    dcp_buf_add_text(&told, "told");
    dcp_receipt_pack(JOB, PART, files, 2, &told, &packed);
    assert_int_equal(parse(packed.data, packed.size_bytes, JOB, PART, &receipt), 0);
    assert_int_equal(receipt.n_files, 2);
    assert_string_equal(receipt.files[0].name, "a/b");
    assert_int_equal(receipt.files[0].size_bytes, 10);
    assert_int_equal(receipt.files[0].crc, 0x1234);
    assert_string_equal(receipt.files[1].name, "c");
    assert_int_equal(dcp_cursor_left(&receipt.told), 4);
    assert_memory_equal(dcp_cursor_take(&receipt.told, 4), "told", 4);
    dcp_receipt_fini(&receipt);
    assert_int_equal(parse(packed.data, packed.size_bytes, JOB + 1, PART, &receipt),
                     DCP_E_MISMATCH);
    assert_int_equal(parse(packed.data, packed.size_bytes, JOB, PART + 1, &receipt),
                     DCP_E_MISMATCH);
}

static void a_receipt_that_is_torn_or_damaged_is_none(void **state)
{
    DCP_CLEANUP_BUF struct dcp_buf packed = { 0 };
    struct dcp_receipt receipt;

    (void)state;
    dcp_receipt_pack(JOB, PART, files, 2, NULL, &packed);
    for (size_t n = 0; n < packed.size_bytes; n++)
        assert_int_equal(parse(packed.data, n, JOB, PART, &receipt), DCP_E_CORRUPT);
    for (size_t i = 0; i < packed.size_bytes; i++) {
        packed.data[i] ^= 1;
        assert_int_equal(parse(packed.data, packed.size_bytes, JOB, PART, &receipt),
                         DCP_E_CORRUPT);
        packed.data[i] ^= 1;
    }
}

static void a_receipt_names_files_below_the_target(void **state)
{
    static const char *const names[] = { "", "/etc/passwd", "../x", "a//b", "a/../b" };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(names); i++) {
        const struct dcp_receipt_file file = { names[i], 1, 1 };
        DCP_CLEANUP_BUF struct dcp_buf packed = { 0 };
        struct dcp_receipt receipt;
        dcp_receipt_pack(JOB, PART, &file, 1, NULL, &packed);
        assert_int_equal(parse(packed.data, packed.size_bytes, JOB, PART, &receipt),
                         DCP_E_CORRUPT);
    }
}

static void files_that_changed_are_found(void **state)
{
    static const struct dcp_receipt_file written = { "a", 2, 0x3f00bbb41a26e81dULL };
    struct dcp_receipt receipt = { .files = (struct dcp_receipt_file *)&written,
                                   .n_files = 1 };
    struct dcp_store store;
    const char *other;
    bool same;

    (void)state;
    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    assert_int_equal(store.ops->make_dir(store.self, "f", NULL), 0);
    assert_int_equal(dcp_receipt_look(&receipt, &store, "f/", &other, NULL), 0);
    assert_string_equal(other, "a");
    assert_int_equal(dcp_store_write_file(&store, "f/a", "xyz", 3, NULL), 0);
    assert_int_equal(dcp_receipt_look(&receipt, &store, "f/", &other, NULL), 0);
    assert_string_equal(other, "a");
    assert_int_equal(dcp_store_clear(&store, "f/a", NULL), 0);
    assert_int_equal(dcp_store_clear(&store, "f/a", NULL), 0); /* it is gone already */
    assert_int_equal(dcp_store_write_file(&store, "f/a", "xy", 2, NULL), 0);
    assert_int_equal(dcp_receipt_look(&receipt, &store, "f/", &other, NULL), 0);
    assert_null(other);
    assert_int_equal(dcp_receipt_compare(&receipt, &store, "f/", &same, NULL), 0);
    assert_false(same);
    dcp_store_free(&store);
}

/* -- shares -------------------------------------------------------------------------- */

enum { N_FILES = TWO_PARTS_FILES, N_BLOCKS = TWO_PARTS_BLOCKS };

/* Three files of two parts, and a source with a record of three blocks. */
struct job {
    struct dcp_catalog *target, *src;
    struct dcp_shares shares;
    struct dcp_share share;
    uint64_t parts[N_FILES];
    _Atomic uint64_t overflows[N_FILES];
};

static void make(struct job *job, int part)
{
    *job = (struct job){ .target = two_parts_target(), .src = two_parts_source() };
    job->shares = (struct dcp_shares){ two_parts_of, N_FILES, N_FILES };
    job->share = (struct dcp_share){ .of = &job->shares,
                                     .part = part,
                                     .target = job->target,
                                     .parts = job->parts,
                                     .overflows = job->overflows };
    assert_int_equal(dcp_proof_new(job->src, &job->share.proof, NULL), 0);
}

static void drop(struct job *job)
{
    dcp_proof_free(job->share.proof);
    dcp_catalog_free(job->target);
    dcp_catalog_free(job->src);
}

/* What a part tells that wrote its files; `change` makes it tell something else. */
static int tell(struct job *to, int part, void (*change)(struct job *from))
{
    struct job from;
    DCP_CLEANUP_BUF struct dcp_buf told = { 0 };
    struct dcp_error err = { 0 };

    make(&from, part);
    for (int t = 0; t < N_FILES; t++)
        from.parts[t] = two_parts_of[t] == part ? 7u + (unsigned)t : 0;
    from.overflows[0] = 2;
    if (change)
        change(&from);
    dcp_share_pack(&from.share, &told);
    drop(&from);
    struct dcp_share share = to->share;
    struct dcp_cursor in = dcp_cursor_init(told.data, told.size_bytes);
    share.part = part;
    int rc = dcp_share_unpack(&share, &in, &err);
    assert_int_equal(rc != 0, err.message[0] != '\0');
    return rc;
}

static void add_file(struct job *from)
{
    assert_int_equal(dcp_catalog_add_file(from->target,
                                          &(struct dcp_file){ .name = "d", .rank = 1 },
                                          NULL, NULL),
                     0);
}

static void shrink(struct job *from)
{
    from->target->pieces[2].stored_size = 40;
    from->target->files[2].size_bytes = 50;
    add_file(from);
}

static void what_all_parts_tell_is_taken_together(void **state)
{
    struct job job;

    (void)state;
    make(&job, 0);
    assert_false(dcp_shares_complete(job.target));
    assert_int_equal(tell(&job, 0, NULL), 0);
    assert_false(dcp_shares_complete(job.target));
    assert_int_equal(tell(&job, 1, shrink), 0);
    assert_true(dcp_shares_complete(job.target));
    for (unsigned t = 0; t < N_FILES; t++)
        assert_int_equal(job.parts[t], 7 + t);
    assert_int_equal(job.overflows[0], 4);
    assert_int_equal(job.target->pieces[2].stored_size, 40);
    assert_int_equal(job.target->n_files, N_FILES + 1);
    assert_string_equal(job.target->files[N_FILES].name, "d");
    assert_int_equal(job.target->files[N_FILES].rank, 1);
    drop(&job);
}

static const int all_are_zero[N_FILES];
static void claim_all(struct job *from)
{
    from->shares.part_of = all_are_zero;
}
static void move(struct job *from)
{
    from->target->pieces[0].offset = 0;
}
static void cut(struct job *from)
{
    from->target->pieces[0].stored_size = 99;
}
static void short_file(struct job *from)
{
    from->target->files[0].size_bytes = 109;
}
static void grow(struct job *from)
{
    from->target->pieces[2].stored_size = 101;
}
static void no_overflows(struct job *from)
{
    from->share.overflows = NULL;
}
static void climb(struct job *from)
{
    add_file(from);
    from->target->files[N_FILES].name = "../d";
}
static void of_nobody(struct job *from)
{
    add_file(from);
    from->shares.part_of = all_are_zero;
    from->shares.n_writers = 1;
    from->target->files[N_FILES].rank = 0;
    from->share.part = 0;
}

static void what_is_not_the_parts_is_refused(void **state)
{
    static const struct {
        int part;
        void (*change)(struct job *from);
    } wrong[] = { { 0, claim_all }, { 0, move },  { 0, cut },          { 0, short_file },
                  { 1, grow },      { 1, climb }, { 0, no_overflows }, { 1, of_nobody } };

    (void)state;
    for (size_t i = 0; i < DCP_ARRAY_LEN(wrong); i++) {
        struct job job;
        make(&job, 0);
        assert_int_equal(tell(&job, wrong[i].part, wrong[i].change), DCP_E_CORRUPT);
        drop(&job);
    }
}

static void files_alone(struct job *from)
{
    from->target->n_pieces = 0;
}
static void pieces_alone(struct job *from)
{
    from->target->n_files = 0;
}

static void what_is_told_twice_is_refused(void **state)
{
    struct job job;

    (void)state;
    make(&job, 0);
    assert_int_equal(tell(&job, 0, NULL), 0);
    assert_int_equal(tell(&job, 0, files_alone), DCP_E_CORRUPT);
    assert_int_equal(tell(&job, 0, pieces_alone), DCP_E_CORRUPT);
    drop(&job);
}

/* -- checksums of the source --------------------------------------------------------- */

static void see(struct dcp_proof *proof, uint64_t block, int byte)
{
    static unsigned char bytes[DCP_BLOCK_BYTES];

    memset(bytes, byte, sizeof bytes);
    dcp_proof_add(proof, 0, block, bytes, sizeof bytes, NULL, NULL);
}

static void see_first(struct job *from)
{
    see(from->share.proof, 0, 0);
}
static void see_middle(struct job *from)
{
    see(from->share.proof, 1, 1);
}
static void see_others(struct job *from)
{
    see(from->share.proof, 0, 0);
    see(from->share.proof, 2, 2);
}

static void checksums_are_held_once_all_is_read(void **state)
{
    struct job job;
    size_t *records, n;

    (void)state;
    make(&job, 0);
    assert_int_equal(tell(&job, 0, see_first), 0);
    assert_true(dcp_proof_has(job.share.proof, 0, 0));
    assert_false(dcp_proof_has(job.share.proof, 0, 1));
    assert_int_equal(dcp_proof_open(job.share.proof, false, &records, &n, NULL), 0);
    assert_int_equal(n, 1); /* some of it nobody read yet */
    free(records);
    see(job.share.proof, 2, 2);
    assert_int_equal(tell(&job, 1, see_middle), DCP_E_CORRUPT); /* it is not 1 */
    drop(&job);
    make(&job, 0);
    see(job.share.proof, 0, 5);
    assert_int_equal(tell(&job, 1, see_others), DCP_E_CORRUPT); /* they saw another one */
    drop(&job);
}

/* -- who does what ------------------------------------------------------------------- */

static int finalize(struct dcp_target *target, int rank, struct dcp_error *err)
{
    (void)target;
    (void)rank;
    (void)err;
    return DCP_OK;
}

static void neighbours_go_together_and_bytes_are_even(void **state)
{
    static const struct dcp_format by_rank = { .name = "x", .finalize = finalize },
                                   by_file = { .name = "y" };

    (void)state;
    for (int n_files = 1; n_files < 40; n_files += 3)
        for (int n = 1; n < 50; n += 4) {
            struct dcp_target target = { .format = n % 8 == 1 ? &by_rank : &by_file };
            struct dcp_deal deal;
            uint64_t total = 0, most = 0, sum = 0;
            size_t sum_files = 0;
            assert_int_equal(dcp_catalog_new(&target.catalog, NULL), 0);
            target.catalog->world_size = 1;
            for (int f = 0; f < n_files; f++) {
                uint64_t size = (uint64_t)(f * f * 37 % 101 * 1000);
                const struct dcp_file file = { .name = "f",
                                               .rank = f,
                                               .size_bytes = size };
                assert_int_equal(dcp_catalog_add_file(target.catalog, &file, NULL, NULL),
                                 0);
                total += size;
                most = size > most ? size : most;
            }
            assert_int_equal(dcp_deal(&target, n, &deal, NULL), 0);
            for (int w = 1; w < n_files; w++)
                assert_true(deal.part_of[w] >= deal.part_of[w - 1]);
            for (int i = 0; i < n; i++) {
                assert_true(deal.parts[i].size_bytes <=
                            total / (unsigned)n + most + (unsigned)n_files);
                sum += deal.parts[i].size_bytes;
                sum_files += deal.parts[i].n_files;
            }
            assert_int_equal(sum, total);
            assert_int_equal(sum_files, n_files);
            dcp_deal_fini(&deal);
            dcp_catalog_free(target.catalog);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_receipt_says_what_was_packed),
        cmocka_unit_test(a_receipt_that_is_torn_or_damaged_is_none),
        cmocka_unit_test(a_receipt_names_files_below_the_target),
        cmocka_unit_test(files_that_changed_are_found),
        cmocka_unit_test(what_all_parts_tell_is_taken_together),
        cmocka_unit_test(what_is_not_the_parts_is_refused),
        cmocka_unit_test(what_is_told_twice_is_refused),
        cmocka_unit_test(checksums_are_held_once_all_is_read),
        cmocka_unit_test(neighbours_go_together_and_bytes_are_even),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
