/* Promise d: with parity k + m any m lost or corrupt shards are rebuilt bit for bit, by
 * repair in their folder and by load in memory; with more lost nothing is changed. */
#include "base/bytes.h"
#include "base/mem.h"
#include "lib/acts.h"
#include "lib/fault.h"
#include "lib/slower.h"
#include "lib/step_files.h"
#include "port/store/mem.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

#define STEP "step-00000002"
enum { UNIT = 65536, MAX_MEMBERS = 24, MAX_RANGES = 128 };

static const struct kind {
    int world_size, rows;
    enum dcp_codec codec;
} kinds[] = {
    { 8, 2, DCP_CODEC_NONE }, { 1, 2, DCP_CODEC_NONE },  { 2, 1, DCP_CODEC_PLANES },
    { 5, 3, DCP_CODEC_ZSTD }, { 3, 4, DCP_CODEC_SPLIT },
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* Steps 1 and 2 of a run; step 2 is what gets corrupt. */
struct run {
    struct kind kind;
    struct dcp_store store;
    struct step_files files;
};

static void make_run(struct run *run, const struct kind *kind)
{
    const struct dcp_save_options more = { .parity = kind->rows };
    struct acts acts = { .store = &run->store,
                         .layout = "zero3",
                         .world_size = kind->world_size,
                         .codec = kind->codec,
                         .more = &more };

    run->kind = *kind;
    assert_int_equal(dcp_store_mem(&run->store, NULL), 0);
    for (acts.step = 1; acts.step <= 2; acts.step++) {
        acts.salt = (unsigned)acts.step;
        assert_int_equal(acts_save(&acts), 0);
    }
    step_files_read(&run->files, &run->store, STEP);
    assert_int_equal(run->files.n, 2 * kind->world_size + kind->rows + 1);
}

static void free_run(struct run *run)
{
    step_files_free(&run->files);
    dcp_store_free(&run->store);
}

/* -- what can be lost: the files of a rank, a parity file, the manifest ------------- */

static int n_members(const struct run *run)
{
    return run->kind.world_size + run->kind.rows + 1;
}

/* Names of the files of a member; one or two. */
static int member_files(const struct run *run, int member, char out[2][80])
{
    int world_size = run->kind.world_size, rows = run->kind.rows;

    if (member < world_size) {
        snprintf(out[0], 80, "shard-%05d-of-%05d.safetensors", member, world_size);
        snprintf(out[1], 80, "shard-%05d-of-%05d.pieces", member, world_size);
        return 2;
    }
    if (member < world_size + rows)
        snprintf(out[0], 80, "parity-%05d-of-%05d.bin", member - world_size, rows);
    else
        snprintf(out[0], 80, "manifest.json");
    return 1;
}

static void lose(const struct run *run, int member)
{
    char names[2][80];

    for (int i = member_files(run, member, names) - 1; i >= 0; i--)
        step_files_remove(&run->files, names[i]);
}

/* -- afterwards ---------------------------------------------------------------------- */

static void check_load(const struct run *run, int64_t want)
{
    struct acts acts = { .store = &run->store,
                         .layout = "dim0",
                         .world_size = 2,
                         .step = -1,
                         .salt = (unsigned)want };

    assert_int_equal(acts_load(&acts), 0);
    assert_int_equal(acts.loaded_step, want);
    assert_int_equal(acts.wrong, 0);
}

static void check_repair(const struct run *run)
{
    struct dcp_error err = { 0 };
    struct dcp_repair_result result = { 0 };

    if (dcp_repair(&run->store, STEP, NULL, &result, &err))
        fail_msg("%s", err.message);
    assert_true(result.n_files > 0);
    assert_true(step_files_same(&run->files));
}

static void check_reconstructs(const struct run *run)
{
    check_load(run, 2);
    check_repair(run);
}

/* What parity cannot reconstruct stays as it is, and the step before is taken. */
static void check_refuses(const struct run *run)
{
    struct step_files before;
    struct dcp_error err = { 0 };

    step_files_read(&before, &run->store, STEP);
    int rc = dcp_repair(&run->store, STEP, NULL, NULL, &err);
    if (rc != DCP_E_CORRUPT && rc != DCP_E_NOT_FOUND)
        fail_msg("%d: %s", rc, err.message);
    assert_true(step_files_same(&before));
    step_files_free(&before);
    check_load(run, 1);
    step_files_restore_all(&run->files);
}

/* -- tests --------------------------------------------------------------------------- */

/* Every choice of so many members: the next one in order, false after the last. */
static bool next_choice(int *chosen, int n, int of)
{
    int i = n - 1;

    while (i >= 0 && chosen[i] == of - n + i)
        i--;
    if (i < 0)
        return false;
    for (chosen[i]++; ++i < n;)
        chosen[i] = chosen[i - 1] + 1;
    return true;
}

static void each_choice_is_rebuilt(void **state)
{
    (void)state;
    int seen = 0;
    for (int k = 0; k < N_KINDS; k++) {
        struct run run;
        make_run(&run, &kinds[k]);
        for (int n = 1; n <= run.kind.rows; n++) {
            int chosen[MAX_MEMBERS];
            for (int i = 0; i < n; i++)
                chosen[i] = i;
            do {
                if (seen++ % SLOWER)
                    continue;
                for (int i = 0; i < n; i++)
                    lose(&run, chosen[i]);
                check_reconstructs(&run);
            } while (next_choice(chosen, n, n_members(&run)));
        }
        free_run(&run);
    }
}

static void one_more_is_refused(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        struct run run;
        make_run(&run, &kinds[k]);
        int lost = 0, last = run.kind.world_size + run.kind.rows;
        /* Shards first, and as many parity files as are needed. */
        for (int m = 0; m < last && lost <= run.kind.rows; m++, lost++)
            lose(&run, m);
        check_refuses(&run);
        free_run(&run);
    }
}

static void nothing_is_repaired_where_nothing_is_wrong(void **state)
{
    struct run run;
    struct dcp_repair_result result = { .n_files = 9 };

    (void)state;
    make_run(&run, &kinds[0]);
    assert_int_equal(dcp_repair(&run.store, STEP, NULL, &result, NULL), 0);
    assert_int_equal(result.n_files, 0);
    assert_true(step_files_same(&run.files));
    lose(&run, 3);
    lose(&run, 8);
    assert_int_equal(dcp_repair(&run.store, STEP, NULL, &result, NULL), 0);
    assert_int_equal(result.n_files, 3);
    free_run(&run);
}

/* Where a stripe lies in a member: part of a file; false: nowhere. */
struct range {
    size_t file, begin, end;
};

static bool range_of(const struct run *run, int member, size_t stripe, struct range *out)
{
    char names[2][80];
    int n = member_files(run, member, names), world_size = run->kind.world_size;
    size_t file = step_files_find(&run->files, names[0]);
    size_t record = UNIT + (size_t)(world_size + run->kind.rows + 1) * 8;

    if (member >= world_size) {
        size_t head = 16 + (size_t)dcp_le64(run->files.files[file].data);
        *out =
            (struct range){ file, head + stripe * record, head + (stripe + 1) * record };
        return out->end <= run->files.files[file].n;
    }
    for (int i = 0; i < n; i++) {
        file = step_files_find(&run->files, names[i]);
        size_t size = run->files.files[file].n, units = (size + UNIT - 1) / UNIT;
        if (stripe < units) {
            size_t end = (stripe + 1) * UNIT;
            *out = (struct range){ file, stripe * UNIT, end < size ? end : size };
            return true;
        }
        stripe -= units;
    }
    return false;
}

/* Heads of parity files and the manifest are a stripe, its copies and the manifest
 * another. */
static bool ends_of(const struct run *run, int member, bool tail, struct range *out)
{
    char names[2][80];
    struct range last = { 0 }, next;
    size_t stripe = 0;

    if (member < run->kind.world_size)
        return false;
    member_files(run, member, names);
    size_t file = step_files_find(&run->files, names[0]);
    if (member == run->kind.world_size + run->kind.rows) {
        *out = (struct range){ file, 0, run->files.files[file].n };
        return true;
    }
    if (!tail) {
        *out =
            (struct range){ file, 0, 16 + (size_t)dcp_le64(run->files.files[file].data) };
        return true;
    }
    while (stripe < 64 && range_of(run, member, stripe, &next)) {
        last = next;
        for (int c = 0, any = 0; c < run->kind.world_size; c++) {
            struct range column;
            any |= range_of(run, c, stripe, &column);
            if (c == run->kind.world_size - 1 && !any)
                goto found;
        }
        stripe++;
    }
found:
    if (stripe == 0)
        return false;
    range_of(run, member, stripe - 1, &last);
    *out = (struct range){ file, last.end, run->files.files[file].n };
    return out->begin < out->end;
}

/* Some corruption in a range of a file's copy. */
static void spoil(unsigned char *data, const struct range *range, uint64_t *random)
{
    size_t n = range->end - range->begin;
    size_t at = range->begin + (size_t)acts_pick(random, (int64_t)n);

    switch (acts_pick(random, 3)) {
    case 0: /* a bit */
        data[at] ^= (unsigned char)(1 << acts_pick(random, 8));
        break;
    case 1: /* a sector of zeros */
        for (size_t i = at; i < range->end && i < at + 512; i++)
            data[i] = (unsigned char)(data[i] ? 0 : 1);
        break;
    default: /* all of it */
        for (size_t i = range->begin; i < range->end; i++)
            data[i] = (unsigned char)~data[i];
    }
}

/* Up to so many members of each stripe, at random, in copies of the files. */
static void spoil_stripes(const struct run *run, unsigned char **copies, uint64_t *random)
{
    int members = run->kind.world_size + run->kind.rows;
    struct range range;

    for (size_t stripe = 0; stripe < 64; stripe++) {
        bool any = false;
        for (int c = 0; c < run->kind.world_size; c++)
            any |= range_of(run, c, stripe, &range);
        if (!any)
            break;
        bool hit[MAX_MEMBERS] = { false };
        for (int64_t i = acts_pick(random, run->kind.rows + 1); i > 0; i--) {
            int m = (int)acts_pick(random, members);
            if (!hit[m] && range_of(run, m, stripe, &range))
                spoil(copies[range.file], &range, random);
            hit[m] = true;
        }
    }
    /* The manifest has its copies in the tails: not all of them at once. */
    for (int tail = 0; tail < 2; tail++)
        for (int64_t i = acts_pick(random, run->kind.rows + 1); i > 0; i--) {
            int m = run->kind.world_size + (int)acts_pick(random, run->kind.rows + tail);
            if (ends_of(run, m, tail, &range))
                spoil(copies[range.file], &range, random);
        }
}

static void random_corruption_is_rebuilt(void **state)
{
    const char *trials = getenv("DCP_TEST_TRIALS");
    const long n_trials = trials ? strtol(trials, NULL, 10) : 40 / SLOWER;
    uint64_t random = 20261121;

    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        struct run run;
        make_run(&run, &kinds[k]);
        for (long trial = 0; trial < n_trials; trial++) {
            unsigned char *copies[64];
            for (size_t f = 0; f < run.files.n; f++) {
                copies[f] = malloc(run.files.files[f].n);
                memcpy(copies[f], run.files.files[f].data, run.files.files[f].n);
            }
            spoil_stripes(&run, copies, &random);
            bool spoiled = false;
            for (size_t f = 0; f < run.files.n; f++) {
                if (memcmp(copies[f], run.files.files[f].data, run.files.files[f].n)) {
                    step_files_put(&run.files, run.files.files[f].name, copies[f],
                                   run.files.files[f].n);
                    spoiled = true;
                }
                free(copies[f]);
            }
            if (spoiled)
                check_reconstructs(&run);
        }
        free_run(&run);
    }
}

static void cut_and_grown_files_are_rebuilt(void **state)
{
    struct run run;

    (void)state;
    make_run(&run, &kinds[0]);
    for (size_t f = 0; f < run.files.n; f++) {
        size_t n = run.files.files[f].n;
        unsigned char *grown = calloc(1, n + 100);
        memcpy(grown, run.files.files[f].data, n);
        step_files_put(&run.files, run.files.files[f].name, grown, n + 100);
        check_repair(&run);
        step_files_put(&run.files, run.files.files[f].name, grown, n - 1);
        check_reconstructs(&run);
        step_files_put(&run.files, run.files.files[f].name, grown, 0);
        check_reconstructs(&run);
        free(grown);
    }
    free_run(&run);
}

/* Files of the step before have the same size, but are not those of this step. */
static void stale_and_exchanged_files_are_rebuilt(void **state)
{
    struct run run;
    struct step_files old;
    char a[2][80], b[2][80];

    (void)state;
    make_run(&run, &kinds[0]);
    step_files_read(&old, &run.store, "step-00000001");
    for (size_t f = 0; f < run.files.n; f++) {
        step_files_put(&run.files, old.files[f].name, old.files[f].data, old.files[f].n);
        check_reconstructs(&run);
    }
    step_files_free(&old);
    member_files(&run, 2, a);
    member_files(&run, 5, b);
    for (int i = 0; i < 2; i++) {
        size_t x = step_files_find(&run.files, a[i]),
               y = step_files_find(&run.files, b[i]);
        step_files_put(&run.files, a[i], run.files.files[y].data, run.files.files[y].n);
        step_files_put(&run.files, b[i], run.files.files[x].data, run.files.files[x].n);
    }
    check_reconstructs(&run);
    member_files(&run, 8, a);
    member_files(&run, 9, b);
    size_t x = step_files_find(&run.files, a[0]), y = step_files_find(&run.files, b[0]);
    step_files_put(&run.files, a[0], run.files.files[y].data, run.files.files[y].n);
    step_files_put(&run.files, b[0], run.files.files[x].data, run.files.files[x].n);
    check_repair(&run);
    free_run(&run);
}

/* A repair that fails at any operation, tears it or stops there, with the power gone or
 * not, leaves what the next one repairs. */
/* Where nothing is left that says what a stripe was, what repair would write is held
 * against the digests of the files. */
static void what_cannot_be_proved_is_not_rebuilt(void **state)
{
    struct run run;
    struct dcp_error err = { 0 };

    (void)state;
    make_run(&run, &kinds[2]);
    size_t f = step_files_find(&run.files, "parity-00000-of-00001.bin");
    size_t g = step_files_find(&run.files, "shard-00001-of-00002.safetensors");
    size_t head = 16 + (size_t)dcp_le64(run.files.files[f].data);
    size_t n = run.files.files[f].n, shard_n = run.files.files[g].n;
    unsigned char *parity = malloc(n), *shard = malloc(shard_n);
    assert_true(parity && shard);
    memcpy(parity, run.files.files[f].data, n);
    memcpy(shard, run.files.files[g].data, shard_n);
    memset(parity + head + UNIT, 0, 8); /* of the first trailer */
    shard[1000] ^= 1;
    step_files_put(&run.files, run.files.files[f].name, parity, n);
    step_files_put(&run.files, run.files.files[g].name, shard, shard_n);
    assert_int_equal(dcp_repair(&run.store, STEP, NULL, NULL, &err), DCP_E_CORRUPT);
    assert_non_null(strstr(err.message, "shard-00001-of-00002.safetensors"));
    struct step_files after;
    step_files_read(&after, &run.store, STEP);
    assert_memory_equal(after.files[f].data, parity, n);
    assert_memory_equal(after.files[g].data, shard, shard_n);
    step_files_free(&after);
    free(parity);
    free(shard);
    free_run(&run);
}

static void the_lease_is_held_while_it_is_repaired(void **state)
{
    struct run run;

    (void)state;
    make_run(&run, &kinds[2]);
    lose(&run, 0);
    assert_int_equal(run.store.ops->lock(run.store.self, NULL), 0);
    assert_int_equal(dcp_repair(&run.store, STEP, NULL, NULL, NULL), DCP_E_BUSY);
    run.store.ops->unlock(run.store.self);
    check_repair(&run);
    free_run(&run);
}

/* A head that lost a bit does not speak, even where nobody contradicts but the manifest:
 * what is lost is rebuilt all the same. */
static void corrupt_heads_do_not_count(void **state)
{
    struct run run;
    unsigned char copy[4096];

    (void)state;
    make_run(&run, &kinds[2]);
    size_t f = step_files_find(&run.files, "parity-00000-of-00001.bin");
    size_t head = 16 + (size_t)dcp_le64(run.files.files[f].data);
    size_t n = run.files.files[f].n;
    assert_in_range(head, 17, sizeof copy);
    for (size_t at = 0; at < 8 * head; at += 131 * SLOWER) {
        unsigned char *data = malloc(n);
        assert_non_null(data);
        memcpy(data, run.files.files[f].data, n);
        data[at / 8] ^= (unsigned char)(1 << at % 8);
        step_files_put(&run.files, run.files.files[f].name, data, n - 1);
        step_files_remove(&run.files, "shard-00001-of-00002.safetensors");
        check_load(&run, 2);
        check_repair(&run);
        free(data);
    }
    free_run(&run);
}

static void interrupted_repair_can_be_repeated(void **state)
{
    static const enum fault_kind how[] = { FAULT_FAIL, FAULT_TEAR, FAULT_STOP };
    struct run run;

    (void)state;
    make_run(&run, &kinds[2]);
    for (size_t h = 0; h < sizeof how / sizeof how[0]; h++)
        for (int crash = 0; crash < 2; crash++)
            for (uint64_t at = 1;; at += SLOWER) {
                struct fault fault = { how[h], at, 0 };
                struct dcp_store broken;
                struct dcp_error err = { 0 };
                lose(&run, 1);
                run.store.ops->sync_dir(run.store.self, STEP, NULL);
                assert_int_equal(fault_store(&broken, &run.store, &fault, NULL), 0);
                dcp_repair(&broken, STEP, NULL, NULL, &err);
                dcp_store_free(&broken);
                run.store.ops->unlock(run.store.self);
                if (crash)
                    assert_int_equal(dcp_store_mem_crash(&run.store, NULL), 0);
                check_load(&run, 2);
                if (dcp_repair(&run.store, STEP, NULL, NULL, &err))
                    fail_msg("%s", err.message);
                assert_true(step_files_same(&run.files));
                if (fault.count < at)
                    break;
            }
    free_run(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_choice_is_rebuilt),
        cmocka_unit_test(one_more_is_refused),
        cmocka_unit_test(nothing_is_repaired_where_nothing_is_wrong),
        cmocka_unit_test(random_corruption_is_rebuilt),
        cmocka_unit_test(cut_and_grown_files_are_rebuilt),
        cmocka_unit_test(stale_and_exchanged_files_are_rebuilt),
        cmocka_unit_test(what_cannot_be_proved_is_not_rebuilt),
        cmocka_unit_test(the_lease_is_held_while_it_is_repaired),
        cmocka_unit_test(corrupt_heads_do_not_count),
        cmocka_unit_test(interrupted_repair_can_be_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
