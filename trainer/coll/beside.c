/* Over another coll, whose calls are made on a thread, one after the other, while the
 * kernels go on. All colls that are split from one share its thread. Arrays lie in the
 * host's memory, where kernels are done when they return. */
#include "coll.h"

#include "base/mem.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>

#define QUEUE 16 /* calls that may wait for their turn */

enum kind { REDUCE_SCATTER, ALL_TO_ALL, ALL_GATHER, ALL_REDUCE };

struct beside;

struct call {
    struct beside *asker;
    enum kind kind;
    const void *in;
    int64_t *counts; /* of each rank; room in the queue */
    int64_t begin, most;
    size_t item_bytes;
    void *out;
};

struct queue {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* anything below */
    struct call calls[QUEUE];
    uint64_t n_asked, n_made;
    int n_users;
    bool ends;
    struct coll *working; /* in which the thread is, or NULL */
    int rc;               /* of the first call that failed; no other is made after it */
    struct dcp_error why;
    int64_t *counts;
    int world_size; /* of the first coll, the largest */
};

struct beside {
    struct coll below; /* owned */
    struct queue *queue;
    uint64_t n_asked, n_made; /* calls of this coll */
};

/* --- the thread --- */

/* Whether no call is made any more. */
static bool is_over(const struct queue *q)
{
    return q->rc || q->ends;
}

static int make(struct coll *below, const struct call *call, struct dcp_error *err)
{
    switch (call->kind) {
    case REDUCE_SCATTER:
        return coll_reduce_scatter(below, call->in, call->counts, call->out, err);
    case ALL_TO_ALL:
        return coll_all_to_all(below, call->in, call->counts, call->begin, call->most,
                               call->item_bytes, call->out, err);
    case ALL_GATHER:
        return coll_all_gather(below, call->in, call->counts, call->item_bytes, call->out,
                               err);
    case ALL_REDUCE:
        break;
    }
    return coll_all_reduce(below, call->out, (int)call->most, err);
}

static void *work(void *self)
{
    struct queue *q = self;
    pthread_mutex_lock(&q->lock);
    while (!is_over(q)) {
        if (q->n_made == q->n_asked) {
            pthread_cond_wait(&q->changed, &q->lock);
            continue;
        }
        struct call *call = &q->calls[q->n_made % QUEUE];
        struct dcp_error why = { 0 };
        q->working = &call->asker->below;
        pthread_mutex_unlock(&q->lock);
        int rc = make(&call->asker->below, call, &why);
        pthread_mutex_lock(&q->lock);
        q->working = NULL;
        if (rc) {
            q->rc = rc;
            q->why = why;
        } else {
            call->asker->n_made++;
            q->n_made++;
        }
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* --- who asks it --- */

static int failed(const struct queue *q, struct dcp_error *err)
{
    if (!q->rc)
        return dcp_error_set(err, DCP_E_COMM, "the collectives were aborted");
    if (err)
        *err = q->why;
    return q->rc;
}

static int ask(struct beside *b, struct call call, const int64_t *counts,
               struct dcp_error *err)
{
    struct queue *q = b->queue;
    pthread_mutex_lock(&q->lock);
    while (!is_over(q) && q->n_asked - q->n_made == QUEUE)
        pthread_cond_wait(&q->changed, &q->lock);
    int rc = is_over(q) ? failed(q, err) : DCP_OK;
    if (!rc) {
        struct call *place = &q->calls[q->n_asked % QUEUE];
        call.asker = b;
        call.counts = q->counts + (q->n_asked % QUEUE) * (uint64_t)q->world_size;
        if (counts)
            memcpy(call.counts, counts, (size_t)b->below.world_size * sizeof *counts);
        *place = call;
        q->n_asked++;
        b->n_asked++;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return rc;
}

static int beside_wait(void *self, uint64_t call, struct dcp_error *err)
{
    struct beside *b = self;
    struct queue *q = b->queue;
    pthread_mutex_lock(&q->lock);
    while (!is_over(q) && b->n_made < call)
        pthread_cond_wait(&q->changed, &q->lock);
    int rc = b->n_made < call ? failed(q, err) : DCP_OK;
    pthread_mutex_unlock(&q->lock);
    return rc;
}

static int beside_reduce_scatter(void *self, const int64_t *in, const int64_t *counts,
                                 int64_t *out, struct dcp_error *err)
{
    return ask(self, (struct call){ .kind = REDUCE_SCATTER, .in = in, .out = out },
               counts, err);
}

static int beside_all_to_all(void *self, const void *in, const int64_t *counts,
                             int64_t begin, int64_t most, size_t item_bytes, void *out,
                             struct dcp_error *err)
{
    return ask(self,
               (struct call){ .kind = ALL_TO_ALL,
                              .in = in,
                              .begin = begin,
                              .most = most,
                              .item_bytes = item_bytes,
                              .out = out },
               counts, err);
}

static int beside_all_gather(void *self, const void *in, const int64_t *counts,
                             size_t item_bytes, void *out, struct dcp_error *err)
{
    return ask(self,
               (struct call){
                   .kind = ALL_GATHER, .in = in, .item_bytes = item_bytes, .out = out },
               counts, err);
}

static int beside_all_reduce(void *self, double *values, int n, struct dcp_error *err)
{
    struct beside *b = self;
    DCP_TRY(
        ask(b, (struct call){ .kind = ALL_REDUCE, .most = n, .out = values }, NULL, err));
    return beside_wait(b, b->n_asked, err);
}

/* --- beginning and end --- */

static int open_over(struct coll *below, struct queue *queue, struct coll *out_coll,
                     struct dcp_error *err);

static int beside_split(void *self, int color, int key, struct coll *out_coll,
                        struct dcp_error *err)
{
    struct beside *b = self;
    struct coll below;
    DCP_TRY(beside_wait(b, b->n_asked, err));
    DCP_TRY(coll_split(&b->below, color, key, &below, err));
    int rc = open_over(&below, b->queue, out_coll, err);
    if (rc)
        coll_free(&below);
    return rc;
}

static void beside_abort(void *self)
{
    struct queue *q = ((struct beside *)self)->queue;
    pthread_mutex_lock(&q->lock);
    q->ends = true;
    if (q->working)
        coll_abort(q->working);
    pthread_cond_broadcast(&q->changed);
    while (q->working) /* it may still write to its array */
        pthread_cond_wait(&q->changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

static void end_queue(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->ends = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    free(q->counts);
    free(q);
}

/* What was asked for is done first: it may still write to its arrays. */
static void beside_free(void *self)
{
    struct beside *b = self;
    struct queue *q = b->queue;
    pthread_mutex_lock(&q->lock);
    while (!is_over(q) && b->n_made < b->n_asked)
        pthread_cond_wait(&q->changed, &q->lock);
    while (q->working == &b->below)
        pthread_cond_wait(&q->changed, &q->lock);
    int n_users = --q->n_users;
    pthread_mutex_unlock(&q->lock);
    if (!n_users)
        end_queue(q);
    coll_free(&b->below);
    free(b);
}

static const struct coll_ops beside_ops = {
    .reduce_scatter = beside_reduce_scatter,
    .all_to_all = beside_all_to_all,
    .all_gather = beside_all_gather,
    .wait = beside_wait,
    .all_reduce = beside_all_reduce,
    .split = beside_split,
    .abort = beside_abort,
    .free = beside_free,
};

/* Takes *below when it succeeds. */
static int open_over(struct coll *below, struct queue *queue, struct coll *out_coll,
                     struct dcp_error *err)
{
    struct beside *b = dcp_mem_calloc(1, sizeof *b);
    if (!b)
        return dcp_error_memory(err, "collectives");
    *b = (struct beside){ .below = *below, .queue = queue };
    b->below.whole = NULL; /* what it does is counted above it, by the thread that asks */
    pthread_mutex_lock(&queue->lock);
    queue->n_users++;
    pthread_mutex_unlock(&queue->lock);
    *out_coll = (struct coll){ .ops = &beside_ops,
                               .self = b,
                               .rank = b->below.rank,
                               .world_size = b->below.world_size };
    return DCP_OK;
}

static int start(const struct coll *coll, struct queue **out_queue, struct dcp_error *err)
{
    struct queue *q = dcp_mem_calloc(1, sizeof *q);
    if (q) {
        q->world_size = coll->world_size;
        q->counts = dcp_mem_calloc((size_t)q->world_size * QUEUE, sizeof *q->counts);
    }
    if (!q || !q->counts) {
        free(q);
        return dcp_error_memory(err, "collectives");
    }
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    sigset_t all, before; /* signals are for the program's own thread */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&q->thread, NULL, work, q);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code) {
        free(q->counts);
        free(q);
        return dcp_error_set(err, DCP_E_MEMORY, "no thread for collectives: %s",
                             strerror(code));
    }
    *out_queue = q;
    return DCP_OK;
}

int coll_beside(struct coll *coll, struct dcp_error *err)
{
    struct queue *queue = NULL;
    struct coll over;
    DCP_TRY(start(coll, &queue, err));
    int rc = open_over(coll, queue, &over, err);
    if (rc) {
        end_queue(queue);
        return rc;
    }
    *coll = over;
    return DCP_OK;
}
