#include "launch.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The parent of a process that has not ended; 0 of others. */
static pid_t parent_of(const char *pid)
{
    char path[64], stat[512];
    int parent = 0;
    char state = 'Z';

    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t n = fread(stat, 1, sizeof stat - 1, file);
    fclose(file);
    stat[n] = '\0';
    const char *name_end = strrchr(stat, ')'); /* the name may hold anything */
    if (!name_end || sscanf(name_end + 1, " %c %d", &state, &parent) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : parent;
}

int launch_count_children(pid_t parent)
{
    DIR *dir = opendir("/proc");
    int n = 0;

    if (!dir)
        return -1;
    for (const struct dirent *entry; (entry = readdir(dir));)
        n += entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
             parent_of(entry->d_name) == parent;
    closedir(dir);
    return n;
}
