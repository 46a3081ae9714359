// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/doubt/doubt_view.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::host {

namespace {

constexpr uint64_t kAllBlocks = UINT64_MAX;

}  // namespace

DoubtView::DoubtView(uint32_t reactor)
    : reactor_(reactor),
      ghosts_{{.range = {.first = 0, .blocks = kAllBlocks}, .origin = kNobody}},
      ends_up_to_{kAllBlocks} {}

template <typename Matches>
bool DoubtView::AnyOver(const BlockRange& range, Matches matches) const {
  const auto behind = std::partition_point(ghosts_.begin(), ghosts_.end(),
                                           [&](const Ghost& g) { return g.range.first < range.end(); });
  for (auto i = static_cast<size_t>(behind - ghosts_.begin()); i > 0 && ends_up_to_[i - 1] > range.first;
       --i) {
    if (ghosts_[i - 1].range.Overlaps(range) && matches(ghosts_[i - 1])) {
      return true;
    }
  }
  return false;
}

bool DoubtView::IsHeld(const Attempt& request) const {
  return AnyOver(request.range, [&](const Ghost& ghost) {
    return ghost.origin == kNobody || ghost.origin != request.origin;
  });
}

bool DoubtView::MayRetry(const Attempt& request) const {
  if (!KnowsAllReports()) {
    return false;
  }
  return accepts_ || !AnyOver(request.range, [&](const Ghost& ghost) {
           return ghost.origin == kNobody || ghost.origin != request.origin || !ghost.retry_open;
         });
}

bool DoubtView::MayFail(const Attempt& request) const {
  return KnowsAllReports() && !AnyOver(request.range, [&](const Ghost& ghost) {
           return (ghost.origin == kNobody || ghost.origin == request.origin) && !ghost.is_obeyed;
         });
}

LifeReport DoubtView::EndLife(LifeId life, std::vector<Attempt> perhaps) {
  ++reports_sent_;
  return {.reactor = reactor_, .life = life, .perhaps = std::move(perhaps)};
}

DoubtAck DoubtView::Adopt(DoubtTable table, std::span<const Attempt> under_way) {
  CLEAT_CHECK(table.version >= version_ && table.reports_seen <= reports_sent_);
  version_ = table.version;
  reports_seen_ = table.reports_seen;
  ghosts_ = std::move(table.ghosts);
  ends_up_to_.clear();
  uint64_t highest = 0;
  for (const Ghost& ghost : ghosts_) {
    highest = std::max(highest, ghost.range.end());
    ends_up_to_.push_back(highest);
  }
  DoubtAck ack{.reactor = reactor_, .version = version_, .barriers = {}};
  barriers_.clear();
  for (const Attempt& attempt : under_way) {
    if (IsHeld(attempt)) {
      ack.barriers.push_back(attempt);
      barriers_.push_back(attempt.origin);
    }
  }
  return ack;
}

bool DoubtView::ForgetBarrier(OriginId origin) {
  return std::erase(barriers_, origin) > 0;
}

}  // namespace cleat::nvme::host
