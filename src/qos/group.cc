// SPDX-License-Identifier: Apache-2.0
#include "qos/group.h"

#include <fmt/format.h>

#include <utility>

namespace cleat::qos {
namespace {

// Not std::hash, which may differ between builds that share the memory. FNV-1a; never 0.
uint64_t OwnerOf(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash | 1;
}

// A slot that was another group's forgets it: its prices go, and with them what was owed.
void Claim(Accounts& accounts, const std::string& name, uint64_t now) {
  const uint64_t owner = OwnerOf(name);
  if (accounts.owner.exchange(owner) == owner) return;
  SetPrices(accounts, {}, now, nullptr);
}

}  // namespace

// ---- Group

Group::Group(GroupSpec spec, std::shared_ptr<Accounts> accounts, uint64_t now_ns)
    : spec_(std::move(spec)), limit_source_(spec_.limits, std::move(accounts)) {
  limit_source_.Begin(now_ns);
}

Group::~Group() {
  for (const auto& [reactor, port] : ports_) CLEAT_CHECK(port.expired());
}

std::shared_ptr<GroupPort> Group::PortOn(Reactor& reactor) {
  const MutexLock lock(mutex_);
  std::weak_ptr<GroupPort>& place = ports_[&reactor];
  std::shared_ptr<GroupPort> port = place.lock();
  if (port == nullptr) {
    port = std::make_shared<GroupPort>(limit_source_, reactor);
    place = port;
  }
  return port;
}

// ---- Groups

Groups::~Groups() {
  for (const auto& [name, group] : groups_) CLEAT_CHECK(group.use_count() == 1);
}

Status Groups::UseTable(UniqueFd fd) {
  CLEAT_ASSIGN(table_, GroupTable::Map(std::move(fd)));
  for (const auto& [name, group] : groups_) {
    auto accounts = table_->Slot(group->spec_.slot);
    Claim(*accounts, name, UnitsOf(control_.now_ns()));
    group->limit_source_.Move(std::move(accounts), control_.now_ns());
  }
  return Ok{};
}

Result<std::shared_ptr<Accounts>> Groups::SlotOf(const GroupSpec& spec) {
  if (table_ == nullptr) {
    CLEAT_ASSIGN(table_, GroupTable::Make());
  }
  return table_->Slot(spec.slot);
}

Status Groups::Put(const GroupSpec& spec) {
  if (spec.name.empty())
    return Error(ErrorCode::kInvalidArgument, "a group of disks has no name: give it one");
  if (spec.slot >= kGroupsMax) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: slot {} is not below {}", spec.name, spec.slot, kGroupsMax));
  }
  CLEAT_TRY(CheckLimits(spec.limits, spec.name));
  for (const auto& [name, group] : groups_) {
    const bool same_name = name == spec.name;
    if (same_name == (group->spec_.slot == spec.slot)) continue;
    return Error(
        ErrorCode::kFailedPrecondition,
        same_name ? fmt::format("{} has slot {}, not {}: drop it first", name, group->spec_.slot, spec.slot)
                  : fmt::format("{}: slot {} is {}'s: use another", spec.name, spec.slot, name));
  }
  if (const auto found = groups_.find(spec.name); found != groups_.end()) {
    found->second->spec_ = spec;
    found->second->limit_source_.Change(spec.limits, control_.now_ns());
    return Ok{};
  }
  CLEAT_ASSIGN(auto accounts, SlotOf(spec));
  Claim(*accounts, spec.name, UnitsOf(control_.now_ns()));
  groups_.emplace(spec.name, std::make_shared<Group>(spec, std::move(accounts), control_.now_ns()));
  return Ok{};
}

Status Groups::Drop(const std::string& name) {
  const auto found = groups_.find(name);
  if (found == groups_.end()) return Ok{};
  if (found->second.use_count() > 1) {
    return Error(ErrorCode::kFailedPrecondition,
                 name + " is in use by controllers or disks: delete those first");
  }
  groups_.erase(found);
  return Ok{};
}

std::shared_ptr<Group> Groups::Find(const std::string& name) const {
  const auto found = groups_.find(name);
  return found == groups_.end() ? nullptr : found->second;
}

std::vector<GroupSpec> Groups::Report() const {
  std::vector<GroupSpec> specs;
  specs.reserve(groups_.size());
  for (const auto& [name, group] : groups_) specs.push_back(group->spec_);
  return specs;
}

}  // namespace cleat::qos
