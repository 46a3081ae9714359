// SPDX-License-Identifier: Apache-2.0
// Closes what a peer has sent, on threads that may hang. close(2) waits for whoever is behind the file: a FUSE server, the other end
// of a socket that lingers; and nothing says beforehand what a file is. Likewise for the files in messages that nobody read, which
// the kernel closes with the socket.
//
// A PeerFiles for each endpoint, on the control reactor. Its files are closed one after the other, so an endpoint keeps one thread at
// most; a CloseAside for all of them, with kThreadsMax threads. When so many hang, further files wait for a thread, which nobody
// waits for. What bounds the files that wait: an endpoint takes no connection, and accepts no peer to refuse it, while kFilesMax of
// its peers' are not closed; one connection can add the descriptors of a message, and its sockets.
//
// A thread that has had nothing to close for a second ends. One that can't be made is tried again, and meanwhile files wait as if all
// threads hung. The end of a CloseAside waits for none of them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "reactor/reactor.h"

namespace cleat::vhost {

class CloseAside {
 public:
  static constexpr uint32_t kThreadsMax = 64;

  // So long after a thread could not be made it is tried again.
  static constexpr uint64_t kThreadRetryNs = kNsPerSecond;
  // Runs a function on a thread of its own.
  using StartThread = std::function<Status(std::function<void()>)>;

  // `control` outlives it.
  explicit CloseAside(Reactor& control, StartThread start_thread = StartDetached);
  ~CloseAside();  // no PeerFiles is left
  CloseAside(const CloseAside&) = delete;
  CloseAside& operator=(const CloseAside&) = delete;

  size_t closing() const;  // files, of all; any thread

 private:
  friend class PeerFiles;
  struct Queue;
  struct State;
  struct RetryTimer : Timer {
    explicit RetryTimer(CloseAside& a)
        : Timer([](Timer& timer) { static_cast<RetryTimer&>(timer).aside.AddThreads(); }), aside(a) {}
    CloseAside& aside;
  };
  static Status StartDetached(std::function<void()> main);
  static void ThreadMain(const std::shared_ptr<State>& state);
  void AddThreads();
  bool AddThread();

  Reactor& control_;
  const StartThread start_thread_;
  RetryTimer retry_timer_{*this};
  bool short_of_threads_ = false;  // the last one could not be made
  const std::shared_ptr<State> state_;
};

class PeerFiles {
 public:
  // While so many are not closed yet there is no room for another connection's.
  static constexpr size_t kFilesMax = 64;

  // `on_closed` is called on control when some have been closed: there may be room again.
  PeerFiles(CloseAside& aside, std::function<void()> on_closed);
  ~PeerFiles();  // what is not closed yet is closed all the same
  PeerFiles(const PeerFiles&) = delete;
  PeerFiles& operator=(const PeerFiles&) = delete;

  // Whatever it is, from whomever.
  void Close(UniqueFd file);
  void Close(std::vector<UniqueFd> files);
  // A unix socket, which is shut down. In place if no message is in it: that can't hang.
  void CloseSocket(UniqueFd socket);

  size_t closing() const;
  bool has_room() const { return closing() < kFilesMax; }

 private:
  CloseAside& aside_;
  const std::shared_ptr<CloseAside::State> state_;
  const std::shared_ptr<CloseAside::Queue> queue_;
};

}  // namespace cleat::vhost
