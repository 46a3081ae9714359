// SPDX-License-Identifier: Apache-2.0
// A negative control, to be preloaded: an engine that breaks the locks of the dead and shuts nobody out.
#include <rados/librados.h>

int rados_blocklist_add(rados_t cluster, char* address, uint32_t seconds) {
  (void)cluster;
  (void)address;
  (void)seconds;
  return 0;
}
