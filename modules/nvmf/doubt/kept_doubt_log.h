// SPDX-License-Identifier: Apache-2.0
// The log of writes in doubt (nvme/host/doubt/doubt_log.h) of one disk, in a memfd that others hold as well, so that it outlives the
// engine.
//
// An engine that takes a disk over opens it while the one before still serves it, and both map the same memory: the log is another
// engine's until TryOwn and from Yield on. Only in between does this engine change anything in it, from Take on.
//
// A lock on the file says which engine has the disk, until Yield or until that engine has ended. Locks are of open files, and all engines
// are given the same one: each opens the file anew for its lock (F_OFD_SETLK, fcntl(2)).
//
// Ownership: the disk's core and its channels share it. TryOwn, Take, Yield and Store on the control reactor; each channel writes its row
// on its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "nvme/host/doubt/doubt_ledger.h"
#include "nvme/host/doubt/doubt_log.h"

namespace cleat::modules {

class KeptDoubtLog {
 public:
  // `disk` begins errors. kInvalidArgument: no file of kDoubtLogBytes. The file does not shrink, as its maker has sealed it.
  static Result<std::shared_ptr<KeptDoubtLog>> Map(const UniqueFd& file, const std::string& disk);
  ~KeptDoubtLog();
  KeptDoubtLog(const KeptDoubtLog&) = delete;
  KeptDoubtLog& operator=(const KeptDoubtLog&) = delete;

  struct Found {
    size_t ranges = 0;
    uint64_t bytes = 0;
    std::optional<Error> unreadable;  // all of the disk is in doubt
    bool was_confirmed = false;  // what it had as ghosts, or the loss of it, is dead by an operator's word
  };
  // The disk is this engine's, and no other one's, until Yield. Before Take. kUnavailable: another engine has it.
  Status TryOwn();
  bool is_owned() const { return is_owned_; }
  // While it is owned: another engine had the disk after this one had it last.
  bool has_changed_hands() const { return has_changed_hands_; }
  // While it is owned: no engine had the disk since it was last detached.
  bool is_first() const { return claim_ && claim_->is_first; }
  // The disk is detached, or another host's: whoever owns it next is the first. While it is owned.
  void GiveUp();
  // For engines to come, too (DoubtLog::SetLeaving). While it is owned.
  void SetLeaving(uint32_t attachment);
  // For engines to come, too (DoubtLog::HoldReservationUntil).
  void HoldReservationUntil(uint32_t second) { log_.HoldReservationUntil(second); }

  // The disk is this engine's from now on. What was in doubt is recorded in the ledger with the lives that the log names, or as `life` where
  // it names none, and then in the log as ghosts alone. No attempt of this engine is under way, so that its `living` lives have left nothing.
  // `life` is random.
  Found Take(nvme::host::DoubtLedger& ledger, nvme::host::LifeId life,
             std::span<const nvme::host::LifeId> living);
  // The disk is another engine's. No attempt is under way.
  void Yield();
  bool is_taken() const { return is_taken_; }

  // Writes what is in doubt; while it is taken, and before any reactor has a table that says so.
  void Store(const nvme::host::DoubtLedger& ledger);
  // All lives that may leave anything in the log (DoubtLog::StoreLives). While it is taken.
  void StoreLives(std::span<const nvme::host::LifeId> lives);
  // A reactor may write its row of `log`, while it is taken.
  void OpenRow(uint32_t reactor) { log_.OpenRow(reactor); }
  const nvme::host::DoubtLog& log() const { return log_; }

 private:
  KeptDoubtLog(std::span<uint8_t> memory, UniqueFd lock, std::string disk);

  const std::span<uint8_t> memory_;
  const UniqueFd lock_;  // the file, opened for the lock alone: a mapping of it would keep the lock
  const std::string disk_;
  nvme::host::DoubtLog log_;  // a view, which never changes: channels copy it on their reactors
  bool is_owned_ = false;
  bool is_taken_ = false;
  bool has_changed_hands_ = false;
  std::optional<nvme::host::DoubtLog::Claimed> claim_;  // the last one
  uint64_t stored_doubts_ = 0;                          // the ledger's, of what is stored
  std::vector<nvme::host::LifeId> stored_lives_;
};

}  // namespace cleat::modules
