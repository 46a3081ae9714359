// SPDX-License-Identifier: Apache-2.0
// A discovery service's log is read once, or watched: a host connects to the discovery controller behind an address and reads which
// subsystems are where. Then it leaves; or it stays, keeps the association alive, and reads the log anew each time that the controller tells
// of a change. No I/O queue, no namespace; of a log that is read once no event and no keep alive.
//
// Source: NVM Express Base Specification 2.0 ("base"), 3.1.2.3 (discovery controllers), 5.16.1.23 (the log), 3.6 (shutdown), 3.9 (keep
// alive), 5.2 (events).
//
// Ownership and thread: whoever makes it owns it and the admin queue pair, on the reactor's thread that has the queue, and keeps both until
// Discovered; neither is destroyed from within a callback. Pure: the time comes in by Tick.
//
// Limits: one command at a time, pieces of kDiscoveryPieceBytes, kDiscoveryRecordsMax records, kLogTriesMax tries to read a log that
// changes meanwhile, and DiscoveryConfig::timeout_ns for all of it; then kShutdownTimeoutNs to take leave, which is no condition of
// success. Of a log that is watched: that time for each reading anew, one of which begins in kRefreshSpacingNs at most; one Keep Alive and one
// event request beside the reading, the latter renewed once in a Tick, and kEventFailuresMax of them in a row that fail. Referrals are told
// of and not followed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "block/memory.h"
#include "nvme/fabrics/commands.h"
#include "nvme/fabrics/log_pages.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/host/queue_login.h"

namespace cleat::nvme::host {

// What every controller hands out with one command, whatever its limit (MDTS): so that none has to be asked for it.
inline constexpr uint32_t kDiscoveryPieceBytes = 4096;

struct DiscoveryConfig {
  std::string who;  // begins errors: "the discovery service at 10.0.0.1:8009"
  fabrics::HostIdentity host;
  HostChap chap;
  uint32_t admin_entries = 32;  // as was asked of the transport
  uint64_t timeout_ns = 10'000'000'000;
  uint64_t first_timeout_ns = 0;  // of the first reading, where some of that time has gone by; 0: timeout_ns
  uint32_t kato_ms = 0;  // not 0: the log is watched; within that the controller has to hear of the host
};

class DiscoveryOwner {
 public:
  // Of a log that is watched: as it is, and then each time that it has come to be another one but for its generation. From within callbacks
  // of the queue pair; GiveUp may be called from there.
  virtual void Seen(const fabrics::DiscoveryLog& log) = 0;
  // Once, last: the queue pair has ended, and nothing of the reading is in use. Of a log that is watched always an error: why it has ended.
  //   kUnimplemented   the service does not tell of changes
  virtual void Discovered(Result<fabrics::DiscoveryLog> log) = 0;

 protected:
  ~DiscoveryOwner() = default;
};

class Discovery final : public fabrics::QueuePairOwner {
 public:
  // How often Tick has to come; the deadline is as exact as that.
  static constexpr uint64_t kTickNs = 100'000'000;
  static constexpr uint64_t kShutdownTimeoutNs = 1'000'000'000;
  static constexpr uint64_t kRefreshSpacingNs = 500'000'000;
  static constexpr uint32_t kEventFailuresMax = 5;
  static constexpr uint64_t kEventRetryNs = 1'000'000'000;

  Discovery(DiscoveryConfig config, DiscoveryOwner& owner);
  Discovery(const Discovery&) = delete;
  Discovery& operator=(const Discovery&) = delete;

  // Before the queue pair can call back. The host's names have passed CheckHostIdentity.
  void Start(fabrics::QueuePair& admin, uint64_t now_ns);
  void Tick(uint64_t now_ns);
  // The log is not waited for any more: the queue pair is told to end, without a farewell. Not before Start.
  void GiveUp();
  void Computed();  // what HostChap::compute was asked for

  // ---- QueuePairOwner
  void Connected() override;
  void Completed(uint64_t cookie, const fabrics::CompletionEntry& entry, uint64_t data_bytes) override;
  void Unanswered(uint64_t cookie, fabrics::Reached reached) override;
  void Ended(const Error& reason) override;

 private:
  enum class Step : uint8_t {
    kConnecting,
    kLogin,
    kCapabilities,
    kEnable,
    kReady,
    kReadyAgain,  // waits until again_ns_
    kIdentify,
    kEvents,
    kLog,
    kWatching,  // no reading is under way
    kShutdown,
    kEnding,
    kOver,
  };
  using Entry = fabrics::CompletionEntry;

  static const char* NameOfStep(Step step);
  void Send(Step step);
  cleat::Status Took(const Entry& entry, uint64_t data_bytes);
  cleat::Status TookReady(const Entry& entry);
  cleat::Status TookController(uint64_t data_bytes);
  void TookEvents(const Entry& entry);
  cleat::Status TookLog(uint64_t data_bytes);
  cleat::Status TookWatched(fabrics::DiscoveryLog log);
  cleat::Status StatusError(const Entry& entry) const;
  void Submit(uint64_t cookie, const Command& command, std::span<uint8_t> room);
  Error Untold() const;
  bool IsWatching() const { return config_.kato_ms != 0; }
  uint64_t HalfKatoNs() const;
  void TickKeepAlive();
  void TakeKeepAlive(const Entry& entry);
  void ArmEvent();
  void TakeEvent(const Entry& entry);
  void Finish(Result<fabrics::DiscoveryLog> result);
  void Leave();

  const DiscoveryConfig config_;
  DiscoveryOwner& owner_;
  fabrics::QueuePair* admin_ = nullptr;
  QueueLogin login_;
  Step step_ = Step::kConnecting;
  uint64_t now_ns_ = 0;
  uint64_t again_ns_ = 0;
  uint64_t deadline_ns_ = 0;
  fabrics::Capabilities capabilities_;
  fabrics::LogReader reader_;
  std::shared_ptr<block::MemoryRegion> region_;  // of what is being read
  block::Segment segment_;
  std::optional<Result<fabrics::DiscoveryLog>> result_;

  // ---- Of a log that is watched
  std::vector<uint8_t> controller_;            // what Identify says
  std::string untold_;                         // not empty: why the controller tells of no changes
  std::optional<fabrics::DiscoveryLog> seen_;  // the last one
  bool changed_ = false;                       // since the last reading began
  uint64_t refresh_at_ns_ = 0;                 // not before
  uint64_t keep_alive_at_ns_ = 0;              // 0: not yet
  uint64_t keep_alive_sent_ns_ = 0;
  bool keep_alive_out_ = false;
  bool event_out_ = false;
  uint64_t event_at_ns_ = 0;     // the request, not before
  uint32_t event_failures_ = 0;  // in a row
};

}  // namespace cleat::nvme::host
