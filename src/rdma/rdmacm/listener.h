// SPDX-License-Identifier: Apache-2.0
// A Listener (rdma/connection_manager.h) by librdmacm.
#pragma once

#include <memory>

#include "rdma/connection_manager.h"
#include "rdma/ibverbs/library.h"
#include "rdma/rdmacm/cm_event.h"

namespace cleat::rdma {

class AdapterListener final : public Listener, private CmEventHandler {
 public:
  static Result<std::unique_ptr<Listener>> Listen(const Library& library, rdma_event_channel& channel,
                                                  const Endpoint& at, int backlog, ListenerOwner& owner);
  ~AdapterListener() override = default;
  AdapterListener(const AdapterListener&) = delete;
  AdapterListener& operator=(const AdapterListener&) = delete;

  Endpoint local() const override { return FromKernel(id_->route.addr.src_storage); }

 private:
  AdapterListener(const Library& library, ListenerOwner& owner) : library_(library), owner_(owner) {}
  void Handle(const CmEvent& event) override;

  const Library& library_;
  ListenerOwner& owner_;
  CmId id_;
  bool ended_ = false;
};

}  // namespace cleat::rdma
