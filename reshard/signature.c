/* keygen, sign, verify: who made a step. */
#include "signature.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/source.h"
#include "verbs.h"

struct settings {
    const char *key;
};

static const struct dcp_opt secret_opts[] = {
    { 'k', "key", "FILE", "the secret key, in PEM", "What", DCP_OPT_TEXT,
      .at = offsetof(struct settings, key) },
    { 0 }
};
static const struct dcp_opt public_opts[] = {
    { 'k', "key", "FILE", "the public key, in PEM; a file may hold several", "What",
      DCP_OPT_TEXT, .at = offsetof(struct settings, key) },
    { 0 }
};

static int print(struct dcp_main *m, const char *verb, const char *word, const char *path,
                 const struct dcp_signature *by, struct dcp_error *err)
{
    const struct dcp_term *out = &m->out;
    char shown[512];
    if (m->json) {
        DCP_CLEANUP_JSON json_t *doc = dcp_doc_new(verb);
        int rc = dcp_doc_set(doc, "step", dcp_doc_text(path));
        rc |= dcp_doc_set(doc, "key", dcp_doc_text(by->key));
        rc |= dcp_doc_set(doc, "n_files", dcp_doc_u64(by->n_files));
        rc |= dcp_doc_set(doc, "size_bytes", dcp_doc_u64(by->size_bytes));
        return dcp_doc_print(out->file, rc ? NULL : doc, err);
    }
    dcp_term_printf(out, "%s%s%s    %s: by key %s, %s, %s\n",
                    dcp_term_style(out, DCP_STYLE_GOOD), word,
                    dcp_term_style(out, DCP_STYLE_OFF),
                    dcp_str_escape(shown, sizeof shown, path), by->key,
                    dcp_human_items(by->n_files, "file", "files").text,
                    dcp_human_size(by->size_bytes).text);
    return DCP_OK;
}

static int check_key(const struct settings *s, struct dcp_error *err)
{
    return s->key ? DCP_OK : dcp_error_set(err, DCP_E_USAGE, "--key is missing");
}

int reshard_sign(struct dcp_main *m, const struct dcp_source *step, const char *path,
                 const char *key, struct dcp_signature *out, struct dcp_error *err)
{
    const struct dcp_progress progress = dcp_main_progress(m, "signing");
    int rc = dcp_sign(step, key, &progress, out, err);
    dcp_main_progress_end(m);
    if (rc)
        dcp_error_prefix(err, "cannot sign '%s'", path);
    return rc;
}

static int sign(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    const struct settings *s = settings;
    struct dcp_location location;
    struct dcp_signature by;
    DCP_TRY(check_key(s, err));
    DCP_TRY(dcp_source_open(m, m->operands.items[0], &location, err));
    int rc = reshard_sign(m, &location.source, location.path, s->key, &by, err);
    dcp_location_close(&location);
    return rc ? rc : print(m, "sign", "signed", m->operands.items[0], &by, err);
}

static int verify(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    const struct settings *s = settings;
    struct dcp_keys *keys = NULL;
    struct dcp_location location;
    struct dcp_signature by;
    int rc = check_key(s, err);
    if (!rc)
        rc = dcp_keys_read(s->key, &keys, err);
    if (!rc)
        rc = dcp_source_open(m, m->operands.items[0], &location, err);
    if (rc) {
        dcp_keys_free(keys);
        return rc;
    }
    const struct dcp_progress progress = dcp_main_progress(m, "checking the signature");
    rc = dcp_check_signature(&location.source, keys, &progress, &by, err);
    dcp_main_progress_end(m);
    if (rc)
        dcp_error_prefix(err, "'%s' is not trusted", location.path);
    else
        rc = print(m, "signature", "good", location.path, &by, err);
    dcp_location_close(&location);
    dcp_keys_free(keys);
    return rc;
}

static int keygen(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    (void)settings;
    const char *path = m->operands.items[0];
    char shown[512];
    int rc = dcp_keys_make(path, err);
    if (rc)
        return rc;
    if (m->json) {
        DCP_CLEANUP_FREE char *public = dcp_str_join(path, ".pub", "");
        DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("keygen");
        rc = dcp_doc_set(doc, "secret", dcp_doc_text(path));
        rc |= dcp_doc_set(doc, "public", dcp_doc_text(public));
        return dcp_doc_print(m->out.file, rc || !public ? NULL : doc, err);
    }
    dcp_str_escape(shown, sizeof shown, path);
    dcp_term_printf(&m->out, "secret    %s: keep it secret\npublic    %s.pub\n", shown,
                    shown);
    return DCP_OK;
}

static const struct dcp_example sign_examples[] = {
    { "dcp-reshard sign run/step-00001200 --key me.key", "one step" }, { 0 }
};
static const struct dcp_example verify_examples[] = {
    { "dcp-reshard verify run --key me.key.pub", "the newest step of a run" },
    { "dcp-inspect --trusted-keys team.pub run", "every verb that reads steps checks" },
    { 0 },
};
static const struct dcp_example keygen_examples[] = {
    { "dcp-reshard keygen me.key", "me.key and me.key.pub" },
    { "openssl genpkey -algorithm ed25519 -out me.key", "the same by OpenSSL" },
    { 0 },
};

static const struct dcp_exit exits[] = {
    { 0, "done; it is signed, and unchanged" },
    { 2, "wrong usage, or no key" },
    { 3, "not found" },
    { 4, "a file is not what was signed, or the step is corrupt" },
    { 5, "not signed, by another key, or it already exists" },
    { 6, "I/O error" },
    { 8, "not a native step, or other files are in its folder" },
    { 9, "out of memory" },
    { 130, "interrupted" },
    { 0 },
};

#define ABOUT_RULE                                                                      \
    "Signed is the SHA-256 of every file of the step, in manifest.json.sig beside the " \
    "manifest (FORMAT.md says how), with Ed25519."

const struct dcp_command reshard_keygen = {
    .name = "keygen",
    .operands = "FILE",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "make a key pair: FILE to sign with, FILE.pub to verify with",
    .about = "Both are PEM, as openssl has them.",
    .settings_size_bytes = 1,
    .checks_no_signature = true,
    .examples = keygen_examples,
    .exits = exits,
    .run = keygen,
};

const struct dcp_command reshard_sign_verb = {
    .name = "sign",
    .operands = "STEP",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "sign a native step",
    .about =
        ABOUT_RULE " All of it is read once, parity twice, and held against the digests "
                   "of the manifest: what is corrupt is not signed. A repair keeps the "
                   "signature; a reshard makes another step, which --key signs.",
    .opts = secret_opts,
    .settings_size_bytes = sizeof(struct settings),
    .examples = sign_examples,
    .exits = exits,
    .run = sign,
};

const struct dcp_command reshard_verify = {
    .name = "verify",
    .operands = "STEP",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "check who signed a native step, and that it is unchanged",
    .about = ABOUT_RULE " All of it is read once.",
    .opts = public_opts,
    .settings_size_bytes = sizeof(struct settings),
    .examples = verify_examples,
    .exits = exits,
    .run = verify,
};
