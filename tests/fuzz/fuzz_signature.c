/* manifest.json.sig of a small step. The first byte says what the rest is: 'F' the file;
 * 'L' what stands behind the list of the step's files; 'S' a list, which is signed here
 * by a trusted key, so that a fuzzer gets behind that. What is taken has the form of
 * FORMAT.md §12, also behind one more signature. */
#include "base/buf.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/mem.h"
#include "core/sign/signature.h"
#include "lib/must.h"
#include <dcp/dcp.h>
#include <inttypes.h>
#include <string.h>

#define LINE_BYTES 114 /* with a signature */
#define SHARD "shard-00000-of-00001"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "fuzz_signature.XXXXXX";
static char key_path[sizeof folder + 4];
static void *secret; /* in PEM */
static size_t secret_bytes;
static struct dcp_keys *trusted;
static char *list; /* of the step, and a signature */
static size_t list_bytes;

static void clear(void)
{
    dcp_fs_remove_all(folder, NULL);
    dcp_keys_free(trusted);
    free(secret);
    free(list);
}

static void make_key(void)
{
    char public_path[sizeof key_path + 4];

    must(mkdtemp(folder));
    atexit(clear);
    snprintf(key_path, sizeof key_path, "%s/key", folder);
    snprintf(public_path, sizeof public_path, "%s.pub", key_path);
    must(!dcp_keys_make(key_path, NULL) && !dcp_keys_read(public_path, &trusted, NULL));
    must(!dcp_fs_read_file(key_path, 4096, &secret, &secret_bytes, NULL));
}

static void put(const struct dcp_store *store, const char *name, const void *data,
                size_t size)
{
    must(!dcp_store_write_file(store, name, data, size, NULL));
}

static void make_step(const struct dcp_store *store)
{
    static const char shard[] = "shard", file[] = "file",
                      pieces[] = "{\"format\":\"libdcp-shard\",\"version\":1,\"step\":1,"
                                 "\"rank\":0,\"world\":1,\"file\":\"" SHARD
                                 ".safetensors\",\"pieces\":[]}";
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };

    dcp_buf_add_fmt(&text,
                    "{\"format\":\"libdcp\",\"version\":1,\"requires\":[],\"step\":1,"
                    "\"world\":1,\"layout\":\"\",\"mesh\":{\"dp\":1,\"tp\":1,\"pp\":1},"
                    "\"tensors\":[],\"shards\":[{\"rank\":0,\"file\":\"" SHARD
                    ".safetensors\",\"size_bytes\":%zu,\"crc64\":\"%016" PRIx64
                    "\",\"manifest\":\"" SHARD ".json\",\"manifest_size_bytes\":%zu,"
                    "\"manifest_crc64\":\"%016" PRIx64 "\"}],\"files\":[{\"name\":"
                    "\"a/b\",\"size_bytes\":%zu,\"crc64\":\"%016" PRIx64
                    "\"}],\"objects\":[]",
                    sizeof shard, dcp_hash_crc64(0, shard, sizeof shard),
                    sizeof pieces - 1, dcp_hash_crc64(0, pieces, sizeof pieces - 1),
                    sizeof file, dcp_hash_crc64(0, file, sizeof file));
    dcp_buf_add_fmt(&text, ",\n\"digest\":\"%016" PRIx64 "\"}\n",
                    dcp_hash_crc64(0, text.data, text.size_bytes));
    must(!text.failed && !store->ops->make_dir(store->self, "a", NULL));
    put(store, SHARD ".safetensors", shard, sizeof shard);
    put(store, SHARD ".json", pieces, sizeof pieces - 1);
    put(store, "a/b", file, sizeof file);
    put(store, "manifest.json", text.data, text.size_bytes);
}

/* The whole file, and where the list ends. */
static void read_signature(const struct dcp_store *store, char **out, size_t *out_list)
{
    void *text = NULL;
    size_t n;

    must(!dcp_store_read_file(store, SIGNATURE_FILE, 1 << 30, &text, &n, NULL));
    const char *end = strstr(text, "\n" SIGNATURE_MARK);
    must(end);
    *out = text;
    *out_list = (size_t)(end + 1 - *out);
}

static void make_signature(const struct dcp_source *source, char kind,
                           const uint8_t *data, size_t size)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    struct dcp_signature by;
    struct dcp_ed25519_key key;
    char signature[DCP_ED25519_TEXT];

    if (kind == 'L') {
        if (!list) {
            must(!dcp_sign(source, key_path, NULL, &by, NULL));
            read_signature(source->store, &list, &list_bytes);
            must(!source->store->ops->remove(source->store->self, SIGNATURE_FILE, NULL));
        }
        dcp_buf_add(&text, list, list_bytes);
    }
    dcp_buf_add(&text, data, size);
    if (kind == 'S') {
        must(!dcp_ed25519_sign(secret, secret_bytes, "key", data, size, signature, &key,
                               NULL));
        dcp_buf_add_fmt(&text, SIGNATURE_MARK "0123456789abcdef %s\n", signature);
    }
    must(!text.failed);
    put(source->store, SIGNATURE_FILE, text.data, text.size_bytes);
}

static void check_form(const struct dcp_store *store)
{
    DCP_CLEANUP_FREE char *text = NULL;
    size_t n;

    read_signature(store, &text, &n);
    const char *at = text + n;

    must(strlen(at) % LINE_BYTES == 0 && strlen(at) / LINE_BYTES <= SIGNATURE_MAX);
    for (; *at; at += LINE_BYTES)
        must(!strncmp(at, SIGNATURE_MARK, strlen(SIGNATURE_MARK)) &&
             strcspn(at, "\n") == LINE_BYTES - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dcp_store store;
    struct dcp_signature by;
    struct dcp_error err = { 0 };

    if (!size || !strchr("FLS", data[0]) || !data[0])
        return 0;
    if (!trusted)
        make_key();
    must(!dcp_store_mem(&store, NULL));
    const struct dcp_source source = { &store, "", true };
    make_step(&store);
    make_signature(&source, (char)data[0], data + 1, size - 1);
    char *signers = dcp_signers(&source);
    int rc = dcp_check_signature(&source, trusted, NULL, &by, &err);
    must(!rc || ((rc == DCP_E_MISMATCH || rc == DCP_E_CORRUPT) && err.message[0]));
    if (signers || !rc)
        check_form(&store);
    must(signers || rc);
    if (data[0] == 'L' && signers) { /* lines of others stay */
        rc = dcp_sign(&source, key_path, NULL, &by, NULL);
        must(!rc || rc == DCP_E_UNSUPPORTED); /* too many of them */
        if (!rc)
            check_form(&store);
        must(rc || !dcp_check_signature(&source, trusted, NULL, &by, NULL));
    }
    free(signers);
    dcp_store_free(&store);
    return 0;
}
