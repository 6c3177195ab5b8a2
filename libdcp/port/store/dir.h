/* dir: what the two halves of the store on a folder share: dir.c has names,
 * dir_files.c what is done with open files. */
#ifndef DCP_PORT_STORE_DIR_H
#define DCP_PORT_STORE_DIR_H

#include <dcp/store.h>

#include "base/mem.h"
#include <pthread.h>

struct dcp_dir {
    int fd;    /* of the root */
    int lease; /* -1: none */
    char *root;
    bool follow;               /* links to regular files, for reading */
    pthread_mutex_t replacing; /* one temporary file of a name at a time */
};

/* A name, found: the open folder it stands in, and its last part. */
struct dcp_dir_entry {
    int dir_fd;
    const char *last;
    bool is_root; /* dir_fd is the store's own */
};

/* The error of a call that failed with errno `why`. */
int dcp_dir_fail(const struct dcp_dir *dir, int why, const char *act, const char *name,
                 struct dcp_error *err);
/* Finds a name's folder; 0, or -1 with errno. Released with dcp_dir_entry_fini. */
int dcp_dir_entry_init(const struct dcp_dir *dir, const char *name,
                       struct dcp_dir_entry *out);
void dcp_dir_entry_fini(struct dcp_dir_entry *entry);
#define DCP_CLEANUP_ENTRY DCP_CLEANUP(dcp_dir_entry_fini)

/* Operations of the store, see dcp_store_ops. */
int dcp_dir_open(void *self, const char *name, struct dcp_store_file **out,
                 struct dcp_error *err);
int dcp_dir_reopen(void *self, const char *name, struct dcp_store_file **out,
                   struct dcp_error *err);
int dcp_dir_hold(void *self, const char *name, bool exclusive,
                 struct dcp_store_file **out, struct dcp_error *err);
int dcp_dir_create(void *self, const char *name, uint64_t size_bytes,
                   struct dcp_store_file **out, struct dcp_error *err);
int dcp_dir_read_at(void *self, struct dcp_store_file *file, uint64_t offset, void *out,
                    size_t size_bytes, struct dcp_error *err);
int dcp_dir_write_at(void *self, struct dcp_store_file *file, uint64_t offset,
                     const void *data, size_t size_bytes, struct dcp_error *err);
void dcp_dir_flush_hint(void *self, struct dcp_store_file *file, uint64_t offset,
                        uint64_t size_bytes);
int dcp_dir_sync(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                 struct dcp_error *err);
int dcp_dir_close(void *self, struct dcp_store_file *file, struct dcp_error *err);
bool dcp_dir_direct(void *self, struct dcp_store_file *file);
int dcp_dir_descriptor(void *self, struct dcp_store_file *file);
int dcp_dir_try_clone(void *self, int from, uint64_t *out_block_bytes,
                      struct dcp_error *err);
int dcp_dir_clone(void *self, struct dcp_store_file *file, uint64_t offset, int from,
                  uint64_t from_offset, uint64_t size_bytes, struct dcp_error *err);
void dcp_dir_drop_cache(void *self, struct dcp_store_file *file);
uint64_t dcp_dir_free_bytes(void *self);

#endif
