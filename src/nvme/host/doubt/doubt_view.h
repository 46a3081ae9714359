// SPDX-License-Identifier: Apache-2.0
// A reactor's copy of the ghosts of one disk. Its channel asks before it sends a write-like request; with nothing in doubt that costs one
// branch. Owned by the channel, used on its reactor only, shares no memory with other reactors. Reads and flushes never ask.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nvme/host/doubt/doubt.h"

namespace cleat::nvme::host {

// Until its first table was adopted a view holds every write.
class DoubtView {
 public:
  // `reactor`: its number in the ledger (DoubtLedger::Joined).
  explicit DoubtView(uint32_t reactor);

  // Whether a request that has never been sent, or none of whose attempts can have reached a target, may be sent.
  bool MaySend(const Attempt& request) const {
    return ghosts_.empty() || (accepts_ ? has_table() : !IsHeld(request));
  }
  // The same for a request with an attempt in doubt: that waits besides until the ledger knows this reactor's reports, and until what was
  // under way over its ghosts has ended.
  bool MayRetry(const Attempt& request) const;
  // Whether a request with an attempt in doubt may be answered as failed, never to be sent again: not before every reactor obeys its ghost,
  // or the guest could send a newer write past it.
  bool MayFail(const Attempt& request) const;

  // The disk's owner takes the risk from now on, or no longer: what is in doubt holds nothing that wants to be sent. Nothing else changes.
  // Before the first table nothing is sent, as the disk may be another engine's until then; a request with an attempt in doubt waits until
  // the ledger knows of that; and ghosts are reported, obeyed and acknowledged as before, so that they hold again once the risk is taken no
  // longer.
  void SetAccepts(bool accepts) { accepts_ = accepts; }

  bool has_table() const { return version_ != 0; }
  // Whether the table that is obeyed takes all reports of this reactor into account.
  bool KnowsAllReports() const { return reports_seen_ == reports_sent_; }

  // A life is over for this reactor; the caller mails what this returns. The caller's contract: the old socket can send nothing any more.
  LifeReport EndLife(LifeId life, std::vector<Attempt> perhaps);
  // A table has come. `under_way`: all write-like attempts of this reactor on any path that were sent, not answered, and named in no
  // report. The caller mails what this returns, then asks again for the requests that it holds.
  DoubtAck Adopt(DoubtTable table, std::span<const Attempt> under_way);
  // For each write-like attempt that was answered, and for each of a life whose LifeReport has been mailed, whether the report names it or
  // not: true when the caller has to mail BarrierEnded.
  bool EndAttempt(OriginId origin) { return !barriers_.empty() && ForgetBarrier(origin); }

 private:
  bool IsHeld(const Attempt& request) const;
  bool ForgetBarrier(OriginId origin);
  // Whether `matches` says yes of any ghost that overlaps `range`.
  template <typename Matches>
  bool AnyOver(const BlockRange& range, Matches matches) const;

  const uint32_t reactor_;
  uint64_t version_ = 0;
  bool accepts_ = false;
  uint64_t reports_sent_ = 0;
  uint64_t reports_seen_ = 0;
  std::vector<Ghost> ghosts_;  // by range.first; before the first table, one over all that there can be
  std::vector<uint64_t> ends_up_to_;  // the highest end of ghosts_[0..i]
  std::vector<OriginId> barriers_;
};

}  // namespace cleat::nvme::host
