/* save: a step of a run, from the memory of many ranks, which go on meanwhile or wait. */
#include "act.h"

#include <stdlib.h>
#include <string.h>

struct dcp_flat_saver {
    struct dcp_flat_act act;
    struct dcp_saver *saver;
};

void dcp_flat_saver_free(struct dcp_flat_saver *saver)
{
    if (!saver)
        return;
    dcp_saver_free(saver->saver);
    dcp_flat_act_end(&saver->act);
    free(saver);
}

int32_t dcp_flat_saver_new(const struct dcp_flat_saver_options *options,
                           const struct dcp_flat_comm *comm, struct dcp_flat_saver **out,
                           struct dcp_flat_error *err)
{
    struct dcp_flat_saver_options given;
    struct dcp_error why = { 0 };

    dcp_flat_take(&given, sizeof given, options);
    struct dcp_flat_saver *saver = calloc(1, sizeof *saver);
    *out = NULL;
    if (!saver) /* the others learn it by their time-out */
        return dcp_flat_fail(err, dcp_error_memory(&why, "a saver"), &why);
    int rc = dcp_flat_act_begin(&saver->act,
                                &(struct dcp_flat_act_options){ .comm = comm,
                                                                .path = given.path,
                                                                .create = true,
                                                                .threads = given.threads,
                                                                .log = given.log,
                                                                .self = given.self },
                                &why);
    if (!rc)
        rc = dcp_saver_new(&saver->act.ctx, &saver->saver, &why);
    rc = dcp_flat_act_agree(&saver->act, rc, &why);
    if (rc) {
        dcp_flat_saver_free(saver);
        return dcp_flat_fail(err, rc, &why);
    }
    *out = saver;
    return DCP_OK;
}

/* What all ranks give alike, as the library has it. */
static int read_options(const struct dcp_flat_save_options *given,
                        struct dcp_save_options *out, struct dcp_export *export,
                        struct dcp_error *err)
{
    int codec = given->codec ? dcp_codec_parse(given->codec) : DCP_CODEC_NONE;
    int dtype = given->export_dtype ? dcp_dtype_parse(given->export_dtype) : -1;

    if (codec < 0)
        return dcp_error_set(err, DCP_E_USAGE, "there is no codec '%s'", given->codec);
    if (given->export_name && (!given->export_format || strchr(given->export_name, '/')))
        return dcp_error_set(err, DCP_E_USAGE,
                             "a consolidated export has a format, and a name that is no "
                             "path");
    if (given->export_dtype && dtype < 0)
        return dcp_error_set(err, DCP_E_USAGE, "there is no dtype '%s'",
                             given->export_dtype);
    *export = (struct dcp_export){ given->export_name, given->export_format, dtype };
    *out = (struct dcp_save_options){
        .step = given->step,
        .codec = (enum dcp_codec)codec,
        .keep = given->keep,
        .keep_every = given->keep_every,
        .keep_optimizer = given->keep_optimizer,
        .parity = given->parity,
        .delta = given->delta,
        .verify_after_save = given->verify_after_save,
        .diverged = given->diverged,
        .in_place = given->in_place,
        .consolidated = given->export_name ? export : NULL,
    };
    return DCP_OK;
}

int32_t dcp_flat_save_start(struct dcp_flat_saver *saver,
                            const struct dcp_flat_save_options *options,
                            const struct dcp_flat_state *state,
                            struct dcp_flat_error *err)
{
    struct dcp_flat_save_options given;
    struct dcp_save_options ours;
    struct dcp_export export;
    struct dcp_flat_held held = { 0 };
    struct dcp_error why = { 0 };

    dcp_flat_take(&given, sizeof given, options);
    int rc = read_options(&given, &ours, &export, &why);
    if (!rc)
        rc = dcp_flat_held_make(state, &held, &why);
    rc = dcp_flat_act_agree(&saver->act, rc, &why);
    if (!rc)
        rc = dcp_save_start(saver->saver, &ours, &held.state, &why);
    dcp_flat_held_free(&held);
    return dcp_flat_fail(err, rc, &why);
}

int32_t dcp_flat_save_wait(struct dcp_flat_saver *saver,
                           struct dcp_flat_save_result *out_result,
                           struct dcp_flat_error *err)
{
    struct dcp_save_result result = { 0 };
    struct dcp_error why = { 0 };
    int rc = dcp_save_wait(saver->saver, &result, &why);

    const struct dcp_flat_save_result told = {
        .step = result.step,
        .fingerprint = result.fingerprint,
        .size_bytes = result.size_bytes,
        .diverged = result.diverged,
        .stale = result.stale,
        .write_s = result.write_s,
        .stall_s = result.stall_s,
        .written_bytes = result.written_bytes,
    };
    dcp_flat_give(out_result, &told, sizeof told);
    return dcp_flat_fail(err, rc, &why);
}

int32_t dcp_flat_save(const struct dcp_flat_save_options *options,
                      const struct dcp_flat_comm *comm,
                      const struct dcp_flat_state *state,
                      struct dcp_flat_save_result *out_result, struct dcp_flat_error *err)
{
    struct dcp_flat_save_options here;
    struct dcp_flat_saver *saver;

    dcp_flat_take(&here, sizeof here, options);
    here.struct_size = sizeof here;
    here.in_place = 1;
    const struct dcp_flat_saver_options how = { .struct_size = sizeof how,
                                                .path = here.path,
                                                .threads = here.threads,
                                                .log = here.log,
                                                .self = here.self };
    int32_t rc = dcp_flat_saver_new(&how, comm, &saver, err);
    if (!rc)
        rc = dcp_flat_save_start(saver, &here, state, err);
    if (!rc)
        rc = dcp_flat_save_wait(saver, out_result, err);
    dcp_flat_saver_free(saver);
    return rc;
}
