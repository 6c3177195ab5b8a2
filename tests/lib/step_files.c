#include "step_files.h"
#include "must.h"
#include <string.h>

enum {
    MAX_BYTES = 1 << 26,
    MAX_FILES =
        sizeof((struct step_files *)0)->files / sizeof((struct step_files *)0)->files[0]
};

static void path_of(const struct step_files *files, const char *name, char out[160])
{
    must(snprintf(out, 160, "%s/%s", files->step, name) < 160);
}

void step_files_read(struct step_files *out, const struct dcp_store *store,
                     const char *step)
{
    struct dcp_store_entry *entries;
    char path[160];
    void *data;

    *out = (struct step_files){ .store = store };
    snprintf(out->step, sizeof out->step, "%s", step);
    must(store->ops->list(store->self, step, &entries, &out->n, NULL) == 0);
    must(out->n <= MAX_FILES);
    for (size_t f = 0; f < out->n; f++) {
        path_of(out, entries[f].name, path);
        snprintf(out->files[f].name, sizeof out->files[f].name, "%s", entries[f].name);
        must(dcp_store_read_file(store, path, MAX_BYTES, &data, &out->files[f].n, NULL) ==
             0);
        out->files[f].data = data;
    }
    dcp_store_list_free(entries, out->n);
}

void step_files_free(struct step_files *files)
{
    for (size_t f = 0; f < files->n; f++)
        free(files->files[f].data);
    *files = (struct step_files){ 0 };
}

size_t step_files_find(const struct step_files *files, const char *name)
{
    size_t f = 0;

    while (f < files->n && strcmp(files->files[f].name, name) != 0)
        f++;
    must(f < files->n);
    return f;
}

void step_files_remove(const struct step_files *files, const char *name)
{
    char path[160];

    path_of(files, name, path);
    files->store->ops->remove(files->store->self, path, NULL);
}

void step_files_put(const struct step_files *files, const char *name, const void *data,
                    size_t n)
{
    char path[160];

    path_of(files, name, path);
    step_files_remove(files, name);
    must(dcp_store_write_file(files->store, path, data, n, NULL) == 0);
}

void step_files_restore(const struct step_files *files, size_t file)
{
    step_files_put(files, files->files[file].name, files->files[file].data,
                   files->files[file].n);
}

void step_files_restore_all(const struct step_files *files)
{
    for (size_t f = 0; f < files->n; f++)
        step_files_restore(files, f);
}

bool step_files_same(const struct step_files *files)
{
    struct step_files now;
    bool same;

    step_files_read(&now, files->store, files->step);
    same = now.n == files->n;
    for (size_t f = 0; same && f < now.n; f++)
        same = !strcmp(now.files[f].name, files->files[f].name) &&
               now.files[f].n == files->files[f].n &&
               !memcmp(now.files[f].data, files->files[f].data, now.files[f].n);
    step_files_free(&now);
    return same;
}
