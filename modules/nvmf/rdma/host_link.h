// SPDX-License-Identifier: Apache-2.0
// One connection to a target over RDMA, which is one queue: its queue pair, its protocol, and the two reactors that share it. The connection is the control
// reactor's; the protocol is the reactor's whose port polls the queue pair.
//
//   reactor:  Start                            Connected ... ended: wait for what was posted /                      \ Destroyed: all is given back /
//   control:       \ way, port, connection manager /                                         windows, queue pair destroyed                        over
//
// What commands had of the port's memory is nobody's from the end on until the queue pair is destroyed: the target could still read and write it. Whoever
// has submitted them waits for that only where the adapter reaches their own memory (nvme/rdma_host/host_queue.h).
//
// Kept by shared_ptr, by its queue (rdma_queue.h) and by mail; the last may go on either reactor, once it is over.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "modules/nvmf/rdma/rdma_ports.h"
#include "modules/nvmf/transport/transport_queue.h"
#include "nvme/rdma_host/host_queue.h"
#include "rdma/connection.h"
#include "reactor/reactor.h"

namespace cleat::modules {

// What hears of the connection, on its reactor.
class HostLinkOwner {
 public:
  virtual nvme::fabrics::QueuePairOwner& queue_owner() = 0;
  virtual void LinkConnected(nvme::rdma_host::HostQueue& queue) = 0;
  // Instead of LinkConnected.
  virtual void LinkFailed(const Error& reason) = 0;
  // The queue is broken, and the queue's owner hears of some commands, and of the end, later than now.
  virtual void LinkBreaks(const Error& reason) = 0;

 protected:
  ~HostLinkOwner() = default;
};

class HostLink final : public std::enable_shared_from_this<HostLink>, private rdma::ConnectionOwner {
 public:
  // What was posted is waited for so long once the queue has ended. An adapter whose target does not answer keeps it longer; destroying the queue pair ends
  // that.
  static constexpr uint64_t kFlushNs = kNsPerSecond;

  // `owner` until End.
  HostLink(const TransportQueueOptions& options, Reactor& reactor, HostLinkOwner& owner);
  ~HostLink();

  // ---- The reactor
  void Start();
  // There is something to post.
  void Wake() { port_->Wake(); }
  // The queue has ended for the owner, or that gives up before it was connected: the owner hears of nothing more.
  void End();

  // ---- Control reactor
  // The adapter is gone.
  void Break(const Error& reason);

 private:
  // rdma::ConnectionOwner: control reactor
  void Established(rdma::Connection& connection, std::span<const uint8_t> private_data) override;
  void Ended(rdma::Connection& connection, const rdma::ConnectionEnd& end) override;

  struct FlushTimer : Timer {
    explicit FlushTimer(HostLink& l) : Timer(&Fire), link(l) {}
    static void Fire(Timer& timer);
    HostLink& link;
  };
  void OnReactor(std::function<void(HostLink&)> what);
  void OnControl(std::function<void(HostLink&)> what);
  // Control reactor
  static Task<void> Connect(std::shared_ptr<HostLink> self);
  void GiveUp();
  void Fail(const Error& reason);
  void Over();
  // The reactor
  void MakeQueue(const Result<uint32_t>& commands_max);
  void Broken(const Error& reason);
  void LookWhetherFlushed();
  void DestroyQueuePair(bool is_flushed);

  Reactor& reactor_;
  Reactor& control_;
  RdmaPorts& ports_;
  const TransportQueueOptions options_;
  HostPort* port_ = nullptr;  // set by the control reactor ahead of mail that uses it
  // Control reactor
  std::unique_ptr<rdma::Connection> connection_;
  bool finding_ = false;  // RdmaPorts::Find is under way, and uses this
  bool established_ = false;
  bool given_up_ = false;
  bool over_ = false;
  // The reactor
  HostLinkOwner* owner_;  // nullptr: it hears of nothing any more
  std::unique_ptr<nvme::rdma_host::HostQueue> queue_;
  std::shared_ptr<HostLink> keeps_itself_;  // from the queue pair's break until it is destroyed
  FlushTimer flush_{*this};
  uint64_t flush_until_ns_ = 0;
  HostPort::Mark polled_before_;  // when the queue pair was broken
};

}  // namespace cleat::modules
