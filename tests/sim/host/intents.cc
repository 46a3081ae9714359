// SPDX-License-Identifier: Apache-2.0
#include "intents.h"

#include <algorithm>

namespace cleat::sim {

Intents::Change Intents::Begin(const std::string& name, const std::string& value) {
  std::vector<Made>& changes = changes_[name];
  if (changes.empty()) changes.push_back({.value = kAbsent, .state = State::kAcknowledged, .ended = 0});
  Change change;
  change.name = name;
  change.number = ++last_number_;
  changes.push_back({.value = value, .number = change.number});
  return change;
}

// Null when a new life began meanwhile: what that found counts.
Intents::Made* Intents::Find(const Change& change) {
  for (Made& made : changes_[change.name]) {
    if (made.number == change.number) return &made;
  }
  return nullptr;
}

void Intents::Acknowledged(const Change& change, const std::string& value, uint64_t revision) {
  Made* const made = Find(change);
  if (made == nullptr) return;
  made->value = value;
  made->state = State::kAcknowledged;
  made->ended = ++last_number_;
  made->revision = revision;
}

void Intents::Refused(const Change& change) {
  std::erase_if(changes_[change.name], [&](const Made& made) { return made.number == change.number; });
}

void Intents::Failed(const Change& change) {
  if (Made* const made = Find(change); made != nullptr) made->state = State::kFailed;
}

void Intents::OnStored() {
  for (auto& [name, changes] : changes_)
    std::erase_if(changes, [](const Made& made) { return made.state == State::kFailed; });
}

void Intents::Seen(const std::string& name, const std::string& value, uint64_t revision, uint64_t since) {
  changes_[name].push_back({.value = value,
                            .state = State::kSeen,
                            .number = since,
                            .ended = ++last_number_,
                            .revision = revision});
}

std::vector<std::string> Intents::There(const std::string& part) const {
  std::vector<std::string> names;
  for (const auto& [name, changes] : changes_) {
    if (name.find(part) != std::string::npos && !IsAllowed(name, kAbsent, true)) names.push_back(name);
  }
  return names;
}

bool Intents::MayBeLast(const std::vector<Made>& changes, const Made& change) const {
  return std::none_of(changes.begin(), changes.end(), [&](const Made& other) {
    const bool counts = other.state == State::kAcknowledged || other.state == State::kSeen;
    const bool older = change.revision != 0 && other.revision > change.revision;
    return counts && (other.number > change.ended || older);
  });
}

bool Intents::IsAllowed(const std::string& name, const std::string& value, bool in_life) const {
  const auto found = changes_.find(name);
  if (found == changes_.end()) return value == kAbsent;
  return std::any_of(found->second.begin(), found->second.end(), [&](const Made& made) {
    if (in_life && made.state == State::kFailed) return false;
    return made.value == value && MayBeLast(found->second, made);
  });
}

std::string Intents::Check(const Values& found, bool in_life) const {
  for (const auto& [name, value] : found) {
    if (!IsAllowed(name, value, in_life)) return name + " is '" + value + "', which nobody asked for last";
  }
  for (const auto& [name, changes] : changes_) {
    const size_t space = name.find(' ');
    const bool of_absent = space != std::string::npos && !found.contains(name.substr(0, space));
    if (!of_absent && !found.contains(name) && !IsAllowed(name, kAbsent, in_life))
      return name + " is not there, though it was promised";
  }
  return {};
}

std::string Intents::CheckShown(const Values& found) const {
  return Check(found, true);
}

std::string Intents::Restart(const Values& found) {
  std::string wrong = Check(found, false);
  changes_.clear();
  for (const auto& [name, value] : found)
    changes_[name] = {{.value = value, .state = State::kAcknowledged, .ended = last_number_}};
  return wrong;
}

}  // namespace cleat::sim
