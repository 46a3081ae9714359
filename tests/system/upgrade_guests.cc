// SPDX-License-Identifier: Apache-2.0
#include "upgrade_guests.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/clock.h"

namespace cleat::system_test {
namespace {

constexpr char kGroup[] = "vm";
constexpr uint64_t kDiskIops = 1000;   // of each limited disk
constexpr uint64_t kGroupIops = 1500;  // of two of them together
// A request is lost when it is not answered for so long: more than a busy machine's disk takes.
constexpr uint64_t kPatienceNs = 60 * kNsPerSecond;
// What a limit without a burst lets pass at once: ten milliseconds of it, in each engine that begins to serve.
constexpr double kAtOnceSeconds = 0.01;

}  // namespace

Status UpgradeGuests::Add() {
  for (const bool scsi : {false, true}) {
    for (const bool packed : {false, true}) {
      for (const bool memory : {false, true}) {
        Status added = Add({.scsi = scsi,
                            .packed = packed,
                            .queues = 2,
                            .memory = memory,
                            .delay_ns_max = memory ? 2 * kNsPerMs : 0});
        if (!added.ok()) return added;
      }
    }
  }
  const auto group = host_.api().CreateGroup(kGroup, Iops(kGroupIops));
  if (!group.ok()) return Error(ErrorCode::kInternal, group.message());
  for (const bool scsi : {false, true}) {
    if (Status added = AddEncrypted(scsi); !added.ok()) return added;
    if (Status added = AddLimited(scsi); !added.ok()) return added;
  }
  return Ok{};
}

Status UpgradeGuests::Add(const CrashCase& what) {
  return rig_.Add(what, {.load = {.lost_after_ns = kPatienceNs}});
}

Status UpgradeGuests::AddEncrypted(bool scsi) {
  CrashCase encrypted{.scsi = scsi, .packed = !scsi, .queues = 2, .storage = "encrypted"};
  encrypted.spec =
      WithEncryption(FileDisk(CrashRig::kDiskBytes, host_.Path(encrypted.storage + (scsi ? "1" : "0"))));
  return Add(encrypted);
}

Status UpgradeGuests::AddLimited(bool scsi) {
  CrashCase limited{.scsi = scsi, .packed = scsi, .queues = 2, .storage = "limited", .group = kGroup};
  limited.spec = FileDisk(CrashRig::kDiskBytes, host_.Path(limited.storage + (scsi ? "1" : "0")));
  *limited.spec->mutable_limits() = Iops(kDiskIops);
  limited_.push_back(rig_.guests().size());
  return Add(limited);
}

// Guests may go on a moment before cleatd has recorded where.
void UpgradeGuests::ExpectAllOn(const std::string& engine) {
  const std::string name = "engines/" + engine;
  Model last;
  EXPECT_TRUE(host_.api().WaitUntil(
      [&](const Model& model) {
        return std::all_of(rig_.guests().begin(), rig_.guests().end(), [&](const auto& guest) {
          const auto found = model.controllers.find("controllers/" + guest->id());
          return found != model.controllers.end() && found->second.status().engine() == name;
        });
      },
      &last))
      << "not all are on " << name << ":\n"
      << last.ToString();
}

void UpgradeGuests::ExpectLimitsHeld(uint64_t since_ns, uint64_t engines) {
  const double seconds =
      static_cast<double>(MonotonicClock().NowNs() - since_ns) / static_cast<double>(kNsPerSecond) +
      kAtOnceSeconds * static_cast<double>(engines);
  uint64_t both = 0;
  for (const size_t index : limited_) {
    CrashGuest& guest = *rig_.guests()[index];
    const uint64_t requests = guest.load().counts().requests;
    EXPECT_LE(static_cast<double>(requests), static_cast<double>(kDiskIops) * seconds) << guest.id();
    both += requests;
  }
  EXPECT_LE(static_cast<double>(both), static_cast<double>(kGroupIops) * seconds);
  fmt::print("limited: {} requests in {:.1f} s, {:.1f} a second of {}\n", both, seconds,
             static_cast<double>(both) / seconds, kGroupIops);
}

}  // namespace cleat::system_test
