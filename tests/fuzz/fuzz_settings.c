/* A configuration, then overrides, each behind a NUL. What is accepted must resolve to a
 * text that resolves to itself. */
#include "base/mem.h"
#include "trainer/config/settings.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OVERRIDES 8
#define WORLD_SIZE 4

static int parse(const char *text, size_t size, const char *const *overrides,
                 struct settings *out, struct dcp_error *err)
{
    return settings_parse(text, size, "fuzz", "/nowhere", overrides, WORLD_SIZE, NULL,
                          out, err);
}

static void stop(const char *why, const char *text)
{
    fprintf(stderr, "%s:\n%s\n", why, text);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    DCP_CLEANUP_FREE char *text = dcp_mem_calloc(size + 1, 1);
    const char *overrides[MAX_OVERRIDES + 1] = { NULL };
    struct settings first, second;
    struct dcp_error err = { 0 };
    if (!text)
        return 0;
    if (size)
        memcpy(text, data, size);
    size_t text_size = strlen(text);
    for (size_t at = text_size + 1, n = 0; at < size && n < MAX_OVERRIDES;
         at += strlen(text + at) + 1)
        overrides[n++] = text + at;
    if (parse(text, text_size, overrides, &first, &err)) {
        if (!err.code || !err.message[0])
            stop("refused without a word", text);
        return 0;
    }
    if (parse(first.text, strlen(first.text), NULL, &second, &err))
        stop(err.message, first.text);
    if (strcmp(first.text, second.text) != 0)
        stop(first.text, second.text);
    settings_fini(&first);
    settings_fini(&second);
    return 0;
}
