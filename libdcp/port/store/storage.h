/* storage: the file system that files lie on. */
#ifndef DCP_PORT_STORE_STORAGE_H
#define DCP_PORT_STORE_STORAGE_H

#include <dcp/store.h>

/* Of an open file or folder. */
struct dcp_storage dcp_storage_at(int fd);

#endif
