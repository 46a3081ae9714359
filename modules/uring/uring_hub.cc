// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/uring_hub.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <utility>

#include "modules/uring/uring_ring.h"

namespace cleat::modules {
namespace {

constexpr uint32_t kPlacesEach = 2;

// The kernel gives a ring no more places than the process may have files open.
uint32_t CountPlaces() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kPlacesEach;
  const auto most = static_cast<uint32_t>(std::min<uint64_t>(limit.rlim_cur, UringRing::kKeptFilesMax));
  return std::max(most - most % kPlacesEach, kPlacesEach);
}

UringRing* FindIn(const std::vector<std::unique_ptr<UringRing>>& rings, const Reactor& reactor) {
  for (const auto& ring : rings) {
    if (&ring->reactor() == &reactor) return ring.get();
  }
  return nullptr;
}

Status StatusWith(const std::optional<Error>& error) {
  if (error) return *error;
  return Ok{};
}

}  // namespace

UringHub::UringHub(const IoLifetime* lifetime) : lifetime_(lifetime), kept_files_(CountPlaces()) {
  // Place 0 is the lifetime's.
  for (uint32_t place = kept_files_ - kPlacesEach; place > 0; place -= kPlacesEach)
    free_places_.push_back(place);
}

UringHub::~UringHub() = default;

Status UringHub::AddReactor(Reactor& reactor) {
  auto ring = UringRing::Make(reactor, lifetime_);
  if (!ring) {
    error_ = ring.error();
    commands_error_ = ring.error();
    return std::move(ring).error();
  }
  rings_.push_back(std::move(ring).value());
  auto commands = UringRing::Make(reactor, lifetime_, UringRing::Kind::kCommands, kept_files_);
  if (commands) {
    command_rings_.push_back(std::move(commands).value());
    registrar_.AddRing(*command_rings_.back());
  } else {
    commands_error_ = std::move(commands).error();
  }
  return Ok{};
}

Status UringHub::status() const {
  return StatusWith(error_);
}

UringRing* UringHub::Find(const Reactor& reactor) const {
  return FindIn(rings_, reactor);
}

Status UringHub::commands_status() const {
  return StatusWith(commands_error_);
}

UringRing* UringHub::FindForCommands(const Reactor& reactor) const {
  return FindIn(command_rings_, reactor);
}

uint64_t UringHub::registered_commands() const {
  uint64_t commands = 0;
  for (const auto& ring : command_rings_) commands += ring->registered_commands();
  return commands;
}

Result<uint32_t> UringHub::KeepFiles(int commands, int other) {
  const MutexLock lock(mutex_);
  if (free_places_.empty()) {
    return Error(
        ErrorCode::kResourceExhausted,
        "commands go to at most " + std::to_string((kept_files_ - 1) / kPlacesEach) +
            " disks of this engine" +
            (kept_files_ < UringRing::kKeptFilesMax ? ": raise RLIMIT_NOFILE (LimitNOFILE= in the unit)"
                                                    : ""));
  }
  const uint32_t place = free_places_.back();
  Status kept = KeepInAll(place, commands);
  if (kept) kept = KeepInAll(place + 1, other);
  if (!kept) {
    DropFromAll(place);
    return std::move(kept).error();
  }
  free_places_.pop_back();
  return place;
}

void UringHub::DropFiles(uint32_t place) {
  const MutexLock lock(mutex_);
  DropFromAll(place);
  free_places_.push_back(place);
}

// What a ring can't drop, for want of memory, goes when the place is used again. Its lock was let go of before.
void UringHub::DropFromAll(uint32_t place) {
  for (const auto& ring : command_rings_) {
    for (const uint32_t one : {place, place + 1}) (void)ring->KeepFile(one, -1);
  }
}

Status UringHub::KeepInAll(uint32_t place, int fd) {
  for (const auto& ring : command_rings_) CLEAT_TRY(ring->KeepFile(place, fd));
  return Ok{};
}

}  // namespace cleat::modules
