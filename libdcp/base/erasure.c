#include "erasure.h"
#include "mem.h"
#include <isa-l.h>
#include <limits.h>
#include <string.h>

#define TABLE_BYTES 32 /* of one element of a matrix, for ec_encode_data */

struct dcp_erasure {
    int k, m;
    unsigned char *matrix; /* k + m rows of k */
    unsigned char *tables; /* of the last m rows */
};

int dcp_erasure_new(int k, int m, struct dcp_erasure **out, struct dcp_error *err)
{
    *out = NULL;
    if (k < 1 || m < 1 || k > DCP_ERASURE_MAX_UNITS - m)
        return dcp_error_set(err, DCP_E_USAGE, "%d parity units for %d are none", m, k);
    struct dcp_erasure *e = calloc(1, sizeof *e);
    if (!e)
        return dcp_error_memory(err, "an erasure code");
    *e = (struct dcp_erasure){ .k = k, .m = m };
    e->matrix = dcp_mem_calloc((size_t)(k + m), (size_t)k);
    e->tables = dcp_mem_calloc((size_t)k * (size_t)m, TABLE_BYTES);
    if (!e->matrix || !e->tables) {
        dcp_erasure_free(e);
        return dcp_error_memory(err, "an erasure code");
    }
    gf_gen_cauchy1_matrix(e->matrix, k + m, k);
    ec_init_tables(k, m, e->matrix + (size_t)k * (size_t)k, e->tables);
    *out = e;
    return DCP_OK;
}

void dcp_erasure_free(struct dcp_erasure *erasure)
{
    if (!erasure)
        return;
    free(erasure->matrix);
    free(erasure->tables);
    free(erasure);
}

/* ISA-L declares its inputs without const, and lengths as int. */
static void combine(size_t n, int k, int rows, unsigned char *tables,
                    unsigned char *const *in, unsigned char *const *out)
{
    for (size_t at = 0; at < n;) {
        unsigned char *from[DCP_ERASURE_MAX_UNITS], *to[DCP_ERASURE_MAX_UNITS];
        int part = n - at < INT_MAX / 2 ? (int)(n - at) : INT_MAX / 2;
        for (int i = 0; i < k; i++)
            from[i] = in[i] + at;
        for (int i = 0; i < rows; i++)
            to[i] = out[i] + at;
        ec_encode_data(part, k, rows, tables, from, to);
        at += (size_t)part;
    }
}

void dcp_erasure_encode(const struct dcp_erasure *e, size_t n,
                        const unsigned char *const *data, unsigned char *const *parity)
{
    combine(n, e->k, e->m, e->tables, (unsigned char *const *)data, parity);
}

/* The row of the matrix that gives unit i from the chosen k good ones: that of the unit,
 * times the inverse of theirs. */
static void row_of(const struct dcp_erasure *e, const unsigned char *inverse, int i,
                   unsigned char *out)
{
    const unsigned char *row = e->matrix + (size_t)i * (size_t)e->k;

    for (int c = 0; c < e->k; c++) {
        out[c] = 0;
        for (int r = 0; r < e->k; r++)
            out[c] ^= gf_mul(row[r], inverse[(size_t)r * (size_t)e->k + (size_t)c]);
    }
}

int dcp_erasure_rebuild(const struct dcp_erasure *e, size_t n,
                        unsigned char *const *units, const bool *good,
                        struct dcp_error *err)
{
    unsigned char *from[DCP_ERASURE_MAX_UNITS], *to[DCP_ERASURE_MAX_UNITS];
    size_t k = (size_t)e->k, square = k * k;
    int chosen = 0, n_bad = 0;

    for (int i = 0; i < e->k + e->m; i++)
        n_bad += !good[i];
    if (n_bad == 0)
        return DCP_OK;
    if (n_bad > e->m)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "%d units of %d are lost, not %d at most", n_bad,
                             e->k + e->m, e->m);
    DCP_CLEANUP_FREE unsigned char *rows = malloc(square);
    DCP_CLEANUP_FREE unsigned char *inverse = malloc(square);
    DCP_CLEANUP_FREE unsigned char *wanted = malloc((size_t)n_bad * k);
    DCP_CLEANUP_FREE unsigned char *tables = malloc((size_t)n_bad * k * TABLE_BYTES);
    if (!rows || !inverse || !wanted || !tables)
        return dcp_error_memory(err, "a repair");
    for (int i = 0; i < e->k + e->m && chosen < e->k; i++) {
        if (!good[i])
            continue;
        memcpy(rows + (size_t)chosen * k, e->matrix + (size_t)i * k, k);
        from[chosen++] = units[i];
    }
    if (gf_invert_matrix(rows, inverse, e->k))
        return dcp_error_set(err, DCP_E_CORRUPT, "the units cannot be rebuilt");
    n_bad = 0;
    for (int i = 0; i < e->k + e->m; i++) {
        if (good[i])
            continue;
        row_of(e, inverse, i, wanted + (size_t)n_bad * k);
        to[n_bad++] = units[i];
    }
    ec_init_tables(e->k, n_bad, wanted, tables);
    combine(n, e->k, n_bad, tables, from, to);
    return DCP_OK;
}
