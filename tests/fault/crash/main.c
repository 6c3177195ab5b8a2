/* crash_states: what a power cut may leave of a save, a reshard, a prune.
 *
 * Each scenario runs once in a process of its own, under the shim, which writes down what
 * it does to its folder (../shim/trace.h). At every point of that trace the states that
 * any file system may leave (model.h) are made in a folder, and the library must find in
 * it what had been promised by then, whole. */
#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"
#include "lib/acts.h"
#include "lib/must.h"
#include "scenarios.h"
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_CHOICES = 256, GO_ON_EVERY = 12 };
#define ACT_PREPARED INT64_MIN

static struct {
    const char *program, *only, *replay, *ways;
    long at;
    size_t cap; /* of states tried at one point */
    uint64_t seed;
    char work[256], root[300], state[300], trace[300];
    uint64_t explored, violations;
    uint64_t told;  /* violations before this scenario */
    uint64_t *seen; /* hashes of states and promises: an open table */
    size_t n_seen, seen_cap;
} run = { .cap = 12, .seed = 1 };

/* --- traces --- */

struct trace {
    char *data;
    size_t size;
};

static void put(int fd, struct trace_record record, const char *name, const void *data)
{
    record.magic = TRACE_MAGIC;
    record.name_bytes = name ? (uint32_t)strlen(name) : 0;
    must(write(fd, &record, sizeof record) == (ssize_t)sizeof record);
    must(!name || write(fd, name, record.name_bytes) == (ssize_t)record.name_bytes);
    must(!data || write(fd, data, record.data_bytes) == (ssize_t)record.data_bytes);
}

/* What is in a folder already comes first in the trace. */
static void put_folder(int fd, const char *path, uint64_t dir)
{
    DIR *stream = opendir(path);
    const struct dirent *entry;
    char below[2048];

    must(stream);
    while ((entry = readdir(stream))) {
        struct stat st;
        void *data;
        size_t size;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
        must(!lstat(below, &st));
        bool is_dir = S_ISDIR(st.st_mode);
        put(fd,
            (struct trace_record){ .kind = is_dir ? TRACE_MAKE_DIR : TRACE_CREATE,
                                   .dir = dir,
                                   .ino = st.st_ino },
            entry->d_name, NULL);
        if (is_dir) {
            put_folder(fd, below, st.st_ino);
            continue;
        }
        must(!dcp_fs_read_file(below, (size_t)1 << 30, &data, &size, NULL));
        put(fd,
            (struct trace_record){
                .kind = TRACE_WRITE, .ino = st.st_ino, .data_bytes = size },
            NULL, data);
        free(data);
    }
    closedir(stream);
}

static void record(const struct scenario *scenario)
{
    struct stat st;
    int status = 0;

    must(!mkdir(run.root, 0777) && !stat(run.root, &st));
    scenario->prepare(run.root);
    int fd = open(run.trace, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    must(fd >= 0);
    put(fd, (struct trace_record){ .kind = TRACE_MAKE_DIR, .ino = st.st_ino }, NULL,
        NULL);
    put_folder(fd, run.root, st.st_ino);
    put(fd, (struct trace_record){ .kind = TRACE_FS_SYNC }, NULL, NULL);
    put(fd, (struct trace_record){ .kind = TRACE_BEGIN, .a = ACT_PREPARED }, NULL, NULL);
    must(!close(fd));
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        setenv("LD_PRELOAD", DCP_SHIM_PATH, 1);
        setenv("DCP_SHIM_ROOT", run.root, 1);
        setenv("DCP_SHIM_TRACE", run.trace, 1);
        execl(run.program, run.program, "--act", scenario->name, run.root, NULL);
        _exit(126);
    }
    must(waitpid(child, &status, 0) == child);
    must(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static struct trace read_trace(const char *path)
{
    struct trace trace;
    void *data;

    must(!dcp_fs_read_file(path, (size_t)1 << 31, &data, &trace.size, NULL));
    trace.data = data;
    return trace;
}

/* The next record, aligned, to be freed; NULL at the end. */
static struct trace_record *next_record(const struct trace *trace, size_t *at)
{
    struct trace_record head;

    if (*at == trace->size)
        return NULL;
    must(*at + sizeof head <= trace->size);
    memcpy(&head, trace->data + *at, sizeof head);
    must(head.magic == TRACE_MAGIC);
    size_t size = sizeof head + head.name_bytes + head.name2_bytes + head.data_bytes;
    must(*at + size <= trace->size);
    struct trace_record *record = malloc(size);
    must(record);
    memcpy(record, trace->data + *at, size);
    *at += size;
    return record;
}

static struct model *new_model(const struct trace *trace, size_t *out_at)
{
    struct trace_record *root;

    *out_at = 0;
    must((root = next_record(trace, out_at)));
    struct model *model = model_new(root->ino);
    free(root);
    return model;
}

/* The trees at the beginning and at the end; the trace has all that happened. */
static bool find_facts(const struct trace *trace, struct facts *facts)
{
    size_t at;
    struct model *model = new_model(trace, &at);
    struct trace_record *record;
    struct tree real;
    bool fine = true;

    while (fine && (record = next_record(trace, &at))) {
        fine = model_apply(model, record);
        if (record->kind == TRACE_BEGIN && record->a == ACT_PREPARED)
            model_live(model, &facts->before);
        free(record);
    }
    model_live(model, &facts->after);
    model_free(model);
    if (!fine || run.replay)
        return fine;
    must(tree_read(&real, run.root));
    fine = tree_same(&real, "", &facts->after, "");
    tree_free(&real);
    if (!fine)
        fprintf(stderr,
                "the folder is not what the trace says: the shim missed a call\n");
    return fine;
}

/* --- states --- */

/* False: it was there already. */
static bool add_seen(uint64_t hash)
{
    if (2 * run.n_seen >= run.seen_cap) {
        uint64_t *old = run.seen;
        size_t old_cap = run.seen_cap;
        run.seen_cap = old_cap ? 2 * old_cap : 4096;
        run.seen = calloc(run.seen_cap, sizeof *run.seen);
        must(run.seen);
        run.n_seen = 0;
        for (size_t i = 0; i < old_cap; i++)
            if (old[i])
                add_seen(old[i]);
        free(old);
    }
    hash += hash == 0;
    size_t i = hash % run.seen_cap;
    while (run.seen[i] && run.seen[i] != hash)
        i = (i + 1) % run.seen_cap;
    if (run.seen[i])
        return false;
    run.seen[i] = hash;
    run.n_seen++;
    return true;
}

static void tell(const struct scenario *scenario, long point, const unsigned char *ways,
                 size_t n, uint64_t seed, const char *why)
{
    if (run.violations++ > run.told) /* one of each scenario is enough to read */
        return;
    printf("VIOLATION %s: after record %ld: %s\n", scenario->name, point, why);
    printf("  replay: %s --scenario %s --replay %s --at %ld --seed %" PRIu64 " --ways =",
           run.program, scenario->name, run.replay ? run.replay : run.trace, point, seed);
    for (size_t i = 0; i < n; i++)
        putchar('0' + ways[i]);
    putchar('\n');
    fflush(stdout);
}

static void try_state(const struct scenario *scenario, const struct facts *facts,
                      const struct model *model, long point, struct promise promise,
                      const unsigned char *ways, size_t n, uint64_t seed)
{
    struct tree state;
    char why[512] = "";

    model_tree(model, ways, seed, &state);
    uint64_t hash =
        tree_hash(&state) * 31 + (uint64_t)promise.begun * 7 + (uint64_t)promise.done;
    if (add_seen(hash)) {
        run.explored++;
        must(tree_write(&state, run.state));
        bool fine = scenario->check(facts, &state, promise, why);
        if (fine && (run.replay || hash % GO_ON_EVERY == 0))
            fine = scenario->go_on(facts, promise, why);
        if (!fine)
            tell(scenario, point, ways, n, seed, why);
        if (!run.replay)
            acts_folder_remove(run.state);
    }
    tree_free(&state);
}

/* All states, where they are few; else the plain ones, each choice alone against the
 * others, and a seeded sample. */
static void explore(const struct scenario *scenario, const struct facts *facts,
                    const struct model *model, long point, struct promise promise)
{
    size_t n = model_choices(model), total = 1;
    unsigned char ways[MAX_CHOICES] = { 0 };
    uint64_t random = run.seed * 1000003 + (uint64_t)point;

#define TRY(seed) try_state(scenario, facts, model, point, promise, ways, n, (seed))
    must(n <= MAX_CHOICES);
    for (size_t i = 0; i < n && total <= run.cap; i++)
        total *= model_ways(model, i);
    if (total <= run.cap) {
        for (size_t s = 0; s < total; s++) {
            for (size_t i = 0, rest = s; i < n; i++) {
                ways[i] = (unsigned char)(rest % model_ways(model, i));
                rest /= model_ways(model, i);
            }
            TRY(run.seed);
        }
        return;
    }
    for (unsigned plain = 0; plain < 6;
         plain++) { /* names are there, files in each way */
        for (size_t i = 0; i < n; i++)
            ways[i] = (unsigned char)(model_ways(model, i) == 2 ? plain != 0 : plain);
        TRY(run.seed);
    }
    for (size_t left = run.cap, i = 0; left > 0; left--, i++) {
        bool alone = i < 2 * n && (run.cap > 4 * n || acts_pick(&random, 2));
        size_t odd = i < 2 * n ? i / 2 : 0;
        for (size_t j = 0; j < n; j++)
            ways[j] = alone ? (i & 1) ^ (j == odd)
                            : (unsigned char)acts_pick(&random, model_ways(model, j));
        TRY(acts_random(&random) >> 1);
    }
#undef TRY
}

static void replay_one(const struct scenario *scenario, const struct facts *facts,
                       const struct model *model, long point, struct promise promise)
{
    unsigned char ways[MAX_CHOICES] = { 0 };
    size_t n = model_choices(model);

    must(run.ways && strlen(run.ways) == n && n <= MAX_CHOICES);
    for (size_t i = 0; i < n; i++)
        ways[i] = (unsigned char)(run.ways[i] - '0');
    try_state(scenario, facts, model, point, promise, ways, n, run.seed);
    printf("the state is in %s\n", run.state);
}

static void run_scenario(const struct scenario *scenario)
{
    struct facts facts = { .folder = run.state };
    uint64_t before = run.told = run.violations, explored = run.explored;
    struct promise promise = { 0 };
    bool started = false;
    size_t at;

    if (!run.replay)
        record(scenario);
    struct trace trace = read_trace(run.replay ? run.replay : run.trace);
    struct model *model = new_model(&trace, &at);
    struct trace_record *record;
    if (!find_facts(&trace, &facts))
        run.violations++;
    for (long point = 0; run.violations == before && (record = next_record(&trace, &at));
         point++) {
        must(model_apply(model, record));
        if (record->kind == TRACE_BEGIN && record->a == ACT_PREPARED)
            started = true;
        else if (record->kind == TRACE_BEGIN && started && record->a > promise.begun)
            promise.begun = record->a;
        else if (record->kind == TRACE_DONE && started)
            promise.done = record->a;
        if (started && run.replay && point == run.at)
            replay_one(scenario, &facts, model, point, promise);
        else if (started && !run.replay && record->kind != TRACE_CLOSE)
            explore(scenario, &facts, model, point, promise);
        free(record);
    }
    printf("%-14s %6" PRIu64 " states\n", scenario->name, run.explored - explored);
    fflush(stdout);
    model_free(model);
    free(trace.data);
    tree_free(&facts.before);
    tree_free(&facts.after);
    if (!run.replay)
        acts_folder_remove(run.root);
}

/* --- */

static const struct scenario *find_scenario(const char *name)
{
    const struct scenario *scenario;

    for (size_t i = 0; (scenario = scenario_at(i)); i++)
        if (!strcmp(scenario->name, name))
            return scenario;
    fprintf(stderr, "there is no scenario '%s'\n", name);
    exit(2);
}

static int usage(void)
{
    fprintf(stderr, "usage: crash_states [--quick|--long] [--seed N] [--scenario NAME]\n"
                    "       crash_states --scenario NAME --replay TRACE --at N --seed N"
                    " --ways =DIGITS\n");
    return 2;
}

static bool parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        int64_t n = 0;
        if (!strcmp(word, "--quick"))
            continue;
        if (!strcmp(word, "--long")) {
            run.cap = 400;
            continue;
        }
        if (!next)
            return false;
        i++;
        if (!strcmp(word, "--scenario"))
            run.only = next;
        else if (!strcmp(word, "--replay"))
            run.replay = next;
        else if (!strcmp(word, "--ways"))
            run.ways = next + (*next == '=');
        else if (!dcp_str_parse_i64(next, &n))
            return false;
        else if (!strcmp(word, "--at"))
            run.at = (long)n;
        else if (!strcmp(word, "--seed"))
            run.seed = (uint64_t)n;
        else if (!strcmp(word, "--cap"))
            run.cap = (size_t)n;
        else
            return false;
    }
    return !run.replay || (run.only && run.ways);
}

int main(int argc, char **argv)
{
    double started = dcp_clock_s();

    if (argc == 4 && !strcmp(argv[1], "--act")) {
        find_scenario(argv[2])->act(argv[3]);
        return 0;
    }
    run.program = argv[0];
    if (!parse(argc, argv))
        return usage();
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    acts_folder(run.work);
    snprintf(run.root, sizeof run.root, "%s/root", run.work);
    snprintf(run.state, sizeof run.state, "%s/state", run.work);
    const struct scenario *scenario;
    for (size_t i = 0; (scenario = scenario_at(i)); i++) {
        if (run.only && scenario != find_scenario(run.only))
            continue;
        snprintf(run.trace, sizeof run.trace, "%s/%s.trace", run.work, scenario->name);
        run_scenario(scenario);
    }
    free(run.seen);
    if (!run.violations && !run.replay)
        acts_folder_remove(run.work);
    printf("explored=%" PRIu64 " violations=%" PRIu64 " seconds=%.1f\n", run.explored,
           run.violations, dcp_clock_s() - started);
    return run.violations ? 1 : 0;
}
