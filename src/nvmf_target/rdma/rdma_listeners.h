// SPDX-License-Identifier: Apache-2.0
// Hosts that come over RDMA: listens, and makes of each connect request a queue on one of the reactors. Adapters are opened as hosts come by them, and closed
// when they are gone.
//
// All of it on the control reactor. Requests are answered one after the other, each behind some mail to its reactor and back. The first one of an adapter
// and a reactor waits until memory is pinned for the two (rdma_port.h), and so does the control reactor.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "nvme/fabrics/names.h"
#include "nvmf/rdma/adapters.h"
#include "nvmf_target/io/io_port.h"
#include "nvmf_target/rdma/rdma_link.h"
#include "nvmf_target/rdma/rdma_port.h"
#include "nvmf_target/transport/queue_transport.h"
#include "rdma/connection_manager.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "reactor/task.h"

namespace cleat::nvmf_target {

// Whose hosts they are.
class RdmaHostsOwner {
 public:
  virtual bool MayAccept(const nvme::fabrics::TransportAddress& peer) const = 0;
  virtual IoPort& PortOf(Reactor& reactor) = 0;
  // A host has connected; it may send from now on.
  virtual void RdmaAccepted(std::unique_ptr<QueueTransport> transport,
                            const nvme::fabrics::TransportAddress& local,
                            const nvme::fabrics::TransportAddress& peer) = 0;

 protected:
  ~RdmaHostsOwner() = default;
};

class RdmaListeners final : private rdma::ListenerOwner, private nvmf::RdmaAdapterUser {
 public:
  static constexpr size_t kRequestsMax = 1024;  // that wait to be answered; more are refused
  static constexpr int kBacklog = 1024;
  static constexpr uint64_t kRetryNs = 200 * kNsPerMs;
  static constexpr uint64_t kFailureNs = 5 * kNsPerSecond;
  static constexpr uint64_t kLogNs = kNsPerSecond;  // between lines of hosts that cannot connect
  static constexpr uint32_t kIoEntriesMax = 256;

  // Both outlive it.
  RdmaListeners(nvmf::RdmaAdapters& adapters, RdmaHostsOwner& owner)
      : control_(adapters.control()), owner_(owner), known_(adapters), changed_(control_) {}
  ~RdmaListeners();  // closed
  RdmaListeners(const RdmaListeners&) = delete;
  RdmaListeners& operator=(const RdmaListeners&) = delete;

  // One address of an adapter's, for queues on `reactors`. Where `waits`, an address that another process has still is listened at as soon as it can be.
  // kInvalidArgument: it is one that stands for all; kUnavailable: there are no libraries, no adapter, or none at that address.
  Status Listen(const nvme::fabrics::TransportAddress& address, std::vector<Reactor*> reactors, bool waits);
  void StopListening(const nvme::fabrics::TransportAddress& address);
  // No address is listened at. When this returns, no host connects any more.
  Task<void> StopAccepting();
  // Behind StopAccepting, when all transports are closed. Waits until all queue pairs are destroyed.
  Task<void> Close();

 private:
  struct Listening {
    std::vector<Reactor*> reactors;
    std::unique_ptr<rdma::Listener> listener;  // nullptr: not now
  };
  struct Failure {
    Error error{ErrorCode::kUnavailable, ""};
    uint64_t until_ns = 0;  // it is not tried before
  };
  struct Adapter {
    std::shared_ptr<nvmf::RdmaAdapter> adapter;
    std::map<Reactor*, std::unique_ptr<RdmaPort>> ports;
    std::map<Reactor*, uint32_t> queues;                 // on each
    std::map<RdmaLink*, std::weak_ptr<RdmaLink>> links;  // until they are over
    std::map<Reactor*, Failure> failures;                // to make a port
  };
  struct Request {
    std::unique_ptr<rdma::ConnectRequest> request;
    std::vector<Reactor*> reactors;
  };
  struct RetryTimer : Timer {
    explicit RetryTimer(RdmaListeners& l)
        : Timer([](Timer& timer) { static_cast<RetryTimer&>(timer).listeners.ListenAgain(); }),
          listeners(l) {}
    RdmaListeners& listeners;
  };
  // rdma::ListenerOwner
  void Requested(rdma::Listener& listener, std::unique_ptr<rdma::ConnectRequest> request) override;
  void Ended(rdma::Listener& listener, const Error& error) override;
  // nvmf::RdmaAdapterUser
  void AdapterIsGone(nvmf::RdmaAdapter& adapter, const Error& reason) override;

  Status Begin(const std::string& text, Listening& listening);
  void ListenAgain();
  Task<void> AnswerAll();
  Task<void> Answer(Request asked);
  Result<Adapter*> AdapterOf(const rdma::ConnectRequest& request);
  Task<Result<RdmaPort*>> PortFor(Adapter& adapter, const std::vector<Reactor*>& reactors);
  Task<Status> Connect(rdma::ConnectRequest& request, Adapter& adapter, RdmaPort& port, uint16_t queue_id,
                       uint32_t entries);
  void LinkIsOver(nvmf::RdmaAdapter* key, Reactor* reactor, RdmaLink* link);
  void CannotConnect(const std::string& peer, const Error& why);
  void CloseGone();
  Task<void> CloseAdapter(nvmf::RdmaAdapter* key);

  Reactor& control_;
  RdmaHostsOwner& owner_;
  nvmf::RdmaAdapters& known_;
  RetryTimer retry_{*this};
  std::map<std::string, Listening> listening_;  // by the address's text
  std::map<nvmf::RdmaAdapter*, Adapter> adapters_;
  std::deque<Request> requests_;
  bool answers_ = false;
  bool closing_ = false;
  uint32_t adapters_closing_ = 0;
  uint64_t next_log_ns_ = 0;
  Event changed_;
};

}  // namespace cleat::nvmf_target
