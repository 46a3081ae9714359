// SPDX-License-Identifier: Apache-2.0
// What a discovery service has, for people, and as the addresses of a subsystem.
#pragma once

#include <string>

#include "cleat/v1/cleat.pb.h"
#include "ctl/client.h"
#include "ctl/output.h"

namespace cleat::ctl {

std::string DescribeDiscovery(const v1::DiscoverSubsystemsResponse& response);

// Shows what a service has, and at each change what has come, gone and changed, and what it has then, until interrupted. Its end is a failure,
// and says why. The plain secrets of `request` are overwritten as soon as it is sent.
[[nodiscard]] ExitCode WatchDiscovery(Client& client, v1::DiscoverSubsystemsRequest& request);

// Transports as records have them by which disks are reached.
inline constexpr const char* kOverTcp = "tcp";
inline constexpr const char* kOverRdma = "rdma";

// The addresses that are taken of those which a service has.
struct WantedAddresses {
  std::string nqn;        // the subsystem's
  std::string transport;  // kOverTcp, kOverRdma; empty: both
  bool with_tls = false;  // those over RDMA, which has none, are named on standard error and left out
};
// Asks the service, and takes all such addresses that it has, in its order; those beyond what a subsystem may have are named on standard error and
// left out. None is a failure, and says what the service has.
[[nodiscard]] ExitCode DiscoverAddresses(Client& client, const v1::DiscoverSubsystemsRequest& request,
                                         const WantedAddresses& wanted,
                                         google::protobuf::RepeatedPtrField<std::string>& addresses);

}  // namespace cleat::ctl
