// SPDX-License-Identifier: Apache-2.0
// Cross-Controller Reset (TP 8028, NVM Express Base Specification 2.3): a host that has lost its way to one controller asks another one, of the same
// subsystem, to end it, and learns when nothing of it can have an effect any more. This is what the controller that was asked keeps of that: the
// log page 1Eh.
//
// Sources. The command, its statuses, the fields of Identify and the log's layout: libnvme 3.2, and a review of nvme-cli against the specification.
// What is said of one source alone stands at its constant. Of the control reactor; pure. Owned by its controller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "nvme/target/hand_over/saved_controller.h"

namespace cleat::nvme::target {

// In progress at a time for one controller (CCRL): what TP 8028 recommends, as the authors of Linux' patches say (v4, March 2026).
inline constexpr uint8_t kResetsInProgressMax = 4;
// Entries that one controller's log has at most, with those that are over and that the host has not removed yet.
inline constexpr size_t kResetsMax = 64;
// A bit of the command's result: the other controller is over already, and has no place in the log (Immediate Reset Successful). Bit 0: by Linux' patches
// alone.
inline constexpr uint64_t kResetIsOver = 1;
// LSP of Get Log Page: what is over is removed once it is read (RMC). That it is bit 0: by libnvme's order of names alone.
inline constexpr uint8_t kRemoveResetsThatAreOver = 1;

// Which controller is meant: one that is enabled again is another instance.
struct ControllerInstance {
  uint16_t id = 0;         // CNTLID
  uint8_t uniquifier = 0;  // CIU; 0: it was never enabled, so that nothing of it was ever executed
  uint64_t random = 0;     // CIRN

  bool operator==(const ControllerInstance&) const = default;
};

class TargetController;
// The other controllers of a subsystem, as each of them sees these.
class SiblingControllers {
 public:
  virtual uint64_t DrawRandom() = 0;
  // The same host's, in the same subsystem, and not `of` itself, until Target::End. nullptr: there is none.
  virtual TargetController* FindSibling(const TargetController& of, const ControllerInstance& instance) = 0;

 protected:
  ~SiblingControllers() = default;
};

class ResetLog {
 public:
  // What keeps the controller from asking for one more, as a Status Field; 0: nothing.
  uint16_t Refusal(const ControllerInstance& impacted) const;
  // Refusal has said 0.
  void Begin(const ControllerInstance& impacted);
  // Nothing of it is left. False: none is in progress.
  bool Finish(const ControllerInstance& impacted);
  // Resets in progress count as failed, since this process will not see their end: the host must rely on nothing. False: none was in progress.
  bool GiveUp();

  std::vector<uint8_t> Bytes() const;
  void RemoveThatAreOver();
  bool any_over() const;

  // In progress is none.
  void Save(SavedController& saved) const;
  // kInvalidArgument; nothing has changed then.
  cleat::Status Restore(const SavedController& saved);

 private:
  using State = SavedReset::State;
  struct Entry {
    ControllerInstance impacted;
    State state = State::kInProgress;
  };
  std::vector<Entry> entries_;  // in the order in which they were asked for
};

}  // namespace cleat::nvme::target
