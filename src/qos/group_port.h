// SPDX-License-Identifier: Apache-2.0
// A group on one reactor: its meters there, and the disks whose requests wait for them.
//
// Disks take turns by deficit round robin (Shreedhar and Varghese, 1995). A request is as dear as the time that it takes
// of the group's limit on which it takes longest, so a disk of small requests that uses up the limit of requests and one
// of large requests that uses up the limit of bytes count alike. In a round each waiting disk may spend as much as the
// dearest request of the round before cost; what it can't spend yet is kept for the next one.
//
// A group may limit reads and writes apart, and reads must not wait because the next disk in line has a write. So the
// disks that wait with a read and those that wait with a write are two rings with a common count of rounds: the ring
// whose front is in the earlier round goes first, as long as its own limits let it.
//
// Shared by the disks' channels on its reactor; made, used and destroyed there.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include "base/intrusive_list.h"
#include "block/device.h"
#include "qos/limit_source.h"
#include "qos/meters.h"
#include "reactor/reactor.h"

namespace cleat::qos {

// A disk's channel, as its group sees it: at most one request of each waits here, the others behind it.
class GroupMember {
 public:
  virtual ~GroupMember() = default;

  struct Passed {
    block::Request* request = nullptr;
    block::Channel* below = nullptr;
    bool stays = false;  // the next request waits here as well; `head` is its cost
    Cost head;
  };
  // Takes the request that waits here out of its queue. Does not submit it.
  virtual Passed PassHead(uint64_t now_ns) = 0;

 private:
  friend class GroupPort;
  ListHook ring_;
  Cost head_;
  bool in_turn_ = false;
  uint64_t round_ = 0;    // in which it has its (next) turn
  uint64_t deficit_ = 0;  // units that it may still spend
};

class alignas(64) GroupPort : public std::enable_shared_from_this<GroupPort> {
 public:
  // So many requests pass at one go; then the reactor's other work has its turn.
  static constexpr uint32_t kPassMax = 256;
  // The least that is waited: so many requests pass at one go that the timer does not cost more than they do. The
  // tolerance makes up for it.
  static constexpr uint64_t kWaitNsMin = 10 * kNsPerUs;

  GroupPort(LimitSource& limit_source, Reactor& reactor);
  ~GroupPort();  // nobody waits

  // The hot path: nobody waits, and no limit asks to wait. If so, it is counted.
  bool TryUse(const Cost& cost, uint64_t now) { return waiting() == 0 && meters_.TryUse(cost, now); }
  // As TryUse, but takes more from the shared accounts if it must.
  bool Take(const Cost& cost, uint64_t now);
  void ChargeDebt(const Cost& cost, uint64_t now) { meters_.ChargeDebt(cost, now); }
  uint64_t PaidUntil(uint64_t now) const { return meters_.PaidUntil(now); }

  // The member's first request waits here. It may pass before this returns, and the member be gone.
  void Join(GroupMember& member, const Cost& head);
  void Leave(GroupMember& member);

  uint32_t waiting() const { return waiting_[0] + waiting_[1]; }

 private:
  using Ring = IntrusiveList<GroupMember, &GroupMember::ring_>;
  struct ServeTimer : Timer {
    explicit ServeTimer(GroupPort& p)
        : Timer([](Timer& timer) { static_cast<ServeTimer&>(timer).port.Serve(); }), port(p) {}
    GroupPort& port;
  };

  void Reload();
  void Serve();
  GroupMember* Pick(uint64_t now);
  uint64_t RoundOf(const GroupMember& member) const { return std::max(member.round_, round_); }
  bool HasTurn(GroupMember& member);
  void BeginRound(uint64_t round);
  void Pass(GroupMember& member, uint64_t now);
  void SetTimer();

  std::array<uint32_t, 2> waiting_{};  // by Kind; with the meters, all that the hot path looks at
  Meters meters_;
  Reactor& reactor_;
  LimitSource& limit_source_;
  std::array<Ring, 2> rings_;               // by Kind, in the order of rounds
  std::array<uint64_t, 2> closed_until_{};  // units; by Kind: no limit lets it pass before
  bool serving_ = false;
  bool more_ = false;  // kPassMax was reached
  uint64_t round_ = 0;
  uint64_t quantum_ = 0;        // of this round
  uint64_t dearest_ = 0;        // seen in it so far
  uint64_t largest_bytes_ = 0;  // likewise
  std::shared_ptr<Accounts> accounts_;
  ServeTimer timer_{*this};
  LimitSource::Watch watch_;
};

}  // namespace cleat::qos
