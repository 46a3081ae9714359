// SPDX-License-Identifier: Apache-2.0
#include "intents.h"

#include <algorithm>

#include "base/check.h"

namespace cleat::sim {

Intents::Attempt Intents::Begin(const std::string& name, const std::string& value) {
  std::vector<Try>& tries = tries_[name];
  if (tries.empty()) tries.push_back({.value = kAbsent, .state = State::kDone, .ended = 0});
  Attempt attempt;
  attempt.name = name;
  attempt.number = ++last_number_;
  tries.push_back({.value = value, .number = attempt.number});
  return attempt;
}

void Intents::Done(const Attempt& attempt, const std::string& value, uint64_t revision) {
  for (Try& made : tries_[attempt.name]) {
    if (made.number != attempt.number) continue;
    made.value = value;
    made.state = State::kDone;
    made.ended = ++last_number_;
    made.revision = revision;
    return;
  }
  // A new life began meanwhile: what it found counts.
}

void Intents::Refused(const Attempt& attempt) {
  std::erase_if(tries_[attempt.name], [&](const Try& made) { return made.number == attempt.number; });
}

bool Intents::IsThere(const std::string& name) const {
  const auto found = tries_.find(name);
  if (found == tries_.end()) return false;
  return std::all_of(found->second.begin(), found->second.end(), [&](const Try& made) {
    return made.value != kAbsent || !MayBeLast(found->second, made);
  });
}

bool Intents::MayBeLast(const std::vector<Try>& tries, const Try& attempt) const {
  return std::none_of(tries.begin(), tries.end(), [&](const Try& other) {
    if (other.state != State::kDone) return false;
    const bool newer =
        attempt.state == State::kDone && attempt.revision != 0 && other.revision > attempt.revision;
    return other.number > attempt.ended || newer;
  });
}

bool Intents::IsAllowed(const std::string& name, const std::string& value) const {
  const auto found = tries_.find(name);
  if (found == tries_.end()) return value == kAbsent;
  return std::any_of(found->second.begin(), found->second.end(),
                     [&](const Try& made) { return made.value == value && MayBeLast(found->second, made); });
}

std::string Intents::Check(const Values& found, const std::string& prefix) const {
  for (const auto& [name, value] : found) {
    if (!IsAllowed(name, value)) return name + " is '" + value + "', which nobody asked for last";
  }
  for (const auto& [name, tries] : tries_) {
    const bool of_absent =
        name.find(' ') != std::string::npos && !found.contains(name.substr(0, name.find(' ')));
    if (name.starts_with(prefix) && !of_absent && !found.contains(name) && !IsAllowed(name, kAbsent))
      return name + " is not there, though it was promised";
  }
  return {};
}

std::string Intents::Restart(const Values& found) {
  std::string wrong = Check(found, "");
  tries_.clear();
  for (const auto& [name, value] : found)
    tries_[name] = {{.value = value, .state = State::kDone, .ended = 0}};
  return wrong;
}

}  // namespace cleat::sim
