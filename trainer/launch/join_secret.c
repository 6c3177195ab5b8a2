/* The secret by which the ranks of a job know each other. */
#include "join.h"

#include "base/fs.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

#define MIN_BYTES 16
#define MAX_BYTES 4096
#define MAKE_ONE "make one with 'openssl rand -hex 32'"

/* Blanks at its end are the editor's. What stands behind a NUL byte would be no part of
 * it. */
static int check(char *secret, size_t n, const char *from, struct dcp_error *err)
{
    if (strlen(secret) != n) {
        dcp_error_set(err, DCP_E_USAGE,
                      "the secret of the job in %s has a NUL byte, and must be text",
                      from);
        dcp_error_hint(err, MAKE_ONE);
        return DCP_E_USAGE;
    }
    while (n && strchr(" \t\r\n", secret[n - 1]))
        secret[--n] = '\0';
    if (n >= MIN_BYTES)
        return DCP_OK;
    dcp_error_set(err, DCP_E_USAGE, "the secret of the job in %s has %zu bytes, not %d",
                  from, n, MIN_BYTES);
    dcp_error_hint(err, MAKE_ONE);
    return DCP_E_USAGE;
}

static int take(const char *file, const char *here, char **out, struct dcp_error *err)
{
    void *text = here ? strdup(here) : NULL;
    size_t n = here ? strlen(here) : 0;
    int rc = file            ? dcp_fs_read_file(file, MAX_BYTES, &text, &n, err)
             : here && !text ? dcp_error_memory(err, "the secret of the job")
                             : DCP_OK;
    DCP_CLEANUP_FREE char *secret = text;
    if (!rc && secret)
        rc = check(secret, n, file ? file : LAUNCH_SECRET, err);
    if (!rc) {
        *out = secret;
        secret = NULL;
    }
    return rc;
}

int join_secret(const char *file, bool needed, char **out, struct dcp_error *err)
{
    const char *here = file || !needed ? NULL : getenv(LAUNCH_SECRET);
    *out = NULL;
    if (!file && !here && needed)
        file = getenv(LAUNCH_SECRET "_FILE");
    int rc = take(file, here, out, err);
    unsetenv(LAUNCH_SECRET);
    return rc;
}
