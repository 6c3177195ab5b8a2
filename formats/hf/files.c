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

/* Other weights: an adapter of PEFT, a variant, another form of the same. */
static const char *const others[] = {
    "*model*.{safetensors,bin}{,.index.json}",
    "*_model.{h5,msgpack,ot}",
    "consolidated*.{safetensors,pth}",
    "adapter_config.json",
};

static bool matches(const char *const *of, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (dcp_str_glob(of[i], name))
            return true;
    return false;
}

static bool is_carried(const char *name)
{
    return matches(globs, DCP_ARRAY_LEN(globs), name);
}

/* Whether it holds weights that are not read. */
static bool is_other(const struct dcp_catalog *catalog, const char *weights,
                     const char *name)
{
    bool other =
        matches(others, DCP_ARRAY_LEN(others), name) && strcmp(name, weights) != 0;

    for (size_t f = 0; f < catalog->n_files && other; f++)
        other = strcmp(catalog->files[f].name, name) != 0;
    return other;
}

static int add(const struct dcp_source *source, const char *file, bool has_content,
               struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *name = dcp_str_join(DCP_HF_FILE, file, "");
    DCP_CLEANUP_FREE void *data = NULL;
    size_t n = 0;

    if (!name)
        return dcp_error_memory(err, "a file name");
    if (has_content)
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

int dcp_hf_files_index(const struct dcp_source *source, const char *weights,
                       struct dcp_catalog *catalog, struct dcp_error *err)
{
    struct dcp_store_entry *entries = NULL;
    size_t n = 0;
    int rc =
        source->store->ops->list(source->store->self, source->name, &entries, &n, err);

    if (n)
        qsort(entries, n, sizeof *entries, by_name);
    for (size_t i = 0; i < n && !rc; i++) {
        const char *name = entries[i].name;
        bool carried = is_carried(name);
        if (!entries[i].is_dir && (carried || is_other(catalog, weights, name)) &&
            dcp_source_has(source, name))
            rc = add(source, name, carried, catalog, err);
    }
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
