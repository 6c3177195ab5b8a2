/* Communicators of threads. A group of calls is one piece of work of its stream; it is
 * done when the same group of all ranks came to the front of theirs. */
#include "nccl.h"
#include "fake.h"
#include <map>
#include <string>
#include <vector>

namespace
{

struct call {
    std::string what;
    const void *from;
    void *to;
    size_t size_bytes;
    int peer;
};

/* What a rank does in one round. */
struct part {
    bool given = false, arrived = false;
    cuda_stream *stream = nullptr;
    uint64_t at = 0; /* of the stream, when it is done */
    std::vector<call> calls;
};
struct round {
    std::vector<part> parts;
    bool done = false;
};

struct clique {
    int world_size, joined = 0, left = 0;
    std::vector<nccl_comm *> members;
    std::map<uint64_t, round> rounds;
    std::map<int, bool> aborted; /* ranks that gave up: their work ends, no other's */
    /* Of splits: by round, what each rank said. */
    struct split {
        std::map<int, std::pair<int, int>> said;
        std::map<int, clique *> cliques;
    };
    std::map<uint64_t, split> splits;
};

} // namespace

struct nccl_comm {
    clique *all;
    int rank;
    uint64_t rounds = 0, splits = 0;
    bool ready = false, finalized = false;
};

namespace
{

size_t size_of(ncclDataType_t type)
{
    return type == ncclChar ? 1 : type == ncclFloat ? 4 : 8;
}

std::map<std::string, clique *> &cliques()
{
    static auto *all = new std::map<std::string, clique *>;
    return *all;
}

/* Of each thread: the group that is open, and what it did. */
thread_local int depth, groups;
thread_local std::vector<std::pair<nccl_comm *, call>> open_calls;
thread_local cuda_stream *open_stream;
thread_local std::vector<nccl_record> records;
thread_local ncclResult_t fail_next;

ncclResult_t failure()
{
    ncclResult_t why = fail_next;
    fail_next = ncclSuccess;
    return why;
}

/* --- one round --- */

const call *find(const part &p, const char *what, int peer, size_t nth)
{
    for (const call &c : p.calls)
        if (c.what == what && c.peer == peer && !nth--)
            return &c;
    return nullptr;
}

/* Every send meets its receive, in order, and they agree on the size. */
void move_messages(round &now, int rank)
{
    std::map<int, size_t> nth;
    for (const call &c : now.parts[rank].calls) {
        if (c.what == "send") {
            const call *other = find(now.parts[c.peer], "recv", rank, nth[c.peer]++);
            if (!other || other->size_bytes != c.size_bytes)
                cuda_fake_fail("rank %d sends %zu bytes to rank %d, which does not "
                               "receive them in the same group",
                               rank, c.size_bytes, c.peer);
            std::memmove(other->to, c.from, c.size_bytes);
        }
    }
    for (const call &c : now.parts[rank].calls)
        if (c.what == "recv" && !find(now.parts[c.peer], "send", rank, 0))
            cuda_fake_fail("rank %d waits for rank %d, which sends nothing", rank,
                           c.peer);
}

void check_same(const round &now)
{
    const part &first = now.parts[0];
    for (size_t r = 1; r < now.parts.size(); r++) {
        const part &p = now.parts[r];
        size_t n = first.calls.size();
        if (n && (first.calls[0].what == "send" || first.calls[0].what == "recv"))
            continue;
        bool same = p.calls.size() == n;
        for (size_t i = 0; same && i < n; i++)
            same = p.calls[i].what == first.calls[i].what &&
                   p.calls[i].size_bytes == first.calls[i].size_bytes &&
                   p.calls[i].peer == first.calls[i].peer;
        if (!same)
            cuda_fake_fail("rank %zu calls another collective than rank 0: %s of %zu "
                           "bytes, not %s of %zu",
                           r, p.calls.empty() ? "none" : p.calls[0].what.c_str(),
                           p.calls.empty() ? 0 : p.calls[0].size_bytes,
                           n ? first.calls[0].what.c_str() : "none",
                           n ? first.calls[0].size_bytes : 0);
    }
}

/* One sum of integers: of all that lies in `from`, at its root; or each rank's share. */
void reduce(round &now, size_t i)
{
    const call &c = now.parts[0].calls[i];
    size_t world_size = now.parts.size(), n = c.size_bytes / sizeof(uint64_t);
    bool scatter = c.what == "reducescatter";
    if (!scatter && c.what != "reduce")
        return;
    std::vector<uint64_t> sums(scatter ? n * world_size : n);
    for (const part &p : now.parts)
        for (size_t k = 0; k < sums.size(); k++) {
            uint64_t value;
            std::memcpy(&value, (const char *)p.calls[i].from + k * sizeof value,
                        sizeof value);
            sums[k] += value;
        }
    for (size_t r = 0; r < world_size; r++)
        if (scatter || (int)r == c.peer)
            std::memcpy(now.parts[r].calls[i].to, &sums[scatter ? r * n : 0],
                        c.size_bytes);
}

void run_round(round &now)
{
    cuda_open_memory open;
    check_same(now);
    int world_size = (int)now.parts.size();
    for (size_t i = 0; i < now.parts[0].calls.size(); i++) {
        const call &c = now.parts[0].calls[i];
        for (int to = 0; c.what == "broadcast" && to < world_size; to++)
            std::memmove(now.parts[to].calls[i].to, now.parts[c.peer].calls[i].from,
                         c.size_bytes);
        for (int from = 0; c.what == "allgather" && from < world_size; from++)
            for (int to = 0; to < world_size; to++)
                std::memmove((char *)now.parts[to].calls[i].to + from * c.size_bytes,
                             now.parts[from].calls[i].from, c.size_bytes);
    }
    for (size_t i = 0; i < now.parts[0].calls.size(); i++)
        reduce(now, i);
    for (int rank = 0; rank < world_size; rank++)
        move_messages(now, rank);
    now.done = true;
}

/* A rank came with its streams to round `n`: true when it is done. */
bool come(cuda_lock &lock, clique *all, int rank, uint64_t n)
{
    round &now = all->rounds[n];
    now.parts[rank].arrived = true;
    if (all->aborted[rank] || now.done)
        return true;
    for (part &p : now.parts)
        if (p.given && !p.arrived)
            cuda_advance(lock, p.stream, p.at);
    for (part &p : now.parts)
        if (!p.arrived)
            return now.done;
    if (!now.done)
        run_round(now);
    cuda_fake_get().changed.notify_all();
    return true;
}

ncclResult_t give(nccl_comm *comm, std::vector<call> calls, cuda_stream *stream)
{
    cuda_lock lock(cuda_fake_get().mutex);
    clique *all = comm->all;
    uint64_t n = comm->rounds++;
    int rank = comm->rank;
    round &now = all->rounds[n];
    now.parts.resize(all->world_size);
    now.parts[rank].given = true;
    now.parts[rank].stream = stream;
    now.parts[rank].at = stream->given + 1;
    now.parts[rank].calls = std::move(calls);
    cuda_give(lock, stream, [=](cuda_lock &held) { return come(held, all, rank, n); });
    return ncclInProgress;
}

ncclResult_t add(nccl_comm *comm, call c, cudaStream_t stream)
{
    nccl_record record = {};
    ncclResult_t why = failure();
    if (why)
        return why;
    if (!depth)
        groups++;
    std::strncpy(record.what, c.what.c_str(), sizeof record.what - 1);
    record.world_size = comm->all->world_size;
    record.rank = comm->rank;
    record.peer = c.peer;
    record.size_bytes = c.size_bytes;
    record.stream = stream;
    record.group = groups;
    records.push_back(record);
    if (!depth)
        return give(comm, { c }, stream);
    if (!open_calls.empty() && (open_calls[0].first != comm || open_stream != stream))
        cuda_fake_fail("a group of calls over two communicators or streams");
    open_calls.push_back({ comm, c });
    open_stream = stream;
    return ncclInProgress;
}

} // namespace

ncclResult_t ncclGroupStart(void)
{
    if (!depth++)
        groups++;
    return ncclSuccess;
}

/* An empty group is a round of nobody. */
ncclResult_t ncclGroupEnd(void)
{
    if (--depth || open_calls.empty())
        return ncclSuccess;
    std::vector<call> calls;
    nccl_comm *comm = open_calls[0].first;
    for (auto &c : open_calls)
        calls.push_back(c.second);
    open_calls.clear();
    return give(comm, std::move(calls), open_stream);
}

ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, { "send", from, nullptr, n * size_of(type), peer }, stream);
}

ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add(comm, { "recv", nullptr, to, n * size_of(type), peer }, stream);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t n, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclInt64 || op != ncclSum)
        return ncclInvalidArgument;
    return add(comm, { "reducescatter", from, to, n * size_of(type), -1 }, stream);
}

ncclResult_t ncclReduce(const void *from, void *to, size_t n, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclInt64 || op != ncclSum)
        return ncclInvalidArgument;
    return add(comm, { "reduce", from, to, n * size_of(type), root }, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, { "allgather", from, to, n * size_of(type), -1 }, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, { "broadcast", from, to, n * size_of(type), root }, stream);
}

/* --- communicators --- */

static nccl_comm *join(clique *all, int rank)
{
    auto *comm = new nccl_comm{ all, rank };
    all->joined++;
    all->members.push_back(comm);
    cuda_fake_get().changed.notify_all();
    return comm;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    cuda_lock lock(cuda_fake_get().mutex);
    static int n;
    ncclResult_t why = failure();
    std::memset(out, 0, sizeof *out);
    std::snprintf(out->internal, sizeof out->internal, "clique %d", ++n);
    return why;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int world_size, ncclUniqueId id,
                                    int rank, ncclConfig_t *config)
{
    cuda_lock lock(cuda_fake_get().mutex);
    clique *&all = cliques()[id.internal];
    ncclResult_t why = failure();
    if (why || config->blocking)
        return why ? why : ncclInvalidUsage;
    if (!all) {
        all = new clique;
        all->world_size = world_size;
    }
    if (all->world_size != world_size || rank < 0 || rank >= world_size)
        return ncclInvalidArgument;
    *out = join(all, rank);
    return ncclInProgress;
}

/* Ranks of one color, by key, then by rank, once all have said theirs. */
static void finish_split(clique *all, clique::split &split)
{
    std::map<int, std::vector<std::pair<int, int>>> colors;
    if ((int)split.said.size() < all->world_size || !split.cliques.empty())
        return;
    for (auto &said : split.said)
        colors[said.second.first].push_back({ said.second.second, said.first });
    for (auto &color : colors) {
        split.cliques[color.first] = new clique;
        split.cliques[color.first]->world_size = (int)color.second.size();
    }
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config)
{
    cuda_lock lock(cuda_fake_get().mutex);
    auto &all = cuda_fake_get();
    clique::split &split = comm->all->splits[comm->splits++];
    if (config->blocking)
        return ncclInvalidUsage;
    split.said[comm->rank] = { color, key };
    finish_split(comm->all, split);
    all.changed.notify_all();
    while (split.cliques.empty())
        if (all.changed.wait_for(lock, std::chrono::seconds(60)) ==
            std::cv_status::timeout)
            cuda_fake_fail("a split that not all ranks came to");
    int place = 0;
    for (auto &said : split.said)
        if (said.second.first == color &&
            (said.second.second < key ||
             (said.second.second == key && said.first < comm->rank)))
            place++;
    *out = join(split.cliques[color], place);
    return ncclInProgress;
}

/* A new communicator is ready when all are there, and was asked once more. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
    cuda_lock lock(cuda_fake_get().mutex);
    bool all_there = comm->all->joined == comm->all->world_size;
    *out = comm->ready ? ncclSuccess : ncclInProgress;
    comm->ready = comm->ready || all_there;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *out)
{
    *out = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *out)
{
    *out = comm->all->world_size;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    comm->finalized = true;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    cuda_lock lock(cuda_fake_get().mutex);
    if (!comm->finalized)
        cuda_fake_fail("a communicator is destroyed before it was finalized");
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    cuda_lock lock(cuda_fake_get().mutex);
    comm->all->aborted[comm->rank] = true;
    cuda_fake_get().changed.notify_all();
    delete comm;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t why)
{
    switch (why) {
    case ncclSuccess:
        return "no error";
    case ncclSystemError:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInvalidUsage:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "internal error";
    }
}

/* --- for tests --- */

int nccl_records(struct nccl_record *out, int max)
{
    int n = (int)records.size();
    for (int i = 0; i < n && i < max; i++)
        out[i] = records[i];
    records.clear();
    return n;
}

void nccl_fail_next(ncclResult_t why)
{
    fail_next = why;
}
