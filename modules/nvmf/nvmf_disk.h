// SPDX-License-Identifier: Apache-2.0
// The core of a disk in a namespace of an NVMe-oF subsystem, on the control reactor: its path (nvmf_path.h), its ledger of writes in doubt
// (nvme/host/doubt_ledger.h), and what its channels on the I/O reactors (nvmf_channel.h) are told of both.
//
// The end of a life, in this order: the channels are told (EndLife), each reports, the ledger takes the reports and publishes what is in
// doubt; when all have reported, the path may try again.
//
// Queue identifiers are given to channels life by life. One that a channel has given back is used again last: its target may not have seen
// the end of that queue yet. More channels than the controller grants queues are refused by OpenChannel; a later controller that grants
// fewer is not used.
//
// Ownership: the device owns it; mail that comes later finds nobody. Made, used and destroyed on the control reactor but for OpenChannel.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "block/device.h"
#include "modules/nvmf/kept_doubt_log.h"
#include "modules/nvmf/nvmf.h"
#include "modules/nvmf/nvmf_channel.h"
#include "modules/nvmf/nvmf_path.h"
#include "nvme/host/doubt/doubt_ledger.h"
#include "nvme/host/doubt/doubt_log.h"
#include "reactor/sync.h"
#include "reactor/task.h"

namespace cleat::modules {

class NvmfDisk final : public NvmfChannelOwner,
                       public std::enable_shared_from_this<NvmfDisk>,
                       private NvmfPathOwner {
 public:
  // I/O queues that a controller is asked for, each for one channel.
  static constexpr uint32_t kQueuesMax = 64;
  // Channels that one open disk ever has: each has 2^48 numbers for its writes (OriginId), which are not used again.
  static constexpr uint64_t kChannelsEverMax = 0xfffe;
  // Channels at a time, with those whose end the core has not heard of yet: each has a row in the log of doubt.
  static constexpr uint32_t kNumbersMax = nvme::host::kDoubtLogShape.reactors;
  static_assert(kQueuesMax < kNumbersMax);
  static constexpr uint64_t kDiscardBytesMax = uint64_t{256} << 20;
  // How long Resize waits for a size that the controller has not told of yet.
  static constexpr uint64_t kResizeWaitNs = kNsPerSecond;
  // How often an operator's word is looked for in the log of doubt, while anything is in doubt.
  static constexpr uint64_t kWordNs = 200 * kNsPerMs;
  // Lines about the path in the log: one state is not logged before the line of another one is so old.
  static constexpr uint64_t kLogSpacingNs = kNsPerSecond;

  // The options have been checked (CheckNvmfOptions).
  NvmfDisk(NvmfOptions options, Reactor& control);

  // Finds the namespace, or says why not; Close follows in either case.
  Task<Status> Open();
  // The log of doubt, if there is one, is this engine's in between; when Acquire returns all channels hold what was in it.
  Task<Status> Acquire();
  void Release();
  // No channel is left. With `shutdown` the controller is told.
  Task<void> Close(bool shutdown);

  // When Open was successful.
  const block::Geometry& geometry() const { return geometry_; }
  // Any thread.
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor);
  // Waits a little for a namespace that is to become so large.
  Task<Status> WaitForSize(uint64_t size_bytes);
  // A person says that nothing which was sent on a path that is broken by now will be executed any more.
  Status ConfirmDead();

 private:
  struct Link {
    std::shared_ptr<NvmfChannelPort> port;
    uint32_t number = 0;    // in the ledger
    uint16_t queue_id = 0;  // of the present life; 0: none is free
  };
  struct LogTimer : Timer {
    explicit LogTimer(NvmfDisk& d)
        : Timer([](Timer& timer) { static_cast<LogTimer&>(timer).disk.LogState(); }), disk(d) {}
    NvmfDisk& disk;
  };

  struct WordTimer : Timer {
    explicit WordTimer(NvmfDisk& d)
        : Timer([](Timer& timer) { static_cast<WordTimer&>(timer).disk.LookForWord(); }), disk(d) {}
    NvmfDisk& disk;
  };

  // ---- NvmfPathOwner
  void PathLive(uint64_t life, const nvme::host::AssociationInfo& info) override;
  void PathChanged(uint64_t life, uint32_t changed, const nvme::host::AssociationInfo& info) override;
  void PathLost(uint64_t life, const Error& reason) override;
  void TryFailed(const Error& reason) override;
  void PathOver() override;

  // ---- NvmfChannelOwner
  void Joined(std::shared_ptr<NvmfChannelPort> port) override;
  void Left(const NvmfChannelPort* port) override;
  void QueueBroken(nvme::host::LifeId life, const Error& reason) override;
  void PathRefused(nvme::host::LifeId life) override;
  void Take(const nvme::host::LifeReport& report) override;
  void Take(const nvme::host::DoubtAck& ack) override;
  void Take(const nvme::host::BarrierEnded& ended) override;
  void GivenUp(nvme::host::OriginId origin) override;

  // ---- The namespace
  Status CheckFirst(const nvme::host::AssociationInfo& info) const;
  Status CheckAgain(const nvme::host::AssociationInfo& info) const;
  block::Geometry GeometryOf(const nvme::host::AssociationInfo& info) const;
  void SeeSize();
  void SeeUsable();
  Error WhyUnusable() const;

  // ---- Channels
  template <typename Call>
  static void Tell(const Link& link, Call call);
  template <typename Call>
  void TellAll(const Call& call) const;
  void BeginLife(Link& link);
  uint32_t QueueEntries() const;
  bool MayPublish() const { return doubt_log_ == nullptr || doubt_log_->is_taken(); }
  void Publish();
  void SendTable(const Link& link) const;
  void GoOnWhenReported();

  // ---- What people say and hear
  void AwaitWord();
  void LookForWord();
  void SetUp();
  void SetDown(const Error& why);
  void LogState();
  void LogConfirmed() const;
  void LogFound(const KeptDoubtLog::Found& found) const;

  NvmfOptions options_;
  Reactor& control_;
  const std::string where_;  // "subsystems/a at 10.0.0.1:4420"
  block::Geometry geometry_;
  std::shared_ptr<NvmfChannelShared> shared_;  // for channels, from Open's success on
  std::atomic<uint32_t> queues_granted_{0};    // by the last controller that was fit for use
  std::atomic<uint64_t> channels_ever_{0};
  std::atomic<uint32_t> numbers_{
      0};  // of the ledger's that channels have, or will have: until Left was taken
  NvmfPath path_;
  nvme::host::DoubtLedger ledger_;
  std::shared_ptr<KeptDoubtLog> doubt_log_;  // nullptr: there is none
  uint64_t published_version_ = 0;
  std::vector<Link> links_;
  std::deque<uint16_t> free_queues_;  // of the present life; the one that was free longest first

  uint64_t life_ = 0;                                // live, and the channels know it; 0: none is
  uint64_t ended_life_ = 0;                          // that not all channels have reported yet
  std::optional<nvme::host::AssociationInfo> info_;  // of life_
  bool usable_ = false;                              // life_, for I/O
  uint64_t space_bytes_ = 0;                         // the namespace's, as last seen

  bool is_open_ = false;  // Open was successful, and Close has not begun
  bool closing_ = false;
  bool is_over_ = false;  // the path's end
  bool up_ = false;
  bool refusal_told_ = false;     // since it was up: that no try will do any better by itself
  std::optional<Error> refused_;  // why no further try of Open makes sense
  std::optional<Error> why_down_;
  Event changed_;  // any of these

  bool logged_up_ = true;
  uint64_t log_after_ns_ = 0;
  LogTimer log_later_{*this};
  WordTimer word_later_{*this};  // runs while anything is in doubt
};

// kInvalidArgument.
Status CheckNvmfOptions(const NvmfOptions& options);

}  // namespace cleat::modules
