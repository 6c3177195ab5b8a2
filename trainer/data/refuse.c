#include "refuse.h"

#include "base/json.h"
#include "base/mem.h"
#include <ctype.h>
#include <string.h>
#include <strings.h>

#define MAGIC(text) .magic = text, .n = sizeof text - 1

/* Two bytes alone could be the first token of a file of nanoGPT. */
static const struct {
    const char *magic;
    size_t n, at;
    const char *what, *hint;
} kinds[] = {
    { MAGIC("\x1f\x8b\x08"), .what = "compressed with gzip", .hint = "gunzip -k FILE" },
    { MAGIC("\x28\xb5\x2f\xfd"), .what = "compressed with zstd", .hint = "zstd -d FILE" },
    { MAGIC("\xfd"
            "7zXZ"),
      .what = "compressed with xz", .hint = "xz -dk FILE" },
    { MAGIC("1AY&SY"), .at = 4, .what = "compressed with bzip2",
      .hint = "bunzip2 -k FILE" },
    { MAGIC("\x04\x22\x4d\x18"), .what = "compressed with lz4", .hint = "lz4 -d FILE" },
    { MAGIC("PK\x03\x04"), .what = "a zip archive", .hint = "unzip FILE" },
    { MAGIC("7z\xbc\xaf\x27\x1c"), .what = "a 7z archive", .hint = "7z x FILE" },
    { MAGIC("ustar"), .at = 257, .what = "a tar archive", .hint = "tar -xf FILE" },
    { MAGIC("PAR1"), .what = "a Parquet table",
      .hint = "write its column of texts to a file, as with pandas.read_parquet" },
    { MAGIC("ARROW1"), .what = "an Arrow table",
      .hint = "write its column of texts to a file, as with pyarrow" },
    { MAGIC("\x93NUMPY"), .what = "a NumPy array",
      .hint = "write it as uint16 ids alone: numpy.load(FILE).astype('uint16').tofile" },
    { MAGIC("\x89HDF\r\n"), .what = "an HDF5 file", .hint = "write its texts to a file" },
    { MAGIC("SQLite format 3"), .what = "an SQLite database",
      .hint = "write its texts to a file: sqlite3 FILE 'SELECT …'" },
    { MAGIC("%PDF-"), .what = "a PDF", .hint = "pdftotext FILE" },
};

/* The next line that is not blank, of at most `left` bytes; 0 where it does not end. */
static size_t next_line(const char **at, size_t left, bool is_all)
{
    while (left && isspace((unsigned char)**at)) {
        ++*at;
        left--;
    }
    const char *end = memchr(*at, '\n', left);
    return end ? (size_t)(end - *at) : is_all ? left : 0;
}

static bool is_object(const char *line, size_t n)
{
    DCP_CLEANUP_JSON json_t *value = NULL;
    return *line == '{' && !dcp_json_parse(line, n, "a line", &value, NULL) &&
           json_is_object(value);
}

static bool has_suffix(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && (!strcasecmp(dot, ".jsonl") || !strcasecmp(dot, ".ndjson"));
}

/* A JSON text of one line may be meant as it is; two such lines, or the name, are not. */
static bool is_json_lines(const char *path, const char *text, size_t size_bytes,
                          bool is_all)
{
    const char *end = text + size_bytes;
    size_t n = next_line(&text, size_bytes, is_all);
    if (has_suffix(path))
        return text < end && *text == '{';
    if (!n || !is_object(text, n))
        return false;
    text += n;
    n = next_line(&text, (size_t)(end - text), is_all);
    return n && is_object(text, n);
}

int data_refuse(const char *path, const void *data, size_t size_bytes, bool is_all,
                struct dcp_error *err)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(kinds); i++) {
        if (size_bytes < kinds[i].at + kinds[i].n ||
            memcmp((const char *)data + kinds[i].at, kinds[i].magic, kinds[i].n) != 0)
            continue;
        dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' is %s, no text", path, kinds[i].what);
        dcp_error_hint(err, "make a text of it first: %s", kinds[i].hint);
        return DCP_E_UNSUPPORTED;
    }
    if (!is_json_lines(path, data, size_bytes, is_all))
        return DCP_OK;
    dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' is JSON lines, not the text in them",
                  path);
    dcp_error_hint(err, "take the texts out first: jq -r .text FILE >FILE.txt");
    return DCP_E_UNSUPPORTED;
}
