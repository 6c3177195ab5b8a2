/* unknown: why nobody knows a source: it cannot be read, it was incomplete, or it is of a
 * kind that this library does not read. */
#include "base/mem.h"
#include "base/str.h"
#include "formats.h"
#include "formats/archive/zip.h"
#include "formats/common/input.h"
#include "formats/foreign/foreign.h"
#include <string.h>

enum {
    LEAST_BYTES = 16, /* no checkpoint has fewer */
    MOST_OPENED = 256 /* files of a folder that are tried */
};

/* Files of a folder that cannot be opened may be why nobody knows it. */
static int open_files(const struct dcp_source *source, struct dcp_error *err)
{
    const struct dcp_store_ops *ops = source->store->ops;
    struct dcp_store_entry *entries;
    size_t n;
    int rc = ops->list(source->store->self, source->name, &entries, &n, err);

    if (rc)
        return rc;
    for (size_t i = 0; i < n && i < MOST_OPENED && !rc; i++) {
        DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
        struct dcp_error why = { 0 };
        if (entries[i].is_dir || !dcp_store_name_ok(entries[i].name))
            continue;
        DCP_CLEANUP_FREE char *path = dcp_source_path(source, entries[i].name);
        const struct dcp_source file = { source->store, path, false };
        rc = path ? dcp_input_open(&in, &file, NULL, &why)
                  : dcp_error_memory(&why, "a file name");
        if (rc != DCP_E_IO && rc != DCP_E_MEMORY) /* a link, a pipe: no matter */
            rc = DCP_OK;
        else if (err)
            *err = why;
    }
    dcp_store_list_free(entries, n);
    return rc;
}

/* A zip archive without its end, as an unfinished copy leaves it. */
static int check_zip(const struct dcp_input *in, struct dcp_error *err)
{
    struct dcp_arena *arena = dcp_arena_new();
    struct dcp_zip zip;
    int rc = arena ? dcp_zip_open(in, 0, in->size_bytes, arena, &zip, err)
                   : dcp_error_memory(err, "a zip directory");

    dcp_arena_free(arena);
    return rc;
}

/* The file can be opened, its beginning read, and it does not just stop. */
static int check_file(const struct dcp_source *source, struct dcp_error *err)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    char head[LEAST_BYTES] = "";

    DCP_TRY(dcp_input_open(&in, source, NULL, err));
    size_t n = in.size_bytes < sizeof head ? (size_t)in.size_bytes : sizeof head;
    int rc = dcp_input_read(&in, 0, head, n, err);
    if (!rc && n < sizeof head)
        rc = dcp_error_set(
            err, DCP_E_CORRUPT,
            "'%s' has %zu bytes, too few for a checkpoint: it may be incomplete",
            in.shown, n);
    else if (!rc && !memcmp(head, "PK\3\4", 4))
        rc = check_zip(&in, err);
    if (rc == DCP_E_CORRUPT)
        dcp_error_hint(err, "copy or download it again");
    return rc;
}

int dcp_format_unknown(const struct dcp_source *source, struct dcp_error *err)
{
    struct dcp_foreign foreign = { 0 };
    char shown[256], folder[256];

    DCP_TRY(source->is_dir ? open_files(source, err) : check_file(source, err));
    bool found = dcp_foreign_find(source, &foreign);
    dcp_str_escape(shown, sizeof shown,
                   source->name[0] ? source->name : source->store->root);
    dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' %s", shown,
                  found ? foreign.kind : "is no checkpoint of a known format");
    if (foreign.folder)
        dcp_error_hint(err, "%s: '%s'", foreign.hint,
                       dcp_str_escape(folder, sizeof folder, foreign.folder));
    else
        dcp_error_hint(err, "%s",
                       found ? foreign.hint
                             : "'dcp-reshard formats' lists what can be read");
    free(foreign.folder);
    return DCP_E_UNSUPPORTED;
}
