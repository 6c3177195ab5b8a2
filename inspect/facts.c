#include "facts.h"

#include "base/mem.h"
#include "base/str.h"
#include <stdio.h>
#include <string.h>

static void count_groups(const struct dcp_catalog *catalog, struct inspect_facts *facts)
{
    for (size_t i = 0; i < catalog->n_tensors; i++) {
        const struct dcp_tensor *t = &catalog->tensors[i];
        struct inspect_group *g =
            &facts->groups[(size_t)t->role * DCP_N_DTYPES + (size_t)t->dtype];
        g->role = t->role;
        g->dtype = t->dtype;
        g->quantized = t->quantized != NULL;
        g->n_tensors++;
        g->n_elems += (uint64_t)t->n_elems;
        g->size_bytes += dcp_tensor_bytes(t);
        facts->role_tensors[t->role]++;
        facts->tensor_bytes += dcp_tensor_bytes(t);
    }
    for (size_t i = 0; i < (size_t)DCP_N_ROLES * DCP_N_DTYPES; i++)
        if (facts->groups[i].n_tensors)
            facts->groups[facts->n_groups++] = facts->groups[i];
}

/* Where a weight lies; equal places are one weight under two names. */
struct spot {
    int file;
    uint64_t offset;
    int64_t n_elems;
};

static int compare_spots(const void *a, const void *b)
{
    const struct spot *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->n_elems < y->n_elems ? -1 : x->n_elems > y->n_elems;
}

static int count_params(const struct dcp_catalog *catalog, struct inspect_facts *facts,
                        struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct spot *spots =
        dcp_mem_calloc(catalog->n_tensors, sizeof *spots);
    struct dcp_identity *identity = NULL;
    size_t n = 0;
    if (!spots)
        return dcp_error_memory(err, "the places of the weights");
    int rc = dcp_identity_new(catalog, &identity, err);
    for (size_t i = 0; i < catalog->n_tensors && !rc; i++) {
        const struct dcp_tensor *t = &catalog->tensors[i];
        /* Where only masters are stored they are the weights. */
        if (t->role != DCP_ROLE_MODEL &&
            (t->role != DCP_ROLE_MASTER ||
             dcp_identity_find(identity, DCP_ROLE_MODEL, t->param) >= 0))
            continue;
        if (t->tied_to) {
            facts->n_tied++;
            continue;
        }
        const struct dcp_piece *piece =
            t->n_pieces == 1 ? &catalog->pieces[t->first_piece] : NULL;
        if (piece && piece->file >= 0 && t->n_elems > 0)
            spots[n++] = (struct spot){ piece->file, piece->offset, t->n_elems };
        facts->n_params += (uint64_t)t->n_elems;
    }
    dcp_identity_free(identity);
    qsort(spots, n, sizeof *spots, compare_spots);
    for (size_t i = 1; i < n; i++)
        if (compare_spots(&spots[i - 1], &spots[i]) == 0) {
            facts->n_params -= (uint64_t)spots[i].n_elems;
            facts->n_tied++;
        }
    return rc;
}

static int measure_shards(const struct dcp_catalog *catalog, struct inspect_facts *facts,
                          struct dcp_error *err)
{
    DCP_CLEANUP_FREE bool *holds = dcp_mem_calloc(catalog->n_files, sizeof *holds);
    if (!holds)
        return dcp_error_memory(err, "the list of files");
    for (size_t i = 0; i < catalog->n_pieces; i++) {
        const struct dcp_piece *p = &catalog->pieces[i];
        facts->has_digests =
            facts->has_digests || catalog->n_records || p->blocks || p->has_crc;
        if (p->file >= 0)
            holds[p->file] = true;
    }
    facts->has_digests |= catalog->head; /* in the tables of its pieces */
    facts->shard_least = UINT64_MAX;
    for (size_t i = 0; i < catalog->n_files; i++) {
        uint64_t size = catalog->files[i].size_bytes;
        if (!holds[i] && !catalog->files[i].n_pieces)
            continue;
        facts->n_shards++;
        facts->shard_bytes += size;
        facts->shard_least = size < facts->shard_least ? size : facts->shard_least;
        facts->shard_most = size > facts->shard_most ? size : facts->shard_most;
    }
    if (!facts->n_shards)
        facts->shard_least = 0;
    return DCP_OK;
}

/* Moments of all parameters of the model, or state of another kind. */
static bool has_moments(const struct dcp_catalog *catalog,
                        const struct inspect_facts *facts)
{
    static const enum dcp_role roles[] = { DCP_ROLE_EXP_AVG, DCP_ROLE_EXP_AVG_SQ };
    char first[64];
    if (facts->role_tensors[DCP_ROLE_OPTIM] > 0)
        return true;
    for (size_t i = 0; i < DCP_ARRAY_LEN(roles); i++)
        if (facts->role_tensors[roles[i]] == 0 ||
            dcp_family_lacks(&facts->family, catalog, roles[i], -1, first, sizeof first))
            return false;
    return true;
}

/* What a trainer needs to go on as if nothing had happened. */
static void find_missing(const struct dcp_catalog *catalog, struct inspect_facts *facts)
{
    static const struct {
        const char *object, *text;
    } needs[] = {
        { DCP_TRAINING_SCHEDULER, "scheduler" },
        { DCP_TRAINING_RNG, "random numbers" },
        { DCP_TRAINING_DATA, "data cursor" },
    };
    size_t used = 0;
    if (dcp_family_lacks(&facts->family, catalog, DCP_ROLE_MODEL, DCP_ROLE_MASTER,
                         facts->weight, sizeof facts->weight))
        used += (size_t)snprintf(facts->missing, sizeof facts->missing, "weight '%s'",
                                 facts->weight);
    facts->has_optimizer = has_moments(catalog, facts);
    if (!facts->has_optimizer)
        used += (size_t)snprintf(facts->missing + used, sizeof facts->missing - used,
                                 "%soptimizer", used ? ", " : "");
    for (size_t i = 0; i < DCP_ARRAY_LEN(needs) && used < sizeof facts->missing; i++)
        if (dcp_catalog_find_object(catalog, needs[i].object) < 0)
            used += (size_t)snprintf(facts->missing + used, sizeof facts->missing - used,
                                     "%s%s", used ? ", " : "", needs[i].text);
}

int inspect_facts_gather(const struct dcp_catalog *catalog, struct inspect_facts *out,
                         struct dcp_error *err)
{
    *out = (struct inspect_facts){ 0 };
    out->groups = dcp_mem_calloc((size_t)DCP_N_ROLES * DCP_N_DTYPES, sizeof *out->groups);
    if (!out->groups)
        return dcp_error_memory(err, "the facts");
    count_groups(catalog, out);
    int rc = count_params(catalog, out, err);
    if (rc == DCP_OK)
        rc = measure_shards(catalog, out, err);
    if (rc) {
        inspect_facts_fini(out);
        return rc;
    }
    dcp_family_read(catalog, &out->family);
    find_missing(catalog, out);
    return DCP_OK;
}

void inspect_facts_fini(struct inspect_facts *facts)
{
    free(facts->groups);
    facts->groups = NULL;
}
