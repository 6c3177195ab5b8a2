/* folder: which files of ranks a folder has. */
#include "base/mem.h"
#include "base/str.h"
#include "fsdp.h"
#include <stdio.h>
#include <string.h>

static const char *const prefixes[] = {
    [DCP_FSDP_MODEL] = "model",
    [DCP_FSDP_OPTIM] = "optim",
    [DCP_FSDP_EXTRA] = "extra_state",
};

void dcp_fsdp_name(char out[80], enum dcp_fsdp_kind kind, int world_size, int rank)
{
    snprintf(out, 80, "%s_world_size_%d_rank_%d.pt", prefixes[kind], world_size, rank);
}

/* A decimal number without needless zeros. */
static bool take_number(const char **text, int *out)
{
    const char *p = *text;
    int n = 0;

    if (*p == '0' && p[1] >= '0' && p[1] <= '9')
        return false;
    for (; *p >= '0' && *p <= '9' && n <= DCP_FSDP_MAX_WORLD_SIZE; p++)
        n = 10 * n + (*p - '0');
    if (p == *text || n > DCP_FSDP_MAX_WORLD_SIZE)
        return false;
    *text = p;
    *out = n;
    return true;
}

static bool take_word(const char **text, const char *word)
{
    if (!dcp_str_starts(*text, word))
        return false;
    *text += strlen(word);
    return true;
}

static bool parse_name(const char *name, enum dcp_fsdp_kind *out_kind,
                       int *out_world_size, int *out_rank)
{
    for (size_t kind = 0; kind < DCP_ARRAY_LEN(prefixes); kind++) {
        const char *p = name;
        if (take_word(&p, prefixes[kind]) && take_word(&p, "_world_size_") &&
            take_number(&p, out_world_size) && take_word(&p, "_rank_") &&
            take_number(&p, out_rank) && !strcmp(p, ".pt")) {
            *out_kind = (enum dcp_fsdp_kind)kind;
            return *out_world_size > 0 && *out_rank < *out_world_size;
        }
    }
    return false;
}

/* The folder around a file; `base` is the file's own name. NULL: out of memory. */
static char *folder_of(const struct dcp_source *source, const char **out_base)
{
    const char *slash = source->is_dir ? NULL : strrchr(source->name, '/');

    *out_base = source->is_dir ? NULL : slash ? slash + 1 : source->name;
    return source->is_dir ? strdup(source->name)
           : slash        ? strndup(source->name, (size_t)(slash - source->name))
                          : strdup("");
}

bool dcp_fsdp_find(const struct dcp_source *source, char out_name[80])
{
    struct dcp_store_entry *entries = NULL;
    enum dcp_fsdp_kind kind;
    int world_size, rank;
    size_t n = 0;
    bool found = false;

    if (!source->is_dir) {
        const char *slash = strrchr(source->name, '/');
        const char *base = slash ? slash + 1 : source->name;
        found = parse_name(base, &kind, &world_size, &rank);
        if (found)
            dcp_fsdp_name(out_name, kind, world_size, rank);
        return found;
    }
    if (source->store->ops->list(source->store->self, source->name, &entries, &n, NULL))
        return false;
    for (size_t i = 0; i < n && !found; i++) {
        found = !entries[i].is_dir &&
                parse_name(entries[i].name, &kind, &world_size, &rank) && rank == 0;
        if (found)
            dcp_fsdp_name(out_name, kind, world_size, rank);
    }
    dcp_store_list_free(entries, n);
    return found;
}

/* -- all ranks ----------------------------------------------------------------------- */

/* What the folder has of one world size; world size 0: of the only one. */
static int look(struct dcp_fsdp_folder *f, const struct dcp_store_entry *entries,
                size_t n, struct dcp_error *err)
{
    enum dcp_fsdp_kind kind;
    int world_size, rank;

    for (size_t i = 0; i < n; i++) {
        if (entries[i].is_dir || !parse_name(entries[i].name, &kind, &world_size, &rank))
            continue;
        if (!f->world_size)
            f->world_size = world_size;
        if (f->world_size != world_size)
            return dcp_error_set(
                err, DCP_E_UNSUPPORTED, "the folder '%s' has files of %d and of %d ranks",
                f->dir[0] ? f->dir : f->source.store->root, f->world_size, world_size);
        f->has[kind] = true;
    }
    return DCP_OK;
}

/* As above, of the world size that a file's name says. */
static void look_for(struct dcp_fsdp_folder *f, const struct dcp_store_entry *entries,
                     size_t n)
{
    enum dcp_fsdp_kind kind;
    int world_size, rank;

    for (size_t i = 0; i < n; i++)
        if (!entries[i].is_dir &&
            parse_name(entries[i].name, &kind, &world_size, &rank) &&
            world_size == f->world_size)
            f->has[kind] = true;
}

static int check_ranks(const struct dcp_fsdp_folder *f, struct dcp_error *err)
{
    char name[80];

    for (int kind = 0; kind < DCP_FSDP_N_KINDS; kind++)
        for (int rank = 0; f->has[kind] && rank < f->world_size; rank++) {
            dcp_fsdp_name(name, (enum dcp_fsdp_kind)kind, f->world_size, rank);
            if (dcp_source_has(&f->source, name))
                continue;
            dcp_error_set(err, DCP_E_NOT_FOUND,
                          "'%s' is missing: each of %d ranks saved such a file", name,
                          f->world_size);
            dcp_error_hint(err, "bring the files of all ranks into one folder");
            return DCP_E_NOT_FOUND;
        }
    return DCP_OK;
}

int dcp_fsdp_open(struct dcp_fsdp_folder *out, const struct dcp_source *source,
                  struct dcp_error *err)
{
    struct dcp_store_entry *entries = NULL;
    enum dcp_fsdp_kind kind;
    const char *base;
    size_t n = 0;
    int rank;

    *out = (struct dcp_fsdp_folder){ .dir = folder_of(source, &base) };
    if (!out->dir)
        return dcp_error_memory(err, "a file name");
    out->source =
        (struct dcp_source){ .store = source->store, .name = out->dir, .is_dir = true };
    if (base)
        parse_name(base, &kind, &out->world_size, &rank);
    int rc = source->store->ops->list(source->store->self, out->dir, &entries, &n, err);
    if (!rc && out->world_size)
        look_for(out, entries, n);
    else if (!rc)
        rc = look(out, entries, n, err);
    dcp_store_list_free(entries, n);
    if (rc == DCP_E_UNSUPPORTED)
        dcp_error_hint(err, "name one file of the world size that is meant");
    if (!rc && !out->world_size)
        rc = dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' has no files of FSDP's ranks",
                           out->dir[0] ? out->dir : source->store->root);
    return rc ? rc : check_ranks(out, err);
}

void dcp_fsdp_close(struct dcp_fsdp_folder *folder)
{
    free(folder->dir);
    *folder = (struct dcp_fsdp_folder){ 0 };
}
