/* roles_model: in which container the weights stand that are trained. */
#include "base/mem.h"
#include "base/str.h"
#include "roles_own.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAX_SAMPLES = 16 }; /* parameters by which containers are looked for */

/* Names under which people keep a model. */
static const char *const usual[] = { "app.model", "model", "module", "state_dict",
                                     "model_state_dict" };

/* Words in names of weights that are kept beside those that are trained. */
static const char *const beside[] = { "ema",     "swa",    "avg",       "average",
                                      "shadow",  "target", "averaged",  "teacher",
                                      "ref",     "old",    "reference", "best",
                                      "initial", "frozen", "momentum",  "slow",
                                      "prev",    "copy",   "backup",    "previous" };

struct finder {
    const struct dcp_catalog *catalog;
    const struct dcp_roles_hints *hints;
    bool by_moments; /* the optimizer has some: its other tensors are not asked */
    struct dcp_container list[DCP_MAX_CONTAINERS];
    size_t n;
};

/* -- containers ---------------------------------------------------------------------- */

void dcp_container_add(struct dcp_container *list, size_t *n, const char *name,
                       size_t len)
{
    for (size_t i = 0; i < *n; i++)
        if (list[i].n == len && !memcmp(list[i].name, name, len))
            return;
    if (*n < DCP_MAX_CONTAINERS)
        list[(*n)++] = (struct dcp_container){ .name = name, .n = len };
}

const char *dcp_container_inside(const struct dcp_container *c, const char *name)
{
    if (!c->n)
        return name;
    return !strncmp(name, c->name, c->n) && name[c->n] == '.' && name[c->n + 1]
               ? name + c->n + 1
               : NULL;
}

bool dcp_roles_is_joint(const struct dcp_roles_hints *hints, int tensor, size_t at)
{
    return !hints->is_joint || hints->is_joint(hints->self, tensor, at);
}

bool dcp_roles_is_number(const char *text, size_t n)
{
    return n && strspn(text, "0123456789") >= n;
}

/* The place of a container's name among the usual ones; their number: it is none. */
static size_t usual_rank(const struct dcp_container *c)
{
    size_t u = 0;

    while (u < DCP_ARRAY_LEN(usual) &&
           (strlen(usual[u]) != c->n || memcmp(usual[u], c->name, c->n) != 0))
        u++;
    return u;
}

static bool is_beside(const struct dcp_container *c)
{
    static const char between[] = "._- 0123456789";
    const char *end = c->name + c->n;

    for (const char *word = c->name; word < end;) {
        size_t n = strcspn(word, between);
        n = n < (size_t)(end - word) ? n : (size_t)(end - word);
        for (size_t i = 0; n && i < DCP_ARRAY_LEN(beside); i++)
            if (strlen(beside[i]) == n && !strncasecmp(beside[i], word, n))
                return true;
        word += n + 1;
    }
    return false;
}

/* -- what the optimizer says --------------------------------------------------------- */

/* Whether a tensor of an optimizer tells the name of its weight. Numbers are no names:
 * every list of tensors has those. */
static bool speaks(const struct finder *f, const struct dcp_tensor *tensor)
{
    return (f->by_moments ? tensor->role == DCP_ROLE_EXP_AVG
                          : dcp_role_is_optim(tensor->role)) &&
           strcmp(tensor->param, tensor->name) != 0 &&
           !dcp_roles_is_number(tensor->param, strlen(tensor->param));
}

static bool has_same_shape(const struct dcp_tensor *a, const struct dcp_tensor *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d])
            return false;
    return true;
}

/* Counts the parameters of the optimizer that stand in a container. */
static void count_params(const struct finder *f, struct dcp_container *c, char *scratch,
                         size_t cap)
{
    const struct dcp_catalog *catalog = f->catalog;

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (!speaks(f, tensor))
            continue;
        int n = snprintf(scratch, cap, "%.*s%s%s", (int)c->n, c->name, c->n ? "." : "",
                         tensor->param);
        int at = n > 0 && (size_t)n < cap ? dcp_catalog_find(catalog, scratch) : -1;
        if (at < 0 || dcp_role_is_optim(catalog->tensors[at].role))
            continue;
        c->n_named++;
        c->n_alike += has_same_shape(tensor, &catalog->tensors[at]);
    }
}

/* Containers in which a tensor of that name stands. */
static void add_candidates(struct finder *f, const char *param)
{
    size_t len = strlen(param);

    for (size_t t = 0; t < f->catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &f->catalog->tensors[t];
        size_t name_len = strlen(tensor->name);
        if (dcp_role_is_optim(tensor->role) || name_len < len ||
            strcmp(tensor->name + (name_len - len), param) != 0)
            continue;
        size_t at = name_len - len;
        if (!at)
            dcp_container_add(f->list, &f->n, tensor->name, 0);
        else if (at > 1 && tensor->name[at - 1] == '.' &&
                 dcp_roles_is_joint(f->hints, (int)t, at - 1))
            dcp_container_add(f->list, &f->n, tensor->name, at - 1);
    }
}

static int find_candidates(struct finder *f, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = f->catalog;
    size_t samples = 0, longest = 0, cap = 1;

    for (size_t t = 0; t < catalog->n_tensors; t++)
        f->by_moments |= catalog->tensors[t].role == DCP_ROLE_EXP_AVG;
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (!speaks(f, tensor))
            continue;
        cap = strlen(tensor->param) > cap ? strlen(tensor->param) : cap;
        if (samples++ < MAX_SAMPLES)
            add_candidates(f, tensor->param);
    }
    for (size_t i = 0; i < f->n; i++)
        longest = f->list[i].n > longest ? f->list[i].n : longest;
    cap += longest + 2;
    DCP_CLEANUP_FREE char *scratch = malloc(cap);
    if (!scratch)
        return dcp_error_memory(err, "the roles of tensors");
    for (size_t i = 0; i < f->n; i++)
        count_params(f, &f->list[i], scratch, cap);
    return DCP_OK;
}

/* -- which of them ------------------------------------------------------------------- */

static bool fits_less(const struct dcp_container *c, const struct dcp_container *than)
{
    return c->n_alike != than->n_alike ? c->n_alike < than->n_alike
                                       : c->n_named < than->n_named;
}

static void keep(struct finder *f, const bool *drop)
{
    size_t n = 0;

    for (size_t i = 0; i < f->n; i++)
        if (!drop[i])
            f->list[n++] = f->list[i];
    f->n = n;
}

/* Keeps those that fit best; of one within another the outer one. */
static void keep_best(struct finder *f)
{
    bool drop[DCP_MAX_CONTAINERS] = { false };

    for (size_t i = 0; i < f->n; i++)
        for (size_t k = 0; k < f->n && !drop[i]; k++)
            drop[i] =
                fits_less(&f->list[i], &f->list[k]) ||
                (f->list[k].n < f->list[i].n && !fits_less(&f->list[k], &f->list[i]) &&
                 dcp_container_inside(&f->list[k], f->list[i].name));
    keep(f, drop);
}

/* Of several that fit alike: a usual name, else what is no average of weights. */
static void keep_named(struct finder *f)
{
    bool drop[DCP_MAX_CONTAINERS] = { false };
    size_t best = DCP_ARRAY_LEN(usual), n_beside = 0;

    for (size_t i = 0; i < f->n; i++) {
        size_t rank = usual_rank(&f->list[i]);
        best = rank < best ? rank : best;
        n_beside += is_beside(&f->list[i]);
    }
    for (size_t i = 0; i < f->n; i++)
        drop[i] = best < DCP_ARRAY_LEN(usual) ? usual_rank(&f->list[i]) != best
                                              : n_beside < f->n && is_beside(&f->list[i]);
    keep(f, drop);
}

/* Without names in an optimizer: a usual name, if there is one. When nothing is known of
 * the paths, all tensors must stand in it. */
static void find_usual(const struct finder *f, struct dcp_container *out)
{
    for (size_t u = 0; u < DCP_ARRAY_LEN(usual); u++) {
        struct dcp_container c = { .name = usual[u], .n = strlen(usual[u]) };
        size_t here = 0, others = 0;
        for (size_t t = 0; t < f->catalog->n_tensors; t++) {
            const struct dcp_tensor *tensor = &f->catalog->tensors[t];
            bool in = dcp_container_inside(&c, tensor->name) &&
                      dcp_roles_is_joint(f->hints, (int)t, c.n);
            here += in;
            others += !in && !dcp_role_is_optim(tensor->role);
        }
        if (here && (!others || f->hints->is_joint)) {
            *out = c;
            return;
        }
    }
}

int dcp_roles_find_model(const struct dcp_catalog *catalog,
                         const struct dcp_roles_hints *hints, struct dcp_container *out,
                         struct dcp_error *err)
{
    struct finder f = { .catalog = catalog, .hints = hints };

    *out = (struct dcp_container){ .name = "" };
    DCP_TRY(find_candidates(&f, err));
    if (!f.n) {
        find_usual(&f, out);
        return DCP_OK;
    }
    keep_best(&f);
    if (f.n > 1)
        keep_named(&f);
    if (f.n == 1)
        *out = f.list[0];
    /* Nobody trains an average: the names of what is trained are other ones, as in a
     * state dict of DDP ("model.module.w"). */
    if (f.n == 1 && is_beside(out))
        find_usual(&f, out);
    return DCP_OK;
}
