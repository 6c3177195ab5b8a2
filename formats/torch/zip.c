/* zip: the zip archive of a PyTorch file: which records there must be, and which of
 * them are storages. */
#include "base/mem.h"
#include "base/str.h"
#include "form.h"
#include <stdio.h>
#include <string.h>

enum { MIN_VERSION = 1, MAX_VERSION = 10, MAX_SMALL_RECORD = 64 };

bool dcp_torch_zip_probe(const unsigned char *head, size_t n)
{
    return n >= 4 && !memcmp(head, "PK\3\4", 4);
}

static const struct dcp_zip_record *find(const struct dcp_torch_file *file,
                                         const char *record)
{
    char name[DCP_ZIP_MAX_NAME_BYTES + 64];

    if (snprintf(name, sizeof name, "%s/%s", file->root, record) >= (int)sizeof name)
        return NULL;
    return dcp_zip_find(&file->zip, name);
}

/* All records stand in the folder of the first. */
static int find_root(struct dcp_torch_file *file, struct dcp_error *err)
{
    const char *first = file->zip.n_records ? file->zip.records[0].name : "";
    const char *slash = strchr(first, '/');
    size_t n = slash ? (size_t)(slash - first) : 0;

    if (!n)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' is not a PyTorch file: its records are in no folder",
                             file->in.shown);
    file->root = dcp_arena_text_n(file->arena, first, n);
    if (!file->root)
        return dcp_error_memory(err, "a zip directory");
    for (size_t i = 0; i < file->zip.n_records; i++)
        if (strncmp(file->zip.records[i].name, first, n + 1) != 0)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "'%s' is not a PyTorch file: its records are in several "
                                 "folders",
                                 file->in.shown);
    return DCP_OK;
}

int dcp_torch_zip_open(struct dcp_torch_file *file, struct dcp_error *err)
{
    DCP_TRY(
        dcp_zip_open(&file->in, file->begin, file->end, file->arena, &file->zip, err));
    for (size_t i = 0; i < file->zip.n_records; i++)
        if (dcp_str_ends(file->zip.records[i].name, ".npy"))
            return dcp_error_set(err, DCP_E_UNSUPPORTED,
                                 "'%s' is a NumPy .npz file, not one of PyTorch",
                                 file->in.shown);
    if (file->zip.folded_twice) /* torch finds records whatever their case */
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' is not a valid zip archive: two records have the same "
                             "name but for case",
                             file->in.shown);
    DCP_TRY(find_root(file, err));
    if (!find(file, "data.pkl"))
        return dcp_error_set(
            err, DCP_E_UNSUPPORTED,
            "'%s' is a zip archive without a record 'data.pkl', so it is "
            "no PyTorch file",
            file->in.shown);
    return DCP_OK;
}

/* The text of a small record; *out_text is empty when there is none. */
static int read_small(const struct dcp_torch_file *file, const char *record,
                      char out_text[MAX_SMALL_RECORD + 1], struct dcp_error *err)
{
    const struct dcp_zip_record *r = find(file, record);
    DCP_CLEANUP_FREE void *data = NULL;
    size_t n;

    out_text[0] = '\0';
    if (!r)
        return DCP_OK;
    DCP_TRY(dcp_zip_read(&file->in, r, MAX_SMALL_RECORD, &data, &n, err));
    snprintf(out_text, MAX_SMALL_RECORD + 1, "%s", (const char *)data);
    return DCP_OK;
}

static int check_records(const struct dcp_torch_file *file, struct dcp_error *err)
{
    char text[MAX_SMALL_RECORD + 1];
    int64_t version;

    if (find(file, "constants.pkl") || find(file, "code"))
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' is a TorchScript archive, which holds code; save the "
                             "model's state_dict instead",
                             file->in.shown);
    DCP_TRY(
        read_small(file, find(file, "version") ? "version" : ".data/version", text, err));
    text[strcspn(text, "\n")] = '\0';
    if (!dcp_str_parse_i64(text, &version))
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' has no record 'version'",
                             file->in.shown);
    if (version < MIN_VERSION || version > MAX_VERSION)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' has the container version %lld; %d to %d are known",
                             file->in.shown, (long long)version, MIN_VERSION,
                             MAX_VERSION);
    DCP_TRY(read_small(file, "byteorder", text, err));
    if (text[0] && strcmp(text, "little"))
        return dcp_error_set(
            err, DCP_E_UNSUPPORTED,
            "'%s' was saved on a big-endian machine; load and save it once "
            "with torch on a little-endian one",
            file->in.shown);
    return DCP_OK;
}

/* "<root>/data/<number>": the number, or NULL. */
static const char *storage_key(const struct dcp_torch_file *file, const char *name)
{
    const char *rest = name + strlen(file->root) + 1;

    if (strncmp(rest, "data/", 5) != 0)
        return NULL;
    rest += 5;
    size_t n = strspn(rest, "0123456789");
    return n && n <= DCP_TORCH_MAX_KEY_BYTES && !rest[n] ? rest : NULL;
}

static int find_storages(struct dcp_torch_file *file, struct dcp_error *err)
{
    const struct dcp_zip *zip = &file->zip;

    file->storages = dcp_arena_alloc(file->arena, zip->n_records, sizeof *file->storages);
    if (!file->storages)
        return dcp_error_memory(err, "a PyTorch file");
    for (size_t i = 0; i < zip->n_records; i++) {
        const struct dcp_zip_record *r = &zip->records[i];
        const char *key = storage_key(file, r->name);
        if (!key)
            continue;
        file->storages[file->n_storages++] = (struct dcp_torch_storage){
            .key = key,
            .offset = r->offset,
            .stored_size = r->stored_size,
            .size_bytes = r->size_bytes,
            .codec = r->deflated ? DCP_CODEC_DEFLATE_STREAM : DCP_CODEC_NONE,
            .dtype = -1,
        };
    }
    return dcp_torch_sort_storages(file, err);
}

int dcp_torch_zip_tree(struct dcp_torch_file *file, struct dcp_error *err)
{
    size_t n;

    DCP_TRY(check_records(file, err));
    DCP_TRY(dcp_zip_read(&file->in, find(file, "data.pkl"), DCP_PICKLE_MAX_BYTES,
                         &file->pickle, &n, err));
    int rc = dcp_pickle_parse(file->pickle, n, file->arena, &file->tree, NULL, err);
    if (rc) {
        dcp_error_prefix(err, "'%s'", file->in.shown);
        return rc;
    }
    return find_storages(file, err);
}
