// SPDX-License-Identifier: Apache-2.0
// What of a disk is in doubt, on its control reactor: the ledger (nvme/host/doubt/doubt_ledger.h), the log that outlives the engine
// (kept_doubt_log.h), and an operator's word that comes by the log or by a call.
//
// Changes of the ledger take effect by Publish: the log has them first and the reactors after it, so that none obeys what the next engine
// would not know of. While another engine has the log nothing is published; Take publishes what has come meanwhile.
//
// What reactors report is published once a turn (PublishSoon): each of thousands of requests may have something to say when a path dies, and each
// time every reactor gets the whole table, on a reactor that all disks share.
//
// Ownership: the disk's core owns it and outlives it. The owner is called from within Publish, Take, Yield and ConfirmDead, and from timers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "modules/nvmf/doubt/kept_doubt_log.h"
#include "nvme/host/doubt/doubt_ledger.h"
#include "reactor/reactor.h"

namespace cleat::modules {

class DiskDoubtOwner {
 public:
  // Lives that may leave something from now on.
  virtual std::vector<nvme::host::LifeId> LivingLives() const = 0;
  // The ledger has changed, and the log has it: each reactor is to have its table.
  virtual void DoubtPublished() = 0;

 protected:
  ~DiskDoubtOwner() = default;
};

class DiskDoubt {
 public:
  // How often an operator's word is looked for in the log, while anything is in doubt.
  static constexpr uint64_t kWordNs = 200 * kNsPerMs;

  // `disk` begins errors and lines of the log. `control` outlives it.
  DiskDoubt(std::string disk, nvme::host::ProofPolicy proofs, Reactor& control, DiskDoubtOwner& owner);

  // Before anything else, where the disk has a log. kInvalidArgument: the file is none.
  Status MapLog(const UniqueFd& file);
  // For channels; nullptr: the disk has none.
  const std::shared_ptr<KeptDoubtLog>& log() const { return log_; }

  // Before Take: no other engine that was given the log may have the disk from now on. kUnavailable: one has it.
  Status TryOwn();
  // Once it is owned: another engine may have had the disk since this one had it last. Without a log nobody knows.
  bool may_have_changed_hands() const { return log_ == nullptr || log_->has_changed_hands(); }
  // Once it is owned: no engine had the disk since it was last detached. Without a log nobody knows.
  bool is_first() const { return log_ != nullptr && log_->is_first(); }
  // The disk is detached, or another host's. While it is owned.
  void GiveUp();
  // As in block/device.h; GiveUp ends it. While it is owned; without a log nobody knows.
  void SetLeaving(uint64_t attachment);
  bool IsLeaving(uint64_t attachment) const;
  // The log, if there is one, is this engine's from now on. `rows`: reactors that have joined. `accepts`: writes do not wait for what it
  // has, for people.
  void Take(std::span<const uint32_t> rows, uint64_t disk_bytes, bool accepts);
  // The log is another engine's. No request is left, so that no reactor writes to it any more.
  void Yield();
  // The disk is being closed: words are not looked for any more.
  void Stop();

  // A change of it is followed by Publish, or PublishSoon.
  nvme::host::DoubtLedger& ledger() { return ledger_; }
  const nvme::host::DoubtLedger& ledger() const { return ledger_; }
  bool MayPublish() const { return log_ == nullptr || log_->is_taken(); }
  void Publish();
  void PublishSoon();
  // A reactor has joined; while MayPublish.
  void OpenRow(uint32_t reactor);
  // Lives have begun: before anything is sent for them.
  void StoreLives();
  // What a reservation has proved is true as long as it is held, until then; engines to come know it from the log.
  void HoldReservationUntil(uint64_t until_ns);
  bool IsReservationNeeded() const;
  // A person says that nothing will be executed any more of what was sent by lives that are over.
  Status ConfirmDead();

 private:
  template <void (DiskDoubt::*kMethod)()>
  struct LaterTimer : Timer {
    explicit LaterTimer(DiskDoubt& d)
        : Timer([](Timer& timer) { (static_cast<LaterTimer&>(timer).doubt.*kMethod)(); }), doubt(d) {}
    DiskDoubt& doubt;
  };

  void AwaitWord();
  void LookForWord();
  void LogConfirmed() const;
  void LogFound(const KeptDoubtLog::Found& found, uint64_t disk_bytes, bool accepts) const;

  const std::string disk_;
  Reactor& control_;
  DiskDoubtOwner& owner_;
  nvme::host::DoubtLedger ledger_;
  std::shared_ptr<KeptDoubtLog> log_;
  uint64_t published_version_ = 0;
  uint64_t held_until_ns_ = 0;
  bool stopped_ = false;
  LaterTimer<&DiskDoubt::LookForWord> word_later_{*this};  // runs while anything is in doubt
  LaterTimer<&DiskDoubt::Publish> publish_soon_{*this};
};

}  // namespace cleat::modules
