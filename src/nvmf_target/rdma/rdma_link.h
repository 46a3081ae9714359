// SPDX-License-Identifier: Apache-2.0
// One connection of a host over RDMA, which is one queue: its queue pair, its protocol, and the two reactors that share it. The connection is the control
// reactor's; the protocol is the port's reactor's, on which the queue pair is polled.
//
//   control:   made --MakeQueue--> accepted ... ------------------------------> the queue pair is destroyed ----------------------> over
//   reactor:                  attached ... ended (EndQueue): wait for what was posted /                     \ Destroyed: all is given back /
//
// Nothing of a command's memory is given back before its works have completed, or the queue pair is destroyed: the adapter could still write to it.
//
// Kept by shared_ptr, by its transport and by mail; the last may go on either reactor, once it is over. Nothing of it uses the port from on_over on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "nvme/rdma_target/target_queue.h"
#include "nvmf_target/rdma/rdma_port.h"
#include "nvmf_target/rdma/relay_end.h"
#include "nvmf_target/rdma/relay_queue.h"
#include "rdma/connection.h"
#include "reactor/reactor.h"

namespace cleat::nvmf_target {

class RdmaLink final : public std::enable_shared_from_this<RdmaLink>,
                       public RelayedQueue,
                       private rdma::ConnectionOwner {
 public:
  // What was posted is waited for so long once the queue has ended. An adapter whose host does not answer keeps it longer; destroying the queue pair ends
  // that.
  static constexpr uint64_t kFlushNs = kNsPerSecond;

  // `on_over`: once, on the control reactor, when the queue pair is destroyed.
  RdmaLink(Reactor& control, RdmaPort& port, const RdmaPort::Staging& staging,
           std::function<void(RdmaLink&)> on_over)
      : control_(control), port_(port), staging_(staging), on_over_(std::move(on_over)) {}
  ~RdmaLink();

  // ---- Control reactor
  rdma::ConnectionOwner& owner() { return *this; }
  void SetConnection(std::unique_ptr<rdma::Connection> connection) { connection_ = std::move(connection); }
  // Accepts the host, once the link has its queue and its transport. An error ends the link.
  void Accept(std::span<const uint8_t> private_data);
  // The adapter is gone, or the host.
  void Break(const Error& reason);
  // Ends a link whose queue was not made.
  void GiveUp();
  const std::shared_ptr<RelayQueue>& relay() const { return relay_; }
  RdmaPort& port() { return port_; }
  // The host is gone, or the adapter.
  bool ended() const { return ended_; }

  // RelayedQueue
  void BecomeQueue(uint32_t entries, bool flow_control, uint32_t in_capsule_bytes) override;
  void Ask(uint16_t tag, uint32_t bytes) override;
  void Answer(uint16_t tag, nvme::Status status, uint64_t result, std::vector<uint8_t> data) override;
  void Abort(const Error& reason) override;
  void TakeNext() override;

  // ---- The port's reactor
  // Makes the protocol. kResourceExhausted: the port has no room.
  Status MakeQueue(const std::string& name, uint16_t queue_id, uint32_t entries);
  nvme::fabrics::TargetQueue& queue() { return *queue_; }
  // Ends the queue, if it has not ended, and destroys its queue pair in time.
  void EndQueue(const Error& reason);

 private:
  // rdma::ConnectionOwner: control reactor
  void Established(rdma::Connection& /*connection*/, std::span<const uint8_t> /*private_data*/) override {}
  void Ended(rdma::Connection& connection, const rdma::ConnectionEnd& end) override;

  struct FlushTimer : Timer {
    explicit FlushTimer(RdmaLink& l) : Timer(&Fire), link(l) {}
    static void Fire(Timer& timer);
    RdmaLink& link;
  };
  void OnReactor(std::function<void(RdmaLink&)> what);
  void LookWhetherFlushed();
  void DestroyQueuePair();

  Reactor& control_;
  RdmaPort& port_;
  const RdmaPort::Staging staging_;
  const std::function<void(RdmaLink&)> on_over_;
  // Control reactor
  std::unique_ptr<rdma::Connection> connection_;
  bool ended_ = false;
  const std::shared_ptr<RelayQueue> relay_ = std::make_shared<RelayQueue>(control_, *this);
  // The port's reactor
  std::string name_;
  std::unique_ptr<RelayEnd> relay_end_;
  std::unique_ptr<nvme::rdma_target::TargetQueue> queue_;
  std::shared_ptr<RdmaLink> keeps_itself_;  // from EndQueue until the queue pair is destroyed
  FlushTimer flush_{*this};
  uint64_t flush_until_ns_ = 0;
  RdmaPort::Mark polled_before_;  // when the queue ended
  bool ends_ = false;
};

}  // namespace cleat::nvmf_target
