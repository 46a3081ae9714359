// SPDX-License-Identifier: Apache-2.0
// The steps of a soak: an engine is killed or exchanged under guests that judge, by itself or while something else happens to drives and
// guests. Random, from a seed. Of the test's main thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/guest/soak_drives.h"
#include "tests/system/crash_rig.h"
#include "tests/system/host.h"
#include "tests/system/upgrade_rig.h"

namespace cleat::nvme_soak {

enum class Event : uint8_t {
  kKill,              // SIGKILL of the engine that has the controllers
  kKillTwice,         // and of its successor, at some moment of its start
  kKillAll,           // with cleatd
  kUpgrade,           // to the other engine
  kUpgradeWithDeath,  // somebody is killed meanwhile
};
const char* EventName(Event event);

enum class Storage : uint8_t {
  kAsIs,
  kSlow,   // few writes a second
  kHeld,   // some writes stay in the drive, while later ones are carried out
  kReset,  // the kernel resets the drives' controllers
};
const char* StorageName(Storage storage);

struct Step {
  Event event = Event::kKill;
  Storage storage = Storage::kAsIs;
  bool guest_resets = false;  // the guests reset their devices
  bool balloon = false;       // the balloons are at work, of guests that have one
  std::string ToString() const;
};

class Steps {
 public:
  Steps(system_test::Host& host, system_test::CrashRig& rig, system_test::UpgradeRig& upgrades,
        Drives& drives, uint64_t seed)
      : host_(host), rig_(rig), upgrades_(upgrades), drives_(drives), random_(seed) {}

  Step Choose();
  // False when something was found.
  bool Do(const Step& step);

  uint64_t kills() const { return kills_; }  // of engines; those within upgrades included
  uint64_t upgrades() const { return upgraded_; }
  // How many steps there were of each kind: "kill", "drive slow", "guest resets"...
  const std::map<std::string, uint64_t>& counts() const { return counts_; }

 private:
  std::string Event(const Step& step);
  std::string Happen(enum Event event);
  void Kill();
  std::string KillAll();
  std::string WaitEngines();

  system_test::Host& host_;
  system_test::CrashRig& rig_;
  system_test::UpgradeRig& upgrades_;
  Drives& drives_;
  Random random_;
  uint64_t kills_ = 0;
  uint64_t upgraded_ = 0;
  std::map<std::string, uint64_t> counts_;
};

}  // namespace cleat::nvme_soak
