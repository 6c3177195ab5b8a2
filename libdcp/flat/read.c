/* read: boxes of tensors into the caller's memory.
 *
 * The elements of a box in its own row-major order are what the caller gets; a job is an
 * interval of them. They lie in runs of the flattened tensor: the innermost dimensions
 * that the box has all of, and one more. */
#include "checkpoint.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/str.h"
#include <inttypes.h>
#include <string.h>

#define JOB_BYTES ((int64_t)8 << 20)
#define ALONE_BYTES ((uint64_t)4 << 20) /* less than this is read on one thread */

struct box {
    size_t tensor;
    const struct dcp_tensor *of;
    int n_outer; /* dimensions in front of a run */
    int64_t offset[DCP_MAX_NDIM], size[DCP_MAX_NDIM], stride[DCP_MAX_NDIM];
    int64_t run, n_elems; /* elements of a run, and of all */
    unsigned char *data;
    bool whole;
    size_t first_job, n_jobs;
};

struct job {
    size_t box;
    int64_t begin, end;
    uint64_t crc; /* of its bytes, of a whole tensor that has a fingerprint */
};

struct reading {
    struct dcp_flat_readers readers;
    struct dcp_flat_watch watch;
    struct dcp_progress progress;
    struct box *boxes;
    size_t n_boxes;
    struct job *jobs;
    size_t n_jobs;
    uint64_t total;
    pthread_mutex_t lock; /* of done, and of telling it */
    uint64_t done;
};

/* -- boxes ------------------------------------------------------------------------- */

static int check_box(const struct dcp_flat_checkpoint *checkpoint, const struct box *box,
                     struct dcp_error *err)
{
    DCP_TRY(dcp_flat_check_box(checkpoint, box->of, box->offset, box->size, err));
    if (!box->data && box->n_elems)
        return dcp_error_set(err, DCP_E_USAGE, "there is no memory to read '%s' into",
                             DCP_SHOWN(box->of->name));
    return DCP_OK;
}

/* offset and size are set. */
static void measure(struct box *box)
{
    const int64_t *shape = box->of->shape;
    int64_t stride = 1;
    int d = box->of->ndim;

    box->run = box->n_elems = 1;
    for (int k = d - 1; k >= 0; k--) {
        box->stride[k] = stride;
        stride *= shape[k];
        box->n_elems *= box->size[k];
    }
    while (d > 0 && box->size[d - 1] == shape[d - 1])
        box->run *= shape[--d];
    box->whole = d == 0;
    if (d > 0)
        box->run *= box->size[--d];
    box->n_outer = d;
}

static int add_boxes(struct reading *reading, const struct dcp_flat_boxes *given,
                     struct dcp_error *err)
{
    const struct dcp_flat_checkpoint *checkpoint = reading->readers.checkpoint;
    const struct dcp_catalog *catalog = checkpoint->catalog;
    size_t at = 0;

    reading->n_boxes = (size_t)given->n;
    reading->boxes = dcp_mem_calloc(reading->n_boxes, sizeof *reading->boxes);
    if (!reading->boxes)
        return dcp_error_memory(err, "a list of boxes");
    for (size_t i = 0; i < reading->n_boxes; i++) {
        struct box *box = &reading->boxes[i];
        if (given->tensors[i] >= catalog->n_tensors)
            return dcp_error_set(err, DCP_E_USAGE, "there is no tensor %" PRIu64,
                                 given->tensors[i]);
        box->tensor = (size_t)given->tensors[i];
        box->of = &catalog->tensors[box->tensor];
        box->data = given->data[i];
        for (int d = 0; d < box->of->ndim; d++, at++) {
            box->offset[d] = given->offsets ? given->offsets[at] : 0;
            box->size[d] = given->sizes ? given->sizes[at] : box->of->shape[d];
        }
        measure(box);
        DCP_TRY(check_box(checkpoint, box, err));
        reading->total += (uint64_t)box->n_elems * dcp_dtype_size(box->of->dtype);
    }
    return DCP_OK;
}

static int add_jobs(struct reading *reading, struct dcp_error *err)
{
    size_t cap = 0;

    for (size_t i = 0; i < reading->n_boxes; i++) {
        struct box *box = &reading->boxes[i];
        int64_t step = JOB_BYTES / (int64_t)dcp_dtype_size(box->of->dtype);
        box->first_job = reading->n_jobs;
        for (int64_t at = 0; at < box->n_elems; at += step) {
            struct job *jobs =
                dcp_mem_grow(reading->jobs, &cap, reading->n_jobs + 1, sizeof *jobs);
            if (!jobs)
                return dcp_error_memory(err, "a list of reads");
            reading->jobs = jobs;
            jobs[reading->n_jobs++] =
                (struct job){ i, at, box->n_elems - at < step ? box->n_elems : at + step,
                              0 };
        }
        box->n_jobs = reading->n_jobs - box->first_job;
    }
    return DCP_OK;
}

/* -- reading ----------------------------------------------------------------------- */

/* Where run r begins in the flattened tensor. */
static int64_t place_of_run(const struct box *box, int64_t r)
{
    int d = box->n_outer;
    int64_t at = d < box->of->ndim ? box->offset[d] * box->stride[d] : 0;

    for (int k = d - 1; k >= 0; k--) {
        at += (box->offset[k] + r % box->size[k]) * box->stride[k];
        r /= box->size[k];
    }
    return at;
}

static bool tell(struct reading *reading, uint64_t n)
{
    pthread_mutex_lock(&reading->lock);
    reading->done += n;
    bool stop =
        reading->progress.report(reading->progress.self, reading->done, reading->total);
    pthread_mutex_unlock(&reading->lock);
    return stop;
}

static bool is_held_against_fingerprint(const struct reading *reading,
                                        const struct box *box)
{
    return box->whole && box->of->has_fingerprint && reading->readers.checkpoint->verify;
}

static int read_job(void *arg, int worker, size_t i, struct dcp_error *err)
{
    struct reading *reading = arg;
    struct job *job = &reading->jobs[i];
    const struct box *box = &reading->boxes[job->box];
    size_t elem = dcp_dtype_size(box->of->dtype);
    int64_t n;

    for (int64_t at = job->begin; at < job->end; at += n) {
        int64_t run = at / box->run, in_run = at % box->run;
        n = box->run - in_run < job->end - at ? box->run - in_run : job->end - at;
        int64_t from = place_of_run(box, run) + in_run;
        DCP_TRY(dcp_reader_read(reading->readers.items[worker], (int)box->tensor, from,
                                from + n, box->data + (size_t)at * elem, err));
    }
    size_t bytes = (size_t)(job->end - job->begin) * elem;
    if (is_held_against_fingerprint(reading, box))
        job->crc = dcp_hash_crc64(0, box->data + (size_t)job->begin * elem, bytes);
    return tell(reading, bytes) ? dcp_flat_interrupted(err) : DCP_OK;
}

static int check_fingerprint(const struct reading *reading, const struct box *box,
                             struct dcp_error *err)
{
    const struct job *jobs = reading->jobs + box->first_job;
    const struct dcp_tensor *of = box->of;
    uint64_t crc = 0;

    for (size_t j = 0; j < box->n_jobs; j++)
        crc = dcp_hash_crc64_combine(crc, jobs[j].crc,
                                     (uint64_t)(jobs[j].end - jobs[j].begin) *
                                         dcp_dtype_size(of->dtype));
    if (crc == of->fingerprint)
        return DCP_OK;
    return dcp_error_of_tensor(err, DCP_E_CORRUPT, of->name,
                               "tensor '%s' was read with fingerprint %016" PRIx64
                               ", it was saved with %016" PRIx64,
                               DCP_SHOWN(of->name), crc, of->fingerprint);
}

static int read_jobs(struct reading *reading, struct dcp_error *err)
{
    struct dcp_pool *pool = NULL;
    int rc = reading->readers.n > 1 ? dcp_pool_new(reading->readers.n - 1, &pool, err)
                                    : DCP_OK;

    if (!rc)
        rc = dcp_pool_for(pool, reading->n_jobs, read_job, reading, err);
    dcp_pool_free(pool);
    for (size_t i = 0; i < reading->n_boxes && !rc; i++)
        if (is_held_against_fingerprint(reading, &reading->boxes[i]))
            rc = check_fingerprint(reading, &reading->boxes[i], err);
    return rc;
}

static int read_boxes(struct reading *reading, const struct dcp_flat_boxes *given,
                      struct dcp_error *err)
{
    struct dcp_flat_checkpoint *checkpoint = reading->readers.checkpoint;

    DCP_TRY(add_boxes(reading, given, err));
    DCP_TRY(add_jobs(reading, err));
    if (!reading->n_jobs)
        return DCP_OK;
    if (dcp_flat_cancelled(&reading->watch))
        return dcp_flat_interrupted(err);
    size_t n = reading->total < ALONE_BYTES ? 1 : (size_t)checkpoint->threads;
    n = n < reading->n_jobs ? n : reading->n_jobs;
    DCP_TRY(dcp_flat_readers_take(checkpoint, (int)n, &reading->readers, err));
    int rc = dcp_flat_readers_give(&reading->readers, read_jobs(reading, err), err);
    for (size_t i = 0; i < reading->n_boxes; i++)
        rc = dcp_flat_check_replaced(checkpoint, reading->boxes[i].of, rc, err);
    return rc;
}

int32_t dcp_flat_boxes_read(struct dcp_flat_checkpoint *checkpoint,
                            const struct dcp_flat_boxes *boxes,
                            const struct dcp_flat_hooks *hooks,
                            struct dcp_flat_error *err)
{
    struct reading reading = { .readers.checkpoint = checkpoint };
    struct dcp_flat_boxes ours;
    struct dcp_error why = { 0 };

    dcp_flat_take(&ours, sizeof ours, boxes);
    reading.progress = dcp_flat_watch(&reading.watch, hooks);
    pthread_mutex_init(&reading.lock, NULL);
    int rc = read_boxes(&reading, &ours, &why);
    pthread_mutex_destroy(&reading.lock);
    free(reading.boxes);
    free(reading.jobs);
    return dcp_flat_fail(err, rc, &why);
}
