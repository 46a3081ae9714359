// SPDX-License-Identifier: Apache-2.0
// What a controller says of itself, and its log pages, as the bytes that go to the host.
//
// Source: NVM Express Base Specification 2.0 ("base"), 5.16.1 (log pages), 5.17.2 (Identify); NVM Command Set Specification 1.0 ("NVM"), 4.1.5.
// Pure; any thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "nvme/command.h"
#include "nvme/fabrics/log_pages.h"
#include "nvme/fabrics/names.h"
#include "nvme/target/cross_reset/reset_log.h"
#include "nvme/target/limits.h"
#include "nvme/target/namespace_shape.h"
#include "nvme/target/subsystem.h"

namespace cleat::nvme::target {

// VS and VER: 2.0.
inline constexpr uint32_t kVersion = 0x0002'0000;
// What controllers tell of, as bits of OAES.
uint32_t EventsOf(bool discovery);

// A page of zeroes is given, and filled.
void WriteController(IdentifyPage page, uint16_t id, std::string_view firmware, const TargetLimits& limits,
                     const TransportOffer& offer, const Subsystem& subsystem);
// What a host names the controller by that it has another one reset.
void WriteInstance(IdentifyPage page, const ControllerInstance& instance);
void WriteDiscoveryController(IdentifyPage page, uint16_t id, std::string_view firmware,
                              const TargetLimits& limits, const TransportOffer& offer);
void WriteCommandSetController(IdentifyPage page, const TargetLimits& limits, const Subsystem& subsystem);

// What the controller takes on I/O queues beside reads, writes and flushes, as bits of ONCS.
uint16_t OptionalCommands(const TargetLimits& limits, const Subsystem& subsystem);

using LogBytes = std::vector<uint8_t>;
LogBytes SupportedPagesLog(bool discovery, const Features& features);
LogBytes ErrorLog();   // no error is kept
LogBytes HealthLog();  // as of a drive without wear, whose condition is the engine's to watch
LogBytes FirmwareLog(std::string_view firmware);
LogBytes ChangedNamespacesLog(const std::set<uint32_t>& changed);
LogBytes CommandEffectsLog(const TargetLimits& limits, const Subsystem& subsystem);
LogBytes FeatureEffectsLog(bool discovery, const Features& features);
LogBytes ManagementEffectsLog();  // no command of NVMe-MI
LogBytes AnaLog(const Subsystem& subsystem, bool groups_only);

struct DiscoveryEntry {
  fabrics::DiscoveredKind kind = fabrics::DiscoveredKind::kSubsystem;
  std::string nqn;
  fabrics::TransportAddress address;
  uint16_t port_id = 0;
  bool tls = false;  // the host that asks is let in by TLS 1.3 alone; else in plain TCP alone
};
LogBytes DiscoveryLog(uint64_t generation, const std::vector<DiscoveryEntry>& entries);

}  // namespace cleat::nvme::target
