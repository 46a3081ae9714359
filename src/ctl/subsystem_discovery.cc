// SPDX-License-Identifier: Apache-2.0
#include "ctl/subsystem_discovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

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

// As a subsystem's spec has it.
std::string AddressOf(const v1::DiscoveryRecord& record) {
  const bool ipv6 = record.address().find(':') != std::string::npos;
  return ipv6 ? fmt::format("[{}]:{}", record.address(), record.port())
              : fmt::format("{}:{}", record.address(), record.port());
}

bool IsReachable(const v1::DiscoveryRecord& record) {
  return record.subtype() == v1::DISCOVERY_SUBTYPE_NVM && record.transport() == "tcp";
}

std::string WhatWasSkipped(const v1::DiscoverSubsystemsResponse& response) {
  if (response.skipped() == 0) return {};
  return fmt::format("{} record(s) of the service make no sense and are left out: {}", response.skipped(),
                     response.why_skipped());
}

// A few of the subsystems that the service has over NVMe/TCP.
std::string WhatIsThere(const v1::DiscoverSubsystemsResponse& response) {
  std::set<std::string> names;
  for (const v1::DiscoveryRecord& record : response.records()) {
    if (IsReachable(record)) names.insert(record.nqn());
  }
  if (names.empty()) return "it has no subsystem over NVMe/TCP for this host";
  const size_t shown = std::min(names.size(), kNamesShownMax);
  std::string text =
      "it has " +
      fmt::format(
          "{}", fmt::join(names.begin(), std::next(names.begin(), static_cast<std::ptrdiff_t>(shown)), ", "));
  return names.size() == shown ? text : text + fmt::format(" and {} more", names.size() - shown);
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

ExitCode DiscoverAddresses(Client& client, const v1::DiscoverSubsystemsRequest& request,
                           const std::string& nqn,
                           google::protobuf::RepeatedPtrField<std::string>& addresses) {
  v1::DiscoverSubsystemsResponse response;
  const ExitCode code = client.Call(&v1::Cleat::Stub::DiscoverSubsystems, request, response);
  if (code != kOk) return code;
  std::vector<std::string> found;
  for (const v1::DiscoveryRecord& record : response.records()) {
    if (!IsReachable(record) || record.nqn() != nqn) continue;
    std::string address = AddressOf(record);
    if (std::ranges::find(found, address) == found.end()) found.push_back(std::move(address));
  }
  if (found.empty()) {
    std::string why = fmt::format("the discovery service at {} has no NVMe/TCP address of {} for host {}: {}",
                                  request.address(), nqn, response.host_nqn(), WhatIsThere(response));
    if (response.skipped() != 0) why += "; " + WhatWasSkipped(response);
    return Fail(kFailed, why);
  }
  const auto taken = static_cast<std::ptrdiff_t>(std::min(found.size(), kAddressesMax));
  addresses.Assign(found.begin(), found.begin() + taken);
  if (found.size() > kAddressesMax) {
    fmt::print(stderr, "cleatctl: {} has {} addresses, and a subsystem {} at most: left out are {}\n", nqn,
               found.size(), kAddressesMax, fmt::join(found.begin() + taken, found.end(), ", "));
  }
  return kOk;
}

}  // namespace cleat::ctl
