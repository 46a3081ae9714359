// SPDX-License-Identifier: Apache-2.0
// The API's unix socket. gRPC does not tell who is at the other end of one, so connections are accepted here: the
// kernel says who connected (SO_PEERCRED, SO_PEERGROUPS), and the descriptor is handed to gRPC, which calls its peer
// "fd:N". gRPC closes N when the last call of the connection is gone, so that a call's N always is its own connection's;
// only then can the number come back, and then it is entered anew before gRPC gets it.
//
// Bounded: connections in all, of one user, and of users without a role - so that nobody keeps others out. One thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "control/callers/access.h"

namespace cleat::control {

class UnixListener {
 public:
  static constexpr size_t kConnectionsMax = 512;
  static constexpr size_t kConnectionsOfUserMax = 128;  // not of root
  static constexpr size_t kConnectionsWithoutRoleMax = 8;

  // Binds; a socket that nobody listens on any more is replaced. `group` empty: cleatd's own.
  static Result<std::unique_ptr<UnixListener>> Open(const std::string& path, mode_t mode,
                                                    const std::string& group);
  ~UnixListener();

  // `server` and `grants` outlive Stop(). `tick` is called on the listener's thread after each Wake(), and every second
  // for as long as it returns false.
  void Start(grpc::Server& server, const Grants& grants, std::function<bool()> tick);
  void Stop();
  void Wake();

  // The caller behind grpc::ServerContext::peer(); unknown when it is not of this socket. Any thread.
  Caller CallerOf(const std::string& peer) const;

 private:
  struct Connection {
    UniqueFd watch;  // the same socket: tells its end, after which it no longer counts
    uid_t uid = 0;
    bool has_role = false;
  };

  UnixListener(std::string path, UniqueFd socket, UniqueFd wake)
      : path_(std::move(path)), socket_(std::move(socket)), wake_(std::move(wake)) {}
  void Run();
  void Accept();
  bool HasRoom(const Connection& connection) const;

  const std::string path_;
  UniqueFd socket_;
  UniqueFd wake_;
  grpc::Server* server_ = nullptr;
  const Grants* grants_ = nullptr;
  std::function<bool()> tick_;
  std::vector<Connection> connections_;  // the thread's
  std::thread thread_;

  mutable Mutex mutex_;
  std::map<int, Caller> callers_ CLEAT_GUARDED_BY(mutex_);  // by gRPC's descriptor
  bool stop_ CLEAT_GUARDED_BY(mutex_) = false;
};

}  // namespace cleat::control
