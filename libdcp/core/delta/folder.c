#include "folder.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/delta.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define FORMAT "libdcp-delta"
#define VERSION 1
#define USUAL_BYTES ((size_t)64 << 20)
#define DIGEST_FORMAT ",\n\"digest\":\"%016" PRIx64 "\"}\n"

void dcp_delta_folder_fini(struct dcp_delta_folder *folder)
{
    for (size_t i = 0; i < folder->n_base; i++)
        free(folder->base[i].name);
    for (size_t i = 0; i < folder->n_files; i++)
        free(folder->files[i].name);
    free(folder->base);
    free(folder->files);
    free(folder->base_path);
    *folder = (struct dcp_delta_folder){ 0 };
}

bool dcp_delta_base_ok(const char *path)
{
    if (!dcp_str_starts(path, "../"))
        return false;
    while (dcp_str_starts(path, "../"))
        path += 3;
    return !strcmp(path, "..") || dcp_store_name_ok(path);
}

bool dcp_delta_is_own(const char *name)
{
    const char *slash = strrchr(name, '/');

    name = slash ? slash + 1 : name;
    return !strcmp(name, DCP_DELTA_JSON) || !strcmp(name, DCP_DELTA_SIGNATURE);
}

bool dcp_delta_name_ok(const char *name)
{
    return dcp_store_name_ok(name) && !dcp_delta_is_own(name) &&
           !dcp_str_ends(name, DCP_DELTA_SUFFIX) && dcp_str_utf8_ok(name, strlen(name));
}

/* -- text ---------------------------------------------------------------------------- */

static void add_file(struct dcp_buf *out, const char *name, uint64_t size, uint64_t crc)
{
    dcp_buf_add_text(out, "{\"name\":");
    dcp_json_quote(out, name);
    dcp_buf_add_fmt(out, ",\"size_bytes\":%" PRIu64 ",\"crc64\":\"%016" PRIx64 "\"", size,
                    crc);
}

void dcp_delta_folder_format(struct dcp_buf *out, const struct dcp_delta_folder *folder)
{
    size_t begin = out->size_bytes;

    dcp_buf_add_fmt(out,
                    "{\"format\":\"" FORMAT "\",\"version\":%d,\"requires\":[],"
                    "\"chain\":%d,",
                    VERSION, folder->chain);
    if (folder->number)
        dcp_buf_add_fmt(out, "\"number\":%d,", folder->number);
    dcp_buf_add_text(out, "\n\"base\":{\"path\":");
    dcp_json_quote(out, folder->base_path);
    dcp_buf_add_text(out, ",\"files\":[");
    for (size_t i = 0; i < folder->n_base; i++) {
        dcp_buf_add_text(out, i ? ",\n" : "\n");
        add_file(out, folder->base[i].name, folder->base[i].size_bytes,
                 folder->base[i].crc);
        dcp_buf_add_text(out, "}");
    }
    dcp_buf_add_text(out, "]},\n\"files\":[");
    for (size_t i = 0; i < folder->n_files; i++) {
        const struct dcp_delta_file *file = &folder->files[i];
        dcp_buf_add_text(out, i ? ",\n" : "\n");
        add_file(out, file->name, file->size_bytes, file->crc);
        if (file->coded)
            dcp_buf_add_fmt(out,
                            ",\"delta\":{\"size_bytes\":%" PRIu64
                            ",\"table_crc64\":\"%016" PRIx64 "\"}",
                            file->delta_bytes, file->table_crc);
        dcp_buf_add_text(out, "}");
    }
    dcp_buf_add_text(out, "]");
    if (!out->failed)
        dcp_buf_add_fmt(out, DIGEST_FORMAT,
                        dcp_hash_crc64(0, out->data + begin, out->size_bytes - begin));
}

/* -- reading ------------------------------------------------------------------------- */

static int invalid(const char *what, const char *why, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "'%s' is no valid description: %s",
                         DCP_SHOWN(what), why);
}

static int check_digest(const char *text, size_t n, const char *what,
                        struct dcp_error *err)
{
    char tail[DCP_DELTA_DIGEST_BYTES + 1];

    if (n <= DCP_DELTA_DIGEST_BYTES)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' is cut short", DCP_SHOWN(what));
    n -= DCP_DELTA_DIGEST_BYTES;
    snprintf(tail, sizeof tail, DIGEST_FORMAT, dcp_hash_crc64(0, text, n));
    return memcmp(text + n, tail, DCP_DELTA_DIGEST_BYTES) != 0
               ? dcp_error_set(err, DCP_E_CORRUPT, "'%s' is corrupt: its digest differs",
                               DCP_SHOWN(what))
               : DCP_OK;
}

/* What a base's file and a target's have in common. */
static int get_file(const json_t *entry, const char *what, char **name, uint64_t *size,
                    uint64_t *crc, struct dcp_error *err)
{
    const char *text;

    DCP_TRY(dcp_json_get_text(entry, "name", what, &text, err));
    DCP_TRY(dcp_json_get_u64(entry, "size_bytes", what, size, err));
    DCP_TRY(dcp_json_get_hex64(entry, "crc64", what, crc, err));
    if (!dcp_delta_name_ok(text))
        return invalid(what, "a name that no file of it can have", err);
    if (*size > INT64_MAX)
        return invalid(what, "a size beyond 2^63", err);
    *name = strdup(text);
    return *name ? DCP_OK : dcp_error_memory(err, "a delta");
}

/* No file stands where another one has a folder. */
static int check_folders(const struct dcp_delta_folder *folder, const char *what,
                         struct dcp_error *err)
{
    for (size_t i = 0; i < folder->n_files; i++) {
        DCP_CLEANUP_FREE char *dir = strdup(folder->files[i].name);
        if (!dir)
            return dcp_error_memory(err, "a delta");
        for (char *slash = strrchr(dir, '/'); slash; slash = strrchr(dir, '/')) {
            *slash = '\0';
            if (dcp_delta_find(folder, dir))
                return invalid(what, "a file of it is a folder, too", err);
        }
    }
    return DCP_OK;
}

static int get_base(const json_t *root, const char *what, struct dcp_delta_folder *out,
                    struct dcp_error *err)
{
    json_t *base, *list;
    const char *path;

    DCP_TRY(dcp_json_get_object(root, "base", what, &base, err));
    DCP_TRY(dcp_json_get_text(base, "path", what, &path, err));
    DCP_TRY(dcp_json_get_array(base, "files", what, &list, err));
    if (!dcp_delta_base_ok(path))
        return invalid(what, "its base is at no path beside it", err);
    out->base_path = strdup(path);
    out->base = dcp_mem_calloc(json_array_size(list), sizeof *out->base);
    if (!out->base_path || !out->base)
        return dcp_error_memory(err, "a delta");
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct dcp_delta_base_file *file = &out->base[out->n_base++];
        DCP_TRY(get_file(json_array_get(list, i), what, &file->name, &file->size_bytes,
                         &file->crc, err));
        if (i && strcmp(out->base[i - 1].name, file->name) >= 0)
            return invalid(what, "files of its base are not in order", err);
    }
    return DCP_OK;
}

static int get_files(const json_t *root, const char *what, struct dcp_delta_folder *out,
                     struct dcp_error *err)
{
    json_t *list;

    DCP_TRY(dcp_json_get_array(root, "files", what, &list, err));
    if (!(out->files = dcp_mem_calloc(json_array_size(list), sizeof *out->files)))
        return dcp_error_memory(err, "a delta");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        struct dcp_delta_file *file = &out->files[out->n_files++];
        json_t *delta;
        DCP_TRY(get_file(entry, what, &file->name, &file->size_bytes, &file->crc, err));
        if (i && strcmp(out->files[i - 1].name, file->name) >= 0)
            return invalid(what, "its files are not in order", err);
        file->coded = json_object_get(entry, "delta");
        if (!file->coded)
            continue;
        DCP_TRY(dcp_json_get_object(entry, "delta", what, &delta, err));
        DCP_TRY(dcp_json_get_u64(delta, "size_bytes", what, &file->delta_bytes, err));
        DCP_TRY(dcp_json_get_hex64(delta, "table_crc64", what, &file->table_crc, err));
    }
    return DCP_OK;
}

static int check_version(const json_t *root, const char *what, struct dcp_error *err)
{
    const char *format;
    uint64_t version;
    json_t *needs;

    DCP_TRY(dcp_json_get_text(root, "format", what, &format, err));
    DCP_TRY(dcp_json_get_u64(root, "version", what, &version, err));
    if (strcmp(format, FORMAT) != 0)
        return invalid(what, "it is of another format", err);
    if (version != VERSION)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' is of version %" PRIu64 ", this program reads %d",
                             DCP_SHOWN(what), version, VERSION);
    DCP_TRY(dcp_json_get_array(root, "requires", what, &needs, err));
    if (json_array_size(needs) == 0)
        return DCP_OK;
    const char *first = json_string_value(json_array_get(needs, 0));
    return dcp_error_set(err, DCP_E_UNSUPPORTED,
                         "'%s' needs '%s', which this program does not know",
                         DCP_SHOWN(what), DCP_SHOWN(first ? first : "?"));
}

int dcp_delta_folder_parse(const char *text, size_t n, const char *what,
                           struct dcp_delta_folder *out, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *root = NULL;
    uint64_t chain, number;

    *out = (struct dcp_delta_folder){ 0 };
    DCP_TRY(check_digest(text, n, what, err));
    DCP_TRY(dcp_json_parse(text, n, what, &root, err));
    DCP_TRY(check_version(root, what, err));
    DCP_TRY(dcp_json_get_u64(root, "chain", what, &chain, err));
    if (chain < 1 || chain > DCP_DELTA_MAX_CHAIN)
        return invalid(what, "its chain is too long, or none", err);
    out->chain = (int)chain;
    if (json_object_get(root, "number")) {
        DCP_TRY(dcp_json_get_u64(root, "number", what, &number, err));
        out->number = number < INT_MAX ? (int)number : INT_MAX - 1;
    }
    DCP_TRY(get_base(root, what, out, err));
    DCP_TRY(get_files(root, what, out, err));
    return check_folders(out, what, err);
}

int dcp_delta_folder_read(const struct dcp_store *store, const char *dir,
                          struct dcp_delta_folder *out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *name = dcp_str_join(dir, dir[0] ? "/" : "", DCP_DELTA_JSON);
    DCP_CLEANUP_FREE void *text = NULL;
    size_t n;

    *out = (struct dcp_delta_folder){ 0 };
    if (!name)
        return dcp_error_memory(err, "a delta");
    DCP_TRY(dcp_store_read_header(store, name, USUAL_BYTES, &text, &n, err));
    return dcp_delta_folder_parse(text, n, name, out, err);
}

static int by_name(const void *key, const void *file)
{
    return strcmp(key, ((const struct dcp_delta_file *)file)->name);
}

const struct dcp_delta_file *dcp_delta_find(const struct dcp_delta_folder *folder,
                                            const char *name)
{
    return folder->n_files ? bsearch(name, folder->files, folder->n_files,
                                     sizeof *folder->files, by_name)
                           : NULL;
}

static int by_base_name(const void *key, const void *file)
{
    return strcmp(key, ((const struct dcp_delta_base_file *)file)->name);
}

struct dcp_delta_base_file *dcp_delta_find_base(const struct dcp_delta_folder *folder,
                                                const char *name)
{
    return folder->n_base ? bsearch(name, folder->base, folder->n_base,
                                    sizeof *folder->base, by_base_name)
                          : NULL;
}
