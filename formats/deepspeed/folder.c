/* folder: names of files, as DeepSpeed's engine makes them. */
#include "folder.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include <stdio.h>
#include <string.h>

#define SCRIPT "zero_to_fp32.py" /* lies beside the folders of the tags */
#define TAG "global_step"        /* how they begin unless somebody names them */

enum { SHOWN_BYTES = 160, MAX_NAMED = 4, MAX_LISTED = 64 };

const char *dcp_ds_shown(struct dcp_arena *arena, const char *name)
{
    char *shown = dcp_arena_alloc(arena, SHOWN_BYTES, 1);

    return shown ? dcp_str_escape(shown, SHOWN_BYTES, name) : "?";
}

/* -- names --------------------------------------------------------------------------- */

/* A file of a rank, spelled as DeepSpeed spells it: one of another spelling it ignores.
 *
 *   mp_rank_{mp:02d}_model_states.pt (dp -1)
 *   zero_pp_rank_{dp}_mp_rank_{mp:02d}_model_states.pt
 *   [bf16_|fp16_]zero_pp_rank_{dp}_mp_rank_{mp:02d}[_]optim_states.pt
 *
 * Very old files of an optimizer leave the last "_" out. */
struct name {
    int64_t dp, mp;
    bool optim, bf16;
};

/* Reads a number of at most seven digits, written with no more zeros before it than make
 * it so wide, and moves on. */
static bool take_number(const char **at, size_t width, int64_t *out)
{
    size_t n = strspn(*at, "0123456789");
    bool padded = n > width && **at == '0';

    *out = 0;
    for (size_t i = 0; i < n && n <= 7; i++)
        *out = *out * 10 + ((*at)[i] - '0');
    *at += n;
    return n >= width && n <= 7 && !padded;
}

static bool take_text(const char **at, const char *text)
{
    if (!dcp_str_starts(*at, text))
        return false;
    *at += strlen(text);
    return true;
}

static bool parse_name(const char *text, struct name *out)
{
    *out = (struct name){ .dp = -1, .bf16 = take_text(&text, "bf16_") };
    bool prefixed = out->bf16 || take_text(&text, "fp16_");
    if (take_text(&text, "zero_pp_rank_") &&
        (!take_number(&text, 1, &out->dp) || !take_text(&text, "_")))
        return false;
    if (!take_text(&text, "mp_rank_") || !take_number(&text, 2, &out->mp))
        return false;
    bool joined = take_text(&text, "_");
    out->optim = !strcmp(text, "optim_states.pt");
    if (out->optim)
        return out->dp >= 0;
    return joined && !prefixed && !strcmp(text, "model_states.pt");
}

/* What a file or folder tells of a checkpoint that is not read; NULL: nothing. */
static const char *foreign_part(const char *name, bool is_dir)
{
    if (is_dir)
        return !strcmp(name, "offloaded_tensors")
                   ? "optimizer state that was offloaded to NVMe"
                   : NULL;
    if (dcp_str_starts(name, "expp_rank_") ||
        (dcp_str_starts(name, "layer_") && strstr(name, "_expert_")))
        return "experts (MoE)";
    if (dcp_str_starts(name, "layer_") && dcp_str_ends(name, "-model_states.pt"))
        return "pipeline stages";
    return NULL;
}

/* -- the list ------------------------------------------------------------------------ */

struct list {
    struct dcp_arena *arena;
    struct dcp_ds_folder *folder;
    struct dcp_error *err;
    size_t cap_models, cap_optims; /* of arrays that are grown outside the arena */
    bool plain, bf16;              /* kinds of optimizer files that were seen */
    bool is_run;                   /* folders are in it that may be of tags */
};

static int put(struct list *list, const char ***names, int *n, size_t *cap, int64_t rank,
               const char *name)
{
    size_t want = (size_t)rank + 1;

    if (want > *cap) {
        const char **grown = dcp_mem_grow(*names, cap, want, sizeof *grown);
        if (!grown)
            return dcp_error_memory(list->err, "the files of a checkpoint");
        memset(grown + *n, 0, (*cap - (size_t)*n) * sizeof *grown);
        *names = grown;
    }
    if ((*names)[rank])
        return dcp_error_set(list->err, DCP_E_CORRUPT,
                             "'%s' and '%s' are both of rank %lld",
                             dcp_ds_shown(list->arena, (*names)[rank]),
                             dcp_ds_shown(list->arena, name), (long long)rank);
    (*names)[rank] = name;
    if (*n < (int)want)
        *n = (int)want;
    return DCP_OK;
}

static int take_file(struct list *list, const char *name)
{
    struct dcp_ds_folder *folder = list->folder;
    struct name parts;
    size_t size = strlen(folder->prefix) + strlen(name) + 1;

    if (!parse_name(name, &parts))
        return DCP_OK;
    folder->seen = true;
    char *path = dcp_arena_alloc(list->arena, size, 1);
    if (!path)
        return dcp_error_memory(list->err, "the files of a checkpoint");
    snprintf(path, size, "%s%s", folder->prefix, name);
    if (parts.mp > 0)
        return dcp_error_set(list->err, DCP_E_UNSUPPORTED,
                             "'%s' is of a second model-parallel rank; checkpoints of "
                             "tensor or pipeline parallel training are not supported",
                             dcp_ds_shown(list->arena, path));
    if (parts.dp >= DCP_DS_MAX_WORLD_SIZE)
        return dcp_error_set(list->err, DCP_E_UNSUPPORTED, "'%s' has a rank over %d",
                             dcp_ds_shown(list->arena, path), DCP_DS_MAX_WORLD_SIZE - 1);
    if (parts.dp < 0) {
        folder->model = path;
        return DCP_OK;
    }
    if (!parts.optim)
        return put(list, &folder->models, &folder->n_models, &list->cap_models, parts.dp,
                   path);
    list->plain = list->plain || !parts.bf16;
    list->bf16 = list->bf16 || parts.bf16;
    return put(list, &folder->optims, &folder->n_optims, &list->cap_optims, parts.dp,
               path);
}

/* Moves an array that was grown to the arena. */
static int settle(struct dcp_arena *arena, const char ***names, int n,
                  struct dcp_error *err)
{
    const char **kept = dcp_arena_copy(arena, *names, (size_t)n * sizeof *kept);

    free(*names);
    *names = kept;
    return kept ? DCP_OK : dcp_error_memory(err, "the files of a checkpoint");
}

static int take_entries(struct list *list, const struct dcp_store_entry *entries,
                        size_t n)
{
    struct dcp_ds_folder *folder = list->folder;

    for (size_t i = 0; i < n; i++) {
        const char *foreign = foreign_part(entries[i].name, entries[i].is_dir);
        folder->seen |= foreign && !entries[i].is_dir;
        if (foreign)
            return dcp_error_set(list->err, DCP_E_UNSUPPORTED,
                                 "'%s%s' holds %s, which is not supported",
                                 dcp_ds_shown(list->arena, folder->prefix),
                                 dcp_ds_shown(list->arena, entries[i].name), foreign);
        list->is_run |= !strcmp(entries[i].name, SCRIPT) ||
                        (entries[i].is_dir && dcp_str_starts(entries[i].name, TAG));
        if (entries[i].is_dir)
            folder->universal |= !strcmp(entries[i].name, "zero");
        else
            DCP_TRY(take_file(list, entries[i].name));
    }
    if (list->plain && list->bf16)
        return dcp_error_set(
            list->err, DCP_E_CORRUPT,
            "'%s' holds optimizer files with and without 'bf16_' in their "
            "names: they are of two saves",
            dcp_ds_shown(list->arena, folder->prefix));
    return DCP_OK;
}

static int list_files(const struct dcp_source *source, struct dcp_arena *arena,
                      struct dcp_ds_folder *folder, bool *out_is_run,
                      struct dcp_error *err)
{
    struct list list = { .arena = arena, .folder = folder, .err = err };
    struct dcp_store_entry *entries = NULL;
    size_t n = 0, len = strlen(folder->prefix);
    DCP_CLEANUP_FREE char *prefix = strndup(folder->prefix, len ? len - 1 : 0);
    DCP_CLEANUP_FREE char *path = !prefix ? NULL
                                  : len   ? dcp_source_path(source, prefix)
                                          : strdup(source->name);

    if (!path)
        return dcp_error_memory(err, "a file name");
    DCP_TRY(source->store->ops->list(source->store->self, path, &entries, &n, err));
    int rc = take_entries(&list, entries, n);
    dcp_store_list_free(entries, n);
    int settled = settle(arena, &folder->models, folder->n_models, rc ? NULL : err);
    rc = rc ? rc : settled;
    settled = settle(arena, &folder->optims, folder->n_optims, rc ? NULL : err);
    rc = rc ? rc : settled;
    if (rc)
        return rc;
    *out_is_run = list.is_run;
    folder->bf16 = list.bf16;
    folder->by_rank = folder->n_models > 0;
    if (folder->by_rank && folder->model) {
        dcp_error_set(err, DCP_E_CORRUPT,
                      "'%s' and '%s' are of two saves: ZeRO stage 3 has a file for each "
                      "rank, the others one for all",
                      dcp_ds_shown(arena, folder->model),
                      dcp_ds_shown(arena, folder->models[folder->n_models - 1]));
        dcp_error_hint(err, "remove the files of the older save");
        return DCP_E_CORRUPT;
    }
    if (folder->by_rank)
        folder->model = folder->models[0];
    return DCP_OK;
}

/* -- the tag ------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* The tag that a pointer file holds. */
static int read_tag(const struct dcp_source *source, const char *pointer,
                    struct dcp_arena *arena, const char **out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *data = NULL;
    size_t n;

    DCP_TRY(dcp_source_read(source, pointer, DCP_DS_MAX_TAG_BYTES, &data, &n, err));
    const char *text = data;
    while (n && is_space(text[n - 1]))
        n--;
    while (n && is_space(*text))
        text++, n--;
    char *tag = dcp_arena_text_n(arena, text, n);
    if (!tag)
        return dcp_error_memory(err, "a tag");
    if (memchr(text, 0, n) || strchr(tag, '/') || !dcp_store_name_ok(tag))
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' names no folder: '%s'", pointer,
                             dcp_ds_shown(arena, tag));
    *out = tag;
    return DCP_OK;
}

/* Whether a folder in the source's has a file of DeepSpeed's. */
static bool is_tag(const struct dcp_source *source, const char *name)
{
    DCP_CLEANUP_FREE char *path = dcp_source_path(source, name);
    const struct dcp_store *store = source->store;
    struct dcp_store_entry *entries = NULL;
    struct name parts;
    size_t n = 0;
    bool is = false;

    if (!path || store->ops->list(store->self, path, &entries, &n, NULL))
        return false;
    for (size_t i = 0; i < n && !is; i++)
        is = !entries[i].is_dir && parse_name(entries[i].name, &parts);
    dcp_store_list_free(entries, n);
    return is;
}

/* The names of the tags in a folder: "'a', 'b' and 2 more"; NULL: there are none. */
static const char *name_tags(const struct dcp_source *source, struct dcp_arena *arena)
{
    DCP_CLEANUP_BUF struct dcp_buf list = { 0 };
    const struct dcp_store *store = source->store;
    struct dcp_store_entry *entries = NULL;
    size_t n = 0;
    int named = 0;

    if (store->ops->list(store->self, source->name, &entries, &n, NULL))
        return NULL;
    for (size_t i = 0, listed = 0; i < n && listed < MAX_LISTED; i++) {
        if (!entries[i].is_dir || (listed++, !is_tag(source, entries[i].name)))
            continue;
        if (named++ < MAX_NAMED)
            dcp_buf_add_fmt(&list, "%s'%s'", named > 1 ? ", " : "",
                            dcp_ds_shown(arena, entries[i].name));
    }
    dcp_store_list_free(entries, n);
    if (named > MAX_NAMED)
        dcp_buf_add_fmt(&list, " and %d more", named - MAX_NAMED);
    return !named || list.failed ? NULL : dcp_arena_text(arena, (const char *)list.data);
}

/* A run whose tags nothing leads to; rc, and what is in err: why. */
static int refuse_tags(const struct dcp_source *source, const char *pointer,
                       struct dcp_arena *arena, struct dcp_ds_folder *out, int rc,
                       struct dcp_error *err)
{
    const char *tags = out->seen ? NULL : name_tags(source, arena);

    if (!tags)
        return rc;
    out->tags = true;
    if (!rc)
        rc = dcp_error_set(err, DCP_E_CORRUPT,
                           "there is no '%s' to name one of the tags in the folder",
                           pointer);
    dcp_error_hint(err, "write one of the tags into '%s', or give its folder: %s",
                   pointer, tags);
    return rc;
}

static int find_tag(const struct dcp_source *source, const char *pointer,
                    struct dcp_arena *arena, struct dcp_ds_folder *out,
                    struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = NULL;
    uint64_t size;
    bool is_dir = false;

    DCP_TRY(read_tag(source, pointer, arena, &out->tag, err));
    size_t n = strlen(out->tag) + 2;
    char *prefix = dcp_arena_alloc(arena, n, 1);
    path = dcp_source_path(source, out->tag);
    if (!prefix || !path)
        return dcp_error_memory(err, "a tag");
    snprintf(prefix, n, "%s/", out->tag);
    out->prefix = prefix;
    out->seen = dcp_str_starts(out->tag, TAG) || dcp_source_has(source, SCRIPT);
    int rc = source->store->ops->stat(source->store->self, path, &is_dir, &size, NULL);
    if (!rc && is_dir)
        return DCP_OK;
    dcp_error_set(err, DCP_E_CORRUPT, "'%s' names '%s', and there is no such folder",
                  pointer, dcp_ds_shown(arena, out->tag));
    dcp_error_hint(err, "give the folder of the tag that is there");
    return DCP_E_CORRUPT;
}

int dcp_ds_folder_open(const struct dcp_source *source, const char *pointer,
                       struct dcp_arena *arena, struct dcp_ds_folder *out,
                       struct dcp_error *err)
{
    bool has_pointer = dcp_source_has(source, pointer), is_run = false;

    *out = (struct dcp_ds_folder){ .tag = "", .prefix = "" };
    int rc = has_pointer ? find_tag(source, pointer, arena, out, err) : DCP_OK;
    if (rc)
        return rc == DCP_E_CORRUPT ? refuse_tags(source, pointer, arena, out, rc, err)
                                   : rc;
    if (!has_pointer) {
        DCP_CLEANUP_FREE char *name = dcp_source_folder(source);
        out->tag = name ? dcp_arena_text(arena, name) : NULL;
        if (!out->tag)
            return dcp_error_memory(err, "a tag");
    }
    rc = list_files(source, arena, out, &is_run, err);
    bool alone = !has_pointer && is_run && !strcmp(pointer, DCP_DS_LATEST) &&
                 !out->model && !out->n_optims && !out->universal;
    return rc || !alone ? rc : refuse_tags(source, pointer, arena, out, DCP_OK, err);
}

/* -- completeness -------------------------------------------------------------------- */

static int missing(const struct dcp_ds_folder *folder, const char *const *names, int n,
                   int world_size, const char *kind, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf list = { 0 };
    int found = 0, named = 0;

    for (int rank = 0; rank < world_size; rank++) {
        if (rank < n && names[rank]) {
            found++;
        } else if (named++ < MAX_NAMED) {
            bool bf16 = folder->bf16 && names == folder->optims;
            dcp_buf_add_fmt(&list, "%s%szero_pp_rank_%d_mp_rank_00_%s_states.pt",
                            named > 1 ? ", " : "", bf16 ? "bf16_" : "", rank, kind);
        }
    }
    if (named > MAX_NAMED)
        dcp_buf_add_fmt(&list, " and %d more", named - MAX_NAMED);
    if (list.failed)
        return dcp_error_memory(err, "a message");
    if (!named)
        return DCP_OK;
    dcp_error_set(err, DCP_E_CORRUPT, "expected %d %s shards, found %d: missing %s",
                  world_size, strcmp(kind, "optim") ? "model" : "optimizer", found,
                  (const char *)list.data);
    dcp_error_hint(err, "a rank did not finish its save, or saved to a disk of its own");
    return DCP_E_CORRUPT;
}

static int stale(const char *const *names, int n, int world_size, struct dcp_error *err)
{
    if (n <= world_size)
        return DCP_OK;
    dcp_error_set(err, DCP_E_CORRUPT,
                  "'%s' is stale: %d ranks wrote the last save with this tag",
                  DCP_SHOWN(names[n - 1]), world_size);
    dcp_error_hint(err, "remove the files of rank %d and above", world_size);
    return DCP_E_CORRUPT;
}

int dcp_ds_folder_check(const struct dcp_ds_folder *folder, int world_size,
                        struct dcp_error *err)
{
    DCP_TRY(missing(folder, folder->optims, folder->n_optims, world_size, "optim", err));
    if (folder->by_rank)
        DCP_TRY(
            missing(folder, folder->models, folder->n_models, world_size, "model", err));
    DCP_TRY(stale(folder->optims, folder->n_optims, world_size, err));
    if (folder->by_rank)
        return stale(folder->models, folder->n_models, world_size, err);
    return DCP_OK;
}
