#include "globals.h"

#include "base/mem.h"
#include "base/str.h"
#include "cli/human.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_BACK 512 /* items in which the same one is looked for */

static void fini(struct inspect_global *g)
{
    free(g->file);
    free(g->where);
    free(g->name);
}

void inspect_globals_fini(struct inspect_globals *globals)
{
    for (size_t i = 0; i < globals->n; i++)
        fini(&globals->items[i]);
    free(globals->items);
    *globals = (struct inspect_globals){ 0 };
}

static bool same(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

static int take(void *self, const struct dcp_global *global, struct dcp_error *err)
{
    struct inspect_globals *all = self;
    size_t last = all->n > LOOK_BACK ? all->n - LOOK_BACK : 0;
    for (size_t i = all->n; i-- > last;) {
        struct inspect_global *g = &all->items[i];
        if (same(g->file, global->file) && !strcmp(g->name, global->name) &&
            (global->kind == DCP_GLOBAL_SAFE || !strcmp(g->where, global->where))) {
            g->n++;
            return DCP_OK;
        }
    }
    struct inspect_global *items =
        dcp_mem_grow(all->items, &all->cap, all->n + 1, sizeof *items);
    if (!items)
        return dcp_error_memory(err, "the names in pickles");
    all->items = items;
    struct inspect_global new = { .file = global->file ? strdup(global->file) : NULL,
                                  .where = strdup(global->where),
                                  .name = strdup(global->name),
                                  .kind = global->kind,
                                  .n = 1,
                                  .at = all->n };
    if (!new.where || !new.name || (global->file && !new.file)) {
        fini(&new);
        return dcp_error_memory(err, "the names in pickles");
    }
    items[all->n++] = new;
    all->n_kinds[new.kind]++;
    return DCP_OK;
}

/* The worst first, then as they lie. */
static int compare(const void *a, const void *b)
{
    const struct inspect_global *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind > y->kind ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

static void sort(struct inspect_globals *all)
{
    if (all->n > 1)
        qsort(all->items, all->n, sizeof *all->items, compare);
}

int inspect_globals_of_source(const struct dcp_source *source,
                              struct inspect_globals *out, uint64_t *out_pickles,
                              struct dcp_error *err)
{
    const struct dcp_global_visit visit = { .take = take, .self = out };
    *out = (struct inspect_globals){ 0 };
    int rc = dcp_source_globals(source, &visit, out_pickles, err);
    sort(out);
    return rc;
}

int inspect_globals_of_catalog(const struct dcp_catalog *catalog,
                               struct inspect_globals *out, struct dcp_error *err)
{
    const struct dcp_global_visit visit = { .take = take, .self = out };
    int rc = DCP_OK;
    *out = (struct inspect_globals){ 0 };
    for (size_t o = 0; o < catalog->n_objects && !rc; o++)
        rc = dcp_object_globals(&catalog->objects[o], &visit, err);
    sort(out);
    return rc;
}

void inspect_globals_text(const struct inspect_globals *globals, char *out, size_t cap)
{
    size_t n =
        globals->n_kinds[DCP_GLOBAL_DANGEROUS] + globals->n_kinds[DCP_GLOBAL_UNKNOWN];
    out[0] = '\0';
    if (n)
        snprintf(out, cap, "%s not known to be safe to load ('%s' is %s)",
                 n == 1 ? "1 name is" : dcp_human_items(n, "name are", "names are").text,
                 DCP_SHOWN(globals->items[0].name),
                 dcp_global_kind_name(globals->items[0].kind));
}

void inspect_globals_warn(struct dcp_main *m, const struct dcp_catalog *catalog)
{
    struct inspect_globals globals;
    struct dcp_error err = { 0 };
    char text[320];
    if (inspect_globals_of_catalog(catalog, &globals, &err))
        dcp_log_write(&m->log, DCP_LOG_WARN, "what its objects name is not known: %s",
                      err.message);
    inspect_globals_text(&globals, text, sizeof text);
    if (text[0])
        dcp_log_write(&m->log, DCP_LOG_WARN, "%s: 'dcp-inspect scan' lists %s", text,
                      globals.n == 1 ? "it" : "them");
    inspect_globals_fini(&globals);
}
