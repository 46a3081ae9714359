// SPDX-License-Identifier: Apache-2.0
#include "tests/ceph/rbd_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace cleat::system_test {

std::string_view NameOf(Act act) {
  switch (act) {
    case Act::kCreateCluster:
      return "create cluster";
    case Act::kDeleteCluster:
      return "delete cluster";
    case Act::kCreateDisk:
      return "create disk";
    case Act::kDeleteDisk:
      return "delete disk";
    case Act::kResizeDisk:
      return "resize disk";
    case Act::kCreateController:
      return "create controller";
    case Act::kDeleteController:
      return "delete controller";
    case Act::kAttach:
      return "attach";
    case Act::kDetach:
      return "detach";
    case Act::kCreateImage:
      return "create image";
    case Act::kRemoveImage:
      return "remove image";
    case Act::kGrowImage:
      return "grow image";
  }
  return "?";
}

std::string Step::ToString() const {
  return fmt::format("{} (disk {}, controller {}, {} MiB)", NameOf(act), disk, controller, mib);
}

std::string World::ToString() const {
  std::string text = cluster ? "cluster;" : "no cluster;";
  for (uint32_t i = 0; i < kDisks; ++i) {
    const Disk& d = disks[i];
    text += fmt::format(" disk {}: {} MiB, image {} MiB", i, d.mib, d.image_mib);
    if (d.attached()) text += fmt::format(", {} controller {}", d.leaving ? "leaving" : "on", d.controller);
    text += ";";
  }
  for (uint32_t i = 0; i < kControllers; ++i)
    text += fmt::format(" controller {} {}", i, std::array{"absent", "there", "leaving"}[controllers[i]]);
  return text;
}

void World::Disk::See() {
  if (attached()) known_mib = std::max(known_mib, std::min(image_mib, mib));
}

World::End World::EndOf(uint32_t disk) const {
  const Disk& d = disks[disk];
  if (!d.held()) return End::kGone;
  if (d.image_mib == 0) return End::kNoImage;
  if (d.image_mib < d.known_mib) return End::kImageTooSmall;
  return d.image_mib < d.mib ? End::kGrowing : End::kReady;
}

std::string World::Take(const Step& step, std::vector<std::string>* also) {
  std::string answer = Answer(step, also);
  disks[step.disk].See();
  return answer;
}

std::string World::Answer(const Step& step, std::vector<std::string>* also) {
  Disk& disk = disks[step.disk];
  Presence& controller = controllers[step.controller];
  const auto has_disk = [](const Disk& d) { return d.mib != 0; };
  const auto is_on = [&step](const Disk& d) { return d.controller == step.controller && d.held(); };
  switch (step.act) {
    case Act::kCreateCluster:
      cluster = true;
      return "OK";
    case Act::kDeleteCluster:
      if (std::any_of(disks.begin(), disks.end(), has_disk)) return "CLUSTER_IN_USE";
      cluster = false;
      return "OK";
    case Act::kCreateDisk:
      if (disk.mib != 0) return disk.mib == kMibNew ? "OK" : "CONTENT_DIFFERS";
      if (!cluster) return "RESOURCE_NOT_FOUND";
      disk.mib = disk.known_mib = kMibNew;
      return "OK";
    case Act::kDeleteDisk:
      if (disk.attached()) return disk.leaving ? "RESOURCE_BUSY" : "DISK_IN_USE";
      disk.mib = disk.known_mib = 0;
      return "OK";
    case Act::kResizeDisk:
      if (disk.mib == 0) return "RESOURCE_NOT_FOUND";
      if (step.mib < disk.mib) return "DISK_CANNOT_SHRINK";
      disk.mib = step.mib;
      return "OK";
    case Act::kCreateController:
      if (controller == kLeaving) return "RESOURCE_BUSY";
      controller = kThere;
      return "OK";
    case Act::kDeleteController:
      if (controller != kThere) return "OK";
      if (std::any_of(disks.begin(), disks.end(), is_on)) return "CONTROLLER_IN_USE";
      controller = kLeaving;
      return "OK";
    case Act::kAttach:
      return Attach(step.disk, step.controller);
    case Act::kDetach:
      if (disk.controller == step.controller) disk.leaving = true;
      return "OK";
    default:
      return ActOnImage(step, also);
  }
}

std::string World::Attach(uint32_t number, uint32_t controller) {
  Disk& disk = disks[number];
  if (controllers[controller] == kAbsent) return "RESOURCE_NOT_FOUND";
  if (controllers[controller] == kLeaving) return "RESOURCE_BUSY";
  if (disk.controller == controller) return disk.leaving ? "RESOURCE_BUSY" : "OK";
  for (const Disk& other : disks) {
    if (IsBlk(controller) && other.controller == controller)
      return other.leaving ? "RESOURCE_BUSY" : "TARGET_TAKEN";
  }
  if (disk.mib == 0) return "RESOURCE_NOT_FOUND";
  if (disk.attached()) return disk.leaving ? "RESOURCE_BUSY" : "DISK_HAS_WRITER";
  disk.controller = static_cast<uint8_t>(controller);
  return "OK";
}

std::string World::ActOnImage(const Step& step, std::vector<std::string>* also) {
  Disk& disk = disks[step.disk];
  if (step.act == Act::kCreateImage) {
    if (disk.image_mib != 0) return "EEXIST";
    disk.image_mib = step.mib;
    return "OK";
  }
  if (disk.image_mib == 0) return "ENOENT";
  if (step.act == Act::kRemoveImage) {
    if (disk.held()) return "EBUSY";  // it is only tried while it is open for certain
    if (disk.leaving) also->emplace_back("EBUSY");
    disk.image_mib = 0;
    return "OK";
  }
  if (step.mib < disk.image_mib) return "EINVAL";
  disk.image_mib = step.mib;
  return "OK";
}

std::vector<World> World::Next() const {
  std::vector<World> next;
  for (uint32_t i = 0; i < kDisks; ++i) {
    const Disk& disk = disks[i];
    if (!disk.attached()) continue;
    if (disk.leaving) {
      next.push_back(*this);
      next.back().disks[i].controller = kNone;
      next.back().disks[i].leaving = false;
    }
    // Each size on the way may be one that was asked for, or seen, before the present one. No disk was ever smaller than new
    // ones are, so an image that is does not grow.
    for (uint8_t mib = disk.image_mib; disk.image_mib >= kMibNew && mib < disk.mib;) {
      next.push_back(*this);
      next.back().disks[i].image_mib = ++mib;
      next.back().disks[i].See();
    }
    for (uint8_t mib = disk.mib; mib < disk.image_mib;) {
      next.push_back(*this);
      next.back().disks[i].mib = ++mib;
      next.back().disks[i].See();
    }
  }
  for (uint32_t i = 0; i < kControllers; ++i) {
    const auto is_on = [i](const Disk& disk) { return disk.controller == i; };
    if (controllers[i] != kLeaving || std::any_of(disks.begin(), disks.end(), is_on)) continue;
    next.push_back(*this);
    next.back().controllers[i] = kAbsent;
  }
  return next;
}

void Worlds::Close() {
  std::vector<World> fresh(all_.begin(), all_.end());
  while (!fresh.empty()) {
    const World world = fresh.back();
    fresh.pop_back();
    for (const World& next : world.Next()) {
      if (all_.insert(next).second) fresh.push_back(next);
    }
  }
}

bool Worlds::Take(const Step& step, const std::string& answer) {
  std::set<World> taken;
  for (const World& world : all_) {
    World after = world;
    std::vector<std::string> also;
    if (after.Take(step, &also) == answer) {
      taken.insert(after);
    } else if (std::find(also.begin(), also.end(), answer) != also.end()) {
      taken.insert(world);
    }
  }
  all_ = std::move(taken);
  Close();
  return !all_.empty();
}

std::string Worlds::AnswersTo(const Step& step) const {
  std::set<std::string> answers;
  for (World world : all_) {
    std::vector<std::string> also;
    answers.insert(world.Take(step, &also));
    answers.insert(also.begin(), also.end());
  }
  return fmt::format("{}", fmt::join(answers, " or "));
}

bool Worlds::MayEnd(uint32_t disk, World::End end) const {
  return Any([&](const World& world) { return world.EndOf(disk) == end; });
}

bool Worlds::Ended(uint32_t disk, World::End end) {
  return Keep([&](const World& world) {
    const World::Disk& one = world.disks[disk];
    return world.EndOf(disk) == end && !(end == World::End::kGone && one.attached());
  });
}

std::string Worlds::ToString() const {
  constexpr size_t kShown = 6;
  std::string text;
  size_t count = 0;
  for (const World& world : all_) {
    if (count++ < kShown) text += "  " + world.ToString() + "\n";
  }
  return fmt::format("{} worlds:\n{}", all_.size(), text);
}

}  // namespace cleat::system_test
