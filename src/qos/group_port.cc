// SPDX-License-Identifier: Apache-2.0
#include "qos/group_port.h"

#include <algorithm>
#include <utility>

namespace cleat::qos {
namespace {

constexpr size_t kRead = static_cast<size_t>(Kind::kRead);
constexpr size_t kWrite = static_cast<size_t>(Kind::kWrite);

}  // namespace

GroupPort::GroupPort(LimitSource& limit_source, Reactor& reactor)
    : reactor_(reactor), limit_source_(limit_source), watch_(limit_source, reactor, [this] { Reload(); }) {
  Reload();
}

GroupPort::~GroupPort() {
  CLEAT_CHECK(waiting() == 0);
  meters_.Close();
}

void GroupPort::Reload() {
  const LimitSource::View view = limit_source_.view();
  accounts_ = view.accounts;
  meters_.SetLimits(view.limits, view.accounts);
  const uint64_t now = UnitsOf(reactor_.now_ns());
  closed_until_ = {now, now};
  // What was kept of turns is time of the old limits.
  quantum_ = dearest_ = 0;
  for (Ring& ring : rings_) {
    for (GroupMember* member = ring.front(); member != nullptr; member = ring.Next(*member)) {
      member->deficit_ = 0;
      member->in_turn_ = false;
    }
  }
  if (waiting() > 0) Serve();
}

bool GroupPort::Take(const Cost& cost, uint64_t now) {
  return waiting() == 0 && !meters_.Take(cost, LeaseDemand{}, now);
}

// ---- Who waits

void GroupPort::Join(GroupMember& member, const Cost& head) {
  const auto kind = static_cast<size_t>(head.kind);
  member.head_ = head;
  member.deficit_ = 0;
  member.in_turn_ = false;
  member.round_ = round_ + 1;
  rings_[kind].PushBack(member);
  if (waiting() == 0) {
    const uint64_t now = UnitsOf(reactor_.now_ns());
    closed_until_ = {now, now};
  }
  ++waiting_[kind];
  if (!Before(UnitsOf(reactor_.now_ns()), closed_until_[kind])) {
    Serve();
  } else if (!serving_) {
    SetTimer();  // it may be set for those of the other kind alone, who wait for longer
  }
}

void GroupPort::Leave(GroupMember& member) {
  member.ring_.Unlink();
  --waiting_[static_cast<size_t>(member.head_.kind)];
  if (waiting() > 0) return;
  timer_.Cancel();
  meters_.GiveBackAhead(UnitsOf(reactor_.now_ns()));
}

// ---- Whose turn it is

// Of the rings that their limits let go on, the one whose front is in the earlier round.
GroupMember* GroupPort::Pick(uint64_t now) {
  std::array<GroupMember*, 2> fronts{};
  for (size_t kind : {kRead, kWrite}) {
    if (!Before(now, closed_until_[kind])) fronts[kind] = rings_[kind].front();
  }
  if (fronts[kRead] == nullptr) return fronts[kWrite];
  if (fronts[kWrite] == nullptr) return fronts[kRead];
  // A ring that was held up is behind; it is not ahead of the others for that.
  const uint64_t read_round = RoundOf(*fronts[kRead]);
  const uint64_t write_round = RoundOf(*fronts[kWrite]);
  if (read_round != write_round) return fronts[read_round < write_round ? kRead : kWrite];
  return fronts[fronts[kRead]->round_ <= fronts[kWrite]->round_ ? kRead : kWrite];
}

void GroupPort::BeginRound(uint64_t round) {
  round_ = round;
  quantum_ = std::exchange(dearest_, 0);
  const uint64_t turn_bytes = accounts_->turn_bytes.load(std::memory_order_relaxed);
  const uint64_t largest = std::exchange(largest_bytes_, 0);
  if (largest < turn_bytes) {
    accounts_->turn_bytes.store(turn_bytes - (turn_bytes - largest + 15) / 16, std::memory_order_relaxed);
  }
}

// False: it has spent what it may; its next turn is in the next round.
bool GroupPort::HasTurn(GroupMember& member) {
  if (Before(round_, member.round_)) BeginRound(member.round_);
  const uint64_t cost = meters_.DearestCost(member.head_);
  dearest_ = std::max(dearest_, cost);
  largest_bytes_ = std::max(largest_bytes_, member.head_.bytes);
  if (largest_bytes_ > accounts_->turn_bytes.load(std::memory_order_relaxed)) {
    accounts_->turn_bytes.store(largest_bytes_, std::memory_order_relaxed);
  }
  if (!std::exchange(member.in_turn_, true)) member.deficit_ += quantum_;
  if (member.deficit_ >= cost) return true;
  Ring& ring = rings_[static_cast<size_t>(member.head_.kind)];
  member.in_turn_ = false;
  member.round_ = round_ + 1;
  member.ring_.Unlink();
  ring.PushBack(member);
  return false;
}

// ---- Serving

void GroupPort::Serve() {
  if (serving_) return;                                        // from within Pass: the outer one goes on
  const std::shared_ptr<GroupPort> self = shared_from_this();  // what passes may end the last channel
  const uint64_t now = UnitsOf(reactor_.now_ns());
  serving_ = true;
  more_ = false;
  for (uint32_t passed = 0; waiting() > 0;) {
    if (passed == kPassMax) {
      more_ = true;
      break;
    }
    GroupMember* member = Pick(now);
    if (member == nullptr) break;
    if (!HasTurn(*member)) continue;
    const auto kind = static_cast<size_t>(member->head_.kind);
    const uint64_t turn_bytes = accounts_->turn_bytes.load(std::memory_order_relaxed);
    // The disks that wait for a limit of one kind are those with a request of that kind.
    const Meters::Wait wait =
        meters_.Take(member->head_, LeaseDemand{waiting_[kind], waiting(), turn_bytes}, now);
    if (wait) {
      closed_until_[kind] = wait.at;
      if (wait.shared) closed_until_ = {wait.at, wait.at};
      continue;
    }
    ++passed;
    Pass(*member, now);
  }
  serving_ = false;
  SetTimer();
}

void GroupPort::Pass(GroupMember& member, uint64_t now) {
  const auto kind = static_cast<size_t>(member.head_.kind);
  member.deficit_ -= meters_.DearestCost(member.head_);
  const GroupMember::Passed passed = member.PassHead(now / kUnitsPerNs);
  member.ring_.Unlink();
  --waiting_[kind];
  if (passed.stays) {
    // The member goes on with its turn.
    const auto next_kind = static_cast<size_t>(passed.head.kind);
    member.head_ = passed.head;
    rings_[next_kind].PushFront(member);
    ++waiting_[next_kind];
  }
  passed.below->Submit(*passed.request);  // the member may be gone now
}

void GroupPort::SetTimer() {
  timer_.Cancel();
  const uint64_t now_ns = reactor_.now_ns();
  if (waiting() == 0) return meters_.GiveBackAhead(UnitsOf(now_ns));
  if (more_) return reactor_.AddTimer(timer_, now_ns);
  uint64_t at = UnitsOf(now_ns) + kSpanUnitsMax;
  for (size_t kind : {kRead, kWrite}) {
    if (waiting_[kind] > 0 && Before(closed_until_[kind], at)) at = closed_until_[kind];
  }
  reactor_.AddTimer(timer_, std::max(NsOf(at), now_ns + kWaitNsMin));
}

}  // namespace cleat::qos
