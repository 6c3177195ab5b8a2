/* merge: tensors and pieces from one catalog into another. */
#include "merge.h"
#include "base/mem.h"
#include "roles.h"
#include <string.h>

static int add_tensor(struct dcp_catalog *into, const struct dcp_tensor *tensor,
                      const struct dcp_merge_rule *rule, int *out_index,
                      struct dcp_error *err)
{
    struct dcp_tensor t = *tensor;
    const char *name = rule ? rule->name(rule->self, tensor) : tensor->name;

    *out_index = -1;
    if (!name)
        return DCP_OK;
    t.name = name;
    t.tied_to = NULL; /* names may change */
    if (name != tensor->name)
        t.role = dcp_role_of_name(name, &t.param);
    return dcp_catalog_add_tensor(into, &t, out_index, err);
}

static int add_piece(struct dcp_catalog *into, const struct dcp_piece *piece, int tensor,
                     int first_file, struct dcp_error *err)
{
    struct dcp_piece p = *piece;

    p.tensor = tensor;
    if (p.file >= 0)
        p.file += first_file;
    if (p.data) { /* memory belongs to a catalog that will be freed */
        void *data = dcp_catalog_alloc(into, (size_t)p.stored_size, 1);
        if (!data)
            return dcp_error_memory(err, "a tensor in memory");
        memcpy(data, p.data, (size_t)p.stored_size);
        p.data = data;
    }
    return dcp_catalog_add_piece(into, &p, err);
}

/* Ties between tensors that were both taken. */
static void add_ties(struct dcp_catalog *into, const struct dcp_catalog *from,
                     const int *index_of)
{
    for (size_t i = 0; i < from->n_tensors; i++) {
        const char *name = from->tensors[i].tied_to;
        int root = name ? dcp_catalog_find(from, name) : -1;
        if (root >= 0 && index_of[i] >= 0 && index_of[root] >= 0)
            into->tensors[index_of[i]].tied_to = into->tensors[index_of[root]].name;
    }
}

int dcp_merge_files(struct dcp_catalog *into, const struct dcp_catalog *from,
                    struct dcp_error *err)
{
    int first_file = (int)into->n_files;

    for (size_t i = 0; i < from->n_files; i++)
        DCP_TRY(dcp_catalog_add_file(into, &from->files[i], NULL, err));
    for (size_t i = 0; i < from->n_records; i++) {
        struct dcp_record record = from->records[i];
        record.file += first_file;
        DCP_TRY(dcp_catalog_add_record(into, &record, err));
    }
    return DCP_OK;
}

int dcp_merge(struct dcp_catalog *into, const struct dcp_catalog *from,
              const struct dcp_merge_rule *rule, struct dcp_error *err)
{
    DCP_CLEANUP_FREE int *index_of = dcp_mem_calloc(from->n_tensors, sizeof *index_of);
    int first_file = (int)into->n_files;

    if (!index_of)
        return dcp_error_memory(err, "a catalog");
    DCP_TRY(dcp_merge_files(into, from, err));
    for (size_t i = 0; i < from->n_tensors; i++)
        DCP_TRY(add_tensor(into, &from->tensors[i], rule, &index_of[i], err));
    add_ties(into, from, index_of);
    for (size_t i = 0; i < from->n_pieces; i++)
        if (index_of[from->pieces[i].tensor] >= 0)
            DCP_TRY(add_piece(into, &from->pieces[i], index_of[from->pieces[i].tensor],
                              first_file, err));
    return DCP_OK;
}

int dcp_merge_object(struct dcp_catalog *into, const struct dcp_catalog *from,
                     const char *name, struct dcp_error *err)
{
    int at = dcp_catalog_find_object(from, name);

    if (at < 0 || dcp_catalog_find_object(into, name) >= 0)
        return DCP_OK;
    return dcp_catalog_add_object(into, &from->objects[at], err);
}
