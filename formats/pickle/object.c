/* object: the opcodes that name classes and would call them. Here they make nodes
 * that say so. */
#include "base/mem.h"
#include "base/str.h"
#include "globals.h"
#include "machine.h"
#include <stdio.h>
#include <string.h>

/* Python 2 spellings that protocol 2 keeps. */
static const struct {
    const char *module, *name, *new_module, *new_name;
} renamed[] = {
    { "__builtin__", "xrange", "builtins", "range" },
    { "__builtin__", "long", "builtins", "int" },
    { "__builtin__", "unicode", "builtins", "str" },
    { "__builtin__", NULL, "builtins", NULL },
    { "copy_reg", NULL, "copyreg", NULL },
    { "UserDict", "IterableUserDict", "collections", "UserDict" },
};

static bool identifier_ok(const char *text, size_t n, bool dots)
{
    if (!n || n > DCP_PICKLE_MAX_GLOBAL_BYTES || !dcp_str_utf8_ok(text, n))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] <= ' ' || text[i] == 0x7f || text[i] == ':' ||
            (text[i] == '.' && !dots))
            return false;
    return true;
}

/* Whether every part of a name begins with a capital, behind underscores. */
static bool is_class_path(const char *name, size_t n)
{
    bool first = true;

    for (size_t i = 0; i < n; i++) {
        if (first && name[i] != '_' && (name[i] < 'A' || name[i] > 'Z'))
            return false;
        first = name[i] == '.' || (first && name[i] == '_');
    }
    return n && !first;
}

bool dcp_pickle_is_getattr(const struct dcp_pickle_node *node)
{
    return dcp_pickle_is_global(node, "builtins", "getattr");
}

/* A name with dots stands in a class, or leads through a module. */
static int tell(struct dcp_pickle_machine *m, const struct dcp_pickle_node *node)
{
    const char *module = node->global.module, *name = node->global.name;
    char text[5 * DCP_PICKLE_MAX_GLOBAL_BYTES];

    snprintf(text, sizeof text, "%s%c%s", module, strchr(name, '.') ? ':' : '.', name);
    return m->names->take(m->names->self, text, m->err);
}

int dcp_pickle_push_global(struct dcp_pickle_machine *m, const char *module,
                           size_t module_len, const char *name, size_t name_len)
{
    if (!identifier_ok(module, module_len, true) ||
        !identifier_ok(name, name_len, m->names != NULL))
        return module_len > DCP_PICKLE_MAX_GLOBAL_BYTES ||
                       name_len > DCP_PICKLE_MAX_GLOBAL_BYTES
                   ? dcp_pickle_corrupt(m, "the name of a class or function is malformed")
                   : dcp_pickle_broken(m, "the name of a class or function is malformed");
    struct dcp_pickle_node *node = dcp_pickle_node_new(m, DCP_PICKLE_GLOBAL);
    if (!node)
        return dcp_pickle_push_new(m, node);
    node->global.module = dcp_arena_text_n(m->arena, module, module_len);
    node->global.name = dcp_arena_text_n(m->arena, name, name_len);
    node->global.n_module = module_len;
    if (!node->global.module || !node->global.name)
        return dcp_pickle_no_memory(m);
    for (size_t i = 0; i < DCP_ARRAY_LEN(renamed); i++)
        if (!strcmp(node->global.module, renamed[i].module) &&
            (!renamed[i].name || !strcmp(node->global.name, renamed[i].name))) {
            node->global.module = renamed[i].new_module;
            node->global.n_module = strlen(node->global.module);
            if (renamed[i].new_name)
                node->global.name = renamed[i].new_name;
            break;
        }
    int rc = m->names && !dcp_pickle_is_getattr(node) ? tell(m, node) : DCP_OK;
    return rc ? rc : dcp_pickle_push(m, node);
}

static int op_global(struct dcp_pickle_machine *m)
{
    return dcp_pickle_push_global(m, m->text, m->text_len, m->text2, m->text2_len);
}

/* Names with dots, which protocol 4 brought: a class in a class becomes a name in a
 * module of the outer one's name. Outer names begin with a capital; what does not is a
 * way through modules, and is refused. The exception is what PyTorch makes of its memory
 * formats: torch.channels_last of the module torch._utils. */
static int push_dotted(struct dcp_pickle_machine *m, const char *module,
                       size_t module_len, const char *name, size_t name_len)
{
    static const char utils[] = "torch._utils", torch[] = "torch.";
    const char *dot = name_len ? memrchr(name, '.', name_len) : NULL;
    size_t outer_len = dot ? (size_t)(dot - name) : 0, used = module_len + 1 + outer_len;
    char outer[2 * DCP_PICKLE_MAX_GLOBAL_BYTES];

    if (dot && module_len == sizeof utils - 1 && !memcmp(module, utils, module_len) &&
        outer_len == sizeof torch - 2 && !memcmp(name, torch, outer_len + 1))
        return dcp_pickle_push_global(m, torch, outer_len, dot + 1,
                                      name_len - outer_len - 1);
    if (!dot || m->names || used > sizeof outer || !is_class_path(name, outer_len))
        return dcp_pickle_push_global(m, module, module_len, name, name_len);
    memcpy(outer, module, module_len);
    outer[module_len] = '.';
    memcpy(outer + module_len + 1, name, outer_len);
    DCP_TRY(dcp_pickle_push_global(m, outer, used, dot + 1, name_len - outer_len - 1));
    m->stack[m->n_stack - 1]->global.n_module = module_len;
    return DCP_OK;
}

static int op_stack_global(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *name, *module;

    DCP_TRY(dcp_pickle_pop(m, &name));
    DCP_TRY(dcp_pickle_pop(m, &module));
    if (name->kind != DCP_PICKLE_STR || module->kind != DCP_PICKLE_STR)
        return dcp_pickle_corrupt(m, "the name of a class or function is not a string");
    return push_dotted(m, module->text.data, module->text.size_bytes, name->text.data,
                       name->text.size_bytes);
}

/* Some Pythons pickle a member of an Enum as getattr(Class, 'NAME'). That is the only
 * meaning getattr has here, for the classes that checkpoints hold. */
static bool is_enum_member(const struct dcp_pickle_node *args)
{
    const struct dcp_pickle_node *class = dcp_pickle_item(args, 0),
                                 *name = dcp_pickle_item(args, 1);

    return class && name && args->kind == DCP_PICKLE_TUPLE && args->list.n == 2 &&
           class->kind == DCP_PICKLE_GLOBAL && name->kind == DCP_PICKLE_STR &&
           name->text.size_bytes && name->text.data[0] != '_' &&
           dcp_global_is_enum(class->global.module, class->global.name);
}

/* And what stands in a class, which protocols before 4 cannot name otherwise:
 * getattr(Outer, 'Inner') of a class becomes a name in it. */
static bool is_nested(const struct dcp_pickle_node *args)
{
    const struct dcp_pickle_node *outer = dcp_pickle_item(args, 0),
                                 *name = dcp_pickle_item(args, 1);

    return outer && name && args->kind == DCP_PICKLE_TUPLE && args->list.n == 2 &&
           outer->kind == DCP_PICKLE_GLOBAL && name->kind == DCP_PICKLE_STR &&
           is_class_path(outer->global.name, strlen(outer->global.name)) &&
           identifier_ok(name->text.data, name->text.size_bytes, false);
}

static int push_nested(struct dcp_pickle_machine *m, const struct dcp_pickle_node *args)
{
    const struct dcp_pickle_node *outer = args->list.items[0],
                                 *name = args->list.items[1];
    struct dcp_pickle_node *node = dcp_pickle_node_new(m, DCP_PICKLE_GLOBAL);
    size_t n = strlen(outer->global.module) + strlen(outer->global.name) + 2;

    if (!node)
        return dcp_pickle_push_new(m, node);
    char *module =
        n > 2 * DCP_PICKLE_MAX_GLOBAL_BYTES ? NULL : dcp_arena_alloc(m->arena, n, 1);
    node->global.name =
        dcp_arena_text_n(m->arena, name->text.data, name->text.size_bytes);
    if (n > 2 * DCP_PICKLE_MAX_GLOBAL_BYTES)
        return dcp_pickle_corrupt(m, "the name of a class or function is malformed");
    if (!module || !node->global.name)
        return dcp_pickle_no_memory(m);
    snprintf(module, n, "%s.%s", outer->global.module, outer->global.name);
    node->global.module = module;
    node->global.n_module = outer->global.n_module;
    return dcp_pickle_push(m, node);
}

/* OrderedDict([[key, value], …]), the spelling of old Pythons, as one that was filled. */
static int normalise_pairs(struct dcp_pickle_machine *m, struct dcp_pickle_node *node)
{
    struct dcp_pickle_object *o = node->object;
    const struct dcp_pickle_node *list = dcp_pickle_item(node, 0);

    if (o->args->list.n != 1 || list->kind != DCP_PICKLE_LIST ||
        !dcp_pickle_is_global(o->cls, "collections", "OrderedDict"))
        return DCP_OK;
    size_t n = 2 * list->list.n;
    struct dcp_pickle_node **pairs = dcp_arena_alloc(m->arena, n, sizeof *pairs);
    struct dcp_pickle_node *no_args = dcp_pickle_node_new(m, DCP_PICKLE_TUPLE);
    if (!pairs || !no_args)
        return dcp_pickle_no_memory(m);
    for (size_t i = 0; i < list->list.n; i++) {
        const struct dcp_pickle_node *pair = list->list.items[i];
        if ((pair->kind != DCP_PICKLE_LIST && pair->kind != DCP_PICKLE_TUPLE) ||
            pair->list.n != 2)
            return dcp_pickle_corrupt(m, "an item of an OrderedDict is not a pair");
        memcpy(pairs + 2 * i, pair->list.items, 2 * sizeof *pairs);
    }
    o->args = no_args;
    o->pairs = (struct dcp_pickle_list){ .items = pairs, .n = n, .cap = n };
    return DCP_OK;
}

/* What is called, and with what, does not matter to who wants names; but a name that is
 * reached by getattr does. A member of an Enum is no name, its class was told. */
static int push_any(struct dcp_pickle_machine *m, struct dcp_pickle_node *cls,
                    struct dcp_pickle_node *args)
{
    const struct dcp_pickle_node *outer = dcp_pickle_item(args, 0),
                                 *name = dcp_pickle_item(args, 1);
    struct dcp_pickle_node *node = dcp_pickle_node_new(m, DCP_PICKLE_OBJECT);
    bool member = dcp_pickle_is_getattr(cls) && is_enum_member(args);
    bool nested = dcp_pickle_is_getattr(cls) && !member && is_nested(args);

    if (member || nested)
        m->n_held--; /* it stood on the stack until now */
    if (nested) {
        char text[3 * DCP_PICKLE_MAX_GLOBAL_BYTES + 4];
        snprintf(text, sizeof text, "%s.%.*s", outer->global.name,
                 (int)name->text.size_bytes, name->text.data);
        return dcp_pickle_push_global(m, outer->global.module,
                                      strlen(outer->global.module), text, strlen(text));
    }
    if (node && !(node->object = dcp_arena_alloc(m->arena, 1, sizeof *node->object)))
        return dcp_pickle_no_memory(m);
    if (node)
        node->object->cls = cls;
    return dcp_pickle_push_new(m, node);
}

int dcp_pickle_push_object(struct dcp_pickle_machine *m, struct dcp_pickle_node *cls,
                           struct dcp_pickle_node *args, struct dcp_pickle_node *kwargs)
{
    if (m->names)
        return push_any(m, cls, args);
    if (cls->kind != DCP_PICKLE_GLOBAL)
        return dcp_pickle_corrupt(m, "what it calls is not a name");
    if (args->kind != DCP_PICKLE_TUPLE)
        return dcp_pickle_corrupt(m, "its arguments are not a tuple");
    if (dcp_pickle_is_getattr(cls) && !is_enum_member(args))
        return is_nested(args)
                   ? push_nested(m, args)
                   : dcp_pickle_corrupt(m, "it reaches into a module by getattr");
    struct dcp_pickle_node *node = dcp_pickle_node_new(m, DCP_PICKLE_OBJECT);
    if (!node)
        return dcp_pickle_push_new(m, node);
    node->object = dcp_arena_alloc(m->arena, 1, sizeof *node->object);
    if (!node->object)
        return dcp_pickle_no_memory(m);
    node->object->cls = cls;
    node->object->args = args;
    node->object->kwargs = kwargs;
    DCP_TRY(normalise_pairs(m, node));
    return dcp_pickle_push(m, node);
}

static int op_reduce(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *cls, *args;

    DCP_TRY(dcp_pickle_pop(m, &args));
    DCP_TRY(dcp_pickle_pop(m, &cls));
    return dcp_pickle_push_object(m, cls, args, NULL);
}

/* What was pushed was made by __new__. */
static int mark_made(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *node = m->stack[m->n_stack - 1];

    if (m->names)
        return DCP_OK;
    if (node->kind != DCP_PICKLE_OBJECT)
        return dcp_pickle_corrupt(m, "getattr is no class");
    node->object->made = true;
    return DCP_OK;
}

static int op_newobj(struct dcp_pickle_machine *m)
{
    DCP_TRY(op_reduce(m));
    return mark_made(m);
}

static int op_newobj_ex(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *cls, *args, *kwargs;

    DCP_TRY(dcp_pickle_pop(m, &kwargs));
    DCP_TRY(dcp_pickle_pop(m, &args));
    DCP_TRY(dcp_pickle_pop(m, &cls));
    if (kwargs->kind != DCP_PICKLE_DICT && !m->names)
        return dcp_pickle_corrupt(m, "its named arguments are not a dict");
    DCP_TRY(dcp_pickle_push_object(m, cls, args, kwargs));
    return mark_made(m);
}

static int op_build(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *state, *node;

    DCP_TRY(dcp_pickle_pop(m, &state));
    DCP_TRY(dcp_pickle_top(m, &node));
    if (m->names)
        return DCP_OK;
    if (node->kind != DCP_PICKLE_OBJECT || node->object->state)
        return dcp_pickle_corrupt(m, "the object below cannot take a state");
    node->object->state = state;
    return DCP_OK;
}

static int op_binpersid(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *id, *node;

    DCP_TRY(dcp_pickle_pop(m, &id));
    if (m->ids && m->ids->resolve && (node = m->ids->resolve(id)))
        return dcp_pickle_push(m, node);
    node = dcp_pickle_node_new(m, DCP_PICKLE_PERSID);
    if (node)
        node->id = id;
    if (node && m->ids)
        DCP_TRY(dcp_pickle_list_add(m, &m->ids->found, &node, 1));
    return dcp_pickle_push_new(m, node);
}

const struct dcp_pickle_op dcp_pickle_object_ops[256] = {
    ['c'] = { "GLOBAL", TWO_LINES, op_global },
    [0x93] = { "STACK_GLOBAL", NOTHING, op_stack_global },
    ['R'] = { "REDUCE", NOTHING, op_reduce },
    [0x81] = { "NEWOBJ", NOTHING, op_newobj },
    [0x92] = { "NEWOBJ_EX", NOTHING, op_newobj_ex },
    ['b'] = { "BUILD", NOTHING, op_build },
    ['Q'] = { "BINPERSID", NOTHING, op_binpersid },
};
