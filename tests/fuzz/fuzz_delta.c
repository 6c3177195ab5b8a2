/* A delta of which everything may be anything. Byte 0 says what the input is: delta.json
 * up to its digest, in a folder beside a base; a block as it is stored; or a delta file,
 * whose table is put right so that what is behind its digest is reached. */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "core/delta/folder.h"
#include "core/delta/table.h"
#include "lib/must.h"
#include <dcp/delta.h>
#include <inttypes.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BASE_BYTES 5000

static void put(const struct dcp_store *store, const char *name, const void *data,
                size_t n)
{
    must(!dcp_store_write_file(store, name, data, n, NULL));
}

static void make_store(struct dcp_store *out)
{
    static unsigned char base[BASE_BYTES];

    must(!dcp_store_mem(out, NULL));
    must(!out->ops->make_dir(out->self, "base", NULL));
    must(!out->ops->make_dir(out->self, "d", NULL));
    put(out, "base/f", base, sizeof base);
    put(out, "base/manifest.json", "{}", 2);
}

/* Reads the beginning of what is there, through the delta. */
static void read_folder(const struct dcp_store *store, const char *dir)
{
    struct dcp_store_entry *entries;
    unsigned char bytes[64];
    size_t n;
    struct dcp_error err = { 0 };

    int rc = store->ops->list(store->self, dir, &entries, &n, &err);
    must(!rc == !err.message[0]);
    if (rc)
        return;
    for (size_t i = 0; i < n && i < 8; i++) {
        char path[512];
        struct dcp_store_file *file;
        must(!i || strcmp(entries[i - 1].name, entries[i].name) < 0);
        if (snprintf(path, sizeof path, "%s/%s", dir, entries[i].name) >=
            (int)sizeof path)
            continue;
        if (entries[i].is_dir && strlen(path) < 100)
            read_folder(store, path);
        if (entries[i].is_dir || store->ops->open(store->self, path, &file, NULL))
            continue;
        store->ops->read_at(store->self, file, entries[i].size_bytes / 2, bytes,
                            sizeof bytes, NULL);
        store->ops->close(store->self, file, NULL);
    }
    dcp_store_list_free(entries, n);
}

static void try_folder(const uint8_t *data, size_t n)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 }, again = { 0 };
    struct dcp_delta_folder folder, same;
    struct dcp_store store, deltas;
    struct dcp_error err = { 0 };

    dcp_buf_add(&text, data, n);
    dcp_buf_add_fmt(&text, ",\n\"digest\":\"%016" PRIx64 "\"}\n",
                    dcp_hash_crc64(0, data, n));
    int rc =
        dcp_delta_folder_parse((char *)text.data, text.size_bytes, "x", &folder, &err);
    must(!rc == !err.message[0]);
    if (!rc) { /* what was understood can be written, and understood again */
        dcp_delta_folder_format(&again, &folder);
        must(!dcp_delta_folder_parse((char *)again.data, again.size_bytes, "x", &same,
                                     NULL));
        must(same.n_files == folder.n_files && same.chain == folder.chain);
        dcp_delta_folder_fini(&same);
    }
    dcp_delta_folder_fini(&folder);
    make_store(&store);
    put(&store, "d/delta.json", text.data, text.size_bytes);
    put(&store, "d/f.delta", data, n);
    put(&store, "d/g", "g", 1);
    must(!dcp_store_delta(&deltas, &store, NULL, NULL, NULL));
    read_folder(&deltas, "d");
    dcp_store_free(&deltas);
}

static void try_block(const uint8_t *data, size_t n)
{
    unsigned char bytes[4096] = { 0 };
    struct dcp_delta_coder *coder;
    struct dcp_error err = { 0 };

    if (n < 4)
        return;
    must(!dcp_delta_coder_new(&coder, NULL));
    size_t of = 1 + (size_t)(dcp_le16(data) % sizeof bytes);
    int rc = dcp_delta_decode(coder, data[2], data[3], data + 4, n - 4, bytes, of, &err);
    must(!rc == !err.message[0]);
    dcp_delta_coder_free(coder);
}

static void try_file(const uint8_t *data, size_t n)
{
    DCP_CLEANUP_BUF struct dcp_buf bytes = { 0 };
    unsigned char head[DCP_DELTA_HEAD_BYTES];
    struct dcp_delta_table table = { 0 };
    struct dcp_store store;
    struct dcp_store_file *file;
    struct dcp_error err = { 0 };

    if (n < 12)
        return;
    uint64_t target = dcp_le64(data) >> data[8] % 64;
    uint64_t n_blocks =
        target / DCP_DELTA_BLOCK_BYTES + (target % DCP_DELTA_BLOCK_BYTES != 0);
    size_t covered = n - 9 < n_blocks * DCP_DELTA_ENTRY_BYTES
                         ? n - 9
                         : (size_t)n_blocks * DCP_DELTA_ENTRY_BYTES;
    dcp_delta_put_head(head);
    dcp_buf_add(&bytes, head, sizeof head);
    dcp_buf_add(&bytes, data + 9, n - 9);
    dcp_buf_add_le64(&bytes, target);
    uint64_t crc =
        dcp_hash_crc64(0, bytes.data + bytes.size_bytes - 8 - covered, covered + 8);
    dcp_buf_add_le64(&bytes, crc);
    must(!bytes.failed && !dcp_store_mem(&store, NULL));
    put(&store, "f", bytes.data, bytes.size_bytes);
    must(!store.ops->open(store.self, "f", &file, NULL));
    int rc = dcp_delta_read_table(&store, file, "f", bytes.size_bytes, crc, target,
                                  &table, &err);
    must(!rc == !err.message[0]);
    for (size_t i = 0; !rc && i < table.n_blocks; i++)
        must(table.entries[i].offset + table.entries[i].size_bytes <= bytes.size_bytes);
    if (!rc)
        free(table.entries);
    store.ops->close(store.self, file, NULL);
    dcp_store_free(&store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || size > 1 << 16)
        return 0;
    switch (data[0] % 3) {
    case 0:
        try_folder(data + 1, size - 1);
        break;
    case 1:
        try_block(data + 1, size - 1);
        break;
    default:
        try_file(data + 1, size - 1);
    }
    return 0;
}
