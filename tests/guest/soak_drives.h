// SPDX-License-Identifier: Apache-2.0
// What is done to the drives of the guest while nvme_soak runs: by QEMU, which test_nvme_soak.py asks for it, and by the kernel's resets.
// Any thread, one call at a time.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace cleat::nvme_soak {

class Drives {
 public:
  // `ask`: the file in which the test looks for what is wanted, "3 slow"; its answer is the number, in the file ASK.done.
  // `paths`: block devices, each the only namespace of its controller.
  Drives(std::string ask, std::vector<std::string> paths) : ask_(std::move(ask)), paths_(std::move(paths)) {}

  Status Slow() { return Ask("slow"); }  // few writes a second
  Status Fast() { return Ask("fast"); }
  // Some of the next writes stay in the drive until Release, while later ones are carried out.
  Status Hold() { return Ask("hold"); }
  Status Release() { return Ask("release"); }
  // As the kernel does with controllers that do not answer.
  Status Reset();

 private:
  Status Ask(const std::string& what);

  const std::string ask_;
  const std::vector<std::string> paths_;
  uint64_t asked_ = 0;
};

}  // namespace cleat::nvme_soak
