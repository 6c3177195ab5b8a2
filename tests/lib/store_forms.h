/* store_forms: short forms of the operations of the store that a test works on. */
#ifndef TESTS_LIB_STORE_FORMS_H
#define TESTS_LIB_STORE_FORMS_H

#include <dcp/store.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dcp_store store; /* of the running test */

static inline int put(const char *name, const char *text)
{
    return dcp_store_write_file(&store, name, text, strlen(text), NULL);
}

static inline void check_text(const char *name, const char *wanted)
{
    void *text = NULL;
    size_t n = 0;
    assert_int_equal(dcp_store_read_file(&store, name, 1 << 20, &text, &n, NULL), 0);
    assert_int_equal(n, strlen(wanted));
    assert_string_equal(text, wanted);
    free(text);
}

static inline int create(const char *name, uint64_t size, struct dcp_store_file **out)
{
    return store.ops->create(store.self, name, size, out, NULL);
}

static inline int write_at(struct dcp_store_file *file, uint64_t offset, const char *text)
{
    return store.ops->write_at(store.self, file, offset, text, strlen(text), NULL);
}

static inline int stat_code(const char *name)
{
    bool is_dir;
    uint64_t size;
    return store.ops->stat(store.self, name, &is_dir, &size, NULL);
}

static inline int make_dir(const char *name)
{
    return store.ops->make_dir(store.self, name, NULL);
}

static inline int sync_dir(const char *name)
{
    return store.ops->sync_dir(store.self, name, NULL);
}

static inline int publish(const char *from, const char *to)
{
    return store.ops->publish(store.self, from, to, NULL);
}

static inline int replace(const char *name, const char *text)
{
    return store.ops->replace(store.self, name, text, strlen(text), NULL);
}

static inline int remove_name(const char *name)
{
    return store.ops->remove(store.self, name, NULL);
}

#endif
