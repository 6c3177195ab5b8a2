#include "generate.h"
#include "trainer/data/tokenizer.h"

#include "base/mem.h"
#include "cli/doc.h"
#include "resume.h"
#include "trainer/model/sample.h"
#include <string.h>

/* What is generated goes to stdout as it comes, or with --json into one document. */
struct text {
    struct run *run;
    struct dcp_buf bytes; /* of --json */
    int64_t n_tokens;
    int rc;
    struct dcp_error *err;
};

static void put(struct text *text, const char *bytes, size_t size_bytes)
{
    FILE *out = text->run->main->out.file;
    if (text->run->main->json)
        dcp_buf_add(&text->bytes, bytes, size_bytes);
    else if (fwrite(bytes, 1, size_bytes, out) == size_bytes)
        fflush(out);
}

/* One token more; false when nobody wants to read on. */
static bool take(void *self, int32_t token)
{
    struct text *text = self;
    DCP_CLEANUP_FREE char *bytes = NULL;
    size_t size_bytes = 0;
    text->rc =
        tokenizer_decode(text->run->tokenizer, &token, 1, &bytes, &size_bytes, text->err);
    if (text->rc)
        return false;
    put(text, bytes, size_bytes);
    text->n_tokens++;
    return dcp_main_is_read(text->run->main) && !dcp_main_stopped();
}

static int print_json(struct text *text, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("generate");
    DCP_TRY(dcp_buf_check(&text->bytes, err));
    if (!doc)
        return dcp_error_memory(err, "the answer");
    DCP_TRY(dcp_doc_set(doc, "text", dcp_doc_text((const char *)text->bytes.data)));
    DCP_TRY(dcp_doc_set(doc, "new_tokens", json_integer(text->n_tokens)));
    return dcp_doc_print(text->run->main->out.file, doc, err);
}

static int go_on(struct run *run, const int32_t *prompt, size_t n_prompt,
                 struct dcp_error *err)
{
    const struct run_options *o = run->options;
    struct text text = { .run = run, .err = err };
    const struct sample_params params = { .temperature = o->temperature,
                                          .top_k = (int)o->top_k,
                                          .top_p = o->top_p,
                                          .seed = (uint64_t)o->seed };
    put(&text, o->generate, strlen(o->generate));
    int rc = sample_generate(run->model, &run->hooks, &params, prompt, (int)n_prompt,
                             (int)o->max_tokens, take, &text, err);
    rc = text.rc ? text.rc : rc;
    if (!rc && run->main->json)
        rc = print_json(&text, err);
    else if (!run->main->json)
        put(&text, "\n", 1);
    dcp_buf_fini(&text.bytes);
    return rc;
}

int generate_run(struct run *run, struct dcp_error *err)
{
    const char *prompt = run->options->generate;
    DCP_CLEANUP_FREE int32_t *tokens = NULL;
    struct resume_result resumed;
    size_t n = 0;
    DCP_TRY(tokenizer_encode(run->tokenizer, prompt, strlen(prompt), &tokens, &n, err));
    if (n == 0 || n > INT32_MAX) {
        dcp_error_set(err, DCP_E_USAGE, "--generate needs a text to begin with");
        dcp_error_hint(err, "such as --generate 'It was a'");
        return DCP_E_USAGE;
    }
    for (size_t i = 0; i < n; i++)
        if (tokens[i] >= run->settings.model.vocab_size)
            return dcp_error_set(
                err, DCP_E_MISMATCH,
                "the tokenizer gives id %d, the model's vocabulary is %d", tokens[i],
                run->settings.model.vocab_size);
    DCP_TRY(resume_run(run, true, &resumed, err));
    return go_on(run, tokens, n, err);
}
