// SPDX-License-Identifier: Apache-2.0
// Asynchronous events: what a controller tells of its own accord, as the answer to a request that the host has left with it.
//
// Source: NVM Express Base Specification 2.0 ("base"), 5.2 and 5.27.1.8. Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>

namespace cleat::nvme::fabrics {

enum class EventKind : uint8_t {
  kNamespaceChanged,  // attributes of one, or that there is one: the list of changed namespaces says of which
  kAnaChanged,
  kDiscoveryChanged,
  kError,         // the controller's own trouble
  kSmart,         // its health
  kShuttingDown,  // the subsystem, in an orderly way
  kOther,
};

struct Event {
  EventKind kind = EventKind::kOther;
  uint8_t type = 0;
  uint8_t info = 0;
  uint8_t log_page = 0;  // which, read, has the controller tell of such events again
};

// `result`: DW0 of the answer to an Asynchronous Event Request.
Event ParseEvent(uint32_t result);
// "namespace attribute changed (notice, 00h)"; of one that is not known "event of type 2, information 42h".
std::string NameOf(const Event& event);

// Bits of the feature that enables notices, and of OAES.
inline constexpr uint32_t kEventNamespace = 1U << 8;
inline constexpr uint32_t kEventAna = 1U << 11;
// A Cross-Controller Reset is over, from revision 2.3. The bit's number: by one reader of Identify's alone.
inline constexpr uint32_t kEventControllerReset = 1U << 20;
inline constexpr uint32_t kEventDiscovery = 1U << 31;

}  // namespace cleat::nvme::fabrics
