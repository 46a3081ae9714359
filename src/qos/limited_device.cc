// SPDX-License-Identifier: Apache-2.0
#include "qos/limited_device.h"

#include <utility>

#include "qos/limited_channel.h"

namespace cleat::qos {

Result<std::unique_ptr<LimitedDevice>> LimitedDevice::Make(std::unique_ptr<block::Device>&& below,
                                                           const Limits& limits,
                                                           std::shared_ptr<Group> group) {
  CLEAT_TRY(CheckLimits(limits, below->name()));
  return std::unique_ptr<LimitedDevice>(new LimitedDevice(std::move(below), limits, std::move(group)));
}

LimitedDevice::LimitedDevice(std::unique_ptr<block::Device> below, const Limits& limits,
                             std::shared_ptr<Group> group)
    : FilterDevice(std::move(below)),
      group_(std::move(group)),
      limit_source_(limits, std::make_shared<Accounts>()) {}

LimitedDevice::~LimitedDevice() = default;

void LimitedDevice::SetLimits(const Limits& limits) {
  CLEAT_CHECK(Reactor::Current() != nullptr);
  limit_source_.Change(limits, Reactor::Current()->now_ns());
}

void LimitedDevice::RestoreUse(std::span<const uint64_t> words) {
  CLEAT_CHECK(Reactor::Current() != nullptr);
  RestoreAccounts(*limit_source_.view().accounts, words, UnitsOf(Reactor::Current()->now_ns()));
}

Result<std::unique_ptr<block::Channel>> LimitedDevice::OpenChannel(Reactor& reactor) {
  CLEAT_ASSIGN(auto channel, below().OpenChannel(reactor));
  limit_source_.Begin(reactor.now_ns());
  std::shared_ptr<GroupPort> port = group_ != nullptr ? group_->PortOn(reactor) : nullptr;
  return std::unique_ptr<block::Channel>(
      std::make_unique<LimitedChannel>(reactor, std::move(channel), limit_source_, std::move(port)));
}

}  // namespace cleat::qos
