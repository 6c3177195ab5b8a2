#include "file.h"

#include "base/bytes.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "refuse.h"
#include "tokenizer.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES 1024
#define LOOK_BYTES ((size_t)1 << 20)
#define CHECK_BYTES ((size_t)64 << 20)

/* First word of the files of llm.c, and the version that goes with it. */
static const struct {
    uint32_t magic, version;
    int width; /* of an id; 0: no tokens */
    const char *what;
} llmc_files[] = {
    { .magic = 20240520, .version = 1, .width = 2 },
    { .magic = 20240801, .version = 7, .width = 4 },
    { .magic = 20240522, .what = "evaluation file" },
    { .magic = 20240326, .what = "model" },
    { .magic = 20240803, .what = "model" },
    { .magic = 20240327, .what = "debug state" },
    { .magic = 20240328, .what = "tokenizer" },
    { .magic = 20240527, .what = "optimizer state" },
};

void data_file_close(struct data_file *file)
{
    if (file->mapping)
        munmap(file->mapping, file->size_bytes);
    free(file->encoded);
    free(file->name);
    *file = (struct data_file){ 0 };
}

void data_file_read(const struct data_file *file, int64_t begin, int64_t n, int32_t *out)
{
    const unsigned char *ids = file->ids;
    ids += begin * file->width;
    switch (file->width) {
    case 1:
        for (int64_t i = 0; i < n; i++)
            out[i] = ids[i];
        break;
    case 2:
        for (int64_t i = 0; i < n; i++)
            out[i] = dcp_le16(ids + 2 * i);
        break;
    default:
        for (int64_t i = 0; i < n; i++) {
            uint32_t id = dcp_le32(ids + 4 * i);
            out[i] = id > INT32_MAX ? INT32_MAX : (int32_t)id;
        }
    }
}

/* Index of the first of the tokens to check that is not below vocab_size, -1: none. */
static int64_t find_large_id(const struct data_file *file, int vocab_size)
{
    enum { CHUNK = 4096 };
    int32_t ids[CHUNK];
    int64_t n = file->n_tokens, most = (int64_t)CHECK_BYTES / file->width;
    if (n > most)
        n = most;
    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t count = n - at < CHUNK ? n - at : CHUNK;
        int32_t largest = 0;
        data_file_read(file, at, count, ids);
        for (int64_t i = 0; i < count; i++)
            largest = ids[i] > largest ? ids[i] : largest;
        for (int64_t i = 0; largest >= vocab_size && i < count; i++)
            if (ids[i] >= vocab_size)
                return at + i;
    }
    return -1;
}

static int check_ids(const struct data_file *file, const char *path, int vocab_size,
                     struct dcp_error *err)
{
    int64_t at = find_large_id(file, vocab_size);
    if (at < 0)
        return DCP_OK;
    int32_t id;
    data_file_read(file, at, 1, &id);
    dcp_error_set(err, DCP_E_MISMATCH,
                  "'%s': token %lld has id %d, which is not below vocab_size %d", path,
                  (long long)at, id, vocab_size);
    dcp_error_hint(err, "set model.vocab_size to that of the tokenizer it was made with");
    return DCP_E_MISMATCH;
}

/* The first bytes of a file, for looking at. */
struct look {
    const unsigned char *data;
    size_t size_bytes;
    bool is_all; /* they are the whole file */
};

static bool is_utf8(const struct look *look)
{
    const char *text = (const char *)look->data;
    for (size_t at = 0, len; at < look->size_bytes; at += len) {
        uint32_t code;
        size_t left = look->size_bytes - at;
        len = dcp_utf8_decode(text + at, left, &code);
        if (!len) /* a character may be incomplete by the end of the look */
            return !look->is_all && left < 4;
        if (!code)
            return false;
    }
    return true;
}

static bool has_control(const struct look *look)
{
    for (size_t i = 0; i < look->size_bytes; i++)
        if (look->data[i] < ' ' && !memchr("\b\t\n\v\f\r\x1b", look->data[i], 7))
            return true;
    return false;
}

static bool is_utf16(const struct look *look)
{
    return look->size_bytes >= 2 && (memcmp(look->data, "\xff\xfe", 2) == 0 ||
                                     memcmp(look->data, "\xfe\xff", 2) == 0);
}

/* Tokens behind a header. Its row of the table says which. */
static int open_llmc(struct data_file *file, const char *path, size_t row, int vocab_size,
                     struct dcp_error *err)
{
    struct dcp_cursor cursor = dcp_cursor_init(file->mapping, file->size_bytes);
    uint32_t magic = dcp_cursor_le32(&cursor), version = dcp_cursor_le32(&cursor);
    uint32_t n_tokens = dcp_cursor_le32(&cursor);
    if (llmc_files[row].what)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' is a %s of llm.c, not a token file", path,
                             llmc_files[row].what);
    if (file->size_bytes < HEADER_BYTES)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' is incomplete: it has %llu bytes, its header %d", path,
                             (unsigned long long)file->size_bytes, HEADER_BYTES);
    if (version != llmc_files[row].version)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' is a token file of magic %u and version %u; the known "
                             "version is %u",
                             path, magic, version, llmc_files[row].version);
    uint64_t body = file->size_bytes - HEADER_BYTES;
    uint64_t want = (uint64_t)n_tokens * (uint64_t)llmc_files[row].width;
    if (n_tokens > INT32_MAX || body != want)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' is corrupt: its header says %u tokens of %d bytes, "
                             "but %llu bytes follow",
                             path, n_tokens, llmc_files[row].width,
                             (unsigned long long)body);
    file->ids = (const unsigned char *)file->mapping + HEADER_BYTES;
    file->n_tokens = n_tokens;
    file->width = llmc_files[row].width;
    return check_ids(file, path, vocab_size, err);
}

static int open_raw(struct data_file *file, const char *path, int vocab_size,
                    struct dcp_error *err)
{
    if (file->size_bytes % 2)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' is neither text nor tokens: it is binary with an odd "
                             "number of bytes, %llu",
                             path, (unsigned long long)file->size_bytes);
    file->ids = file->mapping;
    file->n_tokens = (int64_t)(file->size_bytes / 2);
    file->width = 2;
    return check_ids(file, path, vocab_size, err);
}

static int open_text(struct data_file *file, const char *path,
                     const struct tokenizer *tokenizer, int vocab_size,
                     struct dcp_error *err)
{
    if (!tokenizer)
        return dcp_error_set(err, DCP_E_USAGE, "'%s' is text and needs a tokenizer",
                             path);
    if (tokenizer_vocab_size(tokenizer) > vocab_size)
        return dcp_error_set(err, DCP_E_USAGE,
                             "the tokenizer for '%s' has %d ids, but vocab_size is %d",
                             path, tokenizer_vocab_size(tokenizer), vocab_size);
    if (tokenizer_is_bytes(tokenizer)) {
        file->ids = file->mapping;
        file->n_tokens = (int64_t)file->size_bytes;
        file->width = 1;
        return DCP_OK;
    }
    int32_t *ids;
    size_t n;
    int rc = tokenizer_encode(tokenizer, file->mapping, file->size_bytes, &ids, &n, err);
    if (rc) {
        dcp_error_prefix(err, "'%s'", path);
        return rc;
    }
    munmap(file->mapping, file->size_bytes);
    file->mapping = NULL;
    file->encoded = ids;
    file->ids = ids;
    file->n_tokens = (int64_t)n;
    file->width = (int)sizeof *ids;
    return DCP_OK;
}

static int open_contents(struct data_file *file, const char *path,
                         const struct tokenizer *tokenizer, int vocab_size,
                         struct dcp_error *err)
{
    struct look look = { .data = file->mapping, .size_bytes = file->size_bytes };
    look.is_all = look.size_bytes <= LOOK_BYTES;
    if (!look.is_all)
        look.size_bytes = LOOK_BYTES;
    for (size_t row = 0; row < DCP_ARRAY_LEN(llmc_files); row++)
        if (look.size_bytes >= 4 && dcp_le32(look.data) == llmc_files[row].magic)
            return open_llmc(file, path, row, vocab_size, err);
    DCP_TRY(data_refuse(path, look.data, look.size_bytes, look.is_all, err));
    if (is_utf8(&look))
        return open_text(file, path, tokenizer, vocab_size, err);
    if (is_utf16(&look) && vocab_size <= 0xfeff) { /* else the mark could be an id */
        dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' is UTF-16 text", path);
        dcp_error_hint(err, "make it UTF-8: iconv -f utf-16 -t utf-8 FILE");
        return DCP_E_UNSUPPORTED;
    }
    if (!has_control(&look))
        return open_text(file, path, tokenizer, vocab_size, err);
    return open_raw(file, path, vocab_size, err);
}

/* An empty file has nothing to map. */
static int map_file(struct data_file *file, const char *path, struct dcp_error *err)
{
    struct stat st;
    /* Not blocking, because a pipe would wait for its writer. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), rc = DCP_OK;
    if (fd < 0 && errno != ENXIO)
        return dcp_error_sys(err, DCP_E_IO, errno, "cannot open '%s'", path);
    if (fd >= 0 && fstat(fd, &st) != 0) {
        rc = dcp_error_sys(err, DCP_E_IO, errno, "cannot read '%s'", path);
    } else if (fd < 0 || !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))) {
        dcp_error_set(err, DCP_E_USAGE,
                      "'%s' is a pipe, a socket or a device, not a file", path);
        dcp_error_hint(err, "data are read in any order: write them to a file first");
        rc = DCP_E_USAGE;
    } else if (S_ISDIR(st.st_mode)) {
        rc = DCP_E_DIFFERS;
    } else if (st.st_size > 0) {
        file->size_bytes = (uint64_t)st.st_size;
        file->mapping = mmap(NULL, file->size_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (file->mapping == MAP_FAILED) {
            file->mapping = NULL;
            rc = dcp_error_sys(err, DCP_E_IO, errno, "cannot map '%s'", path);
        }
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

int data_file_open(const char *path, const struct tokenizer *tokenizer, int vocab_size,
                   struct data_file *out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL;
    struct data_file file = { .width = 1 };
    int rc = DCP_OK;
    if (!dcp_fs_split(path, &dir, &file.name))
        rc = dcp_error_memory(err, path);
    if (!rc)
        rc = map_file(&file, path, err);
    if (!rc && file.mapping)
        rc = open_contents(&file, path, tokenizer, vocab_size, err);
    if (rc) {
        data_file_close(&file);
        return rc;
    }
    *out = file;
    return DCP_OK;
}
