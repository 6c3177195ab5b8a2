#include "checkpoint.h"

#include "base/mem.h"
#include "base/str.h"
#include "cli/corruption.h"
#include "cli/doc.h"
#include "cli/source.h"
#include "verbs.h"
#include <string.h>

bool inspect_is_run(const struct dcp_location *location)
{
    const struct dcp_source *source = &location->source;
    return source->is_dir && source->name[0];
}

int inspect_open(struct dcp_main *m, const char *path, struct inspect_checkpoint *out,
                 struct dcp_error *err)
{
    bool show = m->command == &inspect_show; /* of no piece, and lists steps itself */
    *out = (struct inspect_checkpoint){ 0 };
    DCP_TRY(dcp_source_open(m, path, &out->location, err));
    int rc = (show ? dcp_location_head : dcp_location_index)(&out->location,
                                                             &out->catalog, err);
    bool again = rc == DCP_E_NOT_FOUND && inspect_is_run(&out->location) &&
                 dcp_location_failed(&out->location, DCP_E_IO, NULL) != DCP_E_IO;
    if (!rc && out->location.corruption.code && !show)
        dcp_corruption_tell_reconstructed(m, &out->location);
    if (rc)
        inspect_close(out);
    else if (inspect_is_run(&out->location) && !show)
        dcp_corruption_passed_over(&out->location, &m->log);
    if (!again)
        return rc;
    *err = (struct dcp_error){ 0 }; /* it went meanwhile: a newer one is there */
    return inspect_open(m, path, out, err);
}

void inspect_close(struct inspect_checkpoint *checkpoint)
{
    dcp_reader_free(checkpoint->reader);
    dcp_catalog_free(checkpoint->catalog);
    dcp_location_close(&checkpoint->location);
    *checkpoint = (struct inspect_checkpoint){ 0 };
}

int inspect_reader(struct inspect_checkpoint *checkpoint, bool verify,
                   struct dcp_error *err)
{
    return checkpoint->reader
               ? DCP_OK
               : dcp_reader_new(&checkpoint->location.source, checkpoint->catalog,
                                INSPECT_READER_BYTES, verify, &checkpoint->reader, err);
}

/* Names the checkpoint and the next act. */
static int explain(const struct inspect_checkpoint *checkpoint, int rc,
                   struct dcp_error *err)
{
    if (rc == DCP_OK || rc == DCP_E_MEMORY)
        return rc;
    if (dcp_location_failed(&checkpoint->location, rc, err) != rc)
        return err->code;
    dcp_error_prefix(err, "cannot read '%s'", checkpoint->location.path);
    if (rc == DCP_E_CORRUPT)
        dcp_corruption_hint(&checkpoint->location, false, err);
    return rc;
}

int inspect_read(const struct inspect_checkpoint *checkpoint, struct dcp_reader *reader,
                 int tensor, int64_t begin, int64_t end, void *out, struct dcp_error *err)
{
    return explain(checkpoint, dcp_reader_read(reader, tensor, begin, end, out, err),
                   err);
}

int inspect_check(const struct inspect_checkpoint *checkpoint, struct dcp_error *err)
{
    return explain(checkpoint, dcp_reader_check(checkpoint->reader, err), err);
}

static bool is_selected(const struct dcp_tensor *tensor,
                        const struct inspect_selection *selection)
{
    bool optim = dcp_role_is_optim(tensor->role);
    if ((selection->only == DCP_ONLY_MODEL && optim) ||
        (selection->only == DCP_ONLY_OPTIM && !optim))
        return false;
    for (size_t i = 0; i < selection->globs.n; i++)
        if (dcp_str_glob(selection->globs.items[i], tensor->name))
            return true;
    return selection->globs.n == 0;
}

int inspect_select(const struct inspect_checkpoint *checkpoint,
                   const struct inspect_selection *selection, size_t **out, size_t *out_n,
                   struct dcp_error *err)
{
    const struct dcp_catalog *catalog = checkpoint->catalog;
    size_t *indices = dcp_mem_calloc(catalog->n_tensors, sizeof *indices), n = 0;
    if (!indices)
        return dcp_error_memory(err, "the list of tensors");
    for (size_t i = 0; i < catalog->n_tensors; i++)
        if (is_selected(&catalog->tensors[i], selection))
            indices[n++] = i;
    if (n == 0 && catalog->n_tensors > 0) {
        free(indices);
        dcp_error_set(err, DCP_E_NOT_FOUND, "no tensor of '%s' matches%s%s%s",
                      checkpoint->location.path, selection->globs.n ? " '" : "",
                      selection->globs.n ? selection->globs.items[0] : " --only",
                      selection->globs.n ? "'" : "");
        dcp_error_hint(err, "'dcp-inspect ls %s' lists the names",
                       checkpoint->location.path);
        return DCP_E_NOT_FOUND;
    }
    *out = indices;
    *out_n = n;
    return DCP_OK;
}

int inspect_find(const struct inspect_checkpoint *checkpoint, const char *name,
                 int *out_tensor, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = checkpoint->catalog;
    *out_tensor = dcp_catalog_find(catalog, name);
    if (*out_tensor >= 0)
        return DCP_OK;
    dcp_error_set(err, DCP_E_NOT_FOUND, "'%s' has no tensor '%s'",
                  checkpoint->location.path, name);
    DCP_CLEANUP_FREE const char **names =
        dcp_mem_calloc(catalog->n_tensors + 1, sizeof *names);
    for (size_t i = 0; names && i < catalog->n_tensors; i++)
        names[i] = catalog->tensors[i].name;
    const char *near = names ? dcp_str_nearest(name, names) : NULL;
    if (near)
        dcp_error_hint(err, "did you mean '%s'?", near);
    else
        dcp_error_hint(err, "'dcp-inspect ls %s' lists the names",
                       checkpoint->location.path);
    return DCP_E_NOT_FOUND;
}

json_t *inspect_checkpoint_json(const struct inspect_checkpoint *checkpoint)
{
    return inspect_catalog_json(checkpoint->location.path, checkpoint->catalog);
}

json_t *inspect_catalog_json(const char *path, const struct dcp_catalog *catalog)
{
    uint64_t size_bytes = 0;
    for (size_t i = 0; i < catalog->n_tensors; i++)
        size_bytes += dcp_tensor_bytes(&catalog->tensors[i]);
    return json_pack(
        "{s:o, s:s, s:o, s:o, s:o, s:o, s:i, s:{s:i, s:i, s:i}, s:I, s:o, s:I}", "path",
        dcp_doc_text(path), "format", catalog->format, "version",
        dcp_doc_text(catalog->version), "producer", dcp_doc_text(catalog->producer),
        "step", catalog->step < 0 ? json_null() : json_integer(catalog->step), "layout",
        dcp_doc_text(catalog->layout), "world", catalog->world_size, "mesh", "dp",
        catalog->mesh.dp ? catalog->mesh.dp : 1, "tp",
        catalog->mesh.tp ? catalog->mesh.tp : 1, "pp",
        catalog->mesh.pp ? catalog->mesh.pp : 1, "n_tensors",
        (json_int_t)catalog->n_tensors, "size_bytes", dcp_doc_u64(size_bytes), "n_files",
        (json_int_t)catalog->n_files);
}
