// SPDX-License-Identifier: Apache-2.0
// A discovery service's log is read once: a host connects to the discovery controller behind an address, reads which subsystems are
// where, and leaves. No I/O queue, no namespace, no event, and no keep alive: the controller is there for as long as the reading takes.
//
// Source: NVM Express Base Specification 2.0 ("base"), 3.1.2.3 (discovery controllers), 5.16.1.23 (the log), 3.6 (shutdown).
//
// Ownership and thread: whoever makes it owns it and the admin queue pair, on the reactor's thread that has the queue, and keeps both until
// Discovered; neither is destroyed from within a callback. Pure: the time comes in by Tick.
//
// Limits: one command at a time, pieces of kDiscoveryPieceBytes, kDiscoveryRecordsMax records, kLogTriesMax tries to read a log that
// changes meanwhile, and DiscoveryConfig::timeout_ns for all of it; then kShutdownTimeoutNs to take leave, which is no condition of
// success. Referrals are told of and not followed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "block/memory.h"
#include "nvme/fabrics/commands.h"
#include "nvme/fabrics/log_pages.h"
#include "nvme/fabrics/queue_pair.h"
#include "nvme/host/queue_login.h"

namespace cleat::nvme::host {

// What every controller hands out with one command, whatever its limit (MDTS): so that none has to be asked for it.
inline constexpr uint32_t kDiscoveryPieceBytes = 4096;

struct DiscoveryConfig {
  std::string who;  // begins errors: "the discovery service at 10.0.0.1:8009"
  fabrics::HostIdentity host;
  uint32_t admin_entries = 32;  // as was asked of the transport
  uint64_t timeout_ns = 10'000'000'000;
};

class DiscoveryOwner {
 public:
  // Once, last: the queue pair has ended, and nothing of the reading is in use.
  virtual void Discovered(Result<fabrics::DiscoveryLog> log) = 0;

 protected:
  ~DiscoveryOwner() = default;
};

class Discovery final : public fabrics::QueuePairOwner {
 public:
  // How often Tick has to come; the deadline is as exact as that.
  static constexpr uint64_t kTickNs = 100'000'000;
  static constexpr uint64_t kShutdownTimeoutNs = 1'000'000'000;

  Discovery(DiscoveryConfig config, DiscoveryOwner& owner);
  Discovery(const Discovery&) = delete;
  Discovery& operator=(const Discovery&) = delete;

  // Before the queue pair can call back. The host's names have passed CheckHostIdentity.
  void Start(fabrics::QueuePair& admin, uint64_t now_ns);
  void Tick(uint64_t now_ns);
  // The log is not waited for any more: the queue pair is told to end, without a farewell. Not before Start.
  void GiveUp();

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
    kLog,
    kShutdown,
    kEnding,
    kOver,
  };
  using Entry = fabrics::CompletionEntry;

  static const char* NameOfStep(Step step);
  void Send(Step step);
  cleat::Status Took(const Entry& entry, uint64_t data_bytes);
  cleat::Status TookReady(const Entry& entry);
  cleat::Status TookLog(uint64_t data_bytes);
  cleat::Status StatusError(const Entry& entry) const;
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
  std::shared_ptr<block::MemoryRegion> region_;  // of the piece that is being read
  block::Segment segment_;
  std::optional<Result<fabrics::DiscoveryLog>> result_;
};

}  // namespace cleat::nvme::host
