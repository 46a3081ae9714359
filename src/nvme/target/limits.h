// SPDX-License-Identifier: Apache-2.0
// What a target offers to its hosts, and where it stops: given once, when it is made, by whoever knows the transport and the engine.
//
// Source: NVM Express Base Specification 2.0 ("base"), 3.1.3.1 (CAP), 5.17.2.1 (Identify Controller); CQT from revision 2.1. Plain values.
#pragma once

#include <cstdint>

#include "nvme/fabrics/names.h"

namespace cleat::nvme::target {

// ---- Limits of the whole engine; beyond them Connect is answered Controller Busy.

inline constexpr uint32_t kControllersMax =
    64;  // of one NVM subsystem: hosts, and paths of one host, at a time
// Of them those whose host has not proved yet who it is, and of these those of one host's name: whoever names one host whose secret it does not
// have keeps out that host alone, and who names four all hosts of the subsystem that have something to prove, until it is dropped.
inline constexpr uint32_t kUnprovedMax = kControllersMax / 2;
inline constexpr uint32_t kUnprovedOfOneHostMax = kControllersMax / 8;
inline constexpr uint32_t kAllUnprovedMax = 256;          // of all subsystems
inline constexpr uint32_t kDiscoveryControllersMax = 64;  // of the discovery service
inline constexpr uint32_t kAllControllersMax = 1024;      // of all subsystems and the discovery service
inline constexpr uint32_t kSubsystemsMax = 1024;
inline constexpr uint32_t kNamespacesMax = 64;  // of one subsystem; NSIDs are 1 to this
inline constexpr uint32_t kHostsMax = 64;       // that one subsystem lets in
inline constexpr uint32_t kAddressesMax = 8;    // at which one subsystem is reached
// Pre-shared keys of one host, in as many subsystems, that open the discovery service: each takes some ten microseconds to try.
inline constexpr uint32_t kDiscoveryKeysMax = 64;

// ---- What a controller offers whatever the engine.

inline constexpr uint32_t kEventRequestsMax = 8;   // held for one controller: AERL + 1
inline constexpr uint32_t kAdminEntriesMax = 128;  // of an admin queue
inline constexpr uint32_t kKeepAliveUnitMs = 100;  // KAS 1
inline constexpr uint32_t kAdminDataMax =
    8192;  // in the capsule of an admin or fabrics command (TCP transport 1.0, 3.3.1)
// A controller that no host has enabled, or that a host has shut down or reset and left, ends after this.
inline constexpr uint64_t kIdleNs = 120'000'000'000;

// Optional commands of I/O queues that the engine executes.
struct Features {
  bool write_zeroes = true;        // for namespaces that have it
  bool dataset_management = true;  // discards, for namespaces that have them
  bool compare = false;
  bool verify = false;
  bool reservations = false;
};

// What controllers offer to hosts that come by one transport.
struct TransportOffer {
  uint32_t in_capsule_bytes =
      0;  // of data in a command capsule of an I/O queue, a multiple of 16 (IOCCSZ; ICDOFF is 0)
  uint8_t descriptors_max = 1;  // of a command's data (MSDBD)
  bool keyed_descriptors =
      false;  // where the data is, by a key of its memory (SGLS), as over RDMA; else the transport brings it
};

// Values outside of what is said here are a programmer's error.
struct TargetLimits {
  TransportOffer tcp{.in_capsule_bytes = 8192};
  TransportOffer rdma{.in_capsule_bytes = 4096, .descriptors_max = 16, .keyed_descriptors = true};
  uint64_t transfer_bytes_max = 1U << 20;  // of one I/O command: a power of two, at least 8 KiB (MDTS)
  uint32_t queue_entries_max = 128;        // of an I/O queue, 2 to 65536 (MQES)
  uint32_t commands_max =
      0;  // outstanding in one I/O queue, at most queue_entries_max (MAXCMD); 0: queue_entries_max
  uint32_t ready_timeout_ms =
      15'000;  // how long enabling and disabling may take: I/O queues end first (CAP.TO), at most 127 500
  // How long commands may still take effect after contact is lost (CQT); 0: not said. Hosts of revision 2.1 wait so long before they send a
  // write again elsewhere: never less than what is true. Over storage that may stand still for as long as it likes nothing is true: what was given to a
  // kernel or a cluster can't be taken back, and an engine that serves others is not ended for one host's sake. Such a host has the controller
  // reset by another one (cross_reset/), and hears when it is over.
  uint16_t command_quiesce_ms = 0;
  uint8_t ana_transition_s = 10;  // how long AnaState::kChange may last at most (ANATT), 1 to 255
  // Whether any command counts as a sign of life (TBKAS). Off, because a host that may retry elsewhere only when the target has surely given
  // it up waits three KATO where it is on and two where it is off, while the Keep Alive commands that it saves cost two an interval.
  bool traffic_keeps_alive = false;
  Features features = {};

  const TransportOffer& OfferOf(fabrics::TransportType transport) const {
    return transport == fabrics::TransportType::kRdma ? rdma : tcp;
  }
};

}  // namespace cleat::nvme::target
