/* sign: keys, and the signature of a step. */
#include "signature.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/str.h"
#include "core/verify/parity.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define MAX_KEYS_BYTES ((size_t)1 << 20)

int dcp_keys_read(const char *path, struct dcp_keys **out_keys, struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *text = NULL;
    size_t n = 0;
    struct dcp_keys *keys = calloc(1, sizeof *keys);
    int rc = keys ? dcp_fs_read_file(path, MAX_KEYS_BYTES, &text, &n, err)
                  : dcp_error_memory(err, "keys");
    if (!rc)
        rc = dcp_ed25519_read(text, n, path, &keys->items, &keys->n, err);
    if (rc) {
        free(keys);
        keys = NULL;
    }
    *out_keys = keys;
    return rc;
}

void dcp_keys_free(struct dcp_keys *keys)
{
    if (keys)
        free(keys->items);
    free(keys);
}

static int write_new(const char *path, const struct dcp_buf *text, mode_t mode,
                     struct dcp_error *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0 && errno == EEXIST)
        return dcp_error_set(err, DCP_E_EXISTS, "'%s' already exists", path);
    if (fd < 0)
        return dcp_error_sys(err, DCP_E_IO, errno, "cannot write '%s'", path);
    int failed = dcp_fs_write_whole(fd, text->data, text->size_bytes);
    int why = errno;
    if (close(fd) && !failed) {
        failed = -1;
        why = errno;
    }
    if (!failed)
        return DCP_OK;
    unlink(path);
    if (why == EBADMSG)
        return dcp_fs_not_written(path, err);
    return dcp_error_sys(err, DCP_E_IO, why, "cannot write '%s'", path);
}

int dcp_keys_make(const char *path, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf secret = { 0 }, public = { 0 };
    DCP_CLEANUP_FREE char *beside = dcp_str_join(path, ".pub", "");
    if (!beside)
        return dcp_error_memory(err, "a key");
    int rc = dcp_ed25519_make(&secret, &public, err);
    if (!rc)
        rc = write_new(path, &secret, 0600, err);
    if (!rc && (rc = write_new(beside, &public, 0644, err)))
        unlink(path);
    if (secret.data)
        explicit_bzero(secret.data, secret.size_bytes);
    return rc;
}

static int check_native(const struct dcp_source *source, int code, struct dcp_error *err)
{
    const struct dcp_format *steps = dcp_format_of_steps();
    if (source->is_dir && steps->probe(source) > 0)
        return DCP_OK;
    dcp_error_set(err, code, "only a native step can be signed, and this is not one");
    dcp_error_hint(err, "'dcp-reshard SRC DST --key FILE' makes one of it, and signs it");
    return code;
}

/* The lines of other keys, when they signed the same. */
static int keep_others(const struct dcp_source *source, const struct dcp_buf *list,
                       const char *id, struct dcp_buf *out, struct dcp_error *err)
{
    DCP_CLEANUP_SIGNATURE struct dcp_signature_lines old;
    size_t n = 0;
    if (dcp_signature_read(source, &old, NULL) || old.signed_bytes != list->size_bytes ||
        memcmp(old.text, list->data, list->size_bytes) != 0)
        return DCP_OK;
    for (size_t i = 0; i < old.n; i++) {
        char key[DCP_ED25519_ID], text[DCP_ED25519_TEXT];
        dcp_signature_line(&old, i, key, text);
        if (!strcmp(key, id))
            continue;
        dcp_signature_add(out, key, text);
        n++;
    }
    if (n < SIGNATURE_MAX)
        return DCP_OK;
    dcp_error_set(err, DCP_E_UNSUPPORTED, "the step has %d signatures already",
                  SIGNATURE_MAX);
    dcp_error_hint(err, "remove a line from " SIGNATURE_FILE);
    return DCP_E_UNSUPPORTED;
}

static int refuse_parity(void *self, const struct dcp_finding *finding,
                         struct dcp_error *err)
{
    (void)self;
    return dcp_error_set(
        err, finding->code == DCP_E_IO ? DCP_E_IO : DCP_E_CORRUPT, "'%s' is corrupt: %s",
        finding->file ? finding->file : "the parity of the step", finding->what);
}

/* What a repair would change is not signed: every file is what the manifest says. */
static int list_step(const struct dcp_source *source, const struct dcp_progress *progress,
                     struct dcp_buf *list, struct dcp_signature *out,
                     struct dcp_error *err)
{
    static const struct dcp_verify_options all = { 0 };
    struct dcp_catalog *catalog = NULL;
    uint64_t n_bytes;
    int rc = dcp_catalog_new(&catalog, err);
    if (!rc)
        rc = dcp_format_of_steps()->index(source, catalog, err);
    if (!rc)
        rc = dcp_verify_parity(source, catalog, &all, refuse_parity, NULL, &n_bytes, err);
    if (!rc)
        rc = dcp_signature_list(source, catalog, progress, list, out, err);
    if (rc == DCP_E_CORRUPT)
        dcp_error_hint(err,
                       catalog->parity
                           ? "'dcp-reshard repair' rebuilds it from its "
                             "parity: sign it then"
                           : "'dcp-inspect verify' lists everything that is corrupt");
    dcp_catalog_free(catalog);
    return rc;
}

/* The text of a secret key, and that it is one. Caller clears and frees. */
static int read_secret(const char *path, void **out_pem, size_t *out_n,
                       struct dcp_error *err)
{
    struct dcp_ed25519_key key;
    char signature[DCP_ED25519_TEXT];
    DCP_TRY(dcp_fs_read_file(path, MAX_KEYS_BYTES, out_pem, out_n, err));
    return dcp_ed25519_sign(*out_pem, *out_n, path, "", 0, signature, &key, err);
}

int dcp_keys_check(const char *path, struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *pem = NULL;
    size_t n = 0;
    int rc = read_secret(path, &pem, &n, err);
    if (pem)
        explicit_bzero(pem, n);
    return rc;
}

int dcp_sign(const struct dcp_source *source, const char *key_path,
             const struct dcp_progress *progress, struct dcp_signature *out,
             struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *pem = NULL;
    DCP_CLEANUP_BUF struct dcp_buf list = { 0 }, text = { 0 };
    DCP_CLEANUP_FREE char *path =
        dcp_str_join(source->name, source->name[0] ? "/" : "", SIGNATURE_FILE);
    struct dcp_ed25519_key key;
    char signature[DCP_ED25519_TEXT];
    size_t n = 0;
    int rc = check_native(source, DCP_E_UNSUPPORTED, err);
    if (!rc) /* before all is read */
        rc = read_secret(key_path, &pem, &n, err);
    if (!rc)
        rc = list_step(source, progress, &list, out, err);
    if (!rc)
        rc = dcp_ed25519_sign(pem, n, key_path, list.data, list.size_bytes, signature,
                              &key, err);
    if (pem)
        explicit_bzero(pem, n);
    if (rc)
        return rc;
    dcp_ed25519_id(&key, out->key);
    dcp_buf_add(&text, list.data, list.size_bytes);
    rc = keep_others(source, &list, out->key, &text, err);
    dcp_signature_add(&text, out->key, signature);
    if (!rc)
        rc = dcp_buf_check(&text, err);
    if (!rc) /* readers take no more */
        rc = dcp_store_check_header(source->store, SIGNATURE_FILE, text.size_bytes,
                                    SIGNATURE_MAX_BYTES, err);
    if (!rc && !path)
        rc = dcp_error_memory(err, "a signature");
    return rc ? rc
              : source->store->ops->replace(source->store->self, path, text.data,
                                            text.size_bytes, err);
}

/* The first line that is the signature of one of the keys. */
static int find_signature(const struct dcp_keys *keys,
                          const struct dcp_signature_lines *lines,
                          struct dcp_signature *out, struct dcp_error *err)
{
    for (size_t i = 0; i < lines->n; i++) {
        char id[DCP_ED25519_ID], signature[DCP_ED25519_TEXT];
        dcp_signature_line(lines, i, id, signature);
        for (size_t k = 0; k < keys->n; k++) {
            const struct dcp_ed25519_key *key = &keys->items[k];
            if (dcp_ed25519_check(key, lines->text, lines->signed_bytes, signature)) {
                dcp_ed25519_id(key, out->key);
                return DCP_OK;
            }
        }
    }
    dcp_error_set(err, DCP_E_MISMATCH,
                  "the step is not signed by any of the trusted keys");
    dcp_error_hint(err, SIGNATURE_FILE " names the keys that signed it");
    return DCP_E_MISMATCH;
}

/* The name of the file of a line; of no line one behind all others. Caller frees. */
static char *file_of(const char *line, const char *end)
{
    const char *name = line < end ? line + DCP_SHA256_HEX + 1 : "\xff";
    return strndup(name, strcspn(name, "\n"));
}

static size_t line_bytes(const char *text)
{
    return strcspn(text, "\n") + 1;
}

/* The first file that is not as it was signed. */
static int compare(const struct dcp_buf *found, const struct dcp_signature_lines *lines,
                   struct dcp_error *err)
{
    const char *a = (const char *)found->data, *a_end = a + found->size_bytes;
    const char *b = lines->text, *b_end = b + lines->signed_bytes;
    while (a < a_end && b < b_end && !strncmp(a, b, line_bytes(a))) {
        b += line_bytes(a);
        a += line_bytes(a);
    }
    if (a == a_end && b == b_end)
        return DCP_OK;
    DCP_CLEANUP_FREE char *here = file_of(a, a_end), *meant = file_of(b, b_end);
    if (!here || !meant)
        return dcp_error_memory(err, "a signature");
    int order = strcmp(here, meant);
    dcp_error_set(err, DCP_E_CORRUPT, "'%s' %s", DCP_SHOWN(order < 0 ? here : meant),
                  order < 0   ? "was added after the step was signed"
                  : order > 0 ? "was signed and is missing"
                              : "is not the file that was signed");
    dcp_error_hint(err, "with parity 'dcp-reshard repair' rebuilds what was lost by "
                        "accident");
    return DCP_E_CORRUPT;
}

int dcp_check_signature(const struct dcp_source *source, const struct dcp_keys *keys,
                        const struct dcp_progress *progress, struct dcp_signature *out,
                        struct dcp_error *err)
{
    DCP_CLEANUP_SIGNATURE struct dcp_signature_lines lines = { 0 };
    DCP_CLEANUP_BUF struct dcp_buf list = { 0 };
    struct dcp_error why = { 0 };
    struct dcp_signature by = { 0 };
    DCP_TRY(check_native(source, DCP_E_MISMATCH, err));
    int rc = dcp_signature_read(source, &lines, &why);
    if (rc == DCP_E_NOT_FOUND) {
        dcp_error_set(err, DCP_E_MISMATCH, "the step is not signed");
        dcp_error_hint(err, "'dcp-reshard sign STEP --key FILE' signs it");
        return DCP_E_MISMATCH;
    }
    if (rc && err)
        *err = why;
    if (!rc)
        rc = find_signature(keys, &lines, &by, err);
    if (!rc)
        rc = dcp_signature_list(source, NULL, progress, &list, out, err);
    if (rc)
        return rc;
    memcpy(out->key, by.key, sizeof out->key);
    return compare(&list, &lines, err);
}
