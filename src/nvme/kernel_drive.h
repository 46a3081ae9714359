// SPDX-License-Identifier: Apache-2.0
// An NVMe drive as Linux has it: where sysfs shows the namespace of a block device, and commands of the admin queue through an open node.
//
// Source: Linux' Documentation/ABI/stable/sysfs-devices and sysfs-block, drivers/nvme/host; linux/nvme_ioctl.h. Functions; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "nvme/command.h"

namespace cleat::nvme {

struct NamespaceFolder {
  std::filesystem::path path;  // of the whole namespace: its last part is the kernel's name for it, "nvme0n1"
  std::string parent;  // the controller that has it, "nvme0", or "nvme-subsys0" where several may reach it
  bool is_partition = false;  // the block device is a part of the namespace
};

// nullopt: the block device is no NVMe namespace or part of one, or is gone. `sysfs`: where that is mounted. Does not wait for the drive.
std::optional<NamespaceFolder> FindNamespaceFolder(dev_t block_device, const std::string& sysfs);

// Whether a name is `prefix` and a number, as the kernel names devices.
bool IsNumbered(std::string_view name, std::string_view prefix);

// Has the drive carry out a command of the admin queue, with `data` as its buffer. `fd`: the block device or the node for commands, open.
// `timeout_ms`: when the kernel gives the command up, and resets the drive; 0: nvme_core.admin_timeout. Returns the drive's status, 0 for
// success, or minus an errno. Waits for the drive.
int RunAdmin(int fd, const Command& command, std::span<uint8_t> data, uint32_t timeout_ms = 0);

}  // namespace cleat::nvme
