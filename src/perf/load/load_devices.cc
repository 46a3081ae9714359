// SPDX-License-Identifier: Apache-2.0
#include "perf/load/load_devices.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "perf/vhost_user/deadline.h"
#include "perf/wire/virtio_blk.h"

namespace cleat::perf {
namespace {

constexpr uint64_t kMiB = 1ULL << 20;
constexpr uint64_t kMemoryHalfMax = 3ULL << 30;  // the lower half lies below 4 GiB
// Rings, areas, and what the synchronous helpers use; of a queue.
constexpr uint64_t kQueueOverheadBytes = 4 * kMiB;
constexpr uint64_t kDeviceOverheadBytes = 8 * kMiB;

Error Named(const std::string& name, const Error& error) {
  return {error.code, name + ": " + error.message};
}

}  // namespace

Status OpenLoadDevice::Stop() {
  if (nvme_ != nullptr) return nvme_->Stop();
  Status status = blk_ != nullptr ? blk_->Stop() : scsi_ != nullptr ? scsi_->Stop() : Status(Ok{});
  if (!status) return Named(device_.name, status.error());
  return status;
}

class LoadDeviceOpener {
 public:
  LoadDeviceOpener(const LoadDeviceOptions& options, const LoadOptions& load)
      : options_(options), load_(load), deadline_(options.timeout_ns) {}

  Result<std::vector<OpenLoadDevice>> Open(const std::function<void(size_t)>& opened) {
    if (!options_.nvme_tcp.address.empty()) {
      devices_.resize(1);
      CLEAT_TRY(StartNvme(devices_[0]));
      if (opened) opened(devices_.size());
      return std::move(devices_);
    }
    if (options_.sockets.empty() || options_.sockets.size() > kLoadDevicesMax) {
      return Error(ErrorCode::kInvalidArgument, fmt::format("{} sockets: at least one is needed, {} at most",
                                                            options_.sockets.size(), kLoadDevicesMax));
    }
    devices_.resize(options_.sockets.size());
    const FrontendOptions frontend_options{.accept_timeout_ns = options_.timeout_ns};
    // All sockets are there before anybody is waited for.
    for (size_t i = 0; i < devices_.size(); ++i) {
      const auto& socket = options_.sockets[i];
      devices_[i].device_.name = socket.path;
      if (!socket.listen) continue;
      auto frontend = Frontend::Listen(socket.path, frontend_options);
      if (!frontend) return Named(socket.path, frontend.error());
      devices_[i].frontend_ = std::move(*frontend);
    }
    size_t ready = 0;
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i].frontend_ != nullptr) continue;
      auto frontend = Frontend::Connect(options_.sockets[i].path, frontend_options);
      if (!frontend) return Named(options_.sockets[i].path, frontend.error());
      devices_[i].frontend_ = std::move(*frontend);
      if (Status status = Start(devices_[i]); !status) return Named(options_.sockets[i].path, status.error());
      if (opened) opened(++ready);
    }
    while (ready < devices_.size()) {
      CLEAT_TRY(AcceptSome(&ready, opened));
    }
    return std::move(devices_);
  }

 private:
  Status AcceptSome(size_t* ready, const std::function<void(size_t)>& opened) {
    std::vector<pollfd> fds;
    for (const OpenLoadDevice& device : devices_) {
      const bool waits = device.blk_ == nullptr && device.scsi_ == nullptr;
      fds.push_back({.fd = waits ? device.frontend_->listener_fd() : -1, .events = POLLIN, .revents = 0});
    }
    if (poll(fds.data(), fds.size(), deadline_.LeftMs()) <= 0) {
      if (!deadline_.passed()) return Ok{};
      const auto* missing =
          std::find_if(fds.data(), fds.data() + fds.size(), [](const pollfd& fd) { return fd.fd >= 0; });
      return Error(ErrorCode::kDeadlineExceeded,
                   fmt::format("{} of {} back ends came within {} s; {} is among those that wait", *ready,
                               fds.size(), options_.timeout_ns / kNsPerSecond,
                               options_.sockets[static_cast<size_t>(missing - fds.data())].path));
    }
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (fds[i].revents == 0) continue;
      Status status = devices_[i].frontend_->Accept();
      if (status) status = Start(devices_[i]);
      if (!status && status.error().code == ErrorCode::kUnavailable && options_.reconnect)
        continue;  // the next one
      if (!status) return Named(options_.sockets[i].path, status.error());
      ++*ready;
      if (opened) opened(*ready);
    }
    return Ok{};
  }

  template <typename Options>
  Options DriverOptions() const {
    const size_t disks = options_.type == DeviceType::kBlk ? 1 : DisksMax();
    const uint32_t needed = LoadQueue::DescriptorsNeeded(load_, disks, load_.indirect);
    Options driver;
    driver.num_queues = options_.queues;
    driver.queue_size =
        options_.queue_size != 0
            ? options_.queue_size
            : static_cast<uint16_t>(std::min<uint32_t>(
                  std::bit_ceil(std::max<uint32_t>(needed, kDefaultQueueSize)), DriverRing::kSizeMax));
    driver.packed = options_.packed;
    driver.layout = load_.indirect ? LayoutPolicy::kIndirect : LayoutPolicy::kClassic;
    driver.auto_reconnect = options_.reconnect;
    return driver;
  }

  size_t DisksMax() const { return options_.targets.empty() ? kScsiTargetsScanned : options_.targets.size(); }

  Status Start(OpenLoadDevice& open) {
    CLEAT_TRY(MakeMemory(open, options_.type == DeviceType::kBlk ? 1 : DisksMax()));
    CLEAT_TRY(open.frontend_->Open());
    return options_.type == DeviceType::kBlk ? StartBlk(open) : StartScsi(open);
  }

  Status MakeMemory(OpenLoadDevice& open, uint64_t disks) const {
    const uint64_t page_mask = GuestMemory::kPageBytes - 1;
    const uint64_t block_bytes = (uint64_t{load_.block_bytes} + page_mask) & ~page_mask;
    const uint64_t queue_bytes = disks * load_.depth * (block_bytes + 256) + kQueueOverheadBytes;
    const uint64_t half_bytes = options_.queues * queue_bytes + kDeviceOverheadBytes;
    if (half_bytes > kMemoryHalfMax) {
      return Error(
          ErrorCode::kInvalidArgument,
          fmt::format(
              "the buffers of {} queues with {} requests of {} bytes on {} disks are more memory than a "
              "pretended guest has",
              options_.queues, load_.depth, load_.block_bytes, disks));
    }
    CLEAT_ASSIGN(open.memory_, GuestMemory::CreateWithHole(2 * half_bytes));
    return Ok{};
  }

  Status StartNvme(OpenLoadDevice& open) {
    NvmeTcpOptions nvme = options_.nvme_tcp;
    nvme.queues = options_.queues;
    nvme.depth = static_cast<uint16_t>(load_.depth);
    nvme.timeout_ns = options_.timeout_ns;
    CLEAT_TRY(MakeMemory(open, 1));
    CLEAT_ASSIGN(open.nvme_, NvmeTcpDriver::Start(*open.memory_, nvme));
    if (Status status = CheckNvme(*open.nvme_); !status) return Named(nvme.address, status.error());
    open.device_ = LoadDevice::Of(*open.nvme_, nvme.address);
    return Ok{};
  }

  Status CheckNvme(const NvmeTcpDriver& driver) const {
    const NvmeTcpController::Facts& facts = driver.facts();
    const NvmeTcpController::Namespace& disk = driver.disk();
    const uint64_t request_max =
        std::min<uint64_t>(facts.transfer_bytes_max, uint64_t{wire::kNvmeBlocksMax} * disk.block_bytes);
    if (load_.block_bytes > request_max) {
      return Error(
          ErrorCode::kInvalidArgument,
          fmt::format("block size {}; the controller takes {} a command", load_.block_bytes, request_max));
    }
    if (disk.write_protected && (load_.writes() || load_.has(LoadOp::kDiscard))) {
      return Error(ErrorCode::kFailedPrecondition, "the namespace is write protected, the mix writes");
    }
    if (load_.has(LoadOp::kDiscard) && !facts.deallocates) {
      return Error(ErrorCode::kFailedPrecondition,
                   "the controller does not offer Dataset Management, which discards are");
    }
    if (load_.has(LoadOp::kWriteZeroes) && !facts.writes_zeroes) {
      return Error(ErrorCode::kFailedPrecondition, "the controller does not offer Write Zeroes");
    }
    return Ok{};
  }

  Status StartBlk(OpenLoadDevice& open) {
    CLEAT_ASSIGN(open.blk_, BlkDriver::Start(*open.frontend_, *open.memory_, DriverOptions<BlkOptions>()));
    CLEAT_TRY(CheckBlk(*open.blk_));
    open.device_ = LoadDevice::Of(*open.blk_, open.device_.name);
    return Ok{};
  }

  Status CheckBlk(const BlkDriver& driver) const {
    const wire::BlkConfig& config = driver.config();
    if (load_.segments > 1 && driver.has(wire::kBlkSegMax) && load_.segments > config.seg_max) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("{} segments a request; the device takes {}", load_.segments, config.seg_max));
    }
    if (driver.has(wire::kBlkSizeMax) && config.size_max > 0 &&
        load_.block_bytes / load_.segments > config.size_max) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("segments of {} bytes; the device takes {}: use more segments",
                               load_.block_bytes / load_.segments, config.size_max));
    }
    if (driver.has(wire::kBlkReadOnly) && (load_.writes() || load_.has(LoadOp::kDiscard))) {
      return Error(ErrorCode::kFailedPrecondition, "the disk is read-only, the mix writes");
    }
    if (load_.has(LoadOp::kDiscard) && !driver.has(wire::kBlkDiscard)) {
      return Error(ErrorCode::kFailedPrecondition, "the device does not offer discard");
    }
    if (load_.has(LoadOp::kWriteZeroes) && !driver.has(wire::kBlkWriteZeroes)) {
      return Error(ErrorCode::kFailedPrecondition, "the device does not offer write zeroes");
    }
    if (load_.has(LoadOp::kFlush) && !driver.has(wire::kBlkFlush)) {
      return Error(ErrorCode::kFailedPrecondition, "the device does not offer flush");
    }
    return Ok{};
  }

  Status StartScsi(OpenLoadDevice& open) {
    CLEAT_ASSIGN(open.scsi_, ScsiDriver::Start(*open.frontend_, *open.memory_, DriverOptions<ScsiOptions>()));
    std::vector<uint8_t> targets = options_.targets;
    if (targets.empty()) {
      CLEAT_ASSIGN(targets, open.scsi_->ScanTargets(kScsiTargetsScanned));
    }
    if (targets.empty()) return Error(ErrorCode::kNotFound, "no disk is attached to this controller");
    CLEAT_ASSIGN(open.device_, LoadDevice::Of(*open.scsi_, open.device_.name, targets));
    return Ok{};
  }

  const LoadDeviceOptions& options_;
  const LoadOptions& load_;
  const Deadline deadline_;
  std::vector<OpenLoadDevice> devices_;
};

Result<std::vector<OpenLoadDevice>> OpenLoadDevices(const LoadDeviceOptions& options, const LoadOptions& load,
                                                    const std::function<void(size_t)>& opened) {
  return LoadDeviceOpener(options, load).Open(opened);
}

}  // namespace cleat::perf
