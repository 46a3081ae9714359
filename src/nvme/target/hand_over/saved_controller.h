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

struct SavedNotice {
  uint32_t nsid = 0;
  uint8_t type = 0;  // ReservationNotice
};

// Of another controller that this one's host has asked it to reset.
struct SavedReset {
  // CCRS. Their order is libnvme's; that they begin with 0: by Linux' patches alone.
  enum class State : uint8_t { kInProgress = 0, kSuccess = 1, kFailed = 2 };
  uint16_t controller_id = 0;
  uint8_t uniquifier = 0;  // CIU
  State state = State::kFailed;
};

// Of a controller that is enabled and ready, whose host is believed, and that is neither reset nor shut down just now.
struct SavedController {
  // The kinds of events, in the order of TargetController's. There are no more: a process of before refuses those that it does not know.
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
  Event reservation_event;
  std::vector<SavedNotice> reservation_notices;    // that wait for the host, the oldest first
  uint64_t reservation_notices_count = 0;          // of all so far
  std::map<uint32_t, uint32_t> reservation_masks;  // of notices that the host does not want, by NSID
  uint8_t uniquifier =
      0;                // CIU; 0: of a process of before, whose controllers had neither this nor what follows
  uint64_t random = 0;  // CIRN
  std::vector<SavedReset> resets;  // none of them in progress
  bool reset_events_enabled =
      false;  // not in events_enabled: a process of before refuses what it does not know
  Event reset_event;
};

}  // namespace cleat::nvme::target
