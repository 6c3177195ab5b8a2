#include "signature.h"

#include "base/mem.h"
#include "base/sha256.h"
#include "base/str.h"
#include <string.h>

/* A line with a signature: mark, key, blank, signature, line feed. */
enum {
    KEY_AT = sizeof SIGNATURE_MARK - 1,
    TEXT_AT = KEY_AT + DCP_ED25519_ID,
    LINE_BYTES = TEXT_AT + DCP_ED25519_TEXT
};

#define HEX "0123456789abcdef"
#define BASE64 "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

/* Behind the line of a file that begins at `at`; NULL: there is none. */
static const char *skip_file(const char *at)
{
    const char *name = at + DCP_SHA256_HEX + 1;
    if (strspn(at, HEX) != DCP_SHA256_HEX - 1 ||
        strncmp(at + DCP_SHA256_HEX - 1, "  ", 2) != 0)
        return NULL;
    size_t n = strcspn(name, "\n");
    return n && name[n] ? name + n + 1 : NULL;
}

/* The same for a line with a signature. */
static const char *skip_signature(const char *at)
{
    if (strnlen(at, LINE_BYTES) != LINE_BYTES ||
        strncmp(at, SIGNATURE_MARK, KEY_AT) != 0 ||
        strspn(at + KEY_AT, HEX) != DCP_ED25519_ID - 1 || at[TEXT_AT - 1] != ' ' ||
        strspn(at + TEXT_AT, BASE64) != DCP_ED25519_TEXT - 3 ||
        strncmp(at + LINE_BYTES - 3, "==\n", 3) != 0)
        return NULL;
    return at + LINE_BYTES;
}

/* False: it is not of this version, or incomplete. */
static bool parse(const char *text, struct dcp_signature_lines *out)
{
    const char *at = text, *next;
    if (!dcp_str_starts(text, SIGNATURE_FIRST))
        return false;
    at += strlen(SIGNATURE_FIRST);
    while ((next = skip_file(at)))
        at = next;
    out->signed_bytes = (size_t)(at - text);
    for (out->n = 0; out->n < SIGNATURE_MAX && (next = skip_signature(at)); out->n++)
        at = next;
    return out->n && !*at;
}

int dcp_signature_read(const struct dcp_source *source, struct dcp_signature_lines *out,
                       struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path =
        dcp_str_join(source->name, source->name[0] ? "/" : "", SIGNATURE_FILE);
    void *text = NULL;
    size_t n = 0;
    *out = (struct dcp_signature_lines){ 0 };
    DCP_TRY(path ? dcp_store_read_file(source->store, path, SIGNATURE_MAX_BYTES, &text,
                                       &n, err)
                 : dcp_error_memory(err, "a signature"));
    out->text = text;
    if (strlen(text) == n && parse(text, out))
        return DCP_OK;
    dcp_signature_fini(out);
    return dcp_error_set(err, DCP_E_CORRUPT,
                         SIGNATURE_FILE " is corrupt, or of another version");
}

void dcp_signature_fini(struct dcp_signature_lines *lines)
{
    free(lines->text);
    *lines = (struct dcp_signature_lines){ 0 };
}

void dcp_signature_line(const struct dcp_signature_lines *lines, size_t i,
                        char out_key[DCP_ED25519_ID], char out_text[DCP_ED25519_TEXT])
{
    const char *line = lines->text + lines->signed_bytes + i * LINE_BYTES;
    memcpy(out_key, line + KEY_AT, DCP_ED25519_ID - 1);
    out_key[DCP_ED25519_ID - 1] = '\0';
    memcpy(out_text, line + TEXT_AT, DCP_ED25519_TEXT - 1);
    out_text[DCP_ED25519_TEXT - 1] = '\0';
}

void dcp_signature_add(struct dcp_buf *out, const char *key, const char *text)
{
    dcp_buf_add_fmt(out, SIGNATURE_MARK "%s %s\n", key, text);
}

char *dcp_signers(const struct dcp_source *source)
{
    DCP_CLEANUP_SIGNATURE struct dcp_signature_lines lines;
    struct dcp_buf out = { 0 };
    if (dcp_signature_read(source, &lines, NULL))
        return NULL;
    for (size_t i = 0; i < lines.n; i++) {
        char key[DCP_ED25519_ID], text[DCP_ED25519_TEXT];
        dcp_signature_line(&lines, i, key, text);
        dcp_buf_add_fmt(&out, "%s%s", i ? "\n" : "", key);
    }
    return (char *)out.data;
}
