// SPDX-License-Identifier: Apache-2.0
#include "rdma/rdmacm/connect_request.h"

#include "base/check.h"
#include "rdma/ibverbs/device.h"
#include "rdma/rdmacm/connection.h"

namespace cleat::rdma {

AdapterConnectRequest::AdapterConnectRequest(const Library& library, const CmEvent& event)
    : library_(library),
      event_(event),
      id_(event.id, DestroyId{&library}),
      local_(FromKernel(id_->route.addr.src_storage)),
      peer_(FromKernel(id_->route.addr.dst_storage)),
      device_name_(id_->verbs == nullptr ? "" : id_->verbs->device->name) {
  id_->context = static_cast<CmEventHandler*>(this);
}

bool AdapterConnectRequest::IsOn(const Device& device) const {
  return id_ != nullptr && static_cast<const AdapterDevice&>(device).context() == id_->verbs;
}

Result<std::unique_ptr<Connection>> AdapterConnectRequest::MakeConnection(const QueuePairParts& parts,
                                                                          ConnectionOwner& owner) {
  CLEAT_CHECK(id_ != nullptr && !rejected_);
  return AdapterConnection::Make(library_, id_, {event_.initiator_depth, event_.responder_resources}, parts,
                                 owner);
}

void AdapterConnectRequest::Reject(std::span<const uint8_t> private_data) {
  CLEAT_CHECK(id_ != nullptr && !rejected_ && private_data.size() <= kRejectDataBytesMax);
  rejected_ = true;
  // Fails where the peer has given up already.
  library_.reject(id_.get(), private_data.data(), static_cast<uint8_t>(private_data.size()));
}

}  // namespace cleat::rdma
