/* The manifests of a native step, from texts that may be anything.
 *
 * An input is manifest.json up to its digest, and then the shard manifests in the order
 * of the ranks, tables or JSON, with lines "---" between. So that a fuzzer gets behind
 * the digests they are put right here: "SIZE0" and "CRC0" in manifest.json become the
 * size and the digest of the shard manifest of rank 0, and so on, and its own digest is
 * appended. Every shard has SHARD_BYTES bytes. */
#include "base/buf.h"
#include "base/hash.h"
#include "core/catalog/pack.h"
#include "core/read/blocks.h"
#include "lib/must.h"
#include <dcp/dcp.h>
#include <inttypes.h>
#include <string.h>

#define MAX_WORLD_SIZE 3
#define SHARD_BYTES 8192
#define MOST_BYTES ((uint64_t)1 << 20) /* tensors larger than this are not read */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

struct part {
    const char *text;
    size_t n;
};

/* Cuts at the lines "---"; returns how many parts there are. */
static int cut(const uint8_t *data, size_t n, struct part parts[1 + MAX_WORLD_SIZE])
{
    static const char line[] = "\n---\n";
    const char *at = (const char *)data;
    int count = 0;

    while (count <= MAX_WORLD_SIZE) {
        const char *end = n ? memmem(at, n, line, sizeof line - 1) : NULL;
        parts[count++] = (struct part){ at, end ? (size_t)(end - at) : n };
        if (!end)
            break;
        n -= (size_t)(end - at) + sizeof line - 1;
        at = end + sizeof line - 1;
    }
    return count;
}

/* manifest.json with the sizes and digests of the shard manifests, and its own. */
static void seal(const struct part *parts, int n_parts, struct dcp_buf *out)
{
    const char *at = parts[0].text, *end = at + parts[0].n;

    while (at < end) {
        bool size = end - at >= 7 && !memcmp(at, "\"SIZE", 5) && at[6] == '"';
        bool crc = end - at >= 6 && !memcmp(at, "\"CRC", 4) && at[5] == '"';
        int rank = size ? at[5] - '0' : crc ? at[4] - '0' : -1;
        if (rank < 0 || rank + 1 >= n_parts) {
            dcp_buf_add_u8(out, (uint8_t)*at++);
            continue;
        }
        const struct part *shard = &parts[1 + rank];
        if (size)
            dcp_buf_add_fmt(out, "%zu", shard->n);
        else
            dcp_buf_add_fmt(out, "\"%016" PRIx64 "\"",
                            dcp_hash_crc64(0, shard->text, shard->n));
        at += size ? 7 : 6;
    }
    dcp_buf_add_fmt(out, ",\n\"digest\":\"%016" PRIx64 "\"}\n",
                    dcp_hash_crc64(0, out->data, out->size_bytes));
}

static void make_step(const struct dcp_store *store, const struct part *parts,
                      int n_parts)
{
    static unsigned char shard[SHARD_BYTES];
    struct dcp_buf manifest = { 0 };
    char name[64];

    for (size_t i = 0; i < sizeof shard; i++)
        shard[i] = (unsigned char)(i * 7 + (i >> 8));
    for (int rank = 0; rank + 1 < n_parts; rank++) {
        snprintf(name, sizeof name, "shard-%05d-of-%05d.safetensors", rank, n_parts - 1);
        must(!dcp_store_write_file(store, name, shard, sizeof shard, NULL));
        const struct part *part = &parts[1 + rank];
        bool table = part->n >= 8 && !memcmp(part->text, "dcppiece", 8);
        snprintf(name, sizeof name, "shard-%05d-of-%05d.%s", rank, n_parts - 1,
                 table ? "pieces" : "json");
        must(!dcp_store_write_file(store, name, part->text, part->n, NULL));
    }
    seal(parts, n_parts, &manifest);
    must(!manifest.failed);
    must(!dcp_store_write_file(store, "manifest.json", manifest.data, manifest.size_bytes,
                               NULL));
    dcp_buf_fini(&manifest);
}

/* What index let through: nothing lies outside of anything. */
static void check_catalog(const struct dcp_catalog *catalog)
{
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        uint64_t bytes = dcp_piece_bytes(catalog, piece), sum = 0;
        must(piece->rank >= 0 && piece->rank < catalog->world_size);
        must(piece->offset <= SHARD_BYTES &&
             piece->stored_size <= SHARD_BYTES - piece->offset);
        must(bytes <= dcp_tensor_bytes(&catalog->tensors[piece->tensor]));
        must(piece->n_blocks == (bytes + DCP_BLOCK_BYTES - 1) / DCP_BLOCK_BYTES);
        for (size_t b = 0; b < piece->n_blocks; b++)
            sum += piece->blocks[b].stored_size;
        must(sum == piece->stored_size);
    }
}

/* Every piece, unverified, so that codecs see what is there. */
static void read_pieces(const struct dcp_source *source,
                        const struct dcp_catalog *catalog)
{
    unsigned char *out = malloc(MOST_BYTES);
    struct dcp_blocks *blocks;

    must(out && !dcp_blocks_new(source, catalog, 1, false, &blocks, NULL));
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        uint64_t bytes = dcp_piece_bytes(catalog, &catalog->pieces[p]);
        struct dcp_error err = { 0 };
        if (bytes > MOST_BYTES)
            continue;
        int rc = dcp_blocks_read(blocks, p, 0, (size_t)bytes, out, &err);
        must(rc == DCP_OK || (rc == DCP_E_CORRUPT && err.message[0]));
    }
    dcp_blocks_free(blocks);
    free(out);
}

static void check_messages(const struct dcp_catalog *catalog)
{
    struct dcp_buf buf = { 0 };
    struct dcp_catalog *again;

    must(!dcp_pack_catalog(catalog, &buf, NULL));
    must(!dcp_unpack_catalog(buf.data, buf.size_bytes, &again, NULL));
    must(again->n_pieces == catalog->n_pieces);
    dcp_catalog_free(again);
    dcp_buf_fini(&buf);
}

/* Tensors as a program reads them, by a plan. */
static void read_tensors(const struct dcp_source *source,
                         const struct dcp_catalog *catalog)
{
    struct dcp_reader *reader;
    struct dcp_error err = { 0 };
    unsigned char *out = malloc(MOST_BYTES);

    must(out);
    int rc = dcp_reader_new(source, catalog, 1, true, &reader, &err);
    must(rc == DCP_OK || (rc == DCP_E_CORRUPT && err.message[0]));
    for (size_t t = 0; !rc && t < catalog->n_tensors; t++)
        if (dcp_tensor_bytes(&catalog->tensors[t]) <= MOST_BYTES)
            dcp_reader_read(reader, (int)t, 0, catalog->tensors[t].n_elems, out, NULL);
    if (!rc)
        dcp_reader_free(reader);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    struct part parts[1 + MAX_WORLD_SIZE];
    struct dcp_store store;
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };

    must(!dcp_store_mem(&store, NULL) && !dcp_catalog_new(&catalog, NULL));
    const struct dcp_source source = { &store, "", true };
    make_step(&store, parts, cut(data, size_bytes, parts));
    int rc = dcp_format_find("native")->index(&source, catalog, &err);
    must(rc == DCP_OK || err.message[0]);
    if (!rc) {
        must(!dcp_catalog_sort(catalog, NULL));
        check_catalog(catalog);
        check_messages(catalog);
        dcp_catalog_check(catalog, NULL);
        read_pieces(&source, catalog);
        read_tensors(&source, catalog);
        dcp_verify(&source, &(struct dcp_verify_options){ .threads = 1 }, NULL, NULL);
    }
    dcp_catalog_free(catalog);
    dcp_store_free(&store);
    return 0;
}
