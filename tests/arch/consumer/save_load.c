/* Saves one tensor to the folder argv[1], loads it back, and prints the version. Valid as
 * C11 and as C++17. */
#include <dcp/dcp.h>
#include <stdio.h>
#include <string.h>

static int fail(const struct dcp_error *err)
{
    fprintf(stderr, "%s\n", err->message);
    return dcp_error_exit(err->code);
}

int main(int argc, char **argv)
{
    float saved[6] = { 1, 2, 3, 4, 5, 6 }, loaded[6] = { 0, 0, 0, 0, 0, 0 };
    const int64_t shape[2] = { 2, 3 };
    struct dcp_error err;
    struct dcp_store store;
    struct dcp_context ctx;
    struct dcp_local_tensor local;
    struct dcp_state state;
    struct dcp_save_options save;
    struct dcp_save_result done;
    struct dcp_load_options load;
    struct dcp_load_result got;

    memset(&err, 0, sizeof err);
    memset(&ctx, 0, sizeof ctx);
    memset(&local, 0, sizeof local);
    memset(&state, 0, sizeof state);
    memset(&save, 0, sizeof save);
    memset(&load, 0, sizeof load);
    if (argc != 2) {
        return 2;
    }
    local.name = "weight";
    local.dtype = DCP_F32;
    local.ndim = 2;
    local.shape = shape;
    local.data = saved;
    state.locals = &local;
    state.n_locals = 1;
    state.layout = "replicated";
    save.step = 7;
    load.step = -1;
    ctx.store = &store;
    if (dcp_store_dir(&store, argv[1], true, &err) < 0) {
        return fail(&err);
    }
    if (dcp_save(&ctx, &save, &state, &done, &err) < 0) {
        return fail(&err);
    }
    local.data = loaded;
    if (dcp_load(&ctx, &load, &state, &got, &err) < 0) {
        return fail(&err);
    }
    dcp_catalog_free(got.catalog);
    dcp_store_free(&store);
    if (got.step != 7 || memcmp(saved, loaded, sizeof saved) != 0) {
        fprintf(stderr, "loaded something else than what was saved\n");
        return 1;
    }
    puts(dcp_version());
    return 0;
}
