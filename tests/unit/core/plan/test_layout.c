/* Layouts against naive formulas: what torch.chunk, DeepSpeed's flat groups and its stage
 * 3 give to every rank, element by element. */
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
#define MAX_WORLD_SIZE 20
#define EVERYBODY (-1)

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* A catalog with every role, several groups, and awkward shapes. */
static struct dcp_catalog *random_catalog(uint64_t *seed)
{
    struct dcp_catalog *catalog;
    int n = 1 + (int)acts_pick(seed, 8);

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    for (int t = 0; t < n; t++) {
        int64_t shape[DCP_MAX_NDIM];
        char name[16];
        snprintf(name, sizeof name, "t%d", t);
        struct dcp_tensor tensor = { .name = name,
                                     .role = (enum dcp_role)acts_pick(seed, DCP_N_ROLES),
                                     .dtype = acts_pick(seed, 2) ? DCP_F32 : DCP_BF16,
                                     .shape = shape,
                                     .group = (int)acts_pick(seed, 3) };
        tensor.ndim = naive_shape(seed, MOST, shape);
        assert_int_equal(dcp_catalog_add_tensor(catalog, &tensor, NULL, NULL), 0);
    }
    return catalog;
}

static bool is_state(const struct dcp_tensor *tensor)
{
    return tensor->role == DCP_ROLE_MODEL || dcp_role_is_optim(tensor->role);
}

/* --- the rules, in the words of those who made them --- */

/* torch.chunk: pieces of ceil(rows / world_size) rows; the last ones smaller or empty. */
static int owner_dim0(const struct dcp_tensor *tensor, int64_t elem, int world_size)
{
    if (!is_state(tensor) || tensor->ndim == 0)
        return EVERYBODY;
    int64_t row = elem / (tensor->n_elems / tensor->shape[0]);
    return (int)(row / ceil_div(tensor->shape[0], world_size));
}

/* Stage 3: every parameter alone, padded to a multiple of the world size. */
static int owner_zero3(const struct dcp_tensor *tensor, int64_t elem, int world_size)
{
    if (!is_state(tensor))
        return EVERYBODY;
    int64_t padded = tensor->n_elems;
    while (padded % world_size)
        padded++;
    return (int)(elem / (padded / world_size));
}

/* Stages 1 and 2: the tensors of a group one behind the other, padded to 2 x world_size.
 */
static int owner_flat(const struct dcp_catalog *catalog, size_t t, int64_t elem,
                      int world_size)
{
    const struct dcp_tensor *tensor = &catalog->tensors[t];
    int64_t total = 0, before = 0;

    for (size_t u = 0; u < catalog->n_tensors; u++) {
        const struct dcp_tensor *other = &catalog->tensors[u];
        if (other->role != tensor->role || other->group != tensor->group)
            continue;
        before += u < t ? other->n_elems : 0;
        total += other->n_elems;
    }
    while (total % (2 * world_size))
        total++;
    return (int)((before + elem) / (total / world_size));
}

static int owner_of(const struct dcp_catalog *catalog, const char *layout, size_t t,
                    int64_t elem, int world_size)
{
    const struct dcp_tensor *tensor = &catalog->tensors[t];
    bool optim = dcp_role_is_optim(tensor->role);

    if (!strcmp(layout, "dim0"))
        return owner_dim0(tensor, elem, world_size);
    if (!strcmp(layout, "zero3"))
        return owner_zero3(tensor, elem, world_size);
    if (!strcmp(layout, "replicated") || !is_state(tensor) ||
        (!optim && strcmp(layout, "flat") != 0))
        return EVERYBODY;
    return owner_flat(catalog, t, elem, world_size);
}

/* --- */

/* Every rank has of a tensor exactly the elements that the rule gives it, and at most
 * one piece. */
static void check_tensor(const struct dcp_catalog *catalog, const char *layout, size_t t,
                         int world_size)
{
    const struct dcp_tensor *tensor = &catalog->tensors[t];
    bool held[MAX_WORLD_SIZE][MOST] = { { false } };
    int n_pieces[MAX_WORLD_SIZE] = { 0 };
    int64_t elems[MOST];

    for (size_t p = 0; p < tensor->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[tensor->first_piece + p];
        assert_in_range(piece->rank, 0, world_size - 1);
        assert_int_equal(piece->file, -1);
        assert_int_equal(n_pieces[piece->rank]++, 0);
        int64_t n = naive_elems(tensor, &piece->region, elems);
        for (int64_t k = 0; k < n; k++)
            held[piece->rank][elems[k]] = true;
    }
    for (int64_t e = 0; e < tensor->n_elems; e++) {
        int owner = owner_of(catalog, layout, t, e, world_size);
        for (int r = 0; r < world_size; r++)
            assert_int_equal(held[r][e], owner == EVERYBODY || owner == r);
    }
}

static void every_rule(void **state)
{
    (void)state;
    uint64_t seed = 21;

    for (int i = 0; i < 300; i++) {
        struct dcp_catalog *catalog = random_catalog(&seed);
        for (const char *const *layout = dcp_layout_names(); *layout; layout++) {
            int world_size = 1 + (int)acts_pick(&seed, MAX_WORLD_SIZE);
            assert_int_equal(dcp_layout_apply(catalog, *layout, world_size, NULL), 0);
            assert_true(catalog->sorted);
            assert_int_equal(catalog->world_size, world_size);
            assert_string_equal(catalog->layout, *layout);
            assert_int_equal(catalog->mesh.dp, world_size);
            assert_int_equal(dcp_catalog_check(catalog, NULL), 0);
            for (size_t t = 0; t < catalog->n_tensors; t++)
                check_tensor(catalog, *layout, t, world_size);
        }
        dcp_catalog_free(catalog);
    }
}

/* Numbers that others wrote down: elements of each rank. */
struct example {
    const char *layout;
    int world_size, ndim[3];
    int64_t shape[3][2];
    int64_t held[3][8]; /* of each tensor by each rank */
};

static void known_numbers(void **state)
{
    (void)state;
    static const struct example examples[] = {
        /* Parameters of 7 and 3 elements on 8 ranks: partitions of 2, three stay empty.
         */
        { "flat",
          8,
          { 1, 1, -1 },
          { { 7 }, { 3 } },
          { { 2, 2, 2, 1 }, { 0, 0, 0, 1, 2 } } },
        /* 10, 5 and 3 on 4 ranks: 18 padded to 24, the last rank has nothing. */
        { "flat",
          4,
          { 1, 1, 1 },
          { { 10 }, { 5 }, { 3 } },
          { { 6, 4 }, { 0, 2, 3 }, { 0, 0, 3 } } },
        /* torch.chunk of 10 rows into 4: 3, 3, 3, 1; of 9 into 8: 2, 2, 2, 2, 1. */
        { "dim0", 4, { 2, -1, -1 }, { { 10, 2 } }, { { 6, 6, 6, 2 } } },
        { "dim0", 8, { 1, 1, -1 }, { { 9 }, { 2 } }, { { 2, 2, 2, 2, 1 }, { 1, 1 } } },
        /* Stage 3: 10 elements on 4 ranks are 3, 3, 3, 1; a scalar is rank 0's. */
        { "zero3", 4, { 1, 0, -1 }, { { 10 } }, { { 3, 3, 3, 1 }, { 1 } } },
    };

    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        const struct example *example = &examples[i];
        struct dcp_catalog *catalog;
        assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
        for (int t = 0; t < 3 && example->ndim[t] >= 0; t++)
            naive_tensor(catalog, DCP_F32, example->ndim[t], example->shape[t]);
        assert_int_equal(
            dcp_layout_apply(catalog, example->layout, example->world_size, NULL), 0);
        for (size_t t = 0; t < catalog->n_tensors; t++) {
            int64_t held[8] = { 0 };
            for (size_t p = 0; p < catalog->n_pieces; p++)
                if (catalog->pieces[p].tensor == (int)t)
                    held[catalog->pieces[p].rank] +=
                        dcp_piece_elems(catalog, &catalog->pieces[p]);
            for (int r = 0; r < example->world_size; r++)
                assert_int_equal(held[r], example->held[t][r]);
        }
        dcp_catalog_free(catalog);
    }
}

static void refusals(void **state)
{
    (void)state;
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    assert_int_equal(dcp_layout_apply(catalog, "zero4", 2, &err), DCP_E_USAGE);
    assert_string_equal(err.message, "there is no layout 'zero4'");
    assert_non_null(strstr(err.hint, "zero"));
    assert_int_equal(dcp_layout_apply(catalog, "zero3", 0, NULL), DCP_E_USAGE);
    assert_int_equal(dcp_layout_apply(catalog, "zero3", -1, NULL), DCP_E_USAGE);
    assert_int_equal(dcp_layout_apply(catalog, "zero3", (1 << 20) + 1, NULL),
                     DCP_E_USAGE);
    dcp_catalog_free(catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule),
        cmocka_unit_test(known_numbers),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
