#include "reshard_folder.h"
#include "acts.h"
#include "must.h"
#include "sample.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

int reshard_folder_setup(void **state)
{
    struct reshard_folder *folder = calloc(1, sizeof *folder);

    must(folder);
    acts_folder(folder->path);
    snprintf(folder->source, sizeof folder->source, "%s/source", folder->path);
    snprintf(folder->target, sizeof folder->target, "%s/target", folder->path);
    *state = folder;
    return 0;
}

int reshard_folder_teardown(void **state)
{
    struct reshard_folder *folder = *state;

    acts_folder_remove(folder->path);
    free(folder);
    return 0;
}

void reshard_folder_save(const char *path, const char *layout, int world_size,
                         enum dcp_codec codec)
{
    struct dcp_store store;
    struct acts acts = { .store = &store,
                         .layout = layout,
                         .world_size = world_size,
                         .step = 5,
                         .salt = RESHARD_SALT,
                         .codec = codec };

    assert_int_equal(dcp_store_dir(&store, path, true, NULL), 0);
    int rc = acts_save(&acts);
    dcp_store_free(&store);
    assert_string_equal(acts.err.message, "");
    assert_int_equal(rc, 0);
}

/* The fingerprint of the sample's tensor of that name. */
static uint64_t fingerprint_of(const struct sample *sample, const char *name)
{
    int t = dcp_catalog_find(sample->catalog, name);

    assert_in_range(t, 0, sample_n_tensors() - 1);
    return sample_fingerprint(sample, t, RESHARD_SALT);
}

size_t reshard_folder_check(const char *path, const char *layout, int world_size)
{
    struct dcp_location location;
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };
    struct sample sample;

    int rc = dcp_location_open(path, &location, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(rc, 0);
    assert_string_equal(location.format->name, "native");
    assert_int_equal(dcp_verify(&location.source, NULL, NULL, &err), 0);
    assert_int_equal(dcp_location_index(&location, &catalog, &err), 0);
    assert_int_equal(catalog->world_size, world_size);
    assert_string_equal(catalog->layout, layout);
    assert_int_equal(catalog->step, 5);
    sample_make(&sample, "replicated", 1, 0, false, RESHARD_SALT);
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        assert_int_equal(tensor->fingerprint, fingerprint_of(&sample, tensor->name));
    }
    sample_free(&sample);
    assert_true(dcp_catalog_find_object(catalog, "trainer") >= 0);
    size_t n = catalog->n_tensors;
    dcp_catalog_free(catalog);
    dcp_location_close(&location);
    return n;
}

int reshard_folder_run(const char *source, const char *target,
                       const struct dcp_reshard_options *options, struct dcp_error *err)
{
    struct dcp_location location;
    struct dcp_reshard *job;

    int rc = dcp_location_open(source, &location, err);
    if (rc)
        return rc;
    rc = dcp_reshard_plan(&location, target, options, &job, err);
    if (!rc) {
        rc = dcp_reshard_run(job, err);
        dcp_reshard_free(job);
    }
    dcp_location_close(&location);
    return rc;
}

void reshard_folder_must_run(const char *source, const char *target,
                             const struct dcp_reshard_options *options)
{
    struct dcp_error err = { 0 };

    int rc = reshard_folder_run(source, target, options, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(rc, 0);
}

int reshard_folder_count(const char *path, const char *prefix)
{
    struct dcp_store store;
    struct dcp_store_entry *entries;
    size_t n;
    int found = 0;

    assert_int_equal(dcp_store_dir(&store, path, false, NULL), 0);
    assert_int_equal(store.ops->list(store.self, "", &entries, &n, NULL), 0);
    for (size_t i = 0; i < n; i++)
        found += !strncmp(entries[i].name, prefix, strlen(prefix));
    dcp_store_list_free(entries, n);
    dcp_store_free(&store);
    return found;
}
