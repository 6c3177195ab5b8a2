/* input: opening and reading the files of a source. */
#include "input.h"
#include "base/hash.h"
#include "base/str.h"
#include <stdio.h>
#include <string.h>

#define SHOWN_CAP 256
#define CHECK_BYTES (256u << 10)

char *dcp_source_path(const struct dcp_source *source, const char *name)
{
    size_t n = strlen(source->name) + strlen(name) + 2;
    char *path = malloc(n);

    if (path)
        snprintf(path, n, "%s%s%s", source->name, source->name[0] ? "/" : "", name);
    return path;
}

char *dcp_source_folder(const struct dcp_source *source)
{
    const char *path = source->name[0]       ? source->name
                       : source->store->root ? source->store->root
                                             : "";
    size_t end = strlen(path), begin;

    while (end && path[end - 1] == '/')
        end--;
    for (begin = end; begin && path[begin - 1] != '/';)
        begin--;
    return strndup(path + begin, end - begin);
}

bool dcp_source_has(const struct dcp_source *source, const char *name)
{
    DCP_CLEANUP_FREE char *path = dcp_source_path(source, name);
    bool is_dir = false;
    uint64_t size_bytes;

    return path &&
           !source->store->ops->stat(source->store->self, path, &is_dir, &size_bytes,
                                     NULL) &&
           !is_dir;
}

int dcp_source_read(const struct dcp_source *source, const char *name, size_t max_bytes,
                    void **out, size_t *out_size_bytes, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_source_path(source, name);

    if (!path)
        return dcp_error_memory(err, "a file name");
    return dcp_store_read_header(source->store, path, max_bytes, out, out_size_bytes,
                                 err);
}

int dcp_input_open(struct dcp_input *out, const struct dcp_source *source,
                   const char *name, struct dcp_error *err)
{
    struct dcp_input in = { .store = source->store };
    const struct dcp_store_ops *ops = source->store->ops;
    bool is_dir = false;

    *out = in;
    in.name = name ? dcp_source_path(source, name) : strdup(source->name);
    in.shown = malloc(SHOWN_CAP);
    if (!in.name || !in.shown) {
        dcp_input_close(&in);
        return dcp_error_memory(err, "a file name");
    }
    dcp_str_escape(in.shown, SHOWN_CAP, in.name);
    int rc = ops->stat(in.store->self, in.name, &is_dir, &in.size_bytes, err);
    if (!rc && is_dir)
        rc = dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' is a folder, not a file",
                           in.shown);
    if (!rc)
        rc = ops->open(in.store->self, in.name, &in.file, err);
    if (rc) {
        in.file = NULL;
        dcp_input_close(&in);
        return rc;
    }
    *out = in;
    return DCP_OK;
}

void dcp_input_close(struct dcp_input *in)
{
    if (in->file)
        in->store->ops->close(in->store->self, in->file, NULL);
    free(in->name);
    free(in->shown);
    *in = (struct dcp_input){ 0 };
}

int dcp_input_read(const struct dcp_input *in, uint64_t offset, void *out,
                   size_t size_bytes, struct dcp_error *err)
{
    if (offset > in->size_bytes || size_bytes > in->size_bytes - offset)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' ends before byte %llu: it is incomplete", in->shown,
                             (unsigned long long)offset + size_bytes);
    if (!size_bytes)
        return DCP_OK;
    return in->store->ops->read_at(in->store->self, in->file, offset, out, size_bytes,
                                   err);
}

int dcp_input_read_new(const struct dcp_input *in, uint64_t offset, size_t size_bytes,
                       void **out, struct dcp_error *err)
{
    char *data = NULL;

    *out = NULL;
    if (offset > in->size_bytes || size_bytes > in->size_bytes - offset)
        return dcp_input_read(in, offset, NULL, size_bytes, err);
    if (in->store->packed_bytes) {
        int why =
            dcp_store_check_header(in->store, in->name, size_bytes, UINT64_MAX, err);
        if (why)
            return why;
    }
    data = malloc(size_bytes + 1);
    if (!data)
        return dcp_error_memory(err, "a header");
    int rc = dcp_input_read(in, offset, data, size_bytes, err);
    if (rc) {
        free(data);
        return rc;
    }
    data[size_bytes] = '\0';
    *out = data;
    return DCP_OK;
}

int dcp_input_crc32(const struct dcp_input *in, uint64_t offset, uint64_t n,
                    uint32_t crc32, bool *out_holds, struct dcp_error *err)
{
    size_t cap = n < CHECK_BYTES ? (size_t)n : CHECK_BYTES;
    DCP_CLEANUP_FREE unsigned char *buffer = malloc(cap + 1);
    uint32_t crc = 0;
    int rc = buffer ? DCP_OK : dcp_error_memory(err, "a checksum");

    for (size_t part; n && !rc; n -= part, offset += part) {
        part = n < cap ? (size_t)n : cap;
        rc = dcp_input_read(in, offset, buffer, part, err);
        crc = rc ? 0 : dcp_hash_crc32(crc, buffer, part);
    }
    *out_holds = !rc && crc == crc32;
    return rc;
}

const char *dcp_input_base(const struct dcp_input *in, const struct dcp_source *source)
{
    if (source->is_dir)
        return in->name + (source->name[0] ? strlen(source->name) + 1 : 0);
    const char *slash = strrchr(in->name, '/');
    return slash ? slash + 1 : in->name;
}
