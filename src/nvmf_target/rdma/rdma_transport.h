// SPDX-License-Identifier: Apache-2.0
// A queue over RDMA. On the control reactor it is a RelayQueue's; once it has moved it is the queue that the port polls, on the port's reactor, where it
// has been all the time.
#pragma once

#include <memory>
#include <string>

#include "nvmf_target/rdma/rdma_link.h"
#include "nvmf_target/transport/queue_transport.h"

namespace cleat::nvmf_target {

class RdmaTransport final : public QueueTransport, private RdmaTurn {
 public:
  // `link` has its queue. `peer`: who it is, for errors.
  RdmaTransport(Reactor& control, std::shared_ptr<RdmaLink> link, std::string peer,
                const TransportTraits::Announced& announced);
  ~RdmaTransport() override;

  nvme::fabrics::TargetQueue& queue() override;
  const TransportTraits& traits() const override { return traits_; }
  const std::string& peer() const override { return peer_; }
  Status Start(Reactor& reactor, TransportOwner& owner, Kind kind) override;
  void Stop() override;
  void Close() override;
  void Wake() override;
  void SetReads(bool reads) override { reads_ = reads; }
  bool reads() const override { return reads_; }
  // What waits to be sent is a command that was not given back.
  bool wants_to_send() const override { return false; }
  bool Keep(const block::Segment& /*piece*/) override { return false; }
  // There is no TLS over RDMA.
  const nvme::target::SecuredAs* secured() const override { return nullptr; }
  bool in_handshake() const override { return false; }
  int incoming_cpu() const override { return -1; }
  // A queue pair belongs to the process that has made it: its host connects again.
  bool may_be_saved() const override { return false; }
  SavedQueue Save() override;
  void TakeBack(nvme::fabrics::TargetCommand& command, nvme::tcp::SavedCommand& saved) override;

 private:
  void EndTurn() override;

  Reactor& control_;
  const std::shared_ptr<RdmaLink> link_;
  const std::string peer_;
  const TransportTraits traits_;
  bool relays_ = true;  // it is on the control reactor
  bool reads_ = true;
  TransportOwner* owner_ = nullptr;  // on the port's reactor
};

}  // namespace cleat::nvmf_target
