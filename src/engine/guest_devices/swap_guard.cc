// SPDX-License-Identifier: Apache-2.0
#include "engine/guest_devices/swap_guard.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace cleat::engine {

SwapGuard::SwapGuard(const ControllerSpec& controller, const AttachmentSpec& attachment,
                     vhost::Ownership& behind, std::function<void()> on_change)
    : controller_(controller),
      disk_(attachment.disk),
      incoming_(attachment.incoming),
      behind_(behind),
      on_change_(std::move(on_change)) {}

bool SwapGuard::forgotten() const {
  return memory_.forgotten() || (incoming_ && memory_.new_log && !memory_.used_log);
}

bool SwapGuard::allowed() const {
  if (!disk_.identity.known()) return true;
  if (memory_.of_another_disk) return false;
  if (memory_.of_this_disk) return true;
  return is_last() && (!swaps_ || forgotten());
}

DiskIdentity SwapGuard::next_disk() const {
  if (!disk_.identity.known() || is_last() || memory_.of_another_disk) return {};
  const bool shown = memory_.of_this_disk || (on_held_ != nullptr && forgotten());
  return shown ? disk_.identity : DiskIdentity();
}

void SwapGuard::Learn(const vhost::DriverMemory& memory) {
  if (disk_.identity.known() && !is_last()) swaps_ = true;
  const bool changed = memory_ != memory;
  memory_ = memory;
  if (changed && on_held_ != nullptr) on_change_();
}

void SwapGuard::Begin(std::function<void()> on_held) {
  on_held_ = std::move(on_held);
  if (allowed()) return BeginBehind();
  if (!next_disk().known())
    spdlog::warn("{}: rings wait for the guest to forget another disk: {}", controller_.name, waiting_for());
  on_change_();
}

void SwapGuard::BeginBehind() {
  begun_behind_ = true;
  behind_.Begin(on_held_);
}

void SwapGuard::LastDiskChanged() {
  if (on_held_ == nullptr || begun_behind_ || !allowed()) return;
  spdlog::info("{}: guest has forgotten its last disk: {} is served now", controller_.name, disk_.name);
  BeginBehind();
  if (behind_.held()) on_held_();
}

void SwapGuard::Forget() {
  if (allowed()) swaps_ = false;
  on_held_ = nullptr;
  memory_ = {};
}

void SwapGuard::End() {
  Forget();
  if (std::exchange(begun_behind_, false)) behind_.End();
}

void SwapGuard::GiveUp() {
  Forget();
  begun_behind_ = false;
  behind_.GiveUp();
}

std::string SwapGuard::waiting_for() const {
  if (allowed()) return behind_.waiting_for();
  if (next_disk().known()) return "cleatd is to note that its guest has " + disk_.name + " from now on";
  const bool named = !is_last() && !controller_.last_disk_name.empty();
  const std::string last = named ? controller_.last_disk_name : "another disk";
  const std::string again = named ? "detach " + disk_.name + " and attach " + last + " again"
                                  : "detach " + disk_.name + " and attach that disk again";
  return "the guest's driver still has what it did to " + last +
         " under way, which is not to be written to " + disk_.name + ": " + again + ", or reset the VM";
}

}  // namespace cleat::engine
