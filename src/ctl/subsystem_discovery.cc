// SPDX-License-Identifier: Apache-2.0
#include "ctl/subsystem_discovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ctl/secret_file.h"
#include "ctl/table.h"

namespace cleat::ctl {
namespace {

constexpr size_t kAddressesMax = 8;  // of a subsystem
constexpr size_t kNamesShownMax = 5;

std::string TextOf(v1::DiscoverySubtype subtype) {
  switch (subtype) {
    case v1::DISCOVERY_SUBTYPE_REFERRAL:
      return "referral";
    case v1::DISCOVERY_SUBTYPE_NVM:
      return "nvm";
    case v1::DISCOVERY_SUBTYPE_THIS_SERVICE:
      return "this service";
    default:
      return "?";
  }
}

std::string TextOf(v1::SecureChannel channel) {
  switch (channel) {
    case v1::SECURE_CHANNEL_REQUIRED:
      return "required";
    case v1::SECURE_CHANNEL_NOT_REQUIRED:
      return "not required";
    default:
      return "";
  }
}

std::string HostAndPortOf(const v1::DiscoveryRecord& record) {
  const bool ipv6 = record.address().find(':') != std::string::npos;
  return ipv6 ? fmt::format("[{}]:{}", record.address(), record.port())
              : fmt::format("{}:{}", record.address(), record.port());
}

bool IsOverRdma(const v1::DiscoveryRecord& record) {
  return record.transport() == kOverRdma;
}

// The address in the form that a subsystem's spec has.
std::string AddressOf(const v1::DiscoveryRecord& record) {
  return (IsOverRdma(record) ? "rdma://" : "") + HostAndPortOf(record);
}

// Whether disks are reached by it, as far as its transport says.
bool IsReachable(const v1::DiscoveryRecord& record, std::string_view transport) {
  if (record.subtype() != v1::DISCOVERY_SUBTYPE_NVM) return false;
  if (!transport.empty()) return record.transport() == transport;
  return record.transport() == kOverTcp || IsOverRdma(record);
}

std::string NameOf(std::string_view transport) {
  if (transport.empty()) return "NVMe/TCP or NVMe/RDMA";
  return transport == kOverRdma ? "NVMe/RDMA" : "NVMe/TCP";
}

std::string WhatWasSkipped(const v1::DiscoverSubsystemsResponse& response) {
  if (response.skipped() == 0) return {};
  return fmt::format("{} record(s) of the service make no sense and are left out: {}", response.skipped(),
                     response.why_skipped());
}

// A few of the subsystems that the service has over that transport.
std::string WhatIsThere(const v1::DiscoverSubsystemsResponse& response, std::string_view transport) {
  std::set<std::string> names;
  for (const v1::DiscoveryRecord& record : response.records()) {
    if (IsReachable(record, transport)) names.insert(record.nqn());
  }
  if (names.empty()) return fmt::format("it has no subsystem over {} for this host", NameOf(transport));
  const size_t shown = std::min(names.size(), kNamesShownMax);
  std::string text =
      "it has " +
      fmt::format(
          "{}", fmt::join(names.begin(), std::next(names.begin(), static_cast<std::ptrdiff_t>(shown)), ", "));
  return names.size() == shown ? text : text + fmt::format(" and {} more", names.size() - shown);
}

// A record as a line of a change has it.
struct Entry {
  std::string what;  // its NQN, subtype and address: one that has other ones is another one
  std::string channel;

  auto operator<=>(const Entry&) const = default;
};

Entry EntryOf(const v1::DiscoveryRecord& record) {
  const std::string where = record.address().empty()
                                ? record.transport()
                                : fmt::format("{} {}", record.transport(), HostAndPortOf(record));
  const std::string channel = TextOf(record.secure_channel());
  return {.what = fmt::format("{} ({}, {})", record.nqn(), TextOf(record.subtype()), where),
          .channel = channel.empty() ? "" : "secure channel " + channel};
}

std::string LineOf(const Entry& entry) {
  return entry.channel.empty() ? entry.what : fmt::format("{}, {}", entry.what, entry.channel);
}

std::multiset<Entry> EntriesOf(const v1::DiscoverSubsystemsResponse& response) {
  std::multiset<Entry> entries;
  for (const v1::DiscoveryRecord& record : response.records()) entries.insert(EntryOf(record));
  return entries;
}

std::string DescribeChange(const v1::DiscoverSubsystemsResponse& before,
                           const v1::DiscoverSubsystemsResponse& now) {
  const std::multiset<Entry> old_entries = EntriesOf(before);
  const std::multiset<Entry> new_entries = EntriesOf(now);
  std::vector<Entry> came;
  std::vector<Entry> gone;
  std::ranges::set_difference(new_entries, old_entries, std::back_inserter(came));
  std::ranges::set_difference(old_entries, new_entries, std::back_inserter(gone));
  std::string text = "\n";
  std::string changed;
  for (const Entry& entry : gone) {
    const auto same = std::ranges::find(came, entry.what, &Entry::what);
    if (same == came.end()) {
      text += fmt::format("gone: {}\n", LineOf(entry));
      continue;
    }
    changed += fmt::format("changed: {}; before: {}\n", LineOf(*same),
                           entry.channel.empty() ? "secure channel not said" : entry.channel);
    came.erase(same);
  }
  for (const Entry& entry : came) text += fmt::format("new: {}\n", LineOf(entry));
  if (text.size() + changed.size() == 1 && before.skipped() == now.skipped())
    changed = "changed: nothing that is shown here\n";
  return text + changed;
}

}  // namespace

std::string DescribeDiscovery(const v1::DiscoverSubsystemsResponse& response) {
  Table table({{"NQN"}, {"SUBTYPE"}, {"TRANSPORT"}, {"ADDRESS"}, {"PORT"}, {"SECURE CHANNEL"}});
  for (const v1::DiscoveryRecord& record : response.records()) {
    table.Add({record.nqn(), TextOf(record.subtype()), record.transport(), record.address(), record.port(),
               TextOf(record.secure_channel())});
  }
  const std::string host = fmt::format("host {} ({})", response.host_nqn(), response.host_id());
  std::string text =
      response.records().empty() ? fmt::format("the service has nothing for {}\n", host) : table.Rows();
  if (response.skipped() != 0) text += WhatWasSkipped(response) + "\n";
  return text;
}

ExitCode WatchDiscovery(Client& client, v1::DiscoverSubsystemsRequest& request) {
  if (const ExitCode code = client.Dial(); code != kOk) return code;
  EndWithReader();
  grpc::ClientContext context;
  const auto reader = client.stub().WatchDiscovery(&context, request);
  WipeSecrets(request);  // sent by then, and the watch may go on for days
  v1::DiscoverSubsystemsResponse before;
  v1::DiscoverSubsystemsResponse now;
  for (bool first = true; reader->Read(&now); first = false) {
    switch (client.format()) {
      case Format::kTable:
        Print((first ? "" : DescribeChange(before, now)) + DescribeDiscovery(now));
        break;
      case Format::kJson:  // a line each
        Print(ToJson(now, false));
        break;
      case Format::kYaml:  // a document each
        Print("---\n" + ToYaml(now));
        break;
    }
    before.Swap(&now);
  }
  const ExitCode code = client.Say(reader->Finish());
  return code != kOk ? code : Fail(kUnreachable, "cleatd has ended the watch");
}

ExitCode DiscoverAddresses(Client& client, const v1::DiscoverSubsystemsRequest& request,
                           const WantedAddresses& wanted,
                           google::protobuf::RepeatedPtrField<std::string>& addresses) {
  v1::DiscoverSubsystemsResponse response;
  const ExitCode code = client.Call(&v1::Cleat::Stub::DiscoverSubsystems, request, response);
  if (code != kOk) return code;
  std::vector<std::string> found;
  std::vector<std::string> without_tls;
  for (const v1::DiscoveryRecord& record : response.records()) {
    if (!IsReachable(record, wanted.transport) || record.nqn() != wanted.nqn) continue;
    std::vector<std::string>& list = wanted.with_tls && IsOverRdma(record) ? without_tls : found;
    std::string address = AddressOf(record);
    if (std::ranges::find(list, address) == list.end()) list.push_back(std::move(address));
  }
  if (!without_tls.empty()) {
    fmt::print(
        stderr,
        "cleatctl: NVMe/RDMA has no TLS, and a pre-shared key is given: left out of {}'s addresses are {}\n",
        wanted.nqn, fmt::join(without_tls, ", "));
  }
  if (found.empty()) {
    std::string why = fmt::format("the discovery service at {} has no {} address of {} for host {}: {}",
                                  request.address(), NameOf(wanted.with_tls ? kOverTcp : wanted.transport),
                                  wanted.nqn, response.host_nqn(), WhatIsThere(response, wanted.transport));
    if (response.skipped() != 0) why += "; " + WhatWasSkipped(response);
    return Fail(kFailed, why);
  }
  const auto taken = static_cast<std::ptrdiff_t>(std::min(found.size(), kAddressesMax));
  addresses.Assign(found.begin(), found.begin() + taken);
  if (found.size() > kAddressesMax) {
    fmt::print(stderr, "cleatctl: {} has {} addresses, and a subsystem {} at most: left out are {}\n",
               wanted.nqn, found.size(), kAddressesMax, fmt::join(found.begin() + taken, found.end(), ", "));
  }
  return kOk;
}

}  // namespace cleat::ctl
