// SPDX-License-Identifier: Apache-2.0
#include "rdma/rdmacm/listener.h"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "rdma/rdmacm/connect_request.h"

namespace cleat::rdma {

Result<std::unique_ptr<Listener>> AdapterListener::Listen(const Library& library, rdma_event_channel& channel,
                                                          const Endpoint& at, int backlog,
                                                          ListenerOwner& owner) {
  std::unique_ptr<AdapterListener> listener(new AdapterListener(library, owner));
  CLEAT_ASSIGN(sockaddr_storage storage, ToKernel(at));
  CLEAT_ASSIGN(listener->id_, MakeCmId(library, channel, static_cast<CmEventHandler*>(listener.get())));
  rdma_cm_id* id = listener->id_.get();
  if (library.bind_addr(id, reinterpret_cast<sockaddr*>(&storage)) != 0 || library.listen(id, backlog) != 0) {
    const int error = errno;
    if (error == ENODEV || error == EADDRNOTAVAIL)
      return Error(ErrorCode::kNotFound,
                   fmt::format("RDMA: no adapter has the address of {}: {}", at.Text(), kHowToGetAnAdapter));
    return ErrnoError(error, fmt::format("RDMA: cannot listen at {}", at.Text()));
  }
  return std::unique_ptr<Listener>(std::move(listener));
}

void AdapterListener::Handle(const CmEvent& event) {
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
    auto request = std::make_unique<AdapterConnectRequest>(library_, event);
    // Destroyed here, a request is refused.
    if (!ended_) owner_.Requested(*this, std::move(request));
    return;
  }
  if (ended_ || (event.type != RDMA_CM_EVENT_DEVICE_REMOVAL && event.type != RDMA_CM_EVENT_ADDR_CHANGE))
    return;
  ended_ = true;
  owner_.Ended(*this, Error(ErrorCode::kUnavailable,
                            fmt::format("RDMA: the listener at {}: {}; listen again once the address is back",
                                        local().Text(),
                                        event.type == RDMA_CM_EVENT_DEVICE_REMOVAL
                                            ? "its adapter was removed"
                                            : "the address has moved to another adapter")));
}

}  // namespace cleat::rdma
