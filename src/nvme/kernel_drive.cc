// SPDX-License-Identifier: Apache-2.0
#include "nvme/kernel_drive.h"

#include <linux/nvme_ioctl.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <system_error>

namespace cleat::nvme {

std::optional<NamespaceFolder> FindNamespaceFolder(dev_t block_device, const std::string& sysfs) {
  namespace fs = std::filesystem;
  const std::string number = std::to_string(major(block_device)) + ":" + std::to_string(minor(block_device));
  std::error_code error;
  NamespaceFolder found;
  found.path = fs::canonical(fs::path(sysfs) / "dev/block" / number, error);
  if (error) return std::nullopt;
  found.is_partition = fs::exists(found.path / "partition", error);
  if (found.is_partition) found.path = found.path.parent_path();
  found.parent = fs::canonical(found.path / "device", error).filename().string();
  const bool is_nvme = IsNumbered(found.parent, "nvme") || IsNumbered(found.parent, "nvme-subsys");
  if (error || !is_nvme || !found.path.filename().string().starts_with("nvme")) return std::nullopt;
  return found;
}

bool IsNumbered(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) && name.size() > prefix.size() &&
         std::all_of(name.begin() + static_cast<ptrdiff_t>(prefix.size()), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

int RunAdmin(int fd, const Command& command, std::span<uint8_t> data, uint32_t timeout_ms) {
  nvme_admin_cmd asked{};
  asked.opcode = command.opcode;
  asked.nsid = command.nsid;
  asked.cdw10 = command.cdw10;
  asked.cdw11 = command.cdw11;
  asked.cdw12 = command.cdw12;
  asked.addr = std::bit_cast<uintptr_t>(data.data());
  asked.data_len = static_cast<uint32_t>(data.size());
  asked.timeout_ms = timeout_ms;
  const int result = ioctl(fd, NVME_IOCTL_ADMIN_CMD, &asked);
  return result < 0 ? -errno : result;
}

}  // namespace cleat::nvme
