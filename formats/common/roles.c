/* roles: optimizers, then the model, then tensors. */
#include "roles.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "roles_own.h"
#include <string.h>

#define STATE "state."
#define GROUPS "param_groups"

static const struct {
    const char *key;
    enum dcp_role role;
} state_keys[] = {
    { "exp_avg", DCP_ROLE_EXP_AVG },   { "exp_avg_sq", DCP_ROLE_EXP_AVG_SQ },
    { "master", DCP_ROLE_MASTER },     { "master_param", DCP_ROLE_MASTER },
    { "fp32_param", DCP_ROLE_MASTER },
};

struct finder {
    struct dcp_catalog *catalog;
    const struct dcp_roles_hints *hints;
    struct dcp_container optims[DCP_MAX_CONTAINERS];
    size_t n_optims;
    struct dcp_map taken; /* "<role> <param>" of the optimizers; of others their states */
};

/* -- optimizers ---------------------------------------------------------------------- */

/* Adds what stands before ".<part>." or ".<part>" at the end. */
static void add_before(struct finder *f, const char *name, const char *part)
{
    size_t len = strlen(part);

    for (const char *at = name; (at = strstr(at, part)); at++)
        if ((at == name || at[-1] == '.') && (!at[len] || at[len] == '.'))
            dcp_container_add(f->optims, &f->n_optims, name,
                              at == name ? 0 : (size_t)(at - name) - 1);
}

static bool is_moment(const char *text, size_t n)
{
    return (n == 7 && !memcmp(text, "exp_avg", 7)) ||
           (n == 10 && !memcmp(text, "exp_avg_sq", 10));
}

/* A tensor that only an optimizer can have tells of one, too. */
static void add_of_moment(struct finder *f, const char *name)
{
    const char *last = strrchr(name, '.'), *state = strstr(name, "." STATE);

    state = dcp_str_starts(name, STATE) ? name : state ? state + 1 : NULL;
    if (!state)
        return;
    const char *first = state + sizeof STATE - 1;
    if ((last && last >= first && is_moment(last + 1, strlen(last + 1))) ||
        is_moment(first, strcspn(first, ".")))
        dcp_container_add(f->optims, &f->n_optims, name,
                          state == name ? 0 : (size_t)(state - name) - 1);
}

static void find_optims(struct finder *f)
{
    const struct dcp_catalog *catalog = f->catalog;

    for (size_t i = 0; i < f->hints->n_beside; i++)
        add_before(f, f->hints->beside[i], GROUPS);
    for (size_t i = 0; i < catalog->n_objects; i++)
        add_before(f, catalog->objects[i].name, GROUPS);
    for (size_t i = 0; i < catalog->n_tensors; i++) {
        add_before(f, catalog->tensors[i].name, GROUPS);
        add_of_moment(f, catalog->tensors[i].name);
    }
}

/* The optimizer that a name stands in, the innermost one, or -1; *out_state: what follows
 * "state.", or NULL. */
static int optim_of(const struct finder *f, const char *name, const char **out_state)
{
    int best = -1;

    *out_state = NULL;
    for (size_t i = 0; i < f->n_optims; i++) {
        const char *rest = dcp_container_inside(&f->optims[i], name);
        bool state = rest && dcp_str_starts(rest, STATE) && rest[sizeof STATE - 1];
        bool groups =
            rest && dcp_str_starts(rest, GROUPS) && strchr(".", rest[sizeof GROUPS - 1]);
        if ((!state && !groups) || (best >= 0 && f->optims[i].n <= f->optims[best].n))
            continue;
        best = (int)i;
        *out_state = state ? rest + sizeof STATE - 1 : NULL;
    }
    return best;
}

enum dcp_role dcp_roles_of_key(const char *key, size_t n)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(state_keys); i++)
        if (strlen(state_keys[i].key) == n && !memcmp(state_keys[i].key, key, n))
            return state_keys[i].role;
    return DCP_ROLE_OPTIM;
}

/* "<param>.<key>", or "<key>.<param>" when only the first part is a known key. */
static enum dcp_role split_state(const char *state, const char **out_param, size_t *out_n)
{
    const char *dot = strchr(state, '.'), *last = strrchr(state, '.');

    *out_param = state;
    *out_n = strlen(state);
    if (!last || !last[1] || last == state)
        return DCP_ROLE_OPTIM;
    enum dcp_role role = dcp_roles_of_key(last + 1, strlen(last + 1));
    enum dcp_role first = dcp_roles_of_key(state, (size_t)(dot - state));
    if (role == DCP_ROLE_OPTIM && first != DCP_ROLE_OPTIM) {
        *out_param = dot + 1;
        *out_n = strlen(dot + 1);
        return first;
    }
    *out_n = (size_t)(last - state);
    return role;
}

/* is_first: it stands in the optimizer whose numbers stand for weights; those of another
 * one count other weights. False: out of memory. */
static bool set_optim(struct finder *f, struct dcp_tensor *tensor, const char *state,
                      bool is_first)
{
    const char *param;
    size_t n;

    tensor->role = DCP_ROLE_OPTIM;
    tensor->param = tensor->name;
    if (!state)
        return true;
    enum dcp_role role = split_state(state, &param, &n);
    if (!is_first && dcp_roles_is_number(param, n))
        return true;
    bool other = role == DCP_ROLE_OPTIM; /* a parameter may have several of them */
    const char *what = other ? state : param;
    size_t n_what = other ? strlen(state) : n;
    char *key = dcp_catalog_alloc(f->catalog, n_what + 3, 1);
    char *own = dcp_catalog_alloc(f->catalog, n + 1, 1);
    if (!key || !own)
        return false;
    key[0] = (char)('0' + (int)role);
    memcpy(key + 1, what, n_what);
    memcpy(own, param, n);
    if (dcp_map_find(&f->taken, key, n_what + 1) >= 0)
        return true;
    tensor->role = role;
    tensor->param = own;
    return dcp_map_set(&f->taken, key, n_what + 1, 0);
}

/* -- the model ----------------------------------------------------------------------- */

static bool starts_with_any(const char *name, const char *const *begins, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (dcp_str_starts(name, begins[i]))
            return true;
    return false;
}

/* torchtitan keeps this beside a model whose weights stand at the top. */
static bool is_of_titan(const struct finder *f)
{
    static const char *const train_state[] = { "train_state" };

    for (size_t t = 0; t < f->catalog->n_tensors; t++)
        if (starts_with_any(f->catalog->tensors[t].name, train_state, 1))
            return true;
    for (size_t i = 0; i < f->hints->n_beside; i++)
        if (starts_with_any(f->hints->beside[i], train_state, 1))
            return true;
    return false;
}

/* Names of what trainers keep beside a model whose weights stand at the top. Lightning's
 * show by their second level, where callbacks have the names of their classes: a model
 * may have a module that is called loops. */
static bool is_beside(const char *name, bool titan)
{
    static const char *const of_titan[] = { "train_state.", "dataloader.",
                                            "lr_scheduler." };
    static const char *const of_lightning[] = { "loops.fit_loop.", "loops.validate_loop.",
                                                "loops.test_loop.",
                                                "loops.predict_loop." };
    static const char callbacks[] = "callbacks.";
    size_t n = sizeof callbacks - 1;

    return (titan && starts_with_any(name, of_titan, DCP_ARRAY_LEN(of_titan))) ||
           starts_with_any(name, of_lightning, DCP_ARRAY_LEN(of_lightning)) ||
           (dcp_str_starts(name, callbacks) && name[n] >= 'A' && name[n] <= 'Z');
}

static void set_model(const struct finder *f, const struct dcp_container *model)
{
    bool titan = is_of_titan(f);

    for (size_t t = 0; t < f->catalog->n_tensors; t++) {
        struct dcp_tensor *tensor = &f->catalog->tensors[t];
        if (dcp_role_is_optim(tensor->role))
            continue;
        const char *param = dcp_container_inside(model, tensor->name);
        bool in = param && (model->n ? dcp_roles_is_joint(f->hints, (int)t, model->n)
                                     : !is_beside(tensor->name, titan));
        tensor->param = in ? param : tensor->name;
        tensor->role = !in                           ? DCP_ROLE_OTHER
                       : dcp_roles_is_buffer(tensor) ? DCP_ROLE_BUFFER
                                                     : DCP_ROLE_MODEL;
    }
}

static const char *text_of(struct dcp_catalog *catalog, const struct dcp_container *c)
{
    char *text = dcp_catalog_alloc(catalog, c->n + 1, 1);

    if (text && c->n)
        memcpy(text, c->name, c->n);
    return text;
}

int dcp_roles_find(struct dcp_catalog *catalog, const struct dcp_roles_hints *hints,
                   struct dcp_roles *out, struct dcp_error *err)
{
    static const struct dcp_roles_hints none = { 0 };
    struct finder f = { .catalog = catalog, .hints = hints ? hints : &none };
    struct dcp_container model = { .name = "" };
    const char *state;
    int first = -1;
    bool ok = true;

    *out = (struct dcp_roles){ .model = "" };
    find_optims(&f);
    for (size_t t = 0; t < catalog->n_tensors && ok; t++) {
        struct dcp_tensor *tensor = &catalog->tensors[t];
        int optim = optim_of(&f, tensor->name, &state);
        tensor->role = DCP_ROLE_MODEL;
        tensor->param = tensor->name;
        if (optim < 0)
            continue;
        first = first < 0 ? optim : first;
        ok = set_optim(&f, tensor, state, optim == first);
    }
    dcp_map_fini(&f.taken);
    if (!ok)
        return dcp_error_memory(err, "the roles of tensors");
    DCP_TRY(dcp_roles_find_model(catalog, f.hints, &model, err));
    set_model(&f, &model);
    out->model = text_of(catalog, &model);
    out->optim = first >= 0 ? text_of(catalog, &f.optims[first]) : NULL;
    return out->model && (first < 0 || out->optim)
               ? DCP_OK
               : dcp_error_memory(err, "the roles of tensors");
}

void dcp_roles_key(const struct dcp_tensor *tensor, const char **out, size_t *out_n)
{
    size_t n = strlen(tensor->name), param = strlen(tensor->param);

    *out = "";
    *out_n = 0;
    for (size_t at = 0; param && at + param <= n; at++) {
        bool begins = !at || tensor->name[at - 1] == '.';
        if (!begins || memcmp(tensor->name + at, tensor->param, param) != 0)
            continue;
        if (tensor->name[at + param] == '.') { /* the last of these counts */
            *out = tensor->name + at + param + 1;
            *out_n = n - at - param - 1;
        }
    }
    if (!*out_n && n > param + 1 && tensor->name[n - param - 1] == '.' &&
        !strcmp(tensor->name + (n - param), tensor->param)) {
        const char *end = tensor->name + (n - param - 1), *at = end;
        while (at > tensor->name && at[-1] != '.')
            at--;
        *out = at;
        *out_n = (size_t)(end - at);
    }
    const char *last = strrchr(tensor->name, '.'); /* "optimizer.state.0.step" */
    if (!*out_n && last && strstr(tensor->name, "state.") &&
        strcmp(tensor->param, tensor->name) != 0) {
        *out = last + 1;
        *out_n = strlen(last + 1);
    }
}

enum dcp_role dcp_role_of_name(const char *name, const char **out_param)
{
    static const char prefix[] = "optimizer.";

    *out_param = name;
    if (!dcp_str_starts(name, prefix))
        return DCP_ROLE_MODEL;
    name += sizeof prefix - 1;
    for (int role = 0; role < DCP_N_ROLES; role++) {
        const char *role_name = dcp_role_name((enum dcp_role)role);
        size_t n = strlen(role_name);
        if (dcp_role_is_optim((enum dcp_role)role) && !strncmp(name, role_name, n) &&
            name[n] == '.' && name[n + 1]) {
            *out_param = name + n + 1;
            return (enum dcp_role)role;
        }
    }
    return DCP_ROLE_MODEL;
}
