// SPDX-License-Identifier: Apache-2.0
#include "nvme/target/cross_reset/reset_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "nvme/status.h"

namespace cleat::nvme::target {

uint16_t ResetLog::Refusal(const ControllerInstance& impacted) const {
  const auto in_progress = [](const Entry& entry) { return entry.state == State::kInProgress; };
  const auto is_it = [&](const Entry& entry) { return in_progress(entry) && entry.impacted == impacted; };
  if (std::ranges::any_of(entries_, is_it)) return status_field::kResetInProgress;
  if (std::ranges::count_if(entries_, in_progress) >= kResetsInProgressMax)
    return status_field::kResetLimitExceeded;
  if (entries_.size() >= kResetsMax) return status_field::kResetLogFull;
  return status_field::kSuccess;
}

void ResetLog::Begin(const ControllerInstance& impacted) {
  CLEAT_CHECK(Refusal(impacted) == status_field::kSuccess);
  entries_.push_back({.impacted = impacted});
}

bool ResetLog::Finish(const ControllerInstance& impacted) {
  const auto found = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return entry.state == State::kInProgress && entry.impacted == impacted;
  });
  if (found == entries_.end()) return false;
  found->state = State::kSuccess;
  return true;
}

bool ResetLog::GiveUp() {
  bool any = false;
  for (Entry& entry : entries_) {
    if (entry.state != State::kInProgress) continue;
    entry.state = State::kFailed;
    any = true;
  }
  return any;
}

std::vector<uint8_t> ResetLog::Bytes() const {
  constexpr size_t kHeaderBytes = 8, kEntryBytes = 8;
  constexpr size_t kId = 0, kUniquifier = 2, kAlternate = 4, kState = 6, kFlags = 7;  // of an entry
  constexpr uint16_t kNoAlternate = 0xffff;  // ACID; no source says how a controller names none
  // CCRF: the request was checked (V), and the reset has begun (CLRI). Which bits they are: by libnvme's order of names alone.
  constexpr uint8_t kValidated = 1U << 0, kBegun = 1U << 1;
  std::vector<uint8_t> log(kHeaderBytes + entries_.size() * kEntryBytes);
  const auto count = static_cast<uint16_t>(entries_.size());
  std::memcpy(log.data(), &count, sizeof(count));
  uint8_t* at = log.data() + kHeaderBytes;
  for (const Entry& entry : entries_) {
    std::memcpy(at + kId, &entry.impacted.id, sizeof(entry.impacted.id));
    at[kUniquifier] = entry.impacted.uniquifier;
    std::memcpy(at + kAlternate, &kNoAlternate, sizeof(kNoAlternate));
    at[kState] = static_cast<uint8_t>(entry.state);
    at[kFlags] = kValidated | kBegun;
    at += kEntryBytes;
  }
  return log;
}

void ResetLog::RemoveThatAreOver() {
  std::erase_if(entries_, [](const Entry& entry) { return entry.state != State::kInProgress; });
}

bool ResetLog::any_over() const {
  return std::ranges::any_of(entries_, [](const Entry& entry) { return entry.state != State::kInProgress; });
}

void ResetLog::Save(SavedController& saved) const {
  saved.resets.clear();
  for (const Entry& entry : entries_) {
    CLEAT_CHECK(entry.state != State::kInProgress);
    saved.resets.push_back(
        {.controller_id = entry.impacted.id, .uniquifier = entry.impacted.uniquifier, .state = entry.state});
  }
}

cleat::Status ResetLog::Restore(const SavedController& saved) {
  const auto wrong = [](std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); };
  if (saved.resets.size() > kResetsMax)
    return wrong(fmt::format("{} resets of other controllers", saved.resets.size()));
  std::vector<Entry> entries;
  for (const SavedReset& reset : saved.resets) {
    if (reset.state != State::kSuccess && reset.state != State::kFailed)
      return wrong(fmt::format("a reset of controller {} in the state {}, whose end this process can't see",
                               reset.controller_id, static_cast<unsigned>(reset.state)));
    if (reset.controller_id == 0 || reset.uniquifier == 0)
      return wrong(
          fmt::format("a reset of controller {}, instance {}", reset.controller_id, reset.uniquifier));
    entries.push_back(
        {.impacted = {.id = reset.controller_id, .uniquifier = reset.uniquifier}, .state = reset.state});
  }
  entries_ = std::move(entries);
  return {};
}

}  // namespace cleat::nvme::target
