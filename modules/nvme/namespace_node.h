// SPDX-License-Identifier: Apache-2.0
// The node of an NVMe namespace that takes the drive's own commands (/dev/ngXnY), beside the block device (/dev/nvmeXnY): found, opened,
// identified, tried. Every call may block on the drive and belongs on a BlockingPool's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "block/device.h"
#include "modules/uring/uring_file.h"
#include "nvme/limits.h"

namespace cleat::modules {

// Where sysfs says that it is.
struct NamespacePaths {
  std::string name;   // of the node for commands: "ng0n1"
  dev_t device = 0;   // which it is to be
  std::string queue;  // the folder of the block device's limits
  // Several controllers may reach it, and the kernel chooses one for each command: with none, a command fails at once.
  bool multipath = false;
};

// nullopt: the block device is no NVMe namespace, or a part of one. An Error says why a namespace can't be given commands, for people who
// know which it is. `sysfs`: where that is mounted.
Result<std::optional<NamespacePaths>> FindNamespace(dev_t block_device, const std::string& sysfs = "/sys");

struct NamespaceNode {
  UringFile commands;  // takes them; not locked
  std::string path;
  bool for_writing = false;
  uint32_t nsid = 0;
  bool multipath = false;  // as NamespacePaths::multipath
  nvme::Limits limits;
  nvme::ControllerInfo controller;
  nvme::NamespaceInfo space;
  uint32_t timeout_ms = 0;  // the block device's; 0: the kernel's own
};

// Opens the node, asks controller and namespace what they are, looks whether this process may give them commands, and has one block read.
// `shape`: of the disk that is to lie there. Errors say why it has to be the block device.
Result<NamespaceNode> OpenNamespace(const NamespacePaths& paths, block::AccessMode mode,
                                    const block::DiskShape& shape);

}  // namespace cleat::modules
