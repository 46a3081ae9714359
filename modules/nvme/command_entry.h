// SPDX-License-Identifier: Apache-2.0
// An NVMe command as io_uring takes it: linux/nvme_ioctl.h, struct nvme_uring_cmd, in an entry of 128 bytes. Any thread.
#pragma once

#include <liburing.h>
#include <linux/nvme_ioctl.h>
#include <sys/uio.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "nvme/command.h"

namespace cleat::modules {

inline constexpr size_t kCommandEntryBytes = 128;
inline constexpr uint32_t kCommandRingFlags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32;

// Fills in the whole entry but for its user data. `file`: a place in the ring, or a descriptor, as `flags` (IOSQE_) say. `pieces`: the memory
// that is read or written; what several point to, and they themselves, are good until the entry is submitted, the memory until the command is
// over. `timeout_ms`: the kernel then aborts the command, and resets the controller if that is no help. `registered`: the place in the ring
// of memory that a single piece lies in.
inline void FillCommandEntry(io_uring_sqe& entry, int file, uint32_t flags, const nvme::Command& command,
                             std::span<const iovec> pieces, uint32_t timeout_ms,
                             std::optional<uint16_t> registered = std::nullopt) {
  nvme_uring_cmd told{};
  told.opcode = command.opcode;
  told.nsid = command.nsid;
  told.cdw10 = command.cdw10;
  told.cdw11 = command.cdw11;
  told.cdw12 = command.cdw12;
  told.timeout_ms = timeout_ms;
  if (pieces.size() == 1) {  // spared the kernel's copy of the vector
    told.addr = std::bit_cast<uintptr_t>(pieces[0].iov_base);
    told.data_len = static_cast<uint32_t>(pieces[0].iov_len);
  } else if (!pieces.empty()) {
    told.addr = std::bit_cast<uintptr_t>(pieces.data());
    told.data_len = static_cast<uint32_t>(pieces.size());
  }
  auto* bytes = reinterpret_cast<uint8_t*>(&entry);
  std::memset(bytes, 0, kCommandEntryBytes);
  entry.opcode = IORING_OP_URING_CMD;
  entry.flags = static_cast<uint8_t>(flags);
  entry.fd = file;
  entry.cmd_op = pieces.size() > 1 ? NVME_URING_CMD_IO_VEC : NVME_URING_CMD_IO;
  if (registered) {
    entry.uring_cmd_flags = IORING_URING_CMD_FIXED;
    entry.buf_index = *registered;
  }
  std::memcpy(bytes + offsetof(io_uring_sqe, cmd), &told, sizeof(told));
}

}  // namespace cleat::modules
