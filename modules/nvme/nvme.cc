// SPDX-License-Identifier: Apache-2.0
#include "modules/nvme/nvme.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "block/pipeline.h"
#include "modules/nvme/namespace_node.h"
#include "modules/nvme/nvme_channel.h"
#include "modules/uring/file_ownership.h"

namespace cleat::modules {
namespace {

using block::AccessMode;

// What is behind the path.
struct Opened {
  UringFile file;                     // the block device, or the file
  std::optional<NamespaceNode> node;  // where it is to be given commands
  std::string why_not;                // why a namespace is not
};

// What others wrote to these bytes of the block device is on its way no more, but at the drive, and what they read is forgotten. 0, or the
// errno. The drive is asked for no flush: of two writes it keeps the later one, and who wants his to be durable asks for that.
int WriteBack(int fd, const pool::DriveRange& range) {
  const auto first = static_cast<off_t>(range.first_byte);
  const auto length = static_cast<off_t>(range.bytes);
  constexpr unsigned int kToTheDrive =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (sync_file_range(fd, first, length, kToTheDrive) != 0) return errno;
  return posix_fadvise(fd, first, length, POSIX_FADV_DONTNEED);
}

// Of a disk of a pool its extents alone: the others' are none of its business, and thousands of disks that are attached would flush the drive
// as many times.
Status WriteBackCache(const UringFile& block, const std::string& who, const std::string& path) {
  const int fd = block.fd.get();
  int failed = 0;
  if (block.extents.is_whole_drive()) {
    failed = fsync(fd) != 0 ? errno : posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  } else {
    for (const pool::DriveRange& range : block.extents.Ranges()) {
      if (failed == 0) failed = WriteBack(fd, range);
    }
  }
  if (failed == 0) return Ok{};
  return ErrnoError(failed, who + ": " + path + ": writing back what its page cache has");
}

class NvmeDevice final : public block::Device {
 public:
  NvmeDevice(const UringOptions& options, const block::Geometry& geometry, Opened opened,
             CommandTarget target, UringHub& hub, BlockingPool& blocking)
      : Device(options.shape.name, geometry),
        path_(options.path),
        block_(std::move(opened.file)),
        node_(std::move(*opened.node)),
        target_(std::move(target)),
        hub_(hub),
        blocking_(blocking),
        ownership_(name(), options.access, options.lock_wait_ns,
                   {{block_, path_}, {node_.commands, node_.path}}, blocking) {}

  uint32_t frames() const override { return 1; }
  std::string io_path() const override {
    return "NVMe commands (" + node_.path + ", " + node_.controller.model + ")";
  }

  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor) override {
    UringRing* ring = hub_.FindForCommands(reactor);
    if (ring == nullptr) {
      return Error(ErrorCode::kInternal, name() + ": " + reactor.name() + " has no io_uring for commands");
    }
    return std::unique_ptr<block::Channel>(std::make_unique<NvmeChannel>(target_, *ring, hub_.registrar()));
  }

  // What others wrote to the block device lies in its page cache, perhaps, and would be written to the drive later.
  Task<Status> Acquire(AccessMode mode) override {
    CLEAT_CO_TRY(co_await ownership_.Acquire(mode));
    Status cleaned;
    if (mode == AccessMode::kReadWrite) cleaned = co_await CleanCache();
    if (!cleaned) {
      (void)co_await ownership_.Release();
    } else if (mode == AccessMode::kReadWrite) {
      target_.extents = block_.extents;
    }
    co_return cleaned;
  }
  Task<Status> Release() override { return ownership_.Release(); }
  void SetAcquireTimeout(std::optional<uint64_t> wait_ns) override { ownership_.SetTimeout(wait_ns); }
  void SetUser(const std::string& user) override { ownership_.SetUser(user); }

  // Until the cache was cleaned the target lacks what the nodes have already, so that whoever tries again cleans it.
  Task<Status> Extend(const pool::ExtentRuns& extents) override {
    CLEAT_CO_TRY(co_await ownership_.Extend(extents));
    if (target_.extents.size_bytes() == block_.extents.size_bytes()) co_return Ok{};
    if (node_.for_writing) CLEAT_CO_TRY(co_await CleanCache());
    target_.extents = block_.extents;
    co_return Ok{};
  }
  Task<Status> Resize(uint64_t size_bytes) override {
    const std::function<Status()> measure = [this, size_bytes] {
      return CheckRoomFor(size_bytes, block_, name(), path_);
    };
    CLEAT_CO_TRY(co_await blocking_.Run(measure));
    if (target_.extents.size_bytes() != block_.extents.size_bytes()) {
      co_return Error(
          ErrorCode::kUnavailable,
          name() + ": " + path_ + ": the page cache of its new extents is not written back yet: try again");
    }
    SetSize(size_bytes);
    co_return Ok{};
  }

  Task<Status> Close() override {
    const std::function<Status()> close = [this]() -> Status {
      hub_.DropFiles(target_.place);
      node_.commands.fd.Reset();
      block_.fd.Reset();
      return Ok{};
    };
    co_return co_await blocking_.Run(close);
  }

 private:
  Task<Status> CleanCache() {
    const std::function<Status()> clean = [this] { return WriteBackCache(block_, name(), path_); };
    co_return co_await blocking_.Run(clean);
  }

  const std::string path_;
  UringFile block_;  // locked, measured; no I/O goes through it
  NamespaceNode node_;
  CommandTarget target_;
  UringHub& hub_;
  BlockingPool& blocking_;
  FileOwnership ownership_;
};

// Never an error for the caller: what takes no commands is used as a block device.
void LookForNamespace(const UringOptions& options, const UringHub& hub, Opened& opened) {
  struct stat status {};
  if (!opened.file.block_device || fstat(opened.file.fd.get(), &status) != 0) return;
  const auto look = [&]() -> Status {
    CLEAT_ASSIGN(const auto paths, FindNamespace(status.st_rdev));
    if (!paths) return Ok{};
    CLEAT_TRY(hub.commands_status());
    CLEAT_ASSIGN(opened.node, OpenNamespace(*paths, options.access, options.shape));
    opened.node->commands.extents = opened.file.extents;  // locked there too
    return Ok{};
  };
  const Status looked = look();
  if (!looked) opened.why_not = looked.error().message;
}

block::Geometry GeometryOf(block::Geometry geometry, const NamespaceNode& node) {
  const nvme::Limits& limits = node.limits;
  geometry.discard = limits.discard_bytes_max() > 0;
  const uint64_t granularity = uint64_t{node.space.discard_granularity_blocks} * limits.block_bytes();
  geometry.discard_granularity_bytes = static_cast<uint32_t>(std::clamp<uint64_t>(
      granularity - granularity % geometry.logical_block_bytes, geometry.logical_block_bytes, 1U << 20));
  geometry.discard_max_bytes = kUringZeroBytesMax;  // as through the block device: a guest has seen it
  geometry.write_zeroes = true;
  geometry.write_zeroes_max_bytes = kUringZeroBytesMax;
  geometry.write_cache = node.controller.write_cache;
  return geometry;
}

}  // namespace

Task<Result<std::unique_ptr<block::Device>>> OpenFileDisk(UringOptions options, UringHub& hub,
                                                          BlockingPool& blocking) {
  const Status rings = hub.status();
  if (!rings) co_return Error(rings.error().code, options.shape.name + ": " + rings.error().message);
  CLEAT_CO_TRY(block::CheckGeometry(options.shape.ToGeometry(), options.shape.name));
  const std::function<Result<Opened>()> open = [&options, &hub]() -> Result<Opened> {
    Opened opened;
    CLEAT_ASSIGN(opened.file, OpenUringFile(options, hub.maps()));
    LookForNamespace(options, hub, opened);
    return opened;
  };
  CLEAT_CO_ASSIGN(Opened opened, co_await blocking.Run(open));
  if (opened.node) {
    const NamespaceNode& node = *opened.node;
    const std::function<Result<uint32_t>()> keep = [&] {
      return hub.KeepFiles(node.commands.fd.get(), opened.file.fd.get());
    };
    Result<uint32_t> place = co_await blocking.Run(keep);
    if (place) {
      CommandTarget target{
          .place = place.value(),
          .nsid = node.nsid,
          .timeout_ms = node.timeout_ms,
          .multipath = node.multipath,
          .write_cache = node.controller.write_cache,
          .deallocates_to_zeroes = node.space.write_zeroes_deallocates && node.space.deallocated_reads_zero,
          .limits = node.limits,
          .extents = opened.file.extents};
      const block::Geometry geometry = GeometryOf(options.shape.ToGeometry(), node);
      co_return std::make_unique<NvmeDevice>(options, geometry, std::move(opened), std::move(target), hub,
                                             blocking);
    }
    opened.why_not = place.error().message;
  }
  if (!opened.why_not.empty()) spdlog::info("{}: no NVMe commands: {}", options.shape.name, opened.why_not);
  co_return MakeUring(options, std::move(opened.file), std::move(opened.why_not), hub, blocking);
}

}  // namespace cleat::modules
