// SPDX-License-Identifier: Apache-2.0
// What cleatd has promised: each change of an object that it acknowledged, each value that it has shown, and each change of which nobody
// knows what became of it, since cleatd died or could not write. What an object is found to be then has to be one of what these allow.
// Values are texts; an object has several (its being there, its limits), each with a name of its own, "disks/a" and "disks/a limits": the
// latter goes with the object.
//
// A value is allowed if its change may have been the last one: no other one that was acknowledged began after its end, nor has a newer
// revision. Calls overlap, so there may be several.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cleat::sim {

inline const std::string kAbsent;  // the value of what is not there

class Intents {
 public:
  using Values = std::map<std::string, std::string>;  // by name; those that are absent are left out

  class Change {
    friend class Intents;
    std::string name;
    uint64_t number = 0;
  };
  // A call that would give the object that value is about to be made. It ends with one of the three, or cleatd dies first.
  Change Begin(const std::string& name, const std::string& value);
  // With what the object is now. `revision` of the answer; 0: it tells none.
  void Acknowledged(const Change& change, const std::string& value, uint64_t revision);
  void Refused(const Change& change);  // nothing was changed
  // The store could not write it. As long as cleatd lives it is not there; the next life may find it in the store's log.
  void Failed(const Change& change);
  // The store was written to: what had failed before is not in its log any more.
  void OnStored();

  // An answer has shown the value to somebody who asked after `since`, a Now() of before.
  void Seen(const std::string& name, const std::string& value, uint64_t revision, uint64_t since);
  uint64_t Now() { return ++last_number_; }

  // All with such a part of the name that are there for sure, and not about to go.
  std::vector<std::string> There(const std::string& part) const;

  // Objects as a living cleatd shows them. Empty: allowed; otherwise what is wrong.
  std::string CheckShown(const Values& found) const;
  // The same of what a new life finds in its store; from now on it is what objects are.
  std::string Restart(const Values& found);

 private:
  enum class State : uint8_t { kUnderWay, kFailed, kAcknowledged, kSeen };
  struct Made {
    std::string value;
    State state = State::kUnderWay;
    uint64_t number = 0;  // when it began
    uint64_t ended = UINT64_MAX;
    uint64_t revision = 0;
  };
  Made* Find(const Change& change);
  bool MayBeLast(const std::vector<Made>& changes, const Made& change) const;
  bool IsAllowed(const std::string& name, const std::string& value, bool in_life) const;
  std::string Check(const Values& found, bool in_life) const;

  std::map<std::string, std::vector<Made>> changes_;  // by name; the first is what it was when the life began
  uint64_t last_number_ = 0;
};

}  // namespace cleat::sim
