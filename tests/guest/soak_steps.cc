// SPDX-License-Identifier: Apache-2.0
#include "tests/guest/soak_steps.h"

#include <poll.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "perf/vhost_user/deadline.h"

namespace cleat::nvme_soak {
namespace {

constexpr uint32_t kGiveBackPercent = 25;
// A successor lives so long at most when it is killed as well: with emulated processors it takes about that to serve.
constexpr uint64_t kSuccessorMsMax = 3000;
// What the drive does begins so long before the event at most, and what is held in it is kept so long.
constexpr uint64_t kBeforeMsMax = 300;
constexpr uint64_t kHeldMsMin = 300, kHeldMsMax = 2500;
constexpr uint64_t kResetsMax = 3;

void Pause(uint64_t ms) {
  poll(nullptr, 0, static_cast<int>(ms));
}

}  // namespace

const char* EventName(Event event) {
  switch (event) {
    case Event::kKill:
      return "kill";
    case Event::kKillTwice:
      return "kill, and of the successor";
    case Event::kKillAll:
      return "kill, and of cleatd";
    case Event::kUpgrade:
      return "upgrade";
    case Event::kUpgradeWithDeath:
      return "upgrade with a death";
  }
  return "?";
}

const char* StorageName(Storage storage) {
  switch (storage) {
    case Storage::kAsIs:
      return "drive as it is";
    case Storage::kSlow:
      return "drive slow";
    case Storage::kHeld:
      return "drive holds writes";
    case Storage::kReset:
      return "drive reset";
  }
  return "?";
}

std::string Step::ToString() const {
  return std::string(EventName(event)) + ", " + StorageName(storage) +
         (guest_resets ? ", guest resets" : "") + (balloon ? ", balloon" : "");
}

Step Steps::Choose() {
  constexpr enum Event kEvents[] = {
      Event::kKill,    Event::kKill,    Event::kKillTwice, Event::kKillAll,
      Event::kUpgrade, Event::kUpgrade, Event::kUpgrade,   Event::kUpgradeWithDeath};
  constexpr Storage kStorage[] = {Storage::kAsIs, Storage::kSlow, Storage::kHeld, Storage::kReset};
  Step step;
  step.event = kEvents[random_.Below(std::size(kEvents))];
  step.storage = kStorage[random_.Below(std::size(kStorage))];
  step.guest_resets = random_.Chance(1, 3);
  step.balloon = random_.Chance(1, 2);
  return step;
}

bool Steps::Do(const Step& step) {
  for (const auto& guest : rig_.guests())
    guest->load().SetGiveBackPercent(step.balloon && !guest->memory_pinned() ? kGiveBackPercent : 0);
  ++counts_[EventName(step.event)];
  ++counts_[StorageName(step.storage)];
  if (step.guest_resets) ++counts_["guest resets"];
  if (step.balloon) ++counts_["balloon"];
  bool went_on = rig_.Do(step.ToString(), [&] { return Event(step); });
  if (step.storage == Storage::kSlow) went_on = drives_.Fast().ok() && went_on;
  return went_on;
}

// What happens to the drives does so around the event. The guests' resets begin at any moment, and end when an engine is there.
std::string Steps::Event(const Step& step) {
  Status drives;
  if (step.storage == Storage::kSlow) drives = drives_.Slow();
  if (step.storage == Storage::kHeld) drives = drives_.Hold();
  const uint64_t before_ms = random_.Below(kBeforeMsMax);
  const uint64_t held_ms = random_.Between(kHeldMsMin, kHeldMsMax);
  const uint64_t resets = step.storage == Storage::kReset ? random_.Between(1, kResetsMax) : 0;
  std::thread meanwhile([&] {
    for (uint64_t i = 0; i < resets && drives.ok(); ++i) {
      drives = drives_.Reset();
      Pause(held_ms / resets);
    }
    if (step.storage != Storage::kHeld) return;
    Pause(held_ms);
    if (Status released = drives_.Release(); drives.ok()) drives = std::move(released);
  });
  if (step.guest_resets) {
    for (const auto& guest : rig_.guests()) guest->load().AskReset();
  }
  Pause(before_ms);
  std::string failure = Happen(step.event);
  meanwhile.join();
  if (failure.empty()) failure = WaitEngines();
  return !failure.empty() || drives.ok() ? failure : drives.error().message;
}

std::string Steps::Happen(enum Event event) {
  switch (event) {
    case Event::kKill:
      Kill();
      return "";
    case Event::kKillTwice:
      Kill();
      Pause(random_.Below(kSuccessorMsMax));
      Kill();
      return "";
    case Event::kKillAll:
      return KillAll();
    case Event::kUpgrade:
      ++upgraded_;
      return upgrades_.Upgrade();
    case Event::kUpgradeWithDeath: {
      ++upgraded_;
      const uint64_t before = upgrades_.deaths();
      std::string failure = upgrades_.UpgradeWithDeath();
      kills_ += upgrades_.deaths() - before;
      return failure;
    }
  }
  return "?";
}

void Steps::Kill() {
  host_.engine(upgrades_.from()).Kill();
  ++kills_;
  host_.StartEngine(upgrades_.from());
}

// Whoever is back first.
std::string Steps::KillAll() {
  host_.KillCleatd();
  host_.engine(upgrades_.from()).Kill();
  ++kills_;
  const bool engine_first = random_.Chance(1, 2);
  if (engine_first) host_.StartEngine(upgrades_.from());
  host_.StartCleatd();
  if (!engine_first) host_.StartEngine(upgrades_.from());
  return "";
}

std::string Steps::WaitEngines() {
  for (const std::string& engine : {upgrades_.from(), upgrades_.to()}) {
    if (!host_.WaitEngine(engine)) return engine + " does not come back";
  }
  return "";
}

}  // namespace cleat::nvme_soak
