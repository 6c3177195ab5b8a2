/* libdcp: distributed checkpoints that are the state you trained, survive power loss, and
 * load at any world size. Include this, link with `pkg-config --libs dcp`. */
#ifndef DCP_H
#define DCP_H

#include <dcp/checkpoint.h>
#include <dcp/comm.h>
#include <dcp/delta.h>
#include <dcp/device.h>
#include <dcp/error.h>
#include <dcp/family.h>
#include <dcp/flat.h>
#include <dcp/format.h>
#include <dcp/grid.h>
#include <dcp/log.h>
#include <dcp/rename.h>
#include <dcp/reshard.h>
#include <dcp/signature.h>
#include <dcp/store.h>
#include <dcp/tensor.h>
#include <dcp/training.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DCP_VERSION_MAJOR 0
#define DCP_VERSION_MINOR 1
#define DCP_VERSION_PATCH 0

/* "0.1.0", of the library that is loaded. Static. */
DCP_PUBLIC const char *dcp_version(void);
/* Versions of the libraries behind it, one "name version" a line. Static. */
DCP_PUBLIC const char *dcp_version_libraries(void);

#ifdef __cplusplus
}
#endif
#endif
