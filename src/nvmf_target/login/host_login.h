// SPDX-License-Identifier: Apache-2.0
// What goes between a host's Connect and its first other command on a queue where the host has to prove who it is (DH-HMAC-CHAP): each command
// but Authentication Send and Receive ends with Authentication Required, whatever it is and whatever data it has.
//
// The arithmetic is done by a thread, in a line (nvmf/login) in which hosts take turns by their addresses, so that one that keeps this end
// computing delays others by one job. A host has a time for all of it, of which what it waits there is no part.
//
// Source: NVM Express Base Specification 2.0 ("base"), 6.1 and 6.2 (the commands), 8.13 (the messages).
//
// Ownership and thread: whoever has the queue owns this, on its reactor, and gives it one command at a time. It may go while the arithmetic runs,
// which then ends on memory of its own; the line outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "nvme/auth/controller/controller_authentication.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/target/controller.h"
#include "nvmf/login/login_line.h"
#include "reactor/reactor.h"

namespace cleat::nvmf_target {

// Hears of what a command does not bring about at once. May not destroy the login from there.
class HostLoginOwner {
 public:
  // The answer of the command that was kHeld.
  virtual void LoginAnswers(const nvme::target::Answer& answer) = 0;
  // The host is not believed, for this reason: once at most. The queue ends with the answer that is a kDisconnect, or when the host's time is
  // over.
  virtual void LoginFails(const std::string& reason) = 0;
  // The host's time is over.
  virtual void LoginIsLate() = 0;

 protected:
  ~HostLoginOwner() = default;
};

class HostLogin {
 public:
  // The time that a host has: its keep alive timeout, but neither less nor more than these.
  static constexpr uint64_t kTimeoutMinNs = 10 * kNsPerSecond;
  static constexpr uint64_t kTimeoutMaxNs = 30 * kNsPerSecond;
  static uint64_t TimeoutNs(uint32_t kato_ms);

  struct Config {
    std::string peer;  // the host's address without its port
    std::string host_nqn;
    std::string subsystem_nqn;
    std::shared_ptr<const nvme::auth::ChapSecrets> secrets;
    uint64_t timeout_ns = 0;
  };
  HostLogin(Reactor& reactor, nvmf::LoginLine& line, Config config, HostLoginOwner& owner);
  ~HostLogin();
  HostLogin(const HostLogin&) = delete;
  HostLogin& operator=(const HostLogin&) = delete;

  // kHeld: LoginAnswers has its answer, and no command comes until then.
  nvme::target::Answer Execute(const nvme::fabrics::SubmissionEntry& entry, std::span<const uint8_t> data);
  // The queue may be used, once the answer has been given.
  bool proved() const { return authentication_->proved(); }
  // "SHA-256, ffdhe3072, both ways"; for people. proved().
  std::string how() const;
  // The queue has ended: the owner hears of nothing any more.
  void Stop();

 private:
  struct Job;
  struct Deadline : Timer {
    explicit Deadline(HostLogin& l) : Timer(&Fire), login(l) {}
    static void Fire(Timer& timer);
    HostLogin& login;
  };

  nvme::target::Answer Send(const nvme::fabrics::SubmissionEntry& entry, std::span<const uint8_t> data);
  nvme::target::Answer Receive(const nvme::fabrics::SubmissionEntry& entry);
  nvme::target::Answer AnswerOf(nvme::auth::Due due);
  void Compute();
  static void Computed(const Job& job);
  void Fail(const std::string& reason);

  Reactor& reactor_;
  nvmf::LoginLine& line_;
  const std::string peer_;
  const uint64_t timeout_ns_;
  HostLoginOwner& owner_;
  const std::shared_ptr<nvme::auth::ControllerAuthentication> authentication_;
  Deadline deadline_{*this};
  uint64_t left_ns_ = 0;      // of the host's time, while it waits for the arithmetic
  std::shared_ptr<Job> job_;  // nullptr: nothing is computed
  nvmf::LoginPlace place_ = 0;
  bool failed_ = false;  // LoginFails was called
};

}  // namespace cleat::nvmf_target
