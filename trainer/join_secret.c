/* The secret by which the ranks of a job know each other. */
#include "join.h"

#include "base/fs.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

#define MIN_BYTES 16
#define MAX_BYTES 4096

/* Blanks at its end are the editor's. */
static int check(char *secret, const char *from, struct dcp_error *err)
{
    size_t n = strlen(secret);
    while (n && strchr(" \t\r\n", secret[n - 1]))
        secret[--n] = '\0';
    if (n >= MIN_BYTES)
        return DCP_OK;
    dcp_error_set(err, DCP_E_USAGE, "the secret of the job in %s has %zu bytes, not %d",
                  from, n, MIN_BYTES);
    dcp_error_hint(err, "make one with 'openssl rand -hex 32'");
    return DCP_E_USAGE;
}

int join_secret(const char *file, char **out, struct dcp_error *err)
{
    const char *here = file ? NULL : getenv(LAUNCH_SECRET), *from = LAUNCH_SECRET;
    DCP_CLEANUP_FREE char *secret = NULL;
    *out = NULL;
    if (!file && !here)
        file = getenv(LAUNCH_SECRET "_FILE");
    if (file) {
        void *text;
        size_t n;
        int rc = dcp_fs_read_file(file, MAX_BYTES, &text, &n, err);
        if (rc)
            return rc;
        secret = text;
        from = file;
    } else if (here) {
        secret = strdup(here);
        if (!secret)
            return dcp_error_memory(err, "the secret of the job");
    }
    unsetenv(LAUNCH_SECRET);
    int rc = secret ? check(secret, from, err) : DCP_OK;
    if (!rc) {
        *out = secret;
        secret = NULL;
    }
    return rc;
}
