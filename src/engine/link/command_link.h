// SPDX-License-Identifier: Apache-2.0
// The engine's connection to cleatd. Connects, and connects again when cleatd was restarted (within 100 ms);
// says hello, reports the inventory, runs requests, reports changes. While nobody is there the engine goes on
// serving. On the control reactor.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "engine/disks/path_guard.h"
#include "engine/engine.h"
#include "engine/link/discoveries.h"
#include "engine/link/heartbeats.h"
#include "engine/link/requests.h"
#include "engine/protocol/codec.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"

namespace cleat::engine {

class CommandLink : private Engine::Listener {
 public:
  struct Options {
    std::string socket_path;
    HelloMessage hello;
    UniqueFd counters;  // goes with the hello: what this engine shows of its work (observe/layout.h)
    // Which paths may be served, told in the hello and again when cleatd has them read anew, on `reading`. Both outlive the link, or are null:
    // everything may.
    PathGuard* paths = nullptr;
    BlockingPool* reading = nullptr;
    // I/O reactors, of whose progress heartbeats tell. They outlive the link.
    std::vector<const Reactor*> reactors;
    // How long a new connection waits for takes that were asked for over an earlier one: a cleatd that hears of a controller
    // on standby has another engine take it, so each take is decided first, unless its storage hangs for so long. A lock is
    // waited for 10 s.
    uint64_t takes_wait_ns = 15 * kNsPerSecond;
  };
  CommandLink(Reactor& control, Engine& engine, Options options);
  ~CommandLink() override;  // stopped

  void Start();
  // Tells cleatd, now and whenever it connects.
  void ReportCeph(CephReport report);
  // No more orders, and no word to cleatd; the requests that run go on. Again: nothing.
  void HangUp();
  // Hangs up, and returns when they have ended.
  Task<void> Stop();
  bool cleatd_is_silent() const { return heartbeats_.cleatd_is_silent(); }
  uint32_t takes() const { return takes_; }              // requests to take a controller that run
  uint64_t connections() const { return connections_; }  // that were made since Start

 private:
  struct Outgoing {
    std::vector<uint8_t> bytes;
    UniqueFd fd;
  };
  struct Connection;

  Task<void> KeepConnected();
  Result<std::unique_ptr<Connection>> Connect();
  void OnReadable();
  bool ReceiveOne();
  void OnMessage(std::span<const uint8_t> bytes, std::vector<UniqueFd> fds);
  Task<Status> ReadPathLists();
  Task<void> RunRequest(Incoming request, std::vector<UniqueFd> fds, uint64_t connection);
  void Welcome(const HelloReplyMessage& reply);
  void SendInventory();
  Task<Answer> Discover(uint64_t id, DiscoverySpec discovery, uint64_t connection);
  bool IsCurrent(uint64_t connection) const;
  void SendAnswer(uint64_t id, Answer answer);
  void Send(std::vector<uint8_t> bytes, UniqueFd fd = UniqueFd());
  void Flush();
  void FlushChanges();
  void FlushLog(uint64_t id);
  void FlushWaiting();
  void HangUp(const std::string& why);
  void ControllerChanged(const std::string& controller) override;
  void AttachmentChanged(const std::string& controller, uint32_t target) override;

  Reactor& control_;
  Engine& engine_;
  const Options options_;
  std::unique_ptr<Connection> connection_;
  uint64_t connections_ = 0;  // a reply goes out on the connection its request came by, or nowhere
  Event hung_up_;
  CancelToken stopping_;
  Gate gate_;
  bool told_unreachable_ = false;
  uint32_t takes_ = 0;
  Event takes_over_;
  CephReport ceph_;
  Discoveries discoveries_;
  Heartbeats heartbeats_;
};

}  // namespace cleat::engine
