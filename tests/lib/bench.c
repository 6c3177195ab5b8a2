#include "bench.h"
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double bench_shell(const char *command)
{
    double started = bench_now();
    pid_t child = fork();
    int status = -1;

    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0 || status != 0) {
        fprintf(stderr, "failed: %s\n", command);
        return -1;
    }
    return bench_now() - started;
}

static int drop(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    int fd = type == FTW_F ? open(path, O_RDONLY) : -1;
    if (fd >= 0) {
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    return 0;
}

void bench_drop_cache(const char *path)
{
    nftw(path, drop, 16, FTW_PHYS);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void bench_header(void)
{
    printf("%-26s %10s %10s   %-22s %10s %7s %6s\n", "act", "median", "rate", "floor",
           "median", "ratio", "aim");
}

bool bench_run(const struct bench *bench, int runs)
{
    double act[BENCH_MAX_RUNS], floor[BENCH_MAX_RUNS];
    char rate[32] = "";

    runs = runs < BENCH_MAX_RUNS ? runs : BENCH_MAX_RUNS;
    for (int i = 0; i < runs; i++) {
        if (bench->prepare)
            bench->prepare(bench->arg);
        floor[i] = bench->floor_s(bench->arg);
        if (bench->prepare)
            bench->prepare(bench->arg);
        act[i] = bench->act_s(bench->arg);
        if (act[i] < 0 || floor[i] < 0) {
            printf("%-26s failed\n", bench->name);
            return false;
        }
    }
    double a = median(act, runs), f = median(floor, runs), ratio = a / f;
    bool met = bench->aim <= 0 || ratio <= bench->aim;
    if (bench->bytes)
        snprintf(rate, sizeof rate, "%.2f GB/s", (double)bench->bytes / a / 1e9);
    printf("%-26s %8.3f s %10s   %-22s %8.3f s %7.2f %6.2f%s\n", bench->name, a, rate,
           bench->floor, f, ratio, bench->aim, met ? "" : "  over");
    fflush(stdout);
    const char *json = getenv("DCP_BENCH_JSON");
    FILE *out = json ? fopen(json, "a") : NULL;
    if (out) {
        fprintf(out,
                "{\"name\":\"%s\",\"floor\":\"%s\",\"runs\":%d,\"bytes\":%llu,"
                "\"median_s\":%.6f,\"min_s\":%.6f,\"floor_median_s\":%.6f,"
                "\"floor_min_s\":%.6f,\"ratio\":%.4f,\"aim\":%.2f}\n",
                bench->name, bench->floor, runs, (unsigned long long)bench->bytes, a,
                act[0], f, floor[0], ratio, bench->aim);
        fclose(out);
    }
    return met;
}
