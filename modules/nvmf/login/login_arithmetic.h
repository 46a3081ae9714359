// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one queue's authentication, on a thread that may be busy with it (0.1 s at most): a reactor never is. All queues of a
// process stand in one line for the few threads (login_line.h).
//
// Ownership and thread: whoever has the queue owns this beside its login (nvme/host/queue_login.h), on the queue's reactor; both may go while
// the arithmetic runs. It then runs to its end on memory of its own, and nobody hears of it. The line outlives all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "nvme/auth/authentication.h"
#include "nvme/host/queue_login.h"
#include "nvmf/login/login_line.h"
#include "reactor/reactor.h"

namespace cleat::modules {

// The names under which the line has a login.
struct LoginNames {
  std::string subsystem;  // its NQN
  std::string path;       // "subsystems/a at 10.0.0.1:4420"
};

class LoginArithmetic {
 public:
  // `line` is nullptr only where no secrets are configured. `done` is called on `reactor` when what a login needs was computed. `place`:
  // the one of an earlier try of the same queue whose turn had not come.
  LoginArithmetic(nvmf::LoginLine* line, LoginNames names, Reactor& reactor, std::function<void()> done,
                  nvmf::LoginPlace place = 0);
  ~LoginArithmetic();
  LoginArithmetic(const LoginArithmetic&) = delete;
  LoginArithmetic& operator=(const LoginArithmetic&) = delete;

  // What a login with these secrets needs to have its arithmetic done here. nullptr: none are configured.
  nvme::host::HostChap ChapWith(std::shared_ptr<const nvme::auth::ChapSecrets> secrets);

  // How the login has ended: the queue is in use, its connection was lost, or nobody wants it. Another login may follow here. Arithmetic
  // that has begun runs to its end, and what has not begun is left out.
  void Succeed();
  void Lose(const Error& reason);
  void Cancel();

  // The login was lost or cancelled while it was in the line, or came too late as it was still being computed: this host is at fault and
  // not the target. Where its turn had not come, place() is for the next try.
  bool ended_in_line() const { return ended_in_line_; }
  nvmf::LoginPlace place() const { return place_; }
  // The least pause before the path's next try, after Lose.
  uint64_t PauseNs() const;

 private:
  struct Job;
  void Begin(const std::shared_ptr<nvme::auth::Authentication>& authentication);
  static void Tell(const Job& job);
  // True: it was computed, or its turn had come.
  bool End();

  nvmf::LoginLine* const line_;
  const LoginNames names_;
  Reactor& reactor_;
  const std::function<void()> done_;
  nvmf::LoginPlace place_;
  std::shared_ptr<Job> job_;  // nullptr: nobody waits
  bool computed_ = false;     // for a login that has not ended yet
  bool ended_in_line_ = false;
};

}  // namespace cleat::modules
