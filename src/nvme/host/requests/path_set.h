// SPDX-License-Identifier: Apache-2.0
// The paths of a disk on one reactor, and the rule that says which of them a request takes: of those with the best ANA state the one with
// the fewest commands under way from here, of equals the next one round. A worse path never stands in for better ones that are full: what
// waits for room gets it with the next completion, and a load that is spread over both kinds would run at the pace of the slower one.
//
// A path that refused a command gets none until its pause is over, whatever its state: so a request that every path refuses tries each of
// them once, and then waits. Time comes in by Tick alone, so that a pause begins with the first Tick after the refusal. Where the refusal
// says that the namespace is gone the path gets none either until somebody has looked: another namespace may have its number by now.
//
// Hot path: Choose, TakesMore, Began, Over. The paths that may be chosen stand in a list that is made anew when one of them changes.
// Nothing is compared where there is one, which is the usual case.
//
// Source: NVM Express Base Specification 2.0, 8.1 (Asymmetric Namespace Access). The request queue owns it, on its reactor; pure.
#pragma once

#include <array>
#include <cstdint>

#include "block/request.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/host/doubt/doubt.h"
#include "nvme/host/requests/command_maker.h"

namespace cleat::nvme::host {

// How good a path is for new commands: its ANA state, as far as it matters here. In order.
enum class PathState : uint8_t { kUnusable, kNonOptimized, kOptimized };

class PathSet {
 public:
  static constexpr uint32_t kMax = 8;
  static constexpr uint32_t kNone = kMax;  // as a place

  struct Path {
    fabrics::QueuePair* queue = nullptr;  // nullptr: this place is free
    LifeId life = 0;
    PathFormat format;
    bool conflict_told = false;  // RequestQueueOwner::Conflicted
    block::RequestList lost;  // until it ends: none of their commands is under way, and one was not answered
  };

  // `pause_ns`: for how long, at least, a path that refused gets no command.
  explicit PathSet(uint64_t pause_ns) : pause_ns_(pause_ns) {}

  Path& operator[](uint32_t place) { return paths_[place]; }
  std::array<Path, kMax>& all() { return paths_; }
  uint32_t PlaceOf(LifeId life) const;

  // The life has no place yet, and at least one is free.
  Path& Add(LifeId life, fabrics::QueuePair& queue, PathState state);
  // The path has no command under way.
  void Remove(uint32_t place);
  void SetState(uint32_t place, PathState state);
  // The path gets no command any more, as its end follows.
  void SetBreaks(uint32_t place);
  enum class Refusal : uint8_t { kForNow, kNamespaceGone };
  // False: it is marked so already.
  bool Refuse(uint32_t place, Refusal refusal);
  // What the controller has has been looked at, since the path was refused.
  void Looked(uint32_t place);
  bool has_refused() const { return has_refused_; }
  // Whether any path may be used, or might as soon as its refusal is over.
  bool leads_somewhere() const { return candidate_count_ > 0 || has_refused_; }
  void Tick(uint64_t now_ns);

  // The place for a request without commands under way; kNone: it waits.
  uint32_t Choose() const {
    if (candidate_count_ != 1) [[unlikely]]
      return ChooseAmong();
    const uint32_t only = candidates_[0];
    return paths_[only].queue->room() > 0 ? only : kNone;
  }
  // For a request with commands under way there: it stays while the path may be used at all, though another has become better.
  bool TakesMore(uint32_t place) const {
    return standings_[place].is_open && paths_[place].queue->room() > 0;
  }

  // A command begins; `chosen`: it is the first one of a request there.
  void Began(uint32_t place, bool chosen) {
    ++commands_[place];
    if (chosen) last_chosen_ = place;
  }
  void Over(uint32_t place) { --commands_[place]; }

 private:
  struct Standing {
    uint64_t refused_until_ns = 0;  // 0: the next Tick says
    PathState state = PathState::kUnusable;
    bool breaks = false;  // a command has come back unanswered: its end follows
    bool refused = false;
    bool awaits_look = false;
    bool is_open = false;  // may be used: it is there and usable, and none of the above holds
  };

  uint32_t ChooseAmong() const;
  void See();

  const uint64_t pause_ns_;
  std::array<Path, kMax> paths_;
  std::array<Standing, kMax> standings_;
  std::array<uint32_t, kMax> commands_{};  // under way from here
  std::array<uint8_t, kMax> candidates_;   // the open ones of the best state that an open one has
  uint32_t candidate_count_ = 0;
  uint32_t last_chosen_ = kMax - 1;
  bool has_refused_ = false;
};

}  // namespace cleat::nvme::host
