#include "delta_folder.h"
#include "base/hash.h"
#include "core/delta/folder.h"
#include "core/delta/table.h"
#include "lib/acts.h"
#include "lib/must.h"
#include <stdio.h>
#include <string.h>

static const char *const names[] = { "base", "one", "two" };
static unsigned char bytes[3][DELTA_FOLDER_BYTES];

const unsigned char *delta_folder_bytes(int number)
{
    return bytes[number];
}

/* Noise; then some bytes of it change, and in the third also a part of every float. */
static void fill(void)
{
    uint64_t seed = 7;

    for (size_t i = 0; i < DELTA_FOLDER_BYTES; i++)
        bytes[0][i] = (unsigned char)acts_random(&seed);
    memcpy(bytes[1], bytes[0], DELTA_FOLDER_BYTES);
    for (size_t i = 0; i < 3000; i++) /* the last block stays as it is */
        bytes[1][acts_random(&seed) % (2u << 20)] ^= 1;
    memcpy(bytes[2], bytes[1], DELTA_FOLDER_BYTES);
    for (size_t i = 0; i < 1u << 20; i += 4)
        bytes[2][i] ^= (unsigned char)(acts_random(&seed) & 7);
}

static void put(const struct dcp_store *store, const char *dir, const char *name,
                const void *data, size_t n)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    must(!dcp_store_write_file(store, path, data, n, NULL));
}

/* "f.delta", and what delta.json says of it. */
static void put_delta(const struct dcp_store *store, int number,
                      struct dcp_delta_file *file)
{
    DCP_CLEANUP_BUF struct dcp_buf out = { 0 };
    size_t n_blocks = dcp_delta_n_blocks(DELTA_FOLDER_BYTES);
    struct dcp_delta_entry entries[8];
    struct dcp_delta_table table = { DELTA_FOLDER_BYTES, n_blocks, entries };
    unsigned char head[DCP_DELTA_HEAD_BYTES];
    struct dcp_delta_coder *coder;

    must(n_blocks <= 8 && !dcp_delta_coder_new(&coder, NULL));
    dcp_delta_put_head(head);
    dcp_buf_add(&out, head, sizeof head);
    for (size_t i = 0; i < n_blocks; i++) {
        size_t at = i * DCP_DELTA_BLOCK_BYTES,
               n = dcp_delta_block_bytes(DELTA_FOLDER_BYTES, i);
        const unsigned char *target = bytes[number] + at;
        struct dcp_delta_coded coded;
        must(
            !dcp_delta_encode(coder, bytes[number - 1] + at, target, n, 0, &coded, NULL));
        entries[i] = (struct dcp_delta_entry){
            .size_bytes = (uint32_t)coded.size_bytes,
            .method = (uint8_t)coded.method,
            .width = (uint8_t)coded.width,
            .stored_xxh3 = dcp_hash_xxh3(coded.data ? coded.data : "", coded.size_bytes),
            .target_xxh3 = dcp_hash_xxh3(target, n),
        };
        dcp_buf_add(&out, coded.data ? coded.data : "", coded.size_bytes);
    }
    dcp_delta_coder_free(coder);
    dcp_delta_put_table(&out, &table, &file->table_crc);
    must(!out.failed);
    file->delta_bytes = out.size_bytes;
    put(store, names[number], "f.delta", out.data, out.size_bytes);
}

static void put_folder(const struct dcp_store *store, int number)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    char path[32], note[] = "note 0";
    struct dcp_delta_base_file base = { "f", DELTA_FOLDER_BYTES, 0 };
    struct dcp_delta_file files[] = {
        { .name = "f", .size_bytes = DELTA_FOLDER_BYTES, .coded = true },
        { .name = "sub/note", .size_bytes = sizeof note - 1 },
    };
    struct dcp_delta_folder folder = { .base_path = path,
                                       .chain = number,
                                       .base = &base,
                                       .n_base = 1,
                                       .files = files,
                                       .n_files = 2 };

    note[5] = (char)('0' + number);
    snprintf(path, sizeof path, "%s/sub", names[number]);
    must(!store->ops->make_dir(store->self, names[number], NULL));
    must(!store->ops->make_dir(store->self, path, NULL));
    put(store, names[number], "sub/note", note, sizeof note - 1);
    if (!number) {
        put(store, "base", "f", bytes[0], DELTA_FOLDER_BYTES);
        return;
    }
    snprintf(path, sizeof path, "../%s", names[number - 1]);
    base.crc = dcp_hash_crc64(0, bytes[number - 1], DELTA_FOLDER_BYTES);
    files[0].crc = dcp_hash_crc64(0, bytes[number], DELTA_FOLDER_BYTES);
    files[1].crc = dcp_hash_crc64(0, note, sizeof note - 1);
    put_delta(store, number, &files[0]);
    dcp_delta_folder_format(&text, &folder);
    must(!text.failed);
    put(store, names[number], DCP_DELTA_JSON, text.data, text.size_bytes);
}

void delta_folder_make(const struct dcp_store *store)
{
    fill();
    for (int number = 0; number < 3; number++)
        put_folder(store, number);
}
