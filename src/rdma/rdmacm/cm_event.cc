// SPDX-License-Identifier: Apache-2.0
#include "rdma/rdmacm/cm_event.h"

#include <algorithm>

namespace cleat::rdma {

CmEventHandler* TakeCmEvent(const Library& library, rdma_event_channel& channel, CmEvent& event) {
  rdma_cm_event* taken = nullptr;
  if (library.get_cm_event(&channel, &taken) != 0) return nullptr;
  const rdma_conn_param& connection = taken->param.conn;
  event.type = taken->event;
  event.status = taken->status;
  event.id = taken->id;
  event.initiator_depth = connection.initiator_depth;
  event.responder_resources = connection.responder_resources;
  event.data_bytes = connection.private_data == nullptr ? 0 : connection.private_data_len;
  std::copy_n(static_cast<const uint8_t*>(connection.private_data), event.data_bytes, event.data.begin());
  const rdma_cm_id* owner = taken->event == RDMA_CM_EVENT_CONNECT_REQUEST ? taken->listen_id : taken->id;
  auto* handler = static_cast<CmEventHandler*>(owner->context);
  library.ack_cm_event(taken);
  return handler;
}

}  // namespace cleat::rdma
