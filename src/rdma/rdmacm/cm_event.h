// SPDX-License-Identifier: Apache-2.0
// Events of the connection manager, each acknowledged as soon as it is taken: rdma_destroy_id waits for events of its identifier that were taken and not
// acknowledged, for ever where the same thread would have done that. What an event refers to is copied before.
//
// One thread, that of the channel. Source: rdma_get_cm_event(3).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "rdma/ibverbs/library.h"

namespace cleat::rdma {

struct CmEvent {
  rdma_cm_event_type type = RDMA_CM_EVENT_TIMEWAIT_EXIT;
  int status = 0;                   // negative: an errno; else, of a rejection, its reason
  rdma_cm_id* id = nullptr;         // of a connect request: a new one, which is the handler's from then on
  uint8_t initiator_depth = 0;      // READs that this end may have outstanding
  uint8_t responder_resources = 0;  // READs that the peer wants to have outstanding
  uint8_t data_bytes = 0;
  std::array<uint8_t, UINT8_MAX> data;

  std::span<const uint8_t> private_data() const { return {data.data(), data_bytes}; }
};

// What the context of an identifier is.
class CmEventHandler {
 public:
  // May end with its own destruction. No event comes after that of its identifier.
  virtual void Handle(const CmEvent& event) = 0;

 protected:
  ~CmEventHandler() = default;
};

// The next event, and whose it is; nullptr: there is none.
CmEventHandler* TakeCmEvent(const Library& library, rdma_event_channel& channel, CmEvent& event);

}  // namespace cleat::rdma
