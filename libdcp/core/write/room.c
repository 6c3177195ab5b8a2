#include "room.h"
#include <string.h>

/* An entry's text without names, and what each of its parts adds. */
#define PIECE_BYTES 176u /* of a shard manifest; a region of full rank is in it */
#define BLOCK_BYTES 11u  /* its digest; with a codec its size too */
#define TENSOR_BYTES 160u
#define DIM_BYTES 21u
#define SHARD_BYTES 320u
#define FILE_BYTES 96u /* of the description of parity */
#define MANIFEST_BYTES 1024u
#define CONSOLIDATED_BYTES 768u /* of each tensor: its zip entries, padding, pickle */
#define FS_BLOCK 4096u          /* a file's last block; and the blocks of a folder */

static uint64_t shard_manifest(const struct dcp_catalog *catalog)
{
    uint64_t bytes = MANIFEST_BYTES;

    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        uint64_t blocks = dcp_piece_bytes(catalog, piece) / DCP_BLOCK_BYTES + 1;
        bytes += PIECE_BYTES + blocks * BLOCK_BYTES;
    }
    return bytes;
}

struct dcp_room dcp_room_of_rank(const struct dcp_catalog *catalog)
{
    struct dcp_room room = { .manifest_bytes = shard_manifest(catalog) };

    for (size_t f = 0; f < catalog->n_files; f++)
        room.shard_bytes += catalog->files[f].size_bytes;
    return room;
}

static uint64_t manifest(const struct dcp_finish *finish)
{
    const struct dcp_catalog *catalog = finish->catalog;
    uint64_t bytes = MANIFEST_BYTES + (uint64_t)catalog->world_size * SHARD_BYTES;

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        bytes += TENSOR_BYTES + strlen(tensor->name) + strlen(tensor->param) +
                 (uint64_t)tensor->ndim * DIM_BYTES;
    }
    for (size_t o = 0; o < catalog->n_objects; o++) {
        const struct dcp_object *object = &catalog->objects[o];
        bool hex = object->kind == DCP_OBJECT_BYTES;
        bytes += TENSOR_BYTES + strlen(object->name) + object->size_bytes * (hex ? 2 : 1);
    }
    if (finish->options.parity)
        bytes += (uint64_t)catalog->world_size * 2 * FILE_BYTES;
    return bytes;
}

uint64_t dcp_room_of_step(const struct dcp_finish *finish, const struct dcp_room *ranks)
{
    const struct dcp_catalog *catalog = finish->catalog;
    uint64_t world_size = (uint64_t)catalog->world_size, bytes = 0;
    uint64_t n_files = 2 * world_size + 2; /* manifest.json and the pointer */
    struct dcp_room largest = { 0 };

    for (uint64_t r = 0; r < world_size; r++) {
        bytes += ranks[r].shard_bytes + ranks[r].manifest_bytes;
        if (ranks[r].shard_bytes > largest.shard_bytes)
            largest.shard_bytes = ranks[r].shard_bytes;
        if (ranks[r].manifest_bytes > largest.manifest_bytes)
            largest.manifest_bytes = ranks[r].manifest_bytes;
    }
    bytes += manifest(finish);
    if (finish->options.parity) {
        uint64_t groups = (world_size + DCP_PARITY_GROUP - 1) / DCP_PARITY_GROUP;
        uint64_t parities = groups * (uint64_t)finish->options.parity;
        uint64_t head = world_size * 2 * FILE_BYTES + DCP_PARITY_ALIGN;
        bytes += dcp_parity_expect(catalog->world_size, largest.shard_bytes,
                                   finish->options.parity) +
                 parities * (head + largest.manifest_bytes + manifest(finish));
        n_files += parities;
    }
    if (finish->has_consolidated) {
        bytes += dcp_finish_consolidated_bytes(finish) +
                 catalog->n_tensors * CONSOLIDATED_BYTES;
        n_files++;
    }
    return bytes + (n_files + 2) * FS_BLOCK; /* the step's folder and the run's grow */
}
