/* libarchive reads the headers of all kinds of tar. It reads them through the tape, so
 * that it can pass over what lies between; the bytes of files are read later, without
 * it. */
#include "members.h"
#include "base/mem.h"
#include "base/str.h"
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <string.h>

#define BUFFER_BYTES ((size_t)16 << 10)
#define RECORD 512

/* The position of libarchive on the tape. */
struct reader {
    struct dcp_tape *tape;
    uint64_t at, seen;    /* the next byte; where the last ones that were read end */
    struct dcp_error why; /* what the tape said */
    unsigned char buffer[BUFFER_BYTES];
};

static la_ssize_t on_read(struct archive *archive, void *self, const void **out)
{
    struct reader *reader = self;
    size_t n;

    (void)archive;
    *out = reader->buffer;
    if (dcp_tape_read(reader->tape, reader->at, reader->buffer, BUFFER_BYTES, &n,
                      &reader->why))
        return -1;
    reader->at += n;
    reader->seen = n ? reader->at : reader->seen;
    return (la_ssize_t)n;
}

static la_int64_t on_skip(struct archive *archive, void *self, la_int64_t request)
{
    struct reader *reader = self;
    uint64_t size = dcp_tape_bytes(reader->tape);
    uint64_t end = size < INT64_MAX ? size : INT64_MAX;
    uint64_t most = reader->at < end ? end - reader->at : 0;
    uint64_t n = (uint64_t)request < most ? (uint64_t)request : most;

    (void)archive;
    reader->at += n;
    return (la_int64_t)n;
}

/* What libarchive or the tape said. */
static int complain(struct reader *reader, struct archive *archive, struct dcp_error *err)
{
    const char *text = archive_error_string(archive);

    if (reader->why.code) {
        if (err)
            *err = reader->why;
        return reader->why.code;
    }
    if (archive_errno(archive) == ENOMEM)
        return dcp_error_memory(err, "an archive");
    return dcp_error_set(err, DCP_E_CORRUPT, "'%s' is corrupt: its tar headers say '%s'",
                         dcp_tape_shown(reader->tape),
                         DCP_SHOWN(text ? text : "nothing"));
}

static int refuse(const struct reader *reader, int code, const char *name,
                  const char *what, struct dcp_error *err)
{
    return dcp_error_set(err, code, "'%s' holds '%s', which %s",
                         dcp_tape_shown(reader->tape), DCP_SHOWN(name), what);
}

/* "./a/b/" is "a/b"; the root itself is "". */
static char *plain_name(const char *name)
{
    size_t n;

    while (!strncmp(name, "./", 2))
        name += 2;
    n = strlen(name);
    while (n && name[n - 1] == '/')
        n--;
    if (n == 1 && name[0] == '.')
        n = 0;
    return strndup(name, n);
}

static int check_kind(const struct reader *reader, struct archive_entry *entry,
                      const char *name, struct dcp_error *err)
{
    unsigned kind = archive_entry_filetype(entry);

    if (archive_entry_hardlink(entry) || (kind != AE_IFREG && kind != AE_IFDIR))
        return refuse(reader, DCP_E_UNSUPPORTED, name, "is a link or a device", err);
    if (archive_entry_sparse_count(entry) > 0)
        return refuse(reader, DCP_E_UNSUPPORTED, name, "is stored with holes", err);
    if (strlen(name) > MEMBERS_MAX_NAME)
        return refuse(reader, DCP_E_UNSUPPORTED, name, "has a name that is too long",
                      err);
    return DCP_OK;
}

/* Adds what an entry is, unless it is the root. The member takes its name over. */
static int add_entry(const struct reader *reader, struct dcp_members *members,
                     struct archive_entry *entry, uint64_t at, struct dcp_error *err)
{
    const char *raw = archive_entry_pathname(entry);
    if (!raw)
        raw = archive_entry_pathname_utf8(entry); /* as pax says it */
    if (!raw)
        return refuse(reader, DCP_E_CORRUPT, "?", "has no name", err);
    DCP_TRY(check_kind(reader, entry, raw, err));
    DCP_CLEANUP_FREE char *name = plain_name(raw);
    bool is_dir = archive_entry_filetype(entry) == AE_IFDIR;
    int64_t size = is_dir ? 0 : archive_entry_size(entry);
    if (!name)
        return dcp_error_memory(err, "the names of an archive");
    if (!*name && is_dir)
        return DCP_OK;
    if (!dcp_store_name_ok(name))
        return refuse(reader, DCP_E_CORRUPT, raw, "is no name for a file inside it", err);
    if (size < 0 || (uint64_t)size > INT64_MAX - at)
        return refuse(reader, DCP_E_CORRUPT, raw, "has no valid size", err);
    members->names_bytes += strlen(name);
    if (members->n >= MEMBERS_MAX || members->names_bytes > MEMBERS_MAX_NAMES_BYTES)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' holds too many files",
                             dcp_tape_shown(reader->tape));
    struct dcp_member *grown =
        dcp_mem_grow(members->items, &members->cap, members->n + 1, sizeof *grown);
    if (!grown)
        return dcp_error_memory(err, "the names of an archive");
    members->items = grown;
    grown[members->n++] = (struct dcp_member){
        .name = name, .is_dir = is_dir, .offset = at, .size_bytes = (uint64_t)size
    };
    name = NULL;
    return DCP_OK;
}

/* Keeps the bytes of a small file of a tape that would have to be read again for it. */
static int keep_data(struct reader *reader, struct archive *archive,
                     struct dcp_members *members, struct dcp_member *member,
                     struct dcp_error *err)
{
    uint64_t n = member->size_bytes;

    if (n == 0 || n > MEMBERS_KEPT_BYTES ||
        n > MEMBERS_MAX_KEPT_BYTES - members->kept_bytes ||
        dcp_tape_bytes(reader->tape) != UINT64_MAX)
        return DCP_OK;
    unsigned char *data = malloc((size_t)n);
    if (!data)
        return dcp_error_memory(err, "a file of an archive");
    la_ssize_t got = archive_read_data(archive, data, (size_t)n);
    if (got != (la_ssize_t)n) {
        free(data);
        return complain(reader, archive, err);
    }
    member->data = data;
    members->kept_bytes += n;
    return DCP_OK;
}

/* Headers one behind the other: where libarchive says that the next one begins is where
 * the file before it ends, so that its offset is known to be right. */
static int walk(struct reader *reader, struct archive *archive,
                struct dcp_members *members, struct dcp_error *err)
{
    struct archive_entry *entry;
    uint64_t end = 0;
    int rc = DCP_OK;

    while (!rc) {
        int code = archive_read_next_header(archive, &entry);
        if (code == ARCHIVE_EOF)
            break;
        if (code != ARCHIVE_OK && code != ARCHIVE_WARN)
            return complain(reader, archive, err);
        uint64_t at = (uint64_t)archive_filter_bytes(archive, 0);
        if ((uint64_t)archive_read_header_position(archive) != end || at % RECORD)
            return dcp_error_set(err, DCP_E_UNSUPPORTED,
                                 "'%s' is a tar archive of an unknown kind",
                                 dcp_tape_shown(reader->tape));
        size_t before = members->n;
        rc = add_entry(reader, members, entry, at, err);
        end = at;
        if (!rc && members->n > before) {
            struct dcp_member *member = &members->items[before];
            rc = keep_data(reader, archive, members, member, err);
            end = (at + member->size_bytes + RECORD - 1) / RECORD * RECORD;
        }
    }
    return rc;
}

static int no_tar(const struct reader *reader, struct dcp_error *err)
{
    dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' holds no tar archive",
                  dcp_tape_shown(reader->tape));
    dcp_error_hint(err, "if it is a compressed file, unpack it with 'zstd -d' first");
    return DCP_E_UNSUPPORTED;
}

static int by_name(const void *a, const void *b)
{
    const struct dcp_member *x = a, *y = b;

    return strcmp(x->name, y->name);
}

/* A folder may come twice, and nothing else. */
static int drop_twins(const struct reader *reader, struct dcp_members *members,
                      struct dcp_error *err)
{
    size_t n = 0;

    for (size_t i = 0; i < members->n; i++) {
        struct dcp_member *item = &members->items[i], *last = &members->items[n - !!n];
        if (n == 0 || strcmp(last->name, item->name) != 0) {
            struct dcp_member kept = *item;
            *item = (struct dcp_member){ 0 };
            members->items[n++] = kept;
            continue;
        }
        if (!last->is_dir || !item->is_dir)
            return refuse(reader, DCP_E_CORRUPT, item->name, "is there twice", err);
        free(item->name);
        item->name = NULL;
    }
    members->n = n;
    return DCP_OK;
}

/* No file has anything below it. */
static int check_parents(const struct reader *reader, const struct dcp_members *members,
                         struct dcp_error *err)
{
    char parent[MEMBERS_MAX_NAME + 1];

    for (size_t i = 0; i < members->n; i++) {
        const char *name = members->items[i].name;
        for (size_t n = strcspn(name, "/"); name[n];
             n += 1 + strcspn(name + n + 1, "/")) {
            memcpy(parent, name, n); /* names are no longer than that */
            parent[n] = '\0';
            const struct dcp_member *found = dcp_members_find(members, parent);
            if (found && !found->is_dir)
                return refuse(reader, DCP_E_CORRUPT, parent,
                              "is both a file and a folder", err);
        }
    }
    return DCP_OK;
}

/* Takes the one folder away that holds everything. Order and ends of names stay. */
static void strip_top(struct dcp_members *members)
{
    size_t top = members->n ? strcspn(members->items[0].name, "/") : 0, n = 0;

    for (size_t i = 0; i < members->n; i++) {
        const struct dcp_member *item = &members->items[i];
        if (strncmp(item->name, members->items[0].name, top) != 0 ||
            item->name[top] != (item->is_dir && !item->name[top] ? '\0' : '/'))
            return;
    }
    for (size_t i = 0; i < members->n; i++) {
        struct dcp_member item = members->items[i];
        if (item.name[top]) {
            memmove(item.name, item.name + top + 1, strlen(item.name + top));
            members->items[n++] = item;
        } else {
            free(item.name); /* the folder itself */
        }
    }
    members->n = n;
}

/* The last file must end on the tape, which a missing end of the archive would hide. */
static int check_end(struct reader *reader, const struct dcp_members *members,
                     struct dcp_error *err)
{
    uint64_t end = 0;
    size_t n = 1;
    char byte;

    for (size_t i = 0; i < members->n; i++) {
        const struct dcp_member *item = &members->items[i];
        if (item->offset + item->size_bytes > end)
            end = item->offset + item->size_bytes;
    }
    if (end > reader->seen)
        DCP_TRY(dcp_tape_read(reader->tape, end - 1, &byte, 1, &n, err));
    return n == 0 ? dcp_error_set(err, DCP_E_CORRUPT,
                                  "'%s' is incomplete: its last file is not all there",
                                  dcp_tape_shown(reader->tape))
                  : DCP_OK;
}

static int read_all(struct reader *reader, struct dcp_members *members,
                    struct dcp_error *err)
{
    struct archive *archive = archive_read_new();
    int rc = DCP_OK;

    if (!archive)
        return dcp_error_memory(err, "an archive");
    archive_read_set_read_callback(archive, on_read);
    archive_read_set_skip_callback(archive, on_skip);
    if (archive_read_support_format_tar(archive) != ARCHIVE_OK ||
        archive_read_set_callback_data(archive, reader) != ARCHIVE_OK)
        rc = dcp_error_memory(err, "an archive");
    else if (archive_read_open1(archive) != ARCHIVE_OK)
        rc = reader->why.code || archive_errno(archive) == ENOMEM
                 ? complain(reader, archive, err)
                 : no_tar(reader, err);
    else
        rc = walk(reader, archive, members, err);
    archive_read_free(archive);
    return rc;
}

int dcp_members_read(struct dcp_tape *tape, struct dcp_members *out,
                     struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct reader *reader = calloc(1, sizeof *reader);
    struct dcp_members members = { 0 };

    *out = members;
    if (!reader)
        return dcp_error_memory(err, "an archive");
    reader->tape = tape;
    int rc = read_all(reader, &members, err);
    if (!rc)
        rc = check_end(reader, &members, err);
    if (!rc && members.n)
        qsort(members.items, members.n, sizeof *members.items, by_name);
    if (!rc)
        rc = drop_twins(reader, &members, err);
    if (!rc)
        rc = check_parents(reader, &members, err);
    if (rc) {
        dcp_members_fini(&members);
        return rc;
    }
    strip_top(&members);
    *out = members;
    return DCP_OK;
}

void dcp_members_fini(struct dcp_members *members)
{
    for (size_t i = 0; i < members->n; i++) {
        free(members->items[i].name);
        free(members->items[i].data);
    }
    free(members->items);
    *members = (struct dcp_members){ 0 };
}

const struct dcp_member *dcp_members_find(const struct dcp_members *members,
                                          const char *name)
{
    const struct dcp_member key = { .name = (char *)name };

    return members->n ? bsearch(&key, members->items, members->n, sizeof key, by_name)
                      : NULL;
}

size_t dcp_members_below(const struct dcp_members *members, const char *dir,
                         size_t *out_n)
{
    size_t n = strlen(dir), low = 0, high = members->n;

    *out_n = members->n;
    if (!n)
        return 0;
    while (low < high) { /* the first that is not before "dir/" */
        size_t middle = low + (high - low) / 2;
        const char *name = members->items[middle].name;
        int order = strncmp(name, dir, n);
        if (order < 0 || (order == 0 && (unsigned char)name[n] < '/'))
            low = middle + 1;
        else
            high = middle;
    }
    while (high < members->n && !strncmp(members->items[high].name, dir, n) &&
           members->items[high].name[n] == '/')
        high++;
    *out_n = high - low;
    return low;
}
