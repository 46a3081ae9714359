// SPDX-License-Identifier: Apache-2.0
// A disk on an NVMe namespace on one I/O reactor, by the drive's own commands: turns each request into as many as the drive's limits and the
// request's memory make of it, some under way at once. A request that fails for a reason that may pass is tried again as a whole, after a
// pause: a few times when it is the drive's reason, for a minute while the kernel has no way to the drive (it resets the controller).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "block/device.h"
#include "modules/uring/uring_ring.h"
#include "nvme/command.h"
#include "nvme/limits.h"
#include "pool/extent_map.h"

namespace cleat::modules {

// What the commands of one disk on a namespace need.
struct CommandTarget {
  uint32_t place = 0;  // of its file in the rings (UringHub::KeepFiles)
  uint32_t nsid = 0;
  uint32_t timeout_ms = 0;
  bool multipath = false;  // NamespacePaths::multipath
  bool write_cache = false;
  bool deallocates_to_zeroes = false;  // Write Zeroes may be asked to deallocate
  nvme::Limits limits;
  pool::ExtentMap
      extents;  // where the disk lies on the namespace; alone of all this it changes, when the disk grows
};

class NvmeChannel final : public block::Channel, private UringClient {
 public:
  // Commands under way at once, so that one large request, or one drive that hangs, leaves room for others in the reactor's ring.
  static constexpr uint64_t kRequestCommandsMax = 8;
  static constexpr uint64_t kCommandsMax = 128;
  // How often a request is tried again when the drive says that it may help: as often as the kernel's block devices try.
  static constexpr uint64_t kTriesMax = 5;
  static constexpr uint64_t kPauseNs = 50 * kNsPerMs;
  // How long a request is tried again while there is no way to the drive. A reset takes the kernel seconds; a drive that it gives up is gone, and says so at once.
  static constexpr uint64_t kNoWayMaxNs = 60 * kNsPerSecond;

  // All outlive the channel.
  NvmeChannel(const CommandTarget& target, UringRing& ring, MemoryRegistrar& registrar)
      : target_(target), extents_(target.extents), ring_(ring), registrar_(registrar) {}
  ~NvmeChannel() override { CLEAT_CHECK(in_flight_ == 0); }

  void Submit(block::Request& request) override;
  // What is under way lies where it lay: a disk only gets more.
  void Resized() override { extents_ = target_.extents; }

 private:
  // What of a request is the channel's business stands in its frame's scratch.
  enum Scratch : uint8_t {
    kBegun,     // bytes that commands were made for
    kUnderWay,  // commands
    kFailure,   // the first one's result, with kFailed above it; 0: none has failed
    kTries,  // by the drive, in bits 15:0; above them when the request first failed, in ms of the reactor's clock
    kBounce,  // transfers: the bounce buffer's address; discards, with the next one: the range, as the drive reads it
    kStepBytes,                // transfers through the bounce buffer: of the command that is under way
    kRegistered = kStepBytes,  // other transfers: a Registered
  };
  // Whether commands of the request name registered memory.
  enum Registered : uint8_t { kMayName, kHasNamed, kMayNot };
  static constexpr uint64_t kFailed = uint64_t{1} << 32;
  static constexpr uint32_t kSinceShift = 16;
  // When a failed command may do better.
  enum class Hope : uint8_t { kNone, kDriveMayDoIt, kNoWayNow };

  // ---- UringClient
  bool Prepare(block::Request& request, io_uring_sqe& sqe, std::span<iovec> iovecs) override;
  void Finished(block::Request& request, int32_t result) override;
  void BounceReady(block::Request& request, uint8_t* buffer) override;

  // ---- A request's way
  void Begin(block::Request& request);
  void GoOn(block::Request& request);
  void AfterCommand(block::Request& request);
  void Ended(block::Request& request);
  void Failed(block::Request& request, int32_t result);
  void End(block::Request& request, block::IoStatus status);
  // Whether there is a command, over or under way, for all of it.
  static bool IsSpent(const block::Request& request) {
    return request.top().scratch[kBegun] == request.length_bytes;
  }

  // ---- One command of it
  void PrepareTransfer(block::Request& request, io_uring_sqe& sqe, std::span<iovec> iovecs);
  void PrepareBounced(block::Request& request, io_uring_sqe& sqe);
  void PrepareZeroes(block::Request& request, io_uring_sqe& sqe);
  void PrepareDiscard(block::Request& request, io_uring_sqe& sqe);
  void Fill(io_uring_sqe& sqe, const nvme::Command& command, std::span<const iovec> pieces,
            std::optional<uint16_t> registered = std::nullopt);
  std::optional<uint16_t> FindRegistered(block::Request& request, std::span<const iovec> pieces);
  pool::DriveRange Next(const block::Request& request) const;
  nvme::Command On(nvme::Opcode opcode, const block::Request& request, pool::DriveRange range,
                   uint32_t flags) const;

  // ---- What failed
  Hope HopeAfter(int32_t result) const;
  bool MayTryAgain(block::Request& request, int32_t result);
  bool GivesUpRegistered(block::Request& request);
  void Pause(block::Request& request);
  void TryAgain();

  struct PauseTimer : Timer {
    explicit PauseTimer(NvmeChannel& c)
        : Timer([](Timer& timer) { static_cast<PauseTimer&>(timer).channel.TryAgain(); }), channel(c) {}
    NvmeChannel& channel;
  };

  const CommandTarget& target_;
  pool::ExtentMap
      extents_;  // the target's, which changes on another thread, as it was when the channel was told
  UringRing& ring_;
  MemoryRegistrar& registrar_;
  // False once the kernel has refused a command, perhaps for it: there were kernels that counted all pages of a chunk, also those that a
  // command does not touch, against the drive's limit (`block: fix queue limits checks in blk_rq_map_user_bvec for real`).
  bool uses_registered_ = true;
  uint64_t in_flight_ = 0;      // requests
  uint64_t under_way_ = 0;      // commands
  block::RequestList waiting_;  // until fewer commands are under way
  block::RequestList paused_;
  PauseTimer pause_over_{*this};
};

}  // namespace cleat::modules
