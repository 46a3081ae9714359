// SPDX-License-Identifier: Apache-2.0
// What one process tells the next of an association's controller that it hands over. Plain values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nvme/fabrics/names.h"

namespace cleat::nvme::target {

// Of a controller that is enabled and ready, whose host is believed, and that is neither reset nor shut down just now.
struct SavedController {
  // The kinds of events, in the order of TargetController's.
  static constexpr size_t kEventKinds = 3;
  struct Event {
    bool pending = false;  // to be told
    bool unread = false;   // told; its log has not been read since
  };
  uint16_t id = 0;  // CNTLID
  std::string host_nqn;
  fabrics::Uuid host_id{};
  fabrics::TransportAddress local;  // by which the host came in
  uint32_t kato_ms = 0;
  uint64_t deadline_ns =
      0;  // of its keep alive timer, on the clock of all processes of this host (CLOCK_MONOTONIC)
  uint32_t configuration = 0;  // CC
  uint32_t queues_granted = 0;
  uint32_t events_enabled = 0;
  std::map<uint32_t, uint32_t> features;
  std::array<Event, kEventKinds> events{};
  std::vector<uint32_t> changed_namespaces;
  std::vector<uint16_t>
      event_requests;  // command identifiers of Asynchronous Event Requests that wait, the oldest first
};

}  // namespace cleat::nvme::target
