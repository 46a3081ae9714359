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
#include "vhost/close_aside.h"
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

  // What peers have sent and is not closed yet, of all endpoints. Any thread.
  size_t closing_files() const { return close_aside_.closing(); }

  // kResourceExhausted past the library's number of devices; otherwise as Endpoint::Start says.
  Result<std::unique_ptr<Endpoint>> Make(const EndpointOptions& options, virtio::DeviceModel& model,
                                         StatusFn on_status) override;
  void ProcessEnds() override { process_ends_ = true; }

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
  CloseAside close_aside_;
  std::unique_ptr<SocketPathWatcher> watcher_;  // made with the first client endpoint
  std::set<SocketEndpoint*> endpoints_;
  bool process_ends_ = false;
  MemoryWatch memory_watch_{*this};
};

class SocketEndpoint final : public Endpoint {
 public:
  // A peer that said nothing for so long is reported: QEMU before 9.1 does not start a vhost-user-scsi device
  // again after a reconnect, and a connection may wait in a listen backlog for ever.
  static constexpr uint64_t kSilentPeerNs = 3 * kNsPerSecond;
  // A peer that has not said a word for so long is looked at: it may be stopped.
  static constexpr uint64_t kLookAtSilentNs = 500 * kNsPerMs;
  static constexpr uint64_t kLookAgainNs = 3 * kNsPerSecond;
  // A connection that lasted so long was of use, also without a ring (Conduct).
  static constexpr uint64_t kUsefulNs = kNsPerSecond;
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
  void LookAtSilentPeer();

 private:
  Task<void> Run();
  Task<void> AwaitRoomForFiles();
  Task<Status> Serve(UniqueFd peer);
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

  PeerFiles files_;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<CancelToken> cancel_;  // while started
  std::unique_ptr<Session> session_;     // while there is a connection
  std::unique_ptr<Relay> relay_;
  Event stopped_;
  Event files_closed_;
  SilenceTimer silence_timer_{*this};

  EndpointState phase_ =
      EndpointState::kStopped;  // of the coroutine; status() refines it by the session's rings
  std::string last_error_;      // why the last connection ended, if it ended badly
  uint64_t connected_ns_ = 0;   // the present connection
  bool own_shortage_ = false;   // ... for want of something of this process' own
  bool silent_ = false;
  pid_t peer_process_ = 0;    // who is connected, or listens there; 0: of another pid namespace
  std::string stands_still_;  // why that one does not go on, when it was found silent
  std::string hidden_;        // ... or that this can't be told
  uint64_t connections_ = 0;
  bool blocked_ = false;   // the last connection made a reactor wait
  bool serving_ = false;   // the relay's coroutine runs
  bool had_ring_ = false;  // this connection
};

}  // namespace cleat::vhost
