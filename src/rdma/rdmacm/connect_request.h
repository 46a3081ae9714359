// SPDX-License-Identifier: Apache-2.0
// A ConnectRequest (rdma/connection_manager.h) by librdmacm: an identifier that the kernel has made.
#pragma once

#include <memory>
#include <string>

#include "rdma/connection_manager.h"
#include "rdma/ibverbs/library.h"
#include "rdma/rdmacm/cm_event.h"

namespace cleat::rdma {

class AdapterConnectRequest final : public ConnectRequest, private CmEventHandler {
 public:
  // Of that event, whose identifier it takes.
  AdapterConnectRequest(const Library& library, const CmEvent& event);
  ~AdapterConnectRequest() override = default;
  AdapterConnectRequest(const AdapterConnectRequest&) = delete;
  AdapterConnectRequest& operator=(const AdapterConnectRequest&) = delete;

  Endpoint local() const override { return local_; }
  Endpoint peer() const override { return peer_; }
  const std::string& device_name() const override { return device_name_; }
  bool IsOn(const Device& device) const override;
  std::span<const uint8_t> private_data() const override { return event_.private_data(); }
  uint32_t peer_serves_reads() const override { return event_.initiator_depth; }
  uint32_t peer_sends_reads() const override { return event_.responder_resources; }
  Result<std::unique_ptr<Connection>> MakeConnection(const QueuePairParts& parts,
                                                     ConnectionOwner& owner) override;
  void Reject(std::span<const uint8_t> private_data) override;

 private:
  // The kernel has no word of a request before it is accepted: that one whose peer or adapter is gone shows when it is answered.
  void Handle(const CmEvent& /*event*/) override {}

  const Library& library_;
  CmEvent event_;
  CmId id_;  // none: accepted
  const Endpoint local_;
  const Endpoint peer_;
  const std::string device_name_;
  bool rejected_ = false;
};

}  // namespace cleat::rdma
