/* foreign: one table of folders, one of files by their bytes, one by their names, and one
 * of zip archives. Sources: the writers' own code and files; for GGML ggml's history, for
 * HDF5 its format specification, for TFLite schema.fbs. */
#include "foreign.h"
#include "base/arena.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/archive/zip.h"
#include "formats/common/input.h"
#include <string.h>

#define KERAS "load it with Keras, and write its get_weights() with numpy.savez"
#define TENSORFLOW \
    "load it with TensorFlow, and write its variables with numpy.savez or safetensors"
#define FLAX                                                                           \
    "load it with flax (transformers: from_pretrained with from_flax=True), and save " \
    "it "                                                                              \
    "as safetensors"
#define ORBAX \
    "restore it with orbax.checkpoint, and write the arrays with safetensors.flax"
#define MEGATRON                                                                         \
    "Megatron's tools/checkpoint/convert.py makes a torch_dist checkpoint of it, which " \
    "can be read; one 'model_optim_rng.pt' can be read as a PyTorch file"
#define ONNX                                                                        \
    "export the model from where it was trained; onnx.numpy_helper.to_array reads " \
    "weights"
#define ENGINE "it is made for one GPU: take the model that it was built from"
#define PICKLE                                                                 \
    "pickles run code, and this one is no PyTorch file; save the arrays with " \
    "numpy.savez"
#define SPLIT_GGUF "'llama-gguf-split --merge FIRST OUT' makes one file of them"

/* Folders by what is in them: globs. `also` may be NULL; `inside` is a glob of folders,
 * the last of which may be read. */
static const struct {
    const char *entry, *also, *inside, *kind, *hint;
} folders[] = {
    { "latest_checkpointed_iteration.txt", NULL, "iter_*", "is a run of Megatron-LM",
      "name one of its iterations" },
    { "mp_rank_[0-9]*", NULL, NULL,
      "is a checkpoint of Megatron-LM in its old form, a file for each rank", MEGATRON },
    { "model_config.yaml", "model_weights*", NULL, "is a model of NeMo",
      "unpack it, and name 'model_weights.ckpt' or 'model_weights' in it" },
    { "adapter_config.json", "adapter_model.bin", NULL, "is an adapter of PEFT",
      "name 'adapter_model.bin' in it, which is a PyTorch file" },
    { "model_index.json", NULL, "{transformer,unet,vae,text_encoder,prior}",
      "is a pipeline of diffusers, a folder for each of its models",
      "name one of its models" },
    { "_CHECKPOINT_METADATA", NULL, NULL, "is a checkpoint of Orbax", ORBAX },
    { "_METADATA", "{manifest.ocdbt,d,ocdbt.process_*,*.zarr,checkpoint}", NULL,
      "is a checkpoint of Orbax", ORBAX },
    { "manifest.ocdbt", NULL, NULL,
      "is an OCDBT database of TensorStore, as Orbax has it", ORBAX },
    { "{.zgroup,.zarray,zarr.json}", NULL, NULL, "is a Zarr store",
      "read it with the zarr library, and write the arrays with numpy.savez" },
    { "saved_model.pb{,txt}", NULL, NULL, "is a SavedModel of TensorFlow", TENSORFLOW },
    { "*.data-00000-of-*", "*.index", NULL, "is a checkpoint of TensorFlow", TENSORFLOW },
    { "{flax_model,*}.msgpack*", NULL, NULL, "holds a model of flax", FLAX },
    { "tf_model.h5", NULL, NULL, "holds a model of TensorFlow", TENSORFLOW },
    { "*.onnx", NULL, NULL, "holds a model of ONNX", ONNX },
    { "*-00001-of-[0-9]*.gguf", NULL, NULL, "is a model of llama.cpp in several files",
      SPLIT_GGUF },
    { "Manifest.json", "Data", NULL, "is a package of Core ML",
      "take the model that it was converted from" },
    { "*.engine", NULL, NULL, "holds an engine of TensorRT", ENGINE },
};

/* Files by their bytes. */
static const struct {
    size_t offset, size_bytes;
    const char *magic, *kind, *hint;
} magics[] = {
    { 0, 42, "version https://git-lfs.github.com/spec/v1",
      "is a pointer of Git LFS, not the file itself", "'git lfs pull' fetches the file" },
    { 257, 5, "ustar", "is a tar archive that is no PyTorch file", "unpack it first" },
    { 0, 8, "\x89HDF\r\n\x1a\n", "is an HDF5 file, as Keras writes it", KERAS },
    { 4, 4, "TFL3", "is a model of TensorFlow Lite",
      "take the model that it was converted from" },
    { 0, 4, "tjgg", "is a GGML file of before GGUF",
      "llama.cpp's convert-ggml-to-gguf makes a GGUF file of it" },
    { 0, 4, "fmgg", "is a GGML file of before GGUF",
      "llama.cpp's convert-ggml-to-gguf makes a GGUF file of it" },
    { 0, 4, "lmgg", "is a GGML file of before GGUF",
      "llama.cpp's convert-ggml-to-gguf makes a GGUF file of it" },
    { 0, 4, "ftrt", "is an engine of TensorRT", ENGINE },
    { 0, 4, "ptrt", "is an engine of TensorRT", ENGINE },
    { 0, 2, "\x80\x02", "is a bare pickle, not a checkpoint of a known format", PICKLE },
    { 0, 2, "\x80\x03", "is a bare pickle, not a checkpoint of a known format", PICKLE },
    { 0, 2, "\x80\x04", "is a bare pickle, not a checkpoint of a known format", PICKLE },
    { 0, 2, "\x80\x05", "is a bare pickle, not a checkpoint of a known format", PICKLE },
    { 0, 4, "\x28\xb5\x2f\xfd", "is compressed with zstd", "unpack it first" },
    { 0, 2, "\x1f\x8b", "is compressed with gzip", "unpack it first" },
    { 0, 6,
      "\xfd"
      "7zXZ\0",
      "is compressed with xz", "unpack it first" },
    { 0, 3, "BZh", "is compressed with bzip2", "unpack it first" },
    { 0, 6, "7z\xbc\xaf\x27\x1c", "is a 7-Zip archive", "unpack it first" },
    { 0, 14, "<!DOCTYPE html", "is a web page", "download the file itself" },
    { 0, 14, "<!doctype html", "is a web page", "download the file itself" },
    { 0, 5, "<html", "is a web page", "download the file itself" },
};

/* Files by their names, where bytes tell too little. */
static const struct {
    const char *name, *kind, *hint;
} names[] = {
    { "*.msgpack", "is a model of flax", FLAX },
    { "*.onnx", "is a model of ONNX", ONNX },
    { "*.pb", "is a graph of TensorFlow", TENSORFLOW },
    { "*.data-[0-9]*-of-[0-9]*", "is part of a checkpoint of TensorFlow", TENSORFLOW },
    { "*.mlmodel", "is a model of Core ML", "take the model that it was converted from" },
    { "*.{engine,plan}", "is an engine of TensorRT", ENGINE },
    { "*.index.json", "is an index of files of weights", "name the folder it is in" },
    { "config.json", "is the configuration of a model", "name the folder it is in" },
};

/* Zip archives by the names in them. */
static const struct {
    const char *record, *kind, *hint;
} archives[] = {
    { "*archive_format", "is a program of torch.export",
      "torch.save(torch.export.load(FILE).state_dict, OUT) keeps its weights" },
    { "*.weights.h5", "is a model of Keras", KERAS },
    { "*", "is a zip archive of other things than a PyTorch file or NumPy arrays",
      "unpack it, and name what is in it" },
};

static const char *base_of(const char *name)
{
    const char *slash = strrchr(name, '/');

    return slash ? slash + 1 : name;
}

/* -- files --------------------------------------------------------------------------- */

static bool find_archive(const struct dcp_input *in, struct dcp_foreign *out)
{
    struct dcp_arena *arena = dcp_arena_new();
    struct dcp_zip zip;
    bool open = arena && !dcp_zip_open(in, 0, in->size_bytes, arena, &zip, NULL);

    for (size_t a = 0; open && a < DCP_ARRAY_LEN(archives) && !out->kind; a++)
        for (size_t i = 0; i < zip.n_records && !out->kind; i++)
            if (dcp_str_glob(archives[a].record, zip.records[i].name)) {
                out->kind = archives[a].kind;
                out->hint = archives[a].hint;
            }
    dcp_arena_free(arena);
    return out->kind;
}

/* A pickle that names a library in its first bytes. */
static void name_pickle(const char *head, size_t n, struct dcp_foreign *out)
{
    if (memmem(head, n, "sklearn", 7))
        out->kind = "is a pickle of scikit-learn";
    else if (memmem(head, n, "joblib", 6))
        out->kind = "is a pickle of joblib";
}

static bool find_file(const struct dcp_source *source, struct dcp_foreign *out)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    char head[512] = "";

    if (dcp_input_open(&in, source, NULL, NULL))
        return false;
    size_t n = in.size_bytes < sizeof head ? (size_t)in.size_bytes : sizeof head;
    if (dcp_input_read(&in, 0, head, n, NULL))
        return false;
    if (n >= 4 && !memcmp(head, "PK\3\4", 4))
        return find_archive(&in, out);
    for (size_t i = 0; i < DCP_ARRAY_LEN(magics) && !out->kind; i++)
        if (magics[i].offset + magics[i].size_bytes <= n &&
            !memcmp(head + magics[i].offset, magics[i].magic, magics[i].size_bytes)) {
            out->kind = magics[i].kind;
            out->hint = magics[i].hint;
        }
    for (size_t i = 0; i < DCP_ARRAY_LEN(names) && !out->kind; i++)
        if (dcp_str_glob(names[i].name, base_of(in.name))) {
            out->kind = names[i].kind;
            out->hint = names[i].hint;
        }
    if (out->kind && head[0] == '\x80')
        name_pickle(head, n, out);
    return out->kind;
}

/* -- folders ------------------------------------------------------------------------- */

static bool has(const struct dcp_store_entry *entries, size_t n, const char *glob)
{
    for (size_t i = 0; i < n; i++)
        if (dcp_str_glob(glob, entries[i].name))
            return true;
    return false;
}

/* The last of the folders that a glob matches; caller frees. */
static char *last_folder(const struct dcp_store_entry *entries, size_t n,
                         const char *glob)
{
    const char *last = NULL;

    for (size_t i = 0; i < n; i++)
        if (entries[i].is_dir && dcp_str_glob(glob, entries[i].name) &&
            (!last || dcp_str_natural_cmp(entries[i].name, last) > 0))
            last = entries[i].name;
    return last ? strdup(last) : NULL;
}

static bool find_folder(const struct dcp_source *source, struct dcp_foreign *out)
{
    const struct dcp_store_ops *ops = source->store->ops;
    struct dcp_store_entry *entries = NULL;
    size_t n = 0;

    if (ops->list(source->store->self, source->name, &entries, &n, NULL))
        return false;
    for (size_t i = 0; i < DCP_ARRAY_LEN(folders) && !out->kind; i++) {
        if (!has(entries, n, folders[i].entry) ||
            (folders[i].also && !has(entries, n, folders[i].also)))
            continue;
        out->kind = folders[i].kind;
        out->hint = folders[i].hint;
        out->folder =
            folders[i].inside ? last_folder(entries, n, folders[i].inside) : NULL;
    }
    if (!n) {
        out->kind = "is no checkpoint of a known format: it is empty";
        out->hint = "name the folder of a checkpoint";
    }
    dcp_store_list_free(entries, n);
    return out->kind;
}

bool dcp_foreign_find(const struct dcp_source *source, struct dcp_foreign *out)
{
    *out = (struct dcp_foreign){ 0 };
    return source->is_dir ? find_folder(source, out) : find_file(source, out);
}

const char *dcp_foreign_kind(const struct dcp_source *source)
{
    struct dcp_foreign foreign;

    return source->is_dir || !dcp_foreign_find(source, &foreign) ? NULL : foreign.kind;
}
