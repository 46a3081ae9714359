// SPDX-License-Identifier: Apache-2.0
#include "nvme/target/reservations/reservation_notices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::target {

bool ReservationNotices::Add(uint32_t nsid, ReservationNotice notice) {
  if ((mask(nsid) >> static_cast<uint32_t>(notice) & 1) != 0) return false;
  // 0 says that there is no notice.
  if (++count_ == 0) count_ = 1;
  if (waiting_.size() == kReservationNoticesMax) waiting_.pop_front();
  waiting_.push_back({.number = count_, .nsid = nsid, .notice = notice});
  return true;
}

std::vector<uint8_t> ReservationNotices::Log() const {
  constexpr size_t kNumber = 0, kType = 8, kMore = 9, kNsid = 12;
  std::vector<uint8_t> log(kReservationLogBytes);
  if (waiting_.empty()) return log;
  const Waiting& oldest = waiting_.front();
  std::memcpy(log.data() + kNumber, &oldest.number, sizeof(oldest.number));
  log[kType] = static_cast<uint8_t>(oldest.notice);
  static_assert(kReservationNoticesMax <= UINT8_MAX);
  log[kMore] = static_cast<uint8_t>(waiting_.size() - 1);
  std::memcpy(log.data() + kNsid, &oldest.nsid, sizeof(oldest.nsid));
  return log;
}

void ReservationNotices::DropOldest() {
  if (!waiting_.empty()) waiting_.pop_front();
}

uint32_t ReservationNotices::mask(uint32_t nsid) const {
  const auto found = masks_.find(nsid);
  return found == masks_.end() ? 0 : found->second;
}

void ReservationNotices::SetMask(uint32_t nsid, uint32_t mask) {
  CLEAT_CHECK((mask & ~kReservationMaskBits) == 0);
  if (mask == 0) {
    masks_.erase(nsid);
  } else {
    masks_[nsid] = mask;
  }
}

void ReservationNotices::Forget(uint32_t nsid) {
  masks_.erase(nsid);
  std::erase_if(waiting_, [nsid](const Waiting& one) { return one.nsid == nsid; });
}

void ReservationNotices::Save(SavedController& saved) const {
  saved.reservation_notices.clear();
  for (const Waiting& one : waiting_)
    saved.reservation_notices.push_back({.nsid = one.nsid, .type = static_cast<uint8_t>(one.notice)});
  saved.reservation_notices_count = count_;
  saved.reservation_masks = masks_;
}

cleat::Status ReservationNotices::Restore(const SavedController& saved, uint32_t nsid_last) {
  const auto wrong = [](std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); };
  const auto is_nsid = [nsid_last](uint32_t nsid) { return nsid >= 1 && nsid <= nsid_last; };
  const size_t notices = saved.reservation_notices.size();
  if (notices > kReservationNoticesMax || notices > saved.reservation_notices_count)
    return wrong(fmt::format("{} notices of reservations of {}", notices, saved.reservation_notices_count));
  std::deque<Waiting> waiting;
  uint64_t number = saved.reservation_notices_count - notices;
  for (const SavedNotice& notice : saved.reservation_notices) {
    if (!is_nsid(notice.nsid) || notice.type < 1 ||
        notice.type > static_cast<uint8_t>(ReservationNotice::kReservationPreempted))
      return wrong(fmt::format("a notice {} of a reservation of namespace {}", notice.type, notice.nsid));
    waiting.push_back(
        {.number = ++number, .nsid = notice.nsid, .notice = static_cast<ReservationNotice>(notice.type)});
  }
  for (const auto& [nsid, mask] : saved.reservation_masks) {
    if (!is_nsid(nsid) || mask == 0 || (mask & ~kReservationMaskBits) != 0)
      return wrong(fmt::format("a mask {:#x} of reservations of namespace {}", mask, nsid));
  }
  waiting_ = std::move(waiting);
  count_ = saved.reservation_notices_count;
  masks_ = saved.reservation_masks;
  return {};
}

}  // namespace cleat::nvme::target
