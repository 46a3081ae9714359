// SPDX-License-Identifier: Apache-2.0
// How an endpoint finds its peer: by connecting to a socket on which the peer listens (client mode, QEMU is
// the server; reconnecting is ours), or by listening (server mode). Owned by a SocketEndpoint, on the control
// reactor. Every error names the path, the cause and what to do.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/intrusive_list.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "reactor/cancel.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "reactor/task.h"
#include "vhost/close_aside.h"
#include "vhost/peer_backoff.h"
#include "vhost/socket_paths.h"

namespace cleat::vhost {

class Connector {
 public:
  virtual ~Connector() = default;

  // Errors that can be seen at once. kUnavailable is none of them: a peer that is not there yet is waited
  // for.
  virtual Status Start() = 0;
  // The next peer's connected, non-blocking socket. One call at a time, and not while the peer is there: PeerLost says that it
  // is not any more. Peers that came to nothing wait before they are the next one. kCancelled; kResourceExhausted: what peers
  // have left behind leaves no room for another one's (PeerFiles), and the caller waits for that before it asks again.
  virtual Task<Result<UniqueFd>> Next(CancelToken& cancel) = 0;
  // The socket stays open until this is called.
  virtual void PeerLost(const Conduct& conduct) = 0;
  // The peer is of use: a ring is up.
  virtual void PeerServed() {}
  // What peers have left behind may leave room again.
  virtual void FilesClosed() {}
  virtual void Stop() = 0;
  // What is waited for, for an operator.
  virtual std::string waiting_for() const = 0;
};

// At most so many bytes, as sockaddr_un has it.
inline constexpr size_t kSocketPathBytesMax = 107;

// One inotify descriptor for all client endpoints: tells a connector that a socket has appeared at its path,
// so that an absent peer costs next to nothing and is still met within a millisecond. Without inotify (its
// limits are a host's) connectors only retry by time.
class SocketPathWatcher {
 public:
  explicit SocketPathWatcher(Reactor& control);
  ~SocketPathWatcher();  // nobody is subscribed
  SocketPathWatcher(const SocketPathWatcher&) = delete;
  SocketPathWatcher& operator=(const SocketPathWatcher&) = delete;

  // Owned by the subscriber; unsubscribes when it goes.
  struct Subscription {
    explicit Subscription(std::function<void()> f) : appeared(std::move(f)) {}
    ~Subscription();
    std::function<void()> appeared;  // something has appeared at the path
    std::string name;                // in its directory
    ListHook hook;
    SocketPathWatcher* watcher = nullptr;
    int watch = -1;
  };
  // False when the directory can't be watched.
  bool Subscribe(Subscription& subscription, const std::string& path);
  void Unsubscribe(Subscription& subscription);

 private:
  struct Directory {
    IntrusiveList<Subscription, &Subscription::hook> subscriptions;
  };
  struct Watch : FdWatch {
    explicit Watch(SocketPathWatcher& w) : FdWatch(&OnEvent), watcher(w) {}
    static void OnEvent(FdWatch& watch, uint32_t epoll_events);
    SocketPathWatcher& watcher;
  };
  void Read();

  UniqueFd inotify_;
  Watch watch_{*this};
  std::map<int, std::unique_ptr<Directory>> directories_;  // by inotify's watch descriptor
};

class ClientConnector final : public Connector {
 public:
  // A peer lost a moment ago, or a socket that has just appeared, is tried every millisecond for kEagerNs;
  // then the delay doubles. At the longest delay 400 absent sockets take under 1 % of a core.
  static constexpr uint64_t kEagerDelayNs = kNsPerMs;
  static constexpr uint64_t kEagerNs = 300 * kNsPerMs;
  static constexpr uint64_t kDelayMaxNs = kNsPerSecond;

  // `watcher` may be nullptr: then only time helps. `paths` outlives this.
  ClientConnector(Reactor& control, std::string path, SocketPathWatcher* watcher, SocketPaths& paths);
  ~ClientConnector() override;

  Status Start() override;
  Task<Result<UniqueFd>> Next(CancelToken& cancel) override;
  void PeerLost(const Conduct& conduct) override;
  void Stop() override;
  std::string waiting_for() const override;

 private:
  Result<UniqueFd> TryConnect();
  std::string WhyQueueIsFull() const;
  void BeEager();
  struct RetryTimer : Timer {
    explicit RetryTimer(Event& e) : Timer(&Fire), retry(e) {}
    static void Fire(Timer& timer);
    Event& retry;
  };

  Reactor& control_;
  const std::string path_;
  SocketPathWatcher* const watcher_;
  SocketPaths& paths_;
  Event retry_;  // the timer, or the socket appeared
  RetryTimer timer_{retry_};
  SocketPathWatcher::Subscription subscription_;
  bool watched_ = false;
  bool lost_ = false;
  Backoff backoff_;  // of whoever listens there: it is the same one that would have us back
  uint64_t waits_until_ns_ = 0;
  uint64_t eager_until_ns_ = 0;
  uint64_t delay_ns_ = kEagerDelayNs;
  std::string last_error_;
  pid_t listening_process_ =
      0;  // whom the last connection met; 0: nobody yet, or it is of another pid namespace
};

// Listens on the path, for one peer at a time. While the present one is of use - a ring is up, or it has been there for a while -
// a second one is accepted and closed at once; until then others stand in line, since it may come to nothing. One that came to
// nothing waits before it is let in again (PeerBackoffs), and nobody else waits for it. A socket file on which nobody answers is
// taken over. Mode 0660. The file is removed by Stop, if it is still ours.
class ServerConnector final : public Connector {
 public:
  // So long after it was let in a peer is taken for one that stays.
  static constexpr uint64_t kStaysNs = kNsPerSecond;
  // Peers that were accepted and have to wait, one a process; a further one is hung up on. As many places more are for others.
  static constexpr size_t kWaitingMax = 8;
  // So many connections are accepted in a turn of the reactor: peers may connect as fast as that goes.
  static constexpr size_t kAcceptsAtOnce = 4;
  // Refusals with less time between them are one episode, with one line in the log.
  static constexpr uint64_t kRefusalsApartNs = 60 * kNsPerSecond;

  // `paths` and `files`, which closes connections that are not handed out, outlive this. nullptr: they are closed in place.
  ServerConnector(Reactor& control, std::string path, SocketPaths& paths, PeerFiles* files = nullptr);
  ~ServerConnector() override;

  Status Start() override;
  Task<Result<UniqueFd>> Next(CancelToken& cancel) override;
  void PeerLost(const Conduct& conduct) override;
  void PeerServed() override;
  void FilesClosed() override;
  void Stop() override;
  std::string waiting_for() const override;
  uint64_t refused() const { return refused_; }

 private:
  struct Watch : FdWatch {
    explicit Watch(ServerConnector& c) : FdWatch(&OnEvent), connector(c) {}
    static void OnEvent(FdWatch& watch, uint32_t epoll_events);
    ServerConnector& connector;
  };
  struct StaysTimer : Timer {
    explicit StaysTimer(ServerConnector& c) : Timer(&Fire), connector(c) {}
    static void Fire(Timer& timer) { static_cast<StaysTimer&>(timer).connector.PeerServed(); }
    ServerConnector& connector;
  };
  struct RefuseTimer : Timer {
    explicit RefuseTimer(ServerConnector& c) : Timer(&Fire), connector(c) {}
    static void Fire(Timer& timer) { static_cast<RefuseTimer&>(timer).connector.RefuseOthers(); }
    ServerConnector& connector;
  };
  struct Waiting {
    UniqueFd socket;
    PeerIdentity peer;
  };
  void RefuseOthers();
  void Refuse(UniqueFd socket, const PeerIdentity& peer);
  void Drop(UniqueFd socket);
  bool has_room() const { return files_ == nullptr || files_->has_room(); }
  Result<bool> AcceptSome();
  void DropWaiting();
  UniqueFd TakeReady();
  uint64_t NextReadyNs() const;

  Status TakeOver();  // whatever lies at the path

  std::string PathInFolder() const;

  Reactor& control_;
  const std::string path_;
  SocketPaths& paths_;
  PeerFiles* const files_;
  UniqueFd folder_;  // O_PATH; since Start
  UniqueFd listener_;
  dev_t file_device_ = 0;
  ino_t file_inode_ = 0;
  Watch watch_{*this};
  Event somebody_;
  StaysTimer stays_timer_{*this};
  RefuseTimer refuse_timer_{*this};  // while a peer stays
  int peer_ = -1;                    // that is there; its connection owns it
  PeerIdentity peer_identity_;
  bool peer_stays_ = false;  // and others are refused
  PeerBackoffs backoffs_;
  Backoff strangers_;             // of all: what many processes do is not to cost more than what one does
  uint64_t nobody_until_ns_ = 0;  // by that, and for no longer than Backoff::kDelayMinNs
  std::vector<Waiting> waiting_;  // accepted, the first one first
  uint64_t refused_ = 0;
  uint64_t refusals_until_ns_ = 0;  // until then the last episode goes on
};

}  // namespace cleat::vhost
