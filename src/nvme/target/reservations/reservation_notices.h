// SPDX-License-Identifier: Apache-2.0
// What one controller has to tell its host of reservations: its log of notices (page 80h), and which of them the host does not want (feature 82h).
//
// Source: NVM Express Base Specification 2.0 ("base"), 5.16.1.24 (log page), 5.27.1.23 (mask). Of the control reactor; pure. Owned by its controller,
// which makes it anew at each reset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "base/result.h"
#include "nvme/target/hand_over/saved_controller.h"
#include "nvme/target/reservations/reservation_commands.h"

namespace cleat::nvme::target {

// Notices that wait for a host at most. When there are more, the oldest are lost, which the host sees by the number of the next.
inline constexpr size_t kReservationNoticesMax = 64;
inline constexpr size_t kReservationLogBytes = 64;
// REGPRE, RESREL and RESPRE: a set bit keeps the notices of that number back.
inline constexpr uint32_t kReservationMaskBits = 0xe;

class ReservationNotices {
 public:
  // False: the host has masked it.
  bool Add(uint32_t nsid, ReservationNotice notice);
  bool empty() const { return waiting_.empty(); }
  // The oldest one, and how many there are behind it; zeroes where there is none.
  std::vector<uint8_t> Log() const;
  void DropOldest();

  uint32_t mask(uint32_t nsid) const;
  void SetMask(uint32_t nsid, uint32_t mask);
  // The namespace is gone.
  void Forget(uint32_t nsid);

  void Save(SavedController& saved) const;
  // `nsid_last`: the largest that a namespace may have. kInvalidArgument; nothing has changed then.
  cleat::Status Restore(const SavedController& saved, uint32_t nsid_last);

 private:
  struct Waiting {
    uint64_t number = 0;
    uint32_t nsid = 0;
    ReservationNotice notice = ReservationNotice::kRegistrationPreempted;
  };
  std::deque<Waiting> waiting_;         // the oldest first
  uint64_t count_ = 0;                  // of notices so far: the number of the last one
  std::map<uint32_t, uint32_t> masks_;  // by NSID; none is 0
};

}  // namespace cleat::nvme::target
