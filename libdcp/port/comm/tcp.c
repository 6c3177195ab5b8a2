/* Ranks that were started without MPI: how they find each other is in tcp_host.c and
 * tcp_visit.c, what they do then in tcp_star.c. */
#include "tcp_star.h"
#include "tcp_start.h"

#include "base/clock.h"
#include "base/mem.h"

#define START_TIMEOUT_MS 60000

static int tcp_allgather(void *self, const void *in, size_t size_bytes, void *out,
                         int timeout_ms, struct dcp_error *err)
{
    struct dcp_tcp_call call = { .kind = DCP_TCP_ALLGATHER, .size_bytes = size_bytes };
    return dcp_tcp_star_run(self, &call, in, out, timeout_ms, err);
}

static int tcp_bcast(void *self, void *data, size_t size_bytes, int root, int timeout_ms,
                     struct dcp_error *err)
{
    struct dcp_tcp_call call = { .kind = DCP_TCP_BCAST,
                                 .root = (uint64_t)root,
                                 .size_bytes = size_bytes };
    return dcp_tcp_star_run(self, &call, data, data, timeout_ms, err);
}

static int tcp_peer_dead(void *self)
{
    return dcp_tcp_star_dead(self);
}

static void tcp_free(void *self)
{
    struct dcp_tcp_star *star = self;
    if (star->rank == 0) /* or the others would take this leaving for the death */
        (void)dcp_tcp_star_dead(star);
    for (int i = 0; i < star->n_links; i++)
        dcp_tcp_link_close(&star->links[i]);
    free(star->links);
    free(star->polls);
    free(star);
}

static const struct dcp_comm_ops tcp_ops = {
    .allgather = tcp_allgather,
    .bcast = tcp_bcast,
    .peer_dead = tcp_peer_dead,
    .free = tcp_free,
};

static struct dcp_tcp_star *star_new(int rank, int world)
{
    struct dcp_tcp_star *star = dcp_mem_calloc(1, sizeof *star);
    if (!star)
        return NULL;
    *star = (struct dcp_tcp_star){ .rank = rank, .world = world };
    size_t n = rank == 0 ? (size_t)world : 1;
    star->links = dcp_mem_calloc(n, sizeof *star->links);
    star->polls = dcp_mem_calloc(n, sizeof *star->polls);
    if (!star->links || !star->polls) {
        free(star->links);
        free(star->polls);
        free(star);
        return NULL;
    }
    star->n_links = (int)n;
    for (size_t i = 0; i < n; i++)
        star->links[i] = dcp_tcp_link_init(-1);
    return star;
}

static int check_options(const struct dcp_comm_tcp_options *options,
                         struct dcp_error *err)
{
    if (options->world < 1 || options->rank < 0 || options->rank >= options->world)
        return dcp_error_set(err, DCP_E_USAGE, "there is no rank %d in a world of %d",
                             options->rank, options->world);
    if (options->world > 1 && (options->port < 1 || options->port > 65534))
        return dcp_error_set(err, DCP_E_USAGE,
                             "MASTER_PORT %d leaves no port behind it for rank 0",
                             options->port);
    if (options->world > 1 && (!options->host || !options->host[0]))
        return dcp_error_set(err, DCP_E_USAGE,
                             "there is no MASTER_ADDR to find rank 0 at");
    return DCP_OK;
}

static struct dcp_tcp_start start_of(const struct dcp_comm_tcp_options *options)
{
    int timeout_ms = options->timeout_ms > 0 ? options->timeout_ms : START_TIMEOUT_MS;
    int last_port = options->port + DCP_TCP_N_PORTS;
    return (struct dcp_tcp_start){
        .options = options,
        .first_port = options->port + 1,
        .last_port = last_port < 65535 ? last_port : 65535,
        .begin = dcp_clock_ns(),
        .time_ns = (uint64_t)timeout_ms * DCP_TCP_MS,
    };
}

int dcp_comm_tcp(struct dcp_comm *out_comm, const struct dcp_comm_tcp_options *options,
                 struct dcp_error *err)
{
    *out_comm = (struct dcp_comm){ 0 };
    int rc = check_options(options, err);
    if (rc)
        return rc;
    struct dcp_tcp_start start = start_of(options);
    rc = dcp_tcp_key_of(options, &start.key, err);
    if (rc)
        return rc;
    struct dcp_tcp_star *star = star_new(options->rank, options->world);
    if (!star)
        return dcp_error_memory(err, "a comm over TCP");
    if (options->world > 1)
        rc = options->rank ? dcp_tcp_visit(&start, star->links, err)
                           : dcp_tcp_host(&start, star->links, err);
    if (rc) {
        tcp_free(star);
        return rc;
    }
    *out_comm = (struct dcp_comm){
        .ops = &tcp_ops,
        .self = star,
        .rank = options->rank,
        .world = options->world,
    };
    return DCP_OK;
}
