// SPDX-License-Identifier: Apache-2.0
#include "modules/nvme/namespace_node.h"

#include <fcntl.h>
#include <liburing.h>
#include <linux/nvme_ioctl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/listed_open.h"
#include "modules/nvme/command_entry.h"
#include "nvme/command.h"
#include "nvme/kernel_drive.h"
#include "nvme/status.h"

namespace cleat::modules {
namespace {

namespace fs = std::filesystem;
using block::AccessMode;

// A kernel that takes fewer pages a command has no queue of an ordinary drive: its block device is used.
constexpr uint32_t kPagesMin = 32;

Error NoCommands(const std::string& why) {
  return {ErrorCode::kUnimplemented, why};
}

Error NotAllowed(const std::string& path) {
  return NoCommands("the kernel lets this process give " + path +
                    " no commands: before Linux 6.2 that takes CAP_SYS_ADMIN, and from then on too for a "
                    "drive that does not say "
                    "which commands it has (its Commands Supported and Effects log)");
}

std::string NameOf(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return error ? std::string() : real.filename().string();
}

uint64_t NumberIn(const std::string& path) {
  uint64_t number = 0;
  std::ifstream(path) >> number;
  return number;
}

// "MAJOR:MINOR" in a file of sysfs; 0: it has none.
dev_t DeviceIn(const fs::path& path) {
  unsigned int major_number = 0;
  unsigned int minor_number = 0;
  char colon = 0;
  std::ifstream(path) >> major_number >> colon >> minor_number;
  return colon == ':' ? makedev(major_number, minor_number) : 0;
}

Result<UniqueFd> OpenNode(const NamespacePaths& paths, AccessMode mode) {
  const std::string path = "/dev/" + paths.name;
  const UniqueFd found(open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!found || fstat(found.get(), &status) != 0) return ErrnoError(errno, path + " can't be opened");
  if (!S_ISCHR(status.st_mode) || status.st_rdev != paths.device) {
    return NoCommands(path + " is not the device that the kernel has under that name");
  }
  UniqueFd node = ReopenAs(found, mode == AccessMode::kReadWrite ? O_RDWR : O_RDONLY);
  if (!node)
    return ErrnoError(errno,
                      path + " can't be opened: give the engine's user the right to, as on the block device");
  return node;
}

// What Identify returns; `what` names the device.
Status Identify(int fd, nvme::IdentifyCns cns, uint32_t nsid, std::array<uint8_t, nvme::kIdentifyBytes>& data,
                const std::string& what) {
  const int result = nvme::RunAdmin(fd, nvme::Identify(cns, nsid), data);
  if (result == 0) return Ok{};
  const std::string asked =
      what + " does not say what it is (Identify " + std::to_string(static_cast<uint32_t>(cns)) + ")";
  if (result == -EACCES || result == -EPERM) return NotAllowed(what);
  if (result < 0) return ErrnoError(-result, asked);
  return Error(ErrorCode::kIo, asked + ": " + nvme::NameOf(nvme::Status(static_cast<uint16_t>(result))));
}

Status AskWhatItIs(NamespaceNode& node) {
  const int fd = node.commands.fd.get();
  const int nsid = ioctl(fd, NVME_IOCTL_ID);
  if (nsid <= 0) return ErrnoError(errno, node.path + " names no namespace");
  node.nsid = static_cast<uint32_t>(nsid);
  std::array<uint8_t, nvme::kIdentifyBytes> data{};
  CLEAT_TRY(Identify(fd, nvme::IdentifyCns::kController, 0, data, node.path));
  CLEAT_ASSIGN(node.controller, nvme::ParseController(nvme::IdentifyData(data), node.path));
  data = {};
  CLEAT_TRY(Identify(fd, nvme::IdentifyCns::kNamespace, node.nsid, data, node.path));
  CLEAT_ASSIGN(node.space, nvme::ParseNamespace(nvme::IdentifyData(data), node.controller, node.path));
  return Ok{};
}

// Controllers before 2.0 have none.
nvme::CommandSetLimits AskCommandSetLimits(const NamespaceNode& node) {
  constexpr uint32_t kVersion2 = 0x00020000;
  std::array<uint8_t, nvme::kIdentifyBytes> data{};
  if (node.controller.version < kVersion2 ||
      !Identify(node.commands.fd.get(), nvme::IdentifyCns::kCommandSetController, 0, data, node.path))
    return {};
  return nvme::ParseCommandSetLimits(nvme::IdentifyData(data));
}

nvme::TransportLimits LimitsOfQueue(const std::string& queue) {
  constexpr uint64_t kKib = 1024;
  constexpr uint64_t kAlignMax = 4096;
  nvme::TransportLimits limits;
  limits.transfer_bytes_max = NumberIn(queue + "/max_hw_sectors_kb") * kKib;
  limits.pages_max = static_cast<uint32_t>(std::min<uint64_t>(NumberIn(queue + "/max_segments"), UINT32_MAX));
  // 0 also where the kernel knows that the drive's Write Zeroes is not to be trusted.
  limits.write_zeroes_bytes_max = NumberIn(queue + "/write_zeroes_max_bytes");
  limits.write_zeroes = limits.write_zeroes_bytes_max != 0;
  const uint64_t align = NumberIn(queue + "/dma_alignment") + 1;  // a mask; since Linux 6.0
  if (align > 1 && std::has_single_bit(align) && align <= kAlignMax)
    limits.memory_align = static_cast<uint32_t>(align);
  return limits;
}

struct RingEnd {
  void operator()(io_uring* ring) const {
    io_uring_queue_exit(ring);
    delete ring;
  }
};

// The result of a command, as io_uring has it.
Result<int32_t> Run(io_uring& ring, const NamespaceNode& node, const nvme::Command& command,
                    const iovec& piece) {
  io_uring_sqe* entry = io_uring_get_sqe(&ring);
  CLEAT_CHECK(entry != nullptr);
  FillCommandEntry(*entry, node.commands.fd.get(), 0, command, {&piece, 1}, node.timeout_ms);
  int waited = -EINTR;
  while (waited == -EINTR) waited = io_uring_submit_and_wait(&ring, 1);
  io_uring_cqe* done = nullptr;
  if (waited >= 0) waited = io_uring_peek_cqe(&ring, &done);
  if (waited < 0) return ErrnoError(-waited, "an io_uring for commands");
  const int32_t result = done->res;
  io_uring_cqe_seen(&ring, done);
  return result;
}

// Whether this process may give it all the commands that a disk needs. The kernel looks at that before it looks at their memory, which
// nobody has; and what they name is behind the namespace's end, or nothing.
Status TryPermissions(io_uring& ring, const NamespaceNode& node) {
  const iovec nowhere{std::bit_cast<void*>(uintptr_t{nvme::kPageBytes}), node.space.block_bytes};
  const auto behind = [&node](nvme::Opcode opcode) {
    return nvme::OnBlocks(opcode, node.nsid, node.space.blocks, 1, 0);
  };
  std::vector<nvme::Command> commands{nvme::Flush(node.nsid), behind(nvme::Opcode::kRead)};
  if (node.for_writing) {
    nvme::Command hint = nvme::Deallocate(node.nsid);
    hint.cdw11 = 0;
    commands.insert(commands.end(), {behind(nvme::Opcode::kWrite), behind(nvme::Opcode::kWriteZeroes), hint});
  }
  for (const nvme::Command& command : commands) {
    CLEAT_ASSIGN(const int32_t result, Run(ring, node, command, nowhere));
    if (result == -EACCES || result == -EPERM) return NotAllowed(node.path);
  }
  return Ok{};
}

Status TryCommands(const NamespaceNode& node) {
  auto made = std::make_unique<io_uring>();
  const int failed = io_uring_queue_init(2, made.get(), kCommandRingFlags);
  if (failed < 0) return ErrnoError(-failed, "an io_uring for commands");
  const std::unique_ptr<io_uring, RingEnd> ring(made.release());
  CLEAT_TRY(TryPermissions(*ring, node));
  const uint32_t bytes = node.space.block_bytes;
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(bytes, bytes), &std::free);
  CLEAT_CHECK(memory != nullptr);
  CLEAT_ASSIGN(const int32_t result, Run(*ring, node, nvme::OnBlocks(nvme::Opcode::kRead, node.nsid, 0, 1, 0),
                                         iovec{memory.get(), bytes}));
  // A drive that can't read its first block takes commands all the same.
  if (result >= 0) return Ok{};
  return ErrnoError(-result, node.path + " takes no commands through io_uring");
}

}  // namespace

Result<std::optional<NamespacePaths>> FindNamespace(dev_t block_device, const std::string& sysfs) {
  using Found = std::optional<NamespacePaths>;
  const auto folder = nvme::FindNamespaceFolder(block_device, sysfs);
  if (!folder || folder->is_partition) return Found();
  const std::string name = folder->path.filename();
  NamespacePaths paths;
  paths.name = "ng" + name.substr(std::string_view("nvme").size());
  const fs::path node = fs::path(sysfs) / "class/nvme-generic" / paths.name;
  paths.device = DeviceIn(node / "dev");
  if (paths.device == 0 || NameOf(node / "device") != folder->parent) {
    return NoCommands("the kernel has no node for commands beside " + name + " (" + paths.name +
                      ": Linux 5.19 and later)");
  }
  paths.queue = folder->path / "queue";
  paths.multipath = folder->parent.starts_with("nvme-subsys");
  return Found(std::move(paths));
}

Result<NamespaceNode> OpenNamespace(const NamespacePaths& paths, AccessMode mode,
                                    const block::DiskShape& shape) {
  NamespaceNode node;
  node.path = "/dev/" + paths.name;
  node.multipath = paths.multipath;
  node.for_writing = mode == AccessMode::kReadWrite;
  CLEAT_ASSIGN(node.commands.fd, OpenNode(paths, mode));
  CLEAT_TRY(AskWhatItIs(node));
  if (shape.logical_block_bytes < node.space.block_bytes) {
    return NoCommands(node.path + " has blocks of " + std::to_string(node.space.block_bytes) +
                      " bytes, the disk of " + std::to_string(shape.logical_block_bytes));
  }
  node.timeout_ms =
      static_cast<uint32_t>(std::min<uint64_t>(NumberIn(paths.queue + "/io_timeout"), UINT32_MAX));
  const nvme::TransportLimits queue = LimitsOfQueue(paths.queue);
  if (queue.pages_max != 0 && queue.pages_max < kPagesMin) {
    return NoCommands(node.path + " takes only " + std::to_string(queue.pages_max) +
                      " pieces of memory at a time");
  }
  node.limits = nvme::Limits(node.controller, node.space, AskCommandSetLimits(node), queue);
  CLEAT_TRY(TryCommands(node));
  return node;
}

}  // namespace cleat::modules
