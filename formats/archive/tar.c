/* tar: from header to header. */
#include "tar.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/store.h>
#include <string.h>

enum {
    BLOCK = 512,
    NAME_AT = 0,
    NAME_BYTES = 100,
    SIZE_AT = 124,
    SIZE_BYTES = 12,
    SUM_AT = 148,
    SUM_BYTES = 8,
    TYPE_AT = 156,
    MAGIC_AT = 257,
    PREFIX_AT = 345,
    PREFIX_BYTES = 155,
    MAX_TAIL_BYTES = 1 << 20, /* zeros behind the end: records of 10240 bytes are usual */
};

/* What a pax header says of the member behind it. */
struct pax {
    char *path; /* NULL: nothing; in the arena */
    uint64_t size_bytes;
    bool has_size;
};

struct walk {
    const struct dcp_input *in;
    struct dcp_arena *arena;
    uint64_t at;
    struct pax pax;
    struct dcp_tar_member *members;
    size_t n, cap;
};

static int corrupt(const struct walk *w, struct dcp_error *err, const char *what)
{
    return dcp_error_set(err, DCP_E_CORRUPT,
                         "'%s' is not a valid tar archive: %s at byte %llu", w->in->shown,
                         what, (unsigned long long)w->at);
}

static int unsupported(const struct walk *w, struct dcp_error *err, const char *what)
{
    return dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' is a tar archive with %s",
                         w->in->shown, what);
}

/* -- headers ------------------------------------------------------------------------- */

/* Octal digits, blanks or zeros around them; or, with the high bit, a large number in
 * the eight bytes at the end. */
static bool parse_number(const unsigned char *field, size_t n, uint64_t *out)
{
    size_t i = 0;

    *out = 0;
    if (field[0] == 0x80) {
        for (i = 1; i < n; i++) {
            if (i < n - 8 && field[i])
                return false;
            *out = *out << 8 | field[i];
        }
        return n > 8;
    }
    while (i < n && field[i] == ' ')
        i++;
    for (; i < n && field[i] >= '0' && field[i] <= '7'; i++)
        *out = *out << 3 | (uint64_t)(field[i] - '0'); /* at most 36 bits */
    for (; i < n; i++)
        if (field[i] != ' ' && field[i] != '\0')
            return false;
    return true;
}

static bool sum_ok(const unsigned char *head)
{
    uint64_t want, sum = 0;

    for (size_t i = 0; i < BLOCK; i++)
        sum += i >= SUM_AT && i < SUM_AT + SUM_BYTES ? ' ' : head[i];
    return parse_number(head + SUM_AT, SUM_BYTES, &want) && want == sum;
}

static bool is_zero(const unsigned char *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (data[i])
            return false;
    return true;
}

bool dcp_tar_probe(const void *head, size_t n)
{
    return n >= BLOCK && !memcmp((const char *)head + MAGIC_AT, "ustar", 5) &&
           sum_ok(head);
}

/* Prefix and name; GNU's archives keep other things where the prefix is. */
static char *header_name(struct dcp_arena *arena, const unsigned char *head)
{
    bool posix = !memcmp(head + MAGIC_AT, "ustar\0", 6);
    const char *prefix = (const char *)head + PREFIX_AT;
    const char *name = (const char *)head + NAME_AT;
    size_t n_prefix = posix ? strnlen(prefix, PREFIX_BYTES) : 0;
    size_t n_name = strnlen(name, NAME_BYTES), slash = n_prefix ? 1 : 0;
    char *out = dcp_arena_alloc(arena, n_prefix + slash + n_name + 1, 1);

    if (!out)
        return NULL;
    memcpy(out, prefix, n_prefix);
    if (slash)
        out[n_prefix] = '/';
    memcpy(out + n_prefix + slash, name, n_name);
    return out;
}

/* -- pax headers --------------------------------------------------------------------- */

/* One record: "<its length> <key>=<value>\n". Moves *at behind it. */
static bool parse_record(const char *text, size_t n, size_t *at, const char **out_key,
                         size_t *out_key_len, const char **out_value,
                         size_t *out_value_len)
{
    const char *begin = text + *at, *p = begin;
    size_t left = n - *at, len = 0;

    for (; p < begin + left && *p >= '0' && *p <= '9' && len <= n; p++)
        len = 10 * len + (size_t)(*p - '0');
    if (p == begin || len > left || (size_t)(p - begin) + 4 > len || *p != ' ' ||
        begin[len - 1] != '\n')
        return false;
    p++;
    const char *equals = memchr(p, '=', len - (size_t)(p - begin));
    if (!equals || equals == p)
        return false;
    *out_key = p;
    *out_key_len = (size_t)(equals - p);
    *out_value = equals + 1;
    *out_value_len = (size_t)(begin + len - 1 - *out_value);
    *at += len;
    return true;
}

static bool key_is(const char *key, size_t n, const char *word)
{
    return n == strlen(word) && !memcmp(key, word, n);
}

static int read_pax(struct walk *w, uint64_t offset, uint64_t size_bytes, struct pax *out,
                    struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *data = NULL;
    const char *key, *value;
    size_t at = 0, n_key, n_value;
    int64_t number;

    if (size_bytes > DCP_TAR_MAX_PAX_BYTES)
        return corrupt(w, err, "there is a pax header that is too large");
    size_t n = (size_t)size_bytes;
    int rc = dcp_input_read_new(w->in, offset, n, &data, err);
    while (!rc && at < n) {
        if (!parse_record(data, n, &at, &key, &n_key, &value, &n_value) ||
            memchr(value, 0, n_value))
            return corrupt(w, err, "there is a corrupt pax header");
        if (n_key >= 10 && !memcmp(key, "GNU.sparse", 10))
            return unsupported(w, err, "sparse files, which no checkpoint has");
        char *text = dcp_arena_text_n(w->arena, value, n_value);
        if (!text)
            return dcp_error_memory(err, "a tar header");
        if (key_is(key, n_key, "path")) {
            out->path = text;
        } else if (key_is(key, n_key, "size")) {
            if (!dcp_str_parse_i64(text, &number) || number < 0)
                return corrupt(w, err, "there is a corrupt pax header");
            out->size_bytes = (uint64_t)number;
            out->has_size = true;
        }
    }
    return rc;
}

/* -- members ------------------------------------------------------------------------- */

static int add_member(struct walk *w, const char *name, uint64_t offset,
                      uint64_t size_bytes, struct dcp_error *err)
{
    if (!strncmp(name, "./", 2))
        name += 2;
    if (!dcp_store_name_ok(name) || !dcp_str_utf8_ok(name, strlen(name)))
        return corrupt(w, err, "a member's name leads outside its folder");
    if (w->n >= DCP_TAR_MAX_MEMBERS)
        return unsupported(w, err, "more members than any checkpoint has");
    for (size_t i = 0; i < w->n; i++)
        if (!strcmp(w->members[i].name, name))
            return corrupt(w, err, "a member has the name of an earlier one");
    struct dcp_tar_member *members =
        dcp_mem_grow(w->members, &w->cap, w->n + 1, sizeof *members);
    if (!members)
        return dcp_error_memory(err, "a tar archive");
    w->members = members;
    members[w->n++] = (struct dcp_tar_member){ name, offset, size_bytes };
    return DCP_OK;
}

/* What stands behind the first block of zeros must be zeros, too. */
static int check_tail(struct walk *w, struct dcp_error *err)
{
    uint64_t left = w->in->size_bytes - w->at;
    DCP_CLEANUP_FREE void *data = NULL;

    if (left > MAX_TAIL_BYTES)
        return corrupt(w, err, "bytes follow its end");
    int rc = dcp_input_read_new(w->in, w->at, (size_t)left, &data, err);
    if (!rc && !is_zero(data, (size_t)left))
        rc = corrupt(w, err, "bytes follow its end");
    return rc;
}

/* One header and what it stands for; moves on to the next. */
static int read_member(struct walk *w, const unsigned char *head, struct dcp_error *err)
{
    char type = (char)head[TYPE_AT];
    uint64_t size_bytes, offset = w->at + BLOCK, left = w->in->size_bytes - offset;
    struct pax whole = { 0 };
    int rc = DCP_OK;

    if (memcmp(head + MAGIC_AT, "ustar", 5) != 0 || !sum_ok(head) ||
        !parse_number(head + SIZE_AT, SIZE_BYTES, &size_bytes))
        return corrupt(w, err, "there is no header, or a corrupt one");
    bool is_pax = type == 'x' || type == 'g';
    if (!is_pax && w->pax.has_size)
        size_bytes = w->pax.size_bytes;
    if (size_bytes > left)
        return corrupt(w, err, "a member reaches past the end of the file");
    if (type == 'x') {
        rc = read_pax(w, offset, size_bytes, &w->pax, err);
    } else if (type == 'g') {
        rc = read_pax(w, offset, size_bytes, &whole, err);
        if (!rc && (whole.path || whole.has_size))
            rc = corrupt(w, err, "a global pax header sets a name or size");
    } else if (type == '0' || type == '\0') {
        char *name = w->pax.path ? w->pax.path : header_name(w->arena, head);
        rc = name ? add_member(w, name, offset, size_bytes, err)
                  : dcp_error_memory(err, "a tar archive");
    } else if (type != '5' || size_bytes) {
        rc = unsupported(w, err,
                         "members that are not plain files, which no checkpoint "
                         "has");
    }
    if (!is_pax)
        w->pax = (struct pax){ 0 };
    /* the last block of a member is filled up */
    uint64_t stored = size_bytes + (BLOCK - size_bytes % BLOCK) % BLOCK;
    if (!rc && stored > left)
        rc = corrupt(w, err, "a member is incomplete");
    w->at = offset + stored;
    return rc;
}

static int read_members(struct walk *w, struct dcp_error *err)
{
    unsigned char head[BLOCK];
    int rc = DCP_OK;

    while (!rc) {
        if (w->in->size_bytes - w->at < BLOCK)
            return corrupt(w, err, "it is incomplete");
        rc = dcp_input_read(w->in, w->at, head, sizeof head, err);
        if (!rc && is_zero(head, sizeof head))
            return check_tail(w, err);
        if (!rc)
            rc = read_member(w, head, err);
    }
    return rc;
}

int dcp_tar_open(const struct dcp_input *in, struct dcp_arena *arena, struct dcp_tar *out,
                 struct dcp_error *err)
{
    struct walk w = { .in = in, .arena = arena };
    int rc = read_members(&w, err);

    *out = (struct dcp_tar){ 0 };
    if (!rc && w.n) {
        out->members = dcp_arena_copy(arena, w.members, w.n * sizeof *w.members);
        out->n_members = w.n;
        if (!out->members)
            rc = dcp_error_memory(err, "a tar archive");
    }
    free(w.members);
    return rc;
}

const struct dcp_tar_member *dcp_tar_find(const struct dcp_tar *tar, const char *name)
{
    for (size_t i = 0; i < tar->n_members; i++)
        if (!strcmp(tar->members[i].name, name))
            return &tar->members[i];
    return NULL;
}
