/* comm: the control plane between ranks. Kilobytes only; tensors never travel here.
 *
 * A trainer that brings its own transport fills the table below; two functions do. A
 * waiting rank sleeps, it does not spin. A rank that is gone or silent makes every other
 * rank return DCP_E_COMM with its number in err->rank within timeout_ms, never a hang.
 * Thread rule: one comm, one thread at a time; libdcp calls it only inside the collective
 * functions of checkpoint.h, on the caller's thread, never from a thread of its own. */
#ifndef DCP_COMM_H
#define DCP_COMM_H

#include <dcp/error.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dcp_comm_ops {
    /* Gives `size_bytes` of every rank to every rank: out has world_size × size_bytes, in
     * rank order. The size is equal on all ranks. */
    int (*allgather)(void *self, const void *in, size_t size_bytes, void *out,
                     int timeout_ms, struct dcp_error *err);
    /* Gives root's bytes to every rank. */
    int (*bcast)(void *self, void *data, size_t size_bytes, int root, int timeout_ms,
                 struct dcp_error *err);
    /* Optional (NULL: nobody is ever known to be dead): the lowest rank that is known to
     * be dead, or -1, at once and without communication. */
    int (*peer_dead)(void *self);
    void (*free)(void *self);
    /* Optional (NULL: allgather does it): as allgather, to rank 0 alone; elsewhere out is
     * NULL. */
    int (*gather)(void *self, const void *in, size_t size_bytes, void *out,
                  int timeout_ms, struct dcp_error *err);
    /* Optional (NULL: allgather does it, and every rank hears every number): the least of
     * the numbers of all ranks. Agreements are made of it. */
    int (*least)(void *self, int64_t mine, int64_t *out, int timeout_ms,
                 struct dcp_error *err);
};

struct dcp_comm {
    const struct dcp_comm_ops *ops;
    void *self;
    int rank, world_size;
    int timeout_ms; /* of each call; 0: 60 s */
};

/* A single rank. Needs no freeing, fails never. */
DCP_PUBLIC void dcp_comm_self(struct dcp_comm *out_comm);

/* `world_size` comms in one process, one for each thread; comms has room for
 * `world_size`. Each is freed with dcp_comm_free. For programs that run ranks as threads,
 * and for tests. Errors: MEMORY. */
DCP_PUBLIC int dcp_comm_threads(struct dcp_comm *out_comms, int world_size,
                                struct dcp_error *err);

/* A comm over a duplicate of an MPI communicator (`mpi_comm` points to an MPI_Comm), in
 * libdcp_mpi. MPI must be initialised. Ranks on this host that die are noticed at once,
 * others by the time-out. Errors: COMM, MEMORY. */
DCP_PUBLIC int dcp_comm_mpi(struct dcp_comm *out_comm, const void *mpi_comm,
                            struct dcp_error *err);

/* How ranks that were started without MPI (torchrun, srun) find each other. The texts are
 * borrowed for the call. */
struct dcp_comm_tcp_options {
    int rank, world_size; /* RANK, WORLD_SIZE */
    const char *host;     /* MASTER_ADDR: where rank 0 runs; name, IPv4 or IPv6 */
    int port;             /* MASTER_PORT: what starts the ranks may listen at it itself */
    const char *job;    /* the same on all ranks, and best on no others, also not on those
                         * of the same job before it was started again; NULL: none */
    int timeout_ms;     /* of the start; 0: 60 s */
    const char *secret; /* the same on all ranks, and known to nobody else: what proves
                         * that a process is one of them; NULL: none, and whoever can
                         * connect and knows the job's name may be one */
};

/* A comm over TCP: all ranks of `world_size` call it, each on a host of its own or not.
 * Rank 0 listens at the first free port of port + 1 to port + 16, at the address of host
 * (at all addresses where that is not one of this machine's), until all ranks have come;
 * the others try these ports until the time-out, and wait up to a quarter of it longer
 * once they have found rank 0. Each side proves to the other that it knows the secret,
 * without telling it; whoever connects and cannot, or is of another job (job, port), is
 * dropped and delays nothing. What the ranks then say is neither encrypted nor signed, as
 * with MPI: it is for networks where nobody changes what others send. A host that a name
 * server does not know yet is asked for until the time-out; how long one question takes
 * is the resolver's matter. No signals; sockets are closed on exec. A single rank opens
 * none.
 *
 * More than 33 ranks talk along a tree. For it some listen, during the start, at a port
 * that the kernel chooses, at the address by which they reach rank 0; where not all ranks
 * reach their parents within a quarter of the time-out, all talk to rank 0 alone.
 *
 * In the calls any size works. A rank whose connection is closed is dead at once, one
 * that is silent is named by the time-out. A rank sees this of its parent and its
 * children, rank 0 of all up to 33; of the rest it hears in a call of its own or when it
 * asks for dcp_comm_peer_dead, as far as the ranks between do either. The time-out of a
 * call is the same on all ranks; rank 0 waits three quarters of it for the others. When a
 * call fails, what is in its `out` is undefined.
 *
 * Errors: COMM (who did not come, with its rank; rank 0 does not answer; host does not
 * resolve; no port is free; rank 0 may not have as many files open as there are ranks),
 * USAGE (options that cannot be; two processes with one rank, other world sizes or
 * versions of libdcp in one job: on all ranks that are there), MEMORY. */
DCP_PUBLIC int dcp_comm_tcp(struct dcp_comm *out_comm,
                            const struct dcp_comm_tcp_options *options,
                            struct dcp_error *err);

/* Frees what self points to; a zeroed comm is fine. */
DCP_PUBLIC void dcp_comm_free(struct dcp_comm *comm);

/* As in dcp_comm_ops, with the comm's time-out. Errors: COMM, MEMORY. */
DCP_PUBLIC int dcp_comm_allgather(struct dcp_comm *comm, const void *in,
                                  size_t size_bytes, void *out, struct dcp_error *err);
DCP_PUBLIC int dcp_comm_bcast(struct dcp_comm *comm, void *data, size_t size_bytes,
                              int root, struct dcp_error *err);

/* As allgather, for rank 0 alone; out is NULL elsewhere if the comm has the operation. */
DCP_PUBLIC int dcp_comm_gather(struct dcp_comm *comm, const void *in, size_t size_bytes,
                               void *out, struct dcp_error *err);

/* The least of the numbers of all ranks. Errors: COMM, MEMORY. */
DCP_PUBLIC int dcp_comm_least(struct dcp_comm *comm, int64_t mine, int64_t *out,
                              struct dcp_error *err);

/* The lowest rank that is known to be dead, or -1. At once and without communication, for
 * loops that wait for something else from the other ranks. */
DCP_PUBLIC int dcp_comm_peer_dead(struct dcp_comm *comm);

/* As allgather with a size of its own on each rank. *out (caller frees with free) holds
 * all parts in rank order; out_sizes has room for `world_size` sizes. Errors: COMM,
 * MEMORY. */
DCP_PUBLIC int dcp_comm_allgatherv(struct dcp_comm *comm, const void *in,
                                   size_t size_bytes, void **out, size_t *out_sizes,
                                   struct dcp_error *err);

/* The same for rank 0 alone: elsewhere *out is NULL, out_sizes is not touched, and
 * nothing is held, but by who passes it on: then what the ranks behind it give. */
DCP_PUBLIC int dcp_comm_gatherv(struct dcp_comm *comm, const void *in, size_t size_bytes,
                                void **out, size_t *out_sizes, struct dcp_error *err);

/* Closes a collective: all ranks return the same code, that of the lowest rank that
 * failed, with its sentence in err and its number in err->rank. rc and err are this
 * rank's own. */
DCP_PUBLIC int dcp_agree(struct dcp_comm *comm, int rc, struct dcp_error *err);

#ifdef __cplusplus
}
#endif
#endif
