// SPDX-License-Identifier: Apache-2.0
// The core of a disk in a namespace of an NVMe-oF subsystem, on the control reactor: its paths (disk_path.h), its writes in doubt
// (disk_doubt.h), its part in reservations (disk_reservation.h), and what its channels on the I/O reactors (nvmf_channel.h) are told of
// them.
//
// The end of a life, in this order: the channels are told (EndLife), each reports, the ledger takes the reports and publishes what is in
// doubt; when all have reported, the path may try again. Other paths go on meanwhile.
//
// Each channel has an I/O queue on each path that is live. More channels than each controller grants queues are refused by OpenChannel; a
// later controller that grants fewer is not used.
//
// Ownership: the device owns it; mail that comes later finds nobody. Made, used and destroyed on the control reactor but for OpenChannel.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "block/device.h"
#include "block/in_doubt.h"
#include "modules/nvmf/channel/nvmf_channel.h"
#include "modules/nvmf/disk/disk_doubt.h"
#include "modules/nvmf/doubt/path_losses.h"
#include "modules/nvmf/doubt/quiesced_lives.h"
#include "modules/nvmf/nvmf.h"
#include "modules/nvmf/path/disk_path.h"
#include "modules/nvmf/reservation/disk_reservation.h"
#include "nvme/host/doubt/doubt_log.h"
#include "reactor/sync.h"
#include "reactor/task.h"

namespace cleat::modules {

class NvmfDisk final : public NvmfChannelOwner,
                       public std::enable_shared_from_this<NvmfDisk>,
                       private DiskDoubtOwner,
                       private DiskPathOwner,
                       private DiskReservationOwner {
 public:
  static constexpr size_t kPathsMax = nvme::fabrics::kSubsystemAddressesMax;
  static_assert(kPathsMax <= nvme::host::RequestQueue::kPathsMax);
  // Channels that one open disk ever has: each has 2^48 numbers for its writes (OriginId), which are not used again.
  static constexpr uint64_t kChannelsEverMax = 0xfffe;
  // Channels at a time, with those whose end the core has not heard of yet: each has a row in the log of doubt.
  static constexpr uint32_t kNumbersMax = nvme::host::kDoubtLogShape.reactors;
  static_assert(DiskPath::kQueuesMax < kNumbersMax);
  // How long Resize waits for a size that the controller has not told of yet.
  static constexpr uint64_t kResizeWaitNs = kNsPerSecond;
  // How long Release waits at most for the target to let this host out of the reservation.
  static constexpr uint64_t kLeaveNs = 2 * kNsPerSecond;
  // How long Acquire waits, unless it is told otherwise, for another engine that has the disk.
  static constexpr uint64_t kOwnNs = 10 * kNsPerSecond;
  // How long Acquire waits at most for a path to join the reservation, and for the others once one has.
  static constexpr uint64_t kJoinNs = 2 * kNsPerSecond;
  static constexpr uint64_t kSlowJoinNs = 500 * kNsPerMs;

  // The options have been checked (CheckNvmfOptions).
  NvmfDisk(NvmfOptions options, Reactor& control);

  // Finds the namespace by any of the paths, or says why not; Close follows in either case.
  Task<Status> Open();
  // The log of doubt, if there is one, is this engine's in between; when Acquire returns all channels hold what was in it. kUnavailable:
  // another engine has it.
  Task<Status> Acquire();
  void SetAcquireTimeout(std::optional<uint64_t> wait_ns) { own_wait_ns_ = wait_ns.value_or(kOwnNs); }
  // kAborted: it can't be given to another host yet (Parting::kToOtherHost), and stays this engine's.
  Task<Status> Release();
  void SetParting(block::Device::Parting parting) { parting_ = parting; }
  // As in block/device.h: known to this host's engines by the log.
  void SetLeaving(uint64_t attachment) { doubt_.SetLeaving(attachment); }
  bool IsLeaving(uint64_t attachment) const { return doubt_.IsLeaving(attachment); }
  // No channel is left. With `shutdown` the controller is told.
  Task<void> Close(bool shutdown);

  // When Open was successful.
  const block::Geometry& geometry() const { return geometry_; }
  // Any thread.
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor);
  // Waits a little for a namespace that is to become so large.
  Task<Status> WaitForSize(uint64_t size_bytes);
  // A person says that nothing which was sent on a path that is broken by now will be executed any more.
  Status ConfirmDead() { return doubt_.ConfirmDead(); }
  // What becomes of requests that wait for doubt.
  void SetInDoubt(const block::InDoubt& rule);
  block::PathsReport paths() const;

 private:
  struct Link {
    std::shared_ptr<NvmfChannelPort> port;
    uint32_t number = 0;                       // in the ledger
    std::array<uint16_t, kPathsMax> queues{};  // by path, of its present life; 0: none
  };

  struct QuiesceTimer : Timer {
    explicit QuiesceTimer(NvmfDisk& d)
        : Timer([](Timer& timer) { static_cast<QuiesceTimer&>(timer).disk.ProveByTime(); }), disk(d) {}
    NvmfDisk& disk;
  };

  // ---- DiskDoubtOwner
  std::vector<nvme::host::LifeId> LivingLives() const override;
  void DoubtPublished() override;

  // ---- DiskPathOwner
  bool AdmitsAtOnce() const override { return !reservation_ || !reservation_->active(); }
  Status MayBegin(const DiskPath& path, const nvme::host::AssociationInfo& info) const override;
  void LifeBegan(DiskPath& path) override;
  void LifeAdmitted(DiskPath& path) override;
  void LifeChanged(DiskPath& path, uint32_t changed, bool is_new_state) override;
  void LifeEnded(DiskPath& path, nvme::host::LifeId life, const Error& reason) override;
  void TryFailed(DiskPath& path, const Error& reason, bool is_refusal) override;
  void PathOver() override;
  bool HasUsablePath() const override;

  // ---- DiskReservationOwner
  void LifeJoined(nvme::host::LifeId life) override;
  void LifeShutOut(nvme::host::LifeId life, const Error& why) override;
  void ProvedDead(nvme::host::LifeId life) override;
  bool MayBeShutOut(nvme::host::LifeId life) const override { return doubt_.ledger().IsReported(life); }
  bool IsReservationNeeded() const override { return doubt_.IsReservationNeeded(); }
  void ReservationChanged() override { changed_.Pulse(); }

  // ---- NvmfChannelOwner
  void Joined(std::shared_ptr<NvmfChannelPort> port) override;
  void Left(const NvmfChannelPort* port) override;
  void QueueBroken(nvme::host::LifeId life, const Error& reason) override;
  void PathRefused(nvme::host::LifeId life) override;
  void Conflicted(nvme::host::LifeId life) override;
  void Take(const nvme::host::LifeReport& report) override;
  void Take(const nvme::host::DoubtAck& ack) override;
  void Take(const nvme::host::BarrierEnded& ended) override;
  void GivenUp(nvme::host::OriginId origin) override;

  // ---- Paths
  // A disk that is only read keeps nobody out.
  bool UsesReservation() const {
    return options_.reservation_family != 0 && options_.access == block::AccessMode::kReadWrite;
  }
  Task<Status> Own();
  Task<Status> JoinReservation();
  bool IsToLeave() const;
  void LogNotAsked() const;
  Task<Status> LeaveReservation();
  DiskPath* PathOf(nvme::host::LifeId life) const;
  bool IsRefused() const;
  Error WhyNotOpened() const;
  void TakeShape(const DiskPath& path);
  void CountQueues();
  void SeeSize();
  // After news of `path`.
  void SeeUsable(const DiskPath& path);

  // ---- Channels
  template <typename Call>
  static void Tell(const Link& link, Call call);
  template <typename Call>
  void TellAll(const Call& call) const;
  static void BeginLife(Link& link, DiskPath& path);
  void SeeWhatIsToBeProved();
  void ProveByTime();
  std::string WhyNotProved() const;
  void SendTable(const Link& link) const;
  void GoOnWhenReported();

  // ---- What people say and hear
  void TellPathsChanged();
  bool Accepts() const { return in_doubt_.policy == block::InDoubt::Policy::kAccept; }
  void LogAccepted();
  void CountPaths(block::PathsReport& report) const;
  void CountDoubt(block::PathsReport& report) const;
  void CountWaits(block::PathsReport& report) const;

  NvmfOptions options_;
  Reactor& control_;
  block::Geometry geometry_;
  std::shared_ptr<NvmfChannelShared> shared_;  // for channels, from Open's success on
  std::atomic<uint32_t> queues_granted_{0};    // by each of the controllers that were live last
  std::atomic<uint64_t> channels_ever_{0};
  std::atomic<uint32_t> numbers_{
      0};  // of the ledger's that channels have, or will have: until Left was taken
  std::vector<std::unique_ptr<DiskPath>> paths_;
  DiskDoubt doubt_;
  PathLosses losses_;
  std::optional<DiskReservation> reservation_;
  std::optional<QuiescedLives> quiesced_;  // where time proves
  QuiesceTimer quiesce_timer_{*this};
  std::vector<Link> links_;
  uint64_t space_bytes_ = 0;  // the namespace's, as last seen
  uint64_t told_bytes_ = 0;   // what the disk's users know of

  block::Device::Parting parting_ = block::Device::Parting::kToNextEngine;
  uint64_t own_wait_ns_ = kOwnNs;
  bool is_open_ = false;  // Open was successful, and Close has not begun
  bool closing_ = false;
  size_t paths_begun_ = 0;  // and not over
  bool up_ = false;         // any path is usable
  Event changed_;           // any of these

  block::InDoubt in_doubt_;
  uint64_t failed_by_those_that_left_ = 0;  // requests of channels that are gone: for block::PathsReport
};

}  // namespace cleat::modules
