/* poisoned: memory of the host that passes for a device's. */
#ifndef TESTS_LIB_POISONED_H
#define TESTS_LIB_POISONED_H

#include <dcp/device.h>

/* As dcp_device_host, but host_readable is 0, and staging comes full of a pattern. */
void poisoned_device(struct dcp_device *out_device);

#endif
