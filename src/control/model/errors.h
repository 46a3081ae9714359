// SPDX-License-Identifier: Apache-2.0
// Answers and notes that several kinds of resources give alike, and etags. For the files of HostState.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "control/model/reasons.h"

namespace cleat::control {

inline std::string EtagOf(uint64_t intent_revision) {
  return fmt::format("{:x}", intent_revision);
}

inline uint64_t RevisionOfEtag(std::string_view etag) {
  uint64_t revision = 0;
  std::from_chars(etag.data(), etag.data() + etag.size(), revision, 16);
  return revision;
}

// `conflict`: the resource that is waited for, when it is another one.
inline Error Busy(std::string_view resource, std::string message, std::string_view conflict = {}) {
  Metadata metadata;
  if (!conflict.empty()) metadata.emplace_back("conflict", conflict);
  return RefuseFor(resource, v1::REASON_RESOURCE_BUSY, std::move(message) + ": retry in a moment",
                   std::move(metadata));
}

inline Error NotFound(std::string_view resource) {
  return RefuseFor(resource, v1::REASON_RESOURCE_NOT_FOUND, fmt::format("{} does not exist", resource));
}

inline Status CheckEtag(std::string_view resource, std::string_view wanted, uint64_t intent_revision) {
  const std::string present = EtagOf(intent_revision);
  if (wanted.empty() || wanted == present) return Ok{};
  return RefuseFor(
      resource, v1::REASON_ETAG_MISMATCH,
      fmt::format("{} was changed: its etag is '{}', not '{:.40}'. Get it, decide anew, and repeat", resource,
                  present, wanted),
      {{"etag", present}});
}

// Appends a note to a status' message.
inline void AddNote(const std::optional<std::string>& note, std::string& message) {
  if (note) message += (message.empty() ? "" : "; ") + *note;
}

}  // namespace cleat::control
