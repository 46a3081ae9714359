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
  const bool shown = memory_.of_this_disk || (on_owned_ != nullptr && forgotten());
  return shown ? disk_.identity : DiskIdentity();
}

void SwapGuard::Learn(const vhost::DriverMemory& memory) {
  if (disk_.identity.known() && !is_last()) swaps_ = true;
  const bool changed = memory_ != memory;
  memory_ = memory;
  if (changed && on_owned_ != nullptr) on_change_();
}

void SwapGuard::AcquireAsync(std::function<void()> on_owned) {
  on_owned_ = std::move(on_owned);
  if (allowed()) return AcquireBehind();
  if (!next_disk().known())
    spdlog::warn("{}: rings wait for the guest to forget another disk: {}", controller_.name,
                 pending_reason());
  on_change_();
}

void SwapGuard::AcquireBehind() {
  acquiring_behind_ = true;
  behind_.AcquireAsync(on_owned_);
}

void SwapGuard::LastDiskChanged() {
  if (on_owned_ == nullptr || acquiring_behind_ || !allowed()) return;
  spdlog::info("{}: guest has forgotten its last disk: {} is served now", controller_.name, disk_.name);
  AcquireBehind();
  if (behind_.owned()) on_owned_();
}

void SwapGuard::Forget() {
  if (allowed()) swaps_ = false;
  on_owned_ = nullptr;
  memory_ = {};
}

void SwapGuard::CancelAcquire() {
  Forget();
  if (std::exchange(acquiring_behind_, false)) behind_.CancelAcquire();
}

void SwapGuard::HandOff() {
  Forget();
  acquiring_behind_ = false;
  behind_.HandOff();
}

std::string SwapGuard::pending_reason() const {
  if (allowed()) return behind_.pending_reason();
  if (next_disk().known()) return "cleatd is to note that its guest has " + disk_.name + " from now on";
  const bool named = !is_last() && !controller_.last_disk_name.empty();
  const std::string last = named ? controller_.last_disk_name : "another disk";
  const std::string again = named ? "detach " + disk_.name + " and attach " + last + " again"
                                  : "detach " + disk_.name + " and attach that disk again";
  return "the guest's driver still has what it did to " + last +
         " under way, which is not to be written to " + disk_.name + ": " + again + ", or reset the VM";
}

}  // namespace cleat::engine
