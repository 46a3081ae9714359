// SPDX-License-Identifier: Apache-2.0
// What cleatd has promised: each change of an object that it acknowledged, and each one of which nobody knows what became of it, since
// cleatd died or could not write. What an object is found to be then has to be one of what these allow. Values are texts; an object has
// several (its being there, its limits), each with a name of its own, "disks/a" and "disks/a limits": the latter goes with the object.
//
// A value is allowed if an attempt with that value may have been the last one: no other one that was acknowledged began after its answer,
// nor has a newer revision. Calls overlap, so there may be several.
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

  class Attempt {
    friend class Intents;
    std::string name;
    uint64_t number = 0;
  };
  // A call that would give the object that value is about to be made.
  Attempt Begin(const std::string& name, const std::string& value);
  // It was acknowledged, with what the object is now. `revision` of the answer; 0: it tells none.
  void Done(const Attempt& attempt, const std::string& value, uint64_t revision);
  void Refused(const Attempt& attempt);  // nothing was changed
  // Whether no call for it can still be under way and it is there.
  bool IsThere(const std::string& name) const;

  // What cleatd shows of all objects with these prefixes. Empty: allowed; otherwise what is wrong.
  std::string Check(const Values& found, const std::string& prefix) const;
  // The same of a life that begins; from now on it is what objects are.
  std::string Restart(const Values& found);

 private:
  enum class State : uint8_t { kUnknown, kDone };
  struct Try {
    std::string value;
    State state = State::kUnknown;
    uint64_t number = 0;  // when it began
    uint64_t ended = UINT64_MAX;
    uint64_t revision = 0;
  };
  bool MayBeLast(const std::vector<Try>& tries, const Try& attempt) const;
  bool IsAllowed(const std::string& name, const std::string& value) const;

  std::map<std::string, std::vector<Try>> tries_;  // by name; the first is what it was when the life began
  uint64_t last_number_ = 0;
};

}  // namespace cleat::sim
