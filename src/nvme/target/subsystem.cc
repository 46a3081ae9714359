// SPDX-License-Identifier: Apache-2.0
#include "nvme/target/subsystem.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::target {
namespace {

constexpr size_t kSerialBytes = 20;
constexpr size_t kModelBytes = 40;
constexpr uint32_t kIoQueuesMax = 255;  // so many bits a controller has for them

cleat::Status CheckText(const std::string& text, size_t bytes_max, std::string_view what) {
  if (!text.empty() && text.size() <= bytes_max &&
      std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; }))
    return {};
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("{} is 1 to {} printable ASCII characters", what, bytes_max));
}

// Each address leads to one engine, or a host could not tell one path from the other.
cleat::Status CheckAddresses(const SubsystemConfig& config) {
  const auto refuse = [](std::string why) { return Error(ErrorCode::kInvalidArgument, std::move(why)); };
  if (config.addresses.empty() || config.addresses.size() > kAddressesMax)
    return refuse(
        fmt::format("a subsystem has 1 to {} addresses, not {}", kAddressesMax, config.addresses.size()));
  if (config.standby_addresses.size() > kAddressesMax)
    return refuse(fmt::format("a subsystem has at most {} standby addresses, not {}", kAddressesMax,
                              config.standby_addresses.size()));
  std::set<std::string> standby;
  for (const fabrics::TransportAddress& address : config.standby_addresses) {
    const std::string text = fabrics::TextOfAddress(address);
    if (std::ranges::find(config.addresses, address) != config.addresses.end())
      return refuse(fmt::format("{} is both an address of the subsystem and a standby address", text));
    if (!standby.insert(text).second)
      return refuse(fmt::format("{} is a standby address of the subsystem twice", text));
  }
  return {};
}

bool IsWildcard(const fabrics::TransportAddress& address) {
  return std::ranges::all_of(address.address, [](uint8_t byte) { return byte == 0; });
}

}  // namespace

cleat::Status CheckHosts(const std::vector<HostAccess>& hosts) {
  if (hosts.size() > kHostsMax) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} hosts are let in, at most {} may be", hosts.size(), kHostsMax));
  }
  std::set<std::string_view> nqns;
  for (const HostAccess& host : hosts) {
    CLEAT_TRY(fabrics::CheckNqn(host.nqn, "a host's NQN"));
    if (!nqns.insert(host.nqn).second)
      return Error(ErrorCode::kInvalidArgument, fmt::format("host {} is let in twice", host.nqn));
  }
  return {};
}

cleat::Status CheckConfig(const SubsystemConfig& config) {
  const auto refuse = [](std::string why) { return Error(ErrorCode::kInvalidArgument, std::move(why)); };
  CLEAT_TRY(fabrics::CheckNqn(config.nqn, "the subsystem's NQN"));
  if (config.nqn == fabrics::kDiscoveryNqn) return refuse("the subsystem's NQN is the discovery service's");
  CLEAT_TRY(CheckText(config.serial, kSerialBytes, "the serial number"));
  CLEAT_TRY(CheckText(config.model, kModelBytes, "the model"));
  CLEAT_TRY(CheckAddresses(config));
  CLEAT_TRY(CheckHosts(config.hosts));
  if (config.io_queues_max == 0 || config.io_queues_max > kIoQueuesMax)
    return refuse(
        fmt::format("a controller has 1 to {} I/O queues, not {}", kIoQueuesMax, config.io_queues_max));
  if (config.dscp > fabrics::kDscpMax)
    return refuse(fmt::format("a DSCP is from 0 to {}, {} is none", fabrics::kDscpMax, config.dscp));
  if (config.controller_id_begin == 0 || config.controller_id_begin > fabrics::kControllerIdLast) {
    return refuse(fmt::format("controllers' identifiers are from 1 to {}, {} is none",
                              fabrics::kControllerIdLast, config.controller_id_begin));
  }
  return {};
}

Subsystem::Subsystem(SubsystemConfig config) : config_(std::move(config)) {
  SetHosts(std::exchange(config_.hosts, {}));
}

void Subsystem::SetHosts(std::vector<HostAccess> hosts) {
  hosts_.clear();
  for (HostAccess& host : hosts) hosts_.emplace(host.nqn, std::move(host));
}

const HostAccess* Subsystem::FindHost(std::string_view host_nqn) const {
  const auto found = hosts_.find(host_nqn);
  return found == hosts_.end() ? nullptr : &found->second;
}

const NamespaceShape* Subsystem::Find(uint32_t nsid) const {
  if (nsid == 0 || nsid > kNamespacesMax || !namespaces_[nsid]) return nullptr;
  return &namespaces_[nsid]->shape;
}

std::vector<uint32_t> Subsystem::Active(uint32_t after) const {
  std::vector<uint32_t> active;
  for (uint64_t nsid = uint64_t{after} + 1; nsid <= kNamespacesMax; ++nsid) {
    if (namespaces_[nsid]) active.push_back(static_cast<uint32_t>(nsid));
  }
  return active;
}

fabrics::AnaState Subsystem::ana_state(uint32_t nsid) const {
  CLEAT_CHECK(Find(nsid) != nullptr);
  return namespaces_[nsid]->ana;
}

bool Subsystem::reservation_persists(uint32_t nsid) const {
  CLEAT_CHECK(Find(nsid) != nullptr);
  return namespaces_[nsid]->reservation_persists;
}

uint64_t Subsystem::ana_changes(uint32_t nsid) const {
  CLEAT_CHECK(Find(nsid) != nullptr);
  return namespaces_[nsid]->changes;
}

void Subsystem::Put(uint32_t nsid, const NamespaceShape& shape) {
  if (namespaces_[nsid]) {
    namespaces_[nsid]->shape = shape;
    return;
  }
  namespaces_[nsid] = Entry{.shape = shape, .ana = ana_of_new_, .changes = ++ana_changes_};
}

void Subsystem::Remove(uint32_t nsid) {
  namespaces_[nsid].reset();
  ++ana_changes_;
}

bool Subsystem::SetAna(uint32_t nsid, fabrics::AnaState state) {
  Entry& entry = *namespaces_[nsid];
  if (entry.ana == state) return false;
  entry.ana = state;
  entry.changes = ++ana_changes_;
  return true;
}

bool Subsystem::SetAna(fabrics::AnaState state) {
  ana_of_new_ = state;
  bool changed = false;
  for (const uint32_t nsid : Active(0)) changed |= SetAna(nsid, state);
  return changed;
}

bool Subsystem::any_write_zeroes() const {
  return std::ranges::any_of(namespaces_, [](const auto& entry) {
    return entry && entry->shape.write_zeroes && !entry->shape.read_only;
  });
}

bool Subsystem::any_discard() const {
  return std::ranges::any_of(namespaces_, [](const auto& entry) {
    return entry && entry->shape.discard && !entry->shape.read_only;
  });
}

uint64_t Subsystem::write_zeroes_bytes_max() const {
  uint64_t least = 0;
  for (const auto& entry : namespaces_) {
    if (!entry || !entry->shape.write_zeroes || entry->shape.write_zeroes_bytes_max == 0) continue;
    const uint64_t most = entry->shape.write_zeroes_bytes_max;
    least = least == 0 ? most : std::min(least, most);
  }
  return least;
}

uint64_t Subsystem::discard_blocks_max() const {
  uint64_t least = 0;
  for (const auto& entry : namespaces_) {
    if (!entry || !entry->shape.discard || entry->shape.discard_bytes_max == 0) continue;
    const uint64_t most = entry->shape.discard_bytes_max / entry->shape.block_bytes;
    least = least == 0 ? most : std::min(least, most);
  }
  return least;
}

std::vector<fabrics::TransportAddress> WhereIs(const Subsystem& subsystem,
                                               const fabrics::TransportAddress& local) {
  std::vector<fabrics::TransportAddress> where;
  const auto add = [&](fabrics::TransportAddress address) {
    if (IsWildcard(address)) {
      // Of all addresses that it stands for the host knows one that leads here.
      if (address.family != local.family) return;
      address.address = local.address;
    }
    if (std::ranges::find(where, address) == where.end()) where.push_back(address);
  };
  std::ranges::for_each(subsystem.config().addresses, add);
  std::ranges::for_each(subsystem.config().standby_addresses, add);
  return where;
}

bool IsReachedBy(const Subsystem& subsystem, const fabrics::TransportAddress& local) {
  const auto& own = subsystem.config().standby_addresses;
  if (!subsystem.stands_by() || own.empty()) return true;
  return std::ranges::any_of(own, [&local](const fabrics::TransportAddress& address) {
    return address.transport == local.transport && address.port == local.port &&
           (IsWildcard(address) || address == local);
  });
}

uint16_t PathStatusOf(fabrics::AnaState state) {
  constexpr uint16_t kPath = 3U << 8;
  switch (state) {
    case fabrics::AnaState::kOptimized:
    case fabrics::AnaState::kNonOptimized:
      return 0;
    case fabrics::AnaState::kPersistentLoss:
      return kPath | 0x01;
    case fabrics::AnaState::kInaccessible:
      return kPath | 0x02;
    case fabrics::AnaState::kChange:
      return kPath | 0x03;
  }
  return kPath;
}

}  // namespace cleat::nvme::target
