/* torch_file: the container of a PyTorch file: which records there must be, and the tree
 * of its pickle. */
#include "base/str.h"
#include "formats.h"
#include "torch.h"
#include <stdio.h>
#include <string.h>

enum { MIN_VERSION = 1, MAX_VERSION = 10, MAX_SMALL_RECORD = 64 };

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
    int rc = dcp_zip_read(&file->in, r, MAX_SMALL_RECORD, &data, &n, err);
    if (!rc)
        snprintf(out_text, MAX_SMALL_RECORD + 1, "%s", (const char *)data);
    return rc;
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
    int rc =
        read_small(file, find(file, "version") ? "version" : ".data/version", text, err);
    if (rc)
        return rc;
    text[strcspn(text, "\n")] = '\0';
    if (!dcp_str_parse_i64(text, &version))
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' has no record 'version'",
                             file->in.shown);
    if (version < MIN_VERSION || version > MAX_VERSION)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' has the container version %lld; %d to %d are known",
                             file->in.shown, (long long)version, MIN_VERSION,
                             MAX_VERSION);
    rc = read_small(file, "byteorder", text, err);
    if (!rc && text[0] && strcmp(text, "little"))
        rc =
            dcp_error_set(err, DCP_E_UNSUPPORTED,
                          "'%s' was saved on a big-endian machine; load and save it once "
                          "with torch on a little-endian one",
                          file->in.shown);
    return rc;
}

int dcp_torch_open(struct dcp_torch_file *file, const struct dcp_source *source,
                   const char *name, struct dcp_error *err)
{
    char magic[4] = "";

    *file = (struct dcp_torch_file){ 0 };
    file->arena = dcp_arena_new();
    if (!file->arena)
        return dcp_error_memory(err, "a PyTorch file");
    int rc = dcp_input_open(&file->in, source, name, err);
    if (rc)
        return rc;
    if (file->in.size_bytes < sizeof magic ||
        dcp_input_read(&file->in, 0, magic, sizeof magic, NULL) ||
        memcmp(magic, "PK\3\4", sizeof magic) != 0) {
        const struct dcp_source whole = { .store = source->store, .name = file->in.name };
        const char *kind = dcp_foreign_kind(&whole);
        return dcp_error_set(err, kind ? DCP_E_UNSUPPORTED : DCP_E_CORRUPT, "'%s' %s",
                             file->in.shown,
                             kind ? kind : "does not begin like a PyTorch file");
    }
    rc = dcp_zip_open(&file->in, 0, file->in.size_bytes, file->arena, &file->zip, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < file->zip.n_records; i++)
        if (dcp_str_ends(file->zip.records[i].name, ".npy"))
            return dcp_error_set(err, DCP_E_UNSUPPORTED,
                                 "'%s' is a NumPy .npz file, which is not supported",
                                 file->in.shown);
    rc = find_root(file, err);
    if (!rc && !find(file, "data.pkl"))
        rc = dcp_error_set(err, DCP_E_UNSUPPORTED,
                           "'%s' is a zip archive without a record 'data.pkl', so it is "
                           "no PyTorch file",
                           file->in.shown);
    return rc;
}

int dcp_torch_read_tree(struct dcp_torch_file *file, struct dcp_error *err)
{
    size_t n;
    int rc = check_records(file, err);

    if (!rc)
        rc = dcp_zip_read(&file->in, find(file, "data.pkl"), DCP_PICKLE_MAX_BYTES,
                          &file->pickle, &n, err);
    if (rc)
        return rc;
    rc = dcp_pickle_parse(file->pickle, n, file->arena, &file->tree, NULL, err);
    if (rc) {
        dcp_error_prefix(err, "'%s'", file->in.shown);
        return rc;
    }
    file->storage_dtypes = dcp_arena_alloc(file->arena, file->zip.n_records + 1, 1);
    if (!file->storage_dtypes)
        return dcp_error_memory(err, "a PyTorch file");
    memset(file->storage_dtypes, -1, file->zip.n_records);
    return DCP_OK;
}

void dcp_torch_close(struct dcp_torch_file *file)
{
    dcp_input_close(&file->in);
    dcp_arena_free(file->arena);
    free(file->pickle);
    *file = (struct dcp_torch_file){ 0 };
}
