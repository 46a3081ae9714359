// SPDX-License-Identifier: Apache-2.0
// What hosts reach over NVMe/TCP and NVMe/RDMA: an NVM subsystem, whose namespaces are the disks of a controller of the type kNvmf. The disk at target t is
// the namespace with the NSID t + 1. Plain values; any thread.
//
// Source: NVM Express Base Specification 2.0, 4.5 (names), 5.17.2.1 (the serial number, SN, of Identify Controller).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/protocol/nvmf_secrets.h"
#include "nvme/fabrics/names.h"

namespace cleat::engine {

// A host that is let in, and what it has to prove; with none, whoever says the NQN is let in.
struct ExportHost {
  std::string nqn;
  NvmfSecrets secrets = {};

  bool operator==(const ExportHost&) const = default;
};

// The codec has checked all of it.
struct ExportSpec {
  std::string nqn;     // the subsystem's; not the discovery service's
  std::string serial;  // SN: 1 to kExportSerialBytesMax printable ASCII characters
  std::vector<nvme::fabrics::TransportAddress>
      addresses;  // where the engine listens: 1 to kExportAddressesMax
  // Where it listens while it stands by: at most kExportAddressesMax, none of `addresses`. A cleatd of before version 12 tells none.
  std::vector<nvme::fabrics::TransportAddress> standby_addresses;
  std::vector<ExportHost> hosts;  // that are let in, at most kExportHostsMax; may be empty: nobody
  uint64_t hosts_revision =
      0;             // of cleatd's intent that says so; goes back with each report, which has no hosts
  uint8_t dscp = 0;  // of packets to hosts over TCP: 0 to kDscpMax

  // Whether `asked` is the same export, whoever is let in: that changes while it is there. The DSCP does not tell exports apart, as a cleatd of before version
  // 15 tells none. One without standby addresses may be, or have been, of a cleatd that knows none.
  bool SameAs(const ExportSpec& asked) const {
    return nqn == asked.nqn && serial == asked.serial && addresses == asked.addresses &&
           (asked.standby_addresses.empty() || standby_addresses.empty() ||
            standby_addresses == asked.standby_addresses);
  }
};

// Limits, checked when a command comes in.
inline constexpr size_t kExportAddressesMax = 8;
inline constexpr size_t kExportHostsMax = 64;
inline constexpr size_t kExportSerialBytesMax = 20;
inline constexpr uint32_t kNamespacesMax = 64;  // of one export: its targets are 0 to 63

}  // namespace cleat::engine
