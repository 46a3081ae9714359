// SPDX-License-Identifier: Apache-2.0
// The log of writes in doubt (nvme/host/doubt/doubt_log.h) of one disk, in a memfd that others hold as well, so that it outlives the
// engine.
//
// An engine that takes a disk over opens it while the one before still serves it, and both map the same memory: the log is another
// engine's until Take and from Yield on. Only in between does this engine change anything in it.
//
// Ownership: the disk's core and its channels share it. Take, Yield and Store on the control reactor; each channel writes its row on its
// own.
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
  // Others that have the log see that the disk is this engine's. Before Take.
  void Claim() { claim_ = log_.Claim(); }
  // Another engine has claimed the disk since this one did.
  bool IsTakenOver() const { return claim_ != 0 && log_.claims() != claim_; }
  // For engines to come, too (DoubtLog::HoldReservationUntil).
  void HoldReservationUntil(uint32_t second) { log_.HoldReservationUntil(second); }

  // The disk is this engine's from now on. What was in doubt is recorded in the ledger with the lives that the log names, or as `life` where
  // it names none, and then in the log as ghosts alone. No attempt of this engine is under way, so that its `living` lives have left nothing.
  // `life` is random.
  Found Take(nvme::host::DoubtLedger& ledger, nvme::host::LifeId life,
             std::span<const nvme::host::LifeId> living);
  // The disk is another engine's. No attempt is under way.
  void Yield() { is_taken_ = false; }
  bool is_taken() const { return is_taken_; }

  // Writes what is in doubt; while it is taken, and before any reactor has a table that says so.
  void Store(const nvme::host::DoubtLedger& ledger);
  // All lives that may leave anything in the log (DoubtLog::StoreLives). While it is taken.
  void StoreLives(std::span<const nvme::host::LifeId> lives);
  // A reactor may write its row of `log`, while it is taken.
  void OpenRow(uint32_t reactor) { log_.OpenRow(reactor); }
  const nvme::host::DoubtLog& log() const { return log_; }

 private:
  explicit KeptDoubtLog(std::span<uint8_t> memory);

  const std::span<uint8_t> memory_;
  nvme::host::DoubtLog log_;  // a view, which never changes: channels copy it on their reactors
  bool is_taken_ = false;
  uint32_t claim_ = 0;          // 0: none yet
  uint64_t stored_doubts_ = 0;  // the ledger's, of what is stored
  std::vector<nvme::host::LifeId> stored_lives_;
};

}  // namespace cleat::modules
