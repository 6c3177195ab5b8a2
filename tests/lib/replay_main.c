/* The main of a fuzz target where libFuzzer is not linked: runs every file of the folders
 * and files named in argv, and of each also a few hundred truncations and changed bytes,
 * always the same ones. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_CUTS 256
#define MAX_CHANGES 256

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

/* A copy of exactly the size, so that a sanitizer sees the first byte behind its end. */
static void run(const uint8_t *data, size_t size_bytes)
{
    uint8_t *copy = malloc(size_bytes > 0 ? size_bytes : 1);
    if (!copy) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    if (size_bytes > 0) {
        memcpy(copy, data, size_bytes);
    }
    LLVMFuzzerTestOneInput(copy, size_bytes);
    free(copy);
}

static void run_changed(uint8_t *data, size_t size_bytes)
{
    size_t stride = size_bytes / MAX_CUTS + 1;
    for (size_t end = 0; end < size_bytes; end += stride) {
        run(data, end);
    }
    uint64_t random = 0x9e3779b97f4a7c15u ^ size_bytes;
    for (int i = 0; i < MAX_CHANGES && size_bytes > 0; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        size_t at = (size_t)(random >> 8) % size_bytes;
        uint8_t kept = data[at];
        data[at] = (uint8_t)((i & 1) ? kept ^ (1u << (random & 7)) : random);
        run(data, size_bytes);
        data[at] = kept;
    }
}

static void replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat facts;
    uint8_t *data = NULL;
    if (!file || fstat(fileno(file), &facts) != 0 ||
        !(data = malloc((size_t)facts.st_size + 1)) ||
        fread(data, 1, (size_t)facts.st_size, file) != (size_t)facts.st_size) {
        perror(path);
        exit(1);
    }
    fclose(file);
    run(data, (size_t)facts.st_size);
    run_changed(data, (size_t)facts.st_size);
    free(data);
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Files of the folder in the order of their names; returns how many. */
static int replay_folder(const char *path)
{
    struct dirent **entries;
    int n = scandir(path, &entries, is_visible, alphasort);
    for (int i = 0; i < n; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        replay_file(name);
        free(entries[i]);
    }
    if (n >= 0) {
        free(entries);
    }
    return n;
}

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        struct stat facts;
        if (stat(argv[i], &facts) != 0) {
            perror(argv[i]);
            return 1;
        }
        if (S_ISDIR(facts.st_mode)) {
            n += replay_folder(argv[i]);
        } else {
            replay_file(argv[i]);
            n++;
        }
    }
    printf("%d inputs replayed\n", n);
    return n > 0 ? 0 : 1;
}
