// SPDX-License-Identifier: Apache-2.0
// Callers of cleatd's API: what they ask for is drawn from a seed, several at once, often about the same objects. Whatever is acknowledged
// or shown, or may have been done, goes to Intents. Owned by the test.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "base/random.h"
#include "cleatd_process.h"
#include "intents.h"

namespace cleat::sim {

class HostCalls {
 public:
  static constexpr size_t kCallsMax = 6;  // at once

  // `before_answer`: HostConfig's.
  HostCalls(World& world, CleatdProcess& cleatd, uint64_t seed, std::function<bool()> before_answer);

  // Makes one, if there is room.
  void Draw();
  size_t under_way() const { return under_way_; }
  uint64_t acknowledged() const { return acknowledged_; }
  void OnDead() { under_way_ = 0; }
  void OnStored() { intents_.OnStored(); }

  // ---- What was promised
  // `rows` are of a life that begins. Empty: as promised.
  std::string Restart(const control::Rows& rows);
  // What the API shows, with nothing under way.
  std::string CheckShown(control::HostState& state) const;
  // Whether a controller or an attachment of that revision was ever seen to be durable.
  bool WasDurable(uint64_t revision) const { return durable_.contains(revision); }

 private:
  using Run = std::function<void(control::HostState&)>;

  void Call(const std::string& name, Run run);
  // Asks for a change that gives objects these values, of which the answer shows those that it has.
  template <typename Ask>
  void Change(control::HostState& state, const Intents::Values& values, Ask ask);
  // Whether the call is answered; that of a dead cleatd is not.
  bool IsAnswered() { return (!before_answer_ || before_answer_()) && !cleatd_.dead(); }
  void Look(control::HostState& state);

  void CreateDisk();
  void LimitDisk();
  void GrowDisk();
  void DeleteDisk();
  void ReplaceDisk();
  void CreateController();
  void DeleteController();
  void CreateGroup();
  void LimitGroup();
  void DeleteGroup();
  void AttachDisk();
  void DetachDisk();
  void Upgrade();
  void CancelUpgrade();
  void LookAtAll();

  std::string DrawDisk();
  std::string DrawController();
  std::string DrawGroup();
  std::string DrawFrom(const std::vector<std::string>& names);

  World& world_;
  CleatdProcess& cleatd_;
  Random random_;
  const std::function<bool()> before_answer_;
  Intents intents_;
  std::set<uint64_t> durable_;  // revisions
  size_t under_way_ = 0;
  uint64_t acknowledged_ = 0;
};

}  // namespace cleat::sim
