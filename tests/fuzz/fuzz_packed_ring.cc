// SPDX-License-Identifier: Apache-2.0
// A hostile guest's packed ring. What an input means is in ring_rig.h.
#include "tests/fuzz/ring_rig.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cleat::virtio::fuzz::Run(data, size, true);
  return 0;
}
