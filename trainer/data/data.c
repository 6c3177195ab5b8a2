#include "data.h"

#include "base/buf.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "file.h"
#include "trainer/ops/rng.h"
#include <glob.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define STREAM_KEY UINT64_C(0x64617461) /* apart from other uses of the seed */
#define ENTROPY_TOKENS 1000000

struct data {
    struct data_file *files;
    int64_t *first_sample; /* of each file, and of the end */
    size_t n_files, cap_files;
    int vocab_size, seq_len;
    uint64_t seed;
    int64_t n_tokens;
    uint64_t digest;
};

void data_free(struct data *data)
{
    if (!data)
        return;
    for (size_t i = 0; i < data->n_files; i++)
        data_file_close(&data->files[i]);
    free(data->files);
    free(data->first_sample);
    free(data);
}

static int add_file(struct data *data, const char *path,
                    const struct tokenizer *tokenizer, struct dcp_error *err)
{
    struct data_file *grown =
        dcp_mem_grow(data->files, &data->cap_files, data->n_files + 1, sizeof *grown);
    if (!grown)
        return dcp_error_memory(err, "the list of data files");
    data->files = grown;
    int rc = data_file_open(path, tokenizer, data->vocab_size,
                            &data->files[data->n_files], err);
    if (rc == DCP_E_DIFFERS) /* a folder */
        return DCP_OK;
    if (rc)
        return rc;
    data->n_tokens += data->files[data->n_files++].n_tokens;
    return DCP_OK;
}

static int compare_paths(const void *a, const void *b)
{
    return dcp_str_natural_cmp(*(char *const *)a, *(char *const *)b);
}

static void cleanup_glob(glob_t *found)
{
    globfree(found);
}

static int add_files(struct data *data, const char *pattern,
                     const struct tokenizer *tokenizer, struct dcp_error *err)
{
    DCP_CLEANUP(cleanup_glob) glob_t found = { 0 };
    int rc = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (rc == GLOB_NOSPACE)
        return dcp_error_memory(err, "the list of data files");
    if (rc == GLOB_NOMATCH && dcp_fs_exists(pattern)) /* a name that looks like a glob */
        return add_file(data, pattern, tokenizer, err);
    if (rc)
        return dcp_error_set(err, DCP_E_NOT_FOUND, "no file matches '%s'", pattern);
    qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, compare_paths);
    for (size_t i = 0; i < found.gl_pathc; i++)
        DCP_TRY(add_file(data, found.gl_pathv[i], tokenizer, err));
    return DCP_OK;
}

/* A sample is a window and the token behind it, all in one file. */
static int count_samples(struct data *data, const char *pattern, struct dcp_error *err)
{
    data->first_sample = dcp_mem_calloc(data->n_files + 1, sizeof *data->first_sample);
    if (!data->first_sample)
        return dcp_error_memory(err, "the list of data files");
    for (size_t i = 0; i < data->n_files; i++) {
        int64_t n = data->files[i].n_tokens;
        data->first_sample[i + 1] =
            data->first_sample[i] + (n ? (n - 1) / data->seq_len : 0);
    }
    if (!data->n_files) {
        dcp_error_set(err, DCP_E_NOT_FOUND, "'%s' is a folder", pattern);
        dcp_error_hint(err, "name the files in it, such as '%s/*.txt'", pattern);
        return DCP_E_NOT_FOUND;
    }
    if (!data_samples(data)) {
        dcp_error_set(err, DCP_E_USAGE,
                      "'%s' has %lld tokens in %zu file%s; a sample is seq_len + 1 = "
                      "%lld of one file",
                      pattern, (long long)data->n_tokens, data->n_files,
                      data->n_files == 1 ? "" : "s", data->seq_len + 1LL);
        dcp_error_hint(err, "make data.seq_len smaller");
        return DCP_E_USAGE;
    }
    return DCP_OK;
}

static int compute_digest(struct data *data, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf facts = { 0 };
    dcp_buf_add_le64(&facts, data->seed);
    dcp_buf_add_le64(&facts, (uint64_t)data->seq_len);
    for (size_t i = 0; i < data->n_files; i++) {
        const struct data_file *file = &data->files[i];
        dcp_buf_add(&facts, file->name, strlen(file->name) + 1);
        dcp_buf_add_le64(&facts, file->size_bytes);
        dcp_buf_add_le64(&facts, (uint64_t)file->n_tokens);
        dcp_buf_add_le64(&facts, (uint64_t)file->width);
    }
    data->digest = dcp_hash_xxh3(facts.data, facts.size_bytes);
    return dcp_buf_check(&facts, err);
}

int data_open(const char *pattern, const struct tokenizer *tokenizer, int vocab_size,
              int seq_len, uint64_t seed, struct data **out, struct dcp_error *err)
{
    if (seq_len < 1 || vocab_size < 1)
        return dcp_error_set(err, DCP_E_USAGE,
                             "seq_len %d and vocab_size %d must be at least 1", seq_len,
                             vocab_size);
    struct data *data = dcp_mem_calloc(1, sizeof *data);
    if (!data)
        return dcp_error_memory(err, "the data");
    data->vocab_size = vocab_size;
    data->seq_len = seq_len;
    data->seed = seed;
    int rc = add_files(data, pattern, tokenizer, err);
    if (!rc)
        rc = count_samples(data, pattern, err);
    if (!rc)
        rc = compute_digest(data, err);
    if (rc) {
        data_free(data);
        return rc;
    }
    *out = data;
    return DCP_OK;
}

int64_t data_samples(const struct data *data)
{
    return data->first_sample[data->n_files];
}

int64_t data_tokens(const struct data *data)
{
    return data->n_tokens;
}

void data_window(const struct data *data, int64_t index, int32_t *out_tokens,
                 int32_t *out_targets)
{
    size_t low = 0, high = data->n_files - 1; /* the last file that begins by index */
    while (low < high) {
        size_t middle = low + (high - low + 1) / 2;
        if (data->first_sample[middle] <= index)
            low = middle;
        else
            high = middle - 1;
    }
    const struct data_file *file = &data->files[low];
    int64_t begin = (index - data->first_sample[low]) * data->seq_len;
    data_file_read(file, begin, data->seq_len, out_tokens);
    data_file_read(file, begin + 1, data->seq_len, out_targets);
}

void data_sample(const struct data *data, int64_t cursor, int32_t *out_tokens,
                 int32_t *out_targets)
{
    int64_t n = data_samples(data);
    uint64_t pass = (uint64_t)(cursor / n);
    int64_t index = rng_permute(data->seed ^ STREAM_KEY, pass, n, cursor % n);
    data_window(data, index, out_tokens, out_targets);
}

double data_unigram_entropy(const struct data *data)
{
    DCP_CLEANUP_FREE int64_t *counts =
        dcp_mem_calloc((size_t)data->vocab_size, sizeof *counts);
    int64_t total = 0;
    if (!counts)
        return NAN;
    for (size_t i = 0; i < data->n_files; i++)
        for (int64_t at = 0; at < data->files[i].n_tokens && total < ENTROPY_TOKENS;
             at++) {
            int32_t id;
            data_file_read(&data->files[i], at, 1, &id);
            counts[id]++;
            total++;
        }
    double entropy = 0;
    for (int id = 0; id < data->vocab_size; id++) {
        double share = (double)counts[id] / (double)total;
        entropy -= counts[id] ? share * log(share) : 0;
    }
    return entropy;
}

uint64_t data_digest(const struct data *data)
{
    return data->digest;
}
