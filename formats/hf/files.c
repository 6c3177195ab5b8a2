/* files: a folder's small files as objects, and objects as files. */
#include "files.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include <stdio.h>
#include <string.h>

/* As transformers and its hub write them. */
static const char *const globs[] = {
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.{json,txt}",
    "merges.txt",
    "*.{model,spm,tiktoken}", /* of SentencePiece and tiktoken */
    "chat_template*",
    "{pre,video_pre,}processor_config.json",
    "*.py",
    "LICENSE*",
    "README.md",
};

static bool is_carried(const char *name)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(globs); i++)
        if (dcp_str_glob(globs[i], name))
            return true;
    return false;
}

static int add(const struct dcp_source *source, const char *file,
               struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *name = dcp_str_join(DCP_HF_FILE, file, "");
    DCP_CLEANUP_FREE void *data = NULL;
    size_t n;

    if (!name)
        return dcp_error_memory(err, "a file name");
    DCP_TRY(dcp_source_read(source, file, DCP_HF_MAX_FILE_BYTES, &data, &n, err));
    const struct dcp_object object = {
        .name = name, .kind = DCP_OBJECT_BYTES, .data = data, .size_bytes = n
    };
    return dcp_catalog_add_object(catalog, &object, err);
}

static int by_name(const void *a, const void *b)
{
    const struct dcp_store_entry *x = a, *y = b;

    return strcmp(x->name, y->name);
}

int dcp_hf_files_index(const struct dcp_source *source, struct dcp_catalog *catalog,
                       struct dcp_error *err)
{
    struct dcp_store_entry *entries = NULL;
    size_t n = 0;
    int rc =
        source->store->ops->list(source->store->self, source->name, &entries, &n, err);

    if (n)
        qsort(entries, n, sizeof *entries, by_name);
    for (size_t i = 0; i < n && !rc; i++)
        if (!entries[i].is_dir && is_carried(entries[i].name) &&
            dcp_source_has(source, entries[i].name))
            rc = add(source, entries[i].name, catalog, err);
    dcp_store_list_free(entries, n);
    return rc;
}

int dcp_hf_files_assign(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    int rc = DCP_OK;

    for (size_t o = 0; o < catalog->n_objects && !rc; o++) {
        const struct dcp_object *object = &catalog->objects[o];
        const char *name = dcp_object_file(object->name);
        int file;
        if (!name || !is_carried(name) || object->kind != DCP_OBJECT_BYTES)
            continue;
        rc = dcp_catalog_add_file(
            catalog, &(struct dcp_file){ .name = name, .size_bytes = object->size_bytes },
            &file, err);
        if (!rc)
            rc = dcp_target_literal(target, file, 0, object->data, object->size_bytes,
                                    err);
        dcp_catalog_mark_stored(catalog, object->name);
    }
    return rc;
}
