// SPDX-License-Identifier: Apache-2.0
// A controller's endpoint on a unix socket: connector (how a peer is found), relay (the connection), session
// (its rings), one after the other in one coroutine. The next connection begins only when the last one's
// rings are drained.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "reactor/blocking.h"
#include "reactor/cancel.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "reactor/task.h"
#include "vhost/connector.h"
#include "vhost/endpoint.h"
#include "vhost/protocol_library.h"
#include "vhost/relay.h"
#include "vhost/session.h"

namespace cleat::vhost {

class SocketEndpoint;

// Made by the process, on no particular thread, and used on control; outlives its endpoints. Everything it is given
// outlives it. The control reactor is one of its own that need not poll; all relays run on it.
class SocketEndpointFactory final : public EndpointFactory {
 public:
  // `paths` may be nullptr: sockets are then wherever their paths lead.
  SocketEndpointFactory(Reactor& control, BlockingPool& pool, ProtocolLibrary& library,
                        SocketPaths* paths = nullptr);
  ~SocketEndpointFactory() override;  // no endpoint is left

  // kResourceExhausted past the library's number of devices; otherwise as Endpoint::Start says.
  Result<std::unique_ptr<Endpoint>> Make(const EndpointOptions& options, virtio::DeviceModel& model,
                                         StatusFn on_status) override;

 private:
  friend class SocketEndpoint;
  // A guest's memory lost pages: each endpoint looks whether it was its guest's.
  struct MemoryWatch : FdWatch {
    explicit MemoryWatch(SocketEndpointFactory& f) : FdWatch(&OnBroken), factory(f) {}
    static void OnBroken(FdWatch& watch, uint32_t epoll_events);
    SocketEndpointFactory& factory;
  };
  Reactor& control_;
  BlockingPool& pool_;
  ProtocolLibrary& library_;
  AnySocketPaths any_paths_;
  SocketPaths& paths_;
  std::unique_ptr<SocketPathWatcher> watcher_;  // made with the first client endpoint
  std::set<SocketEndpoint*> endpoints_;
  MemoryWatch memory_watch_{*this};
};

class SocketEndpoint final : public Endpoint {
 public:
  // A peer that said nothing for so long is reported: QEMU before 9.1 does not start a vhost-user-scsi device
  // again after a reconnect, and a connection may wait in a listen backlog for ever.
  static constexpr uint64_t kSilentPeerNs = 3 * kNsPerSecond;
  // After a connection that ended in an error, or before its first message: wait this long, twice as long
  // each time. A peer that comes and goes politely, without a ring and within kUsefulNs, gets some more at once
  // (firmware, an upgrade that changed its mind), and is then no better.
  static constexpr uint64_t kErrorDelayMinNs = 20 * kNsPerMs;
  static constexpr uint64_t kErrorDelayMaxNs = 2 * kNsPerSecond;
  static constexpr uint64_t kUsefulNs = kNsPerSecond;
  static constexpr uint32_t kUselessMax = 4;
  // After one that made a reactor wait (Session::blocked), and with it other guests: they are to notice it seldom enough.
  static constexpr uint64_t kBlockedDelayNs = 600 * kNsPerSecond;

  SocketEndpoint(SocketEndpointFactory& factory, const EndpointOptions& options, virtio::DeviceModel& model,
                 StatusFn on_status);
  ~SocketEndpoint() override;

  Status Start() override;
  Task<void> Stop() override;
  Task<Status> Yield(uint64_t deadline_ns) override;
  void ConfigChanged() override {
    if (relay_ != nullptr) relay_->TellConfigChanged();
  }
  EndpointStatus status() const override;

  // Ends a connection whose guest's memory lost pages, and one that made a reactor wait.
  void CheckMemory();
  void CheckBlocked();

 private:
  Task<void> Run();
  Task<Status> Serve(UniqueFd peer);
  void ChooseDelay(bool good, uint64_t lasted_ns);
  Task<Result<UniqueFd>> ConnectLibrary();
  void Changed();
  struct SilenceTimer : Timer {
    explicit SilenceTimer(SocketEndpoint& e) : Timer(&Fire), endpoint(e) {}
    static void Fire(Timer& timer);
    SocketEndpoint& endpoint;
  };

  SocketEndpointFactory& factory_;
  const EndpointOptions options_;
  virtio::DeviceModel& model_;
  const StatusFn on_status_;

  std::unique_ptr<Connector> connector_;
  std::unique_ptr<CancelToken> cancel_;  // while started
  std::unique_ptr<Session> session_;     // while there is a connection
  std::unique_ptr<Relay> relay_;
  Event stopped_;
  SilenceTimer silence_timer_{*this};

  EndpointState phase_ =
      EndpointState::kStopped;  // of the coroutine; status() refines it by the session's rings
  std::string last_error_;      // why the last connection ended, if it ended badly
  bool silent_ = false;
  uint64_t connections_ = 0;
  uint64_t error_delay_ns_ = 0;
  bool serving_ = false;   // the relay's coroutine runs
  bool had_ring_ = false;  // this connection
  uint32_t useless_ = 0;   // connections in a row that were of no use
};

}  // namespace cleat::vhost
