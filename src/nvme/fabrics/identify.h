// SPDX-License-Identifier: Apache-2.0
// What Identify says beyond nvme/identify.h that a host on a fabric needs: how large capsules are, how often it has to be heard from, how the
// controller's way to a namespace ranks, and what a namespace is called whichever way it is reached.
//
// Source: NVM Express Base Specification 2.0 ("base"), 5.17.2; CQT from revision 2.1, 5.1.13.2.1. Plain values; any thread. The answers come
// from a target: each field is checked before it is used.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "nvme/fabrics/names.h"
#include "nvme/identify.h"

namespace cleat::nvme::fabrics {

struct FabricsInfo {
  uint16_t controller_id = 0;     // CNTLID
  bool discovery = false;         // CNTRLTYPE: it has log pages and no storage
  std::string subsystem_nqn;      // SUBNQN; empty where it says none
  uint32_t in_capsule_bytes = 0;  // of data in a command capsule of an I/O queue: IOCCSZ without the entry
  uint32_t response_bytes = 0;    // IORCSZ: of a response capsule
  uint32_t descriptors_max = 0;   // MSDBD: of data in one command; 0: no limit
  uint32_t commands_max = 0;      // MAXCMD: outstanding at a time in one queue; 0: nothing to say
  uint64_t keep_alive_granularity_ms = 0;  // KAS, not 0 but for discovery controllers
  bool traffic_keeps_alive = false;        // CTRATT: any command counts
  bool long_host_ids = false;              // CTRATT: host identifiers of 128 bits
  uint32_t events_max = 0;                 // AERL: event requests that may be outstanding, from 1 on
  uint32_t events_supported = 0;           // OAES: bits as in the feature that enables them
  bool log_offsets = false;                // LPA: a log page may be read from its middle on
  uint32_t namespaces_max = 0;             // NN: the largest identifier
  uint64_t command_quiesce_ms = 0;  // CQT: how long commands may go on after contact is lost; 0: not said
  bool ana = false;                 // CMIC: there are ANA states and their log
  uint32_t ana_groups_max = 0;      // NANAGRPID: how many groups there are at most
  uint32_t ana_group_last = 0;      // ANAGRPMAX: the largest identifier
  uint64_t ana_transition_ns = 0;   // ANATT: how long the state "change" may last
};

// An error begins with `who`.
Result<FabricsInfo> ParseFabrics(IdentifyData data, const std::string& who);
// FabricsInfo::events_supported alone: an old discovery controller says nothing of what it is, and of little else what ParseFabrics checks.
uint32_t ParseEventsSupported(IdentifyData data);

// What a namespace is called. The same whichever controller one asks, so that it tells whether two paths lead to the same.
struct NamespaceIds {
  std::optional<Uuid> uuid;
  std::optional<std::array<uint8_t, 16>> nguid;
  std::optional<std::array<uint8_t, 8>> eui64;

  bool operator==(const NamespaceIds&) const = default;
  bool none() const { return !uuid && !nguid && !eui64; }
};
// "UUID 00112233-..., NGUID 0011...", "no identifier".
std::string TextOfIds(const NamespaceIds& ids);

// The list of descriptors (base 5.17.2.3). Zeroes are no identifier, as the specification has it.
Result<NamespaceIds> ParseDescriptors(IdentifyData data, const std::string& who);

// What Identify Namespace has of these.
struct NamespacePlace {
  NamespaceIds ids;        // NGUID and EUI64
  uint32_t ana_group = 0;  // ANAGRPID; 0: none
};
NamespacePlace ParseNamespacePlace(IdentifyData data);

// A page of the list of active namespaces (base 5.17.2.2): at most kListedMax identifiers, each above the one before and above `after`. A
// full page has a next one, which begins after the last.
inline constexpr uint32_t kListedMax = kIdentifyBytes / sizeof(uint32_t);
// Fills `ids`; the answer is how many.
Result<uint32_t> ParseActiveNamespaces(IdentifyData data, uint32_t after, std::span<uint32_t, kListedMax> ids,
                                       const std::string& who);

}  // namespace cleat::nvme::fabrics
