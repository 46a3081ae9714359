// SPDX-License-Identifier: Apache-2.0
// An I/O queue of one life, in one try to connect it: a connection of its own and the login on it. What commands go over it is the business
// of the class that derives from this one, which hears of their answers itself, as QueuePairOwner; those of the login it hands to TakeLogin.
//
// Ownership and thread: whoever makes it owns it, on `reactor`, which outlives it; it is destroyed once it has ended, or to end it, and never
// from within a callback.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "modules/nvmf/connect/make_queue.h"
#include "modules/nvmf/login/login_arithmetic.h"
#include "modules/nvmf/transport/transport_queue.h"
#include "nvme/auth/chap_secret.h"
#include "nvme/fabrics/names.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/host/doubt/doubt.h"
#include "nvme/host/queue_login.h"
#include "reactor/reactor.h"

namespace cleat::modules {

// What all I/O queues of a disk share. Constant while there are any.
struct IoQueueTarget {
  struct Path {
    std::string who;  // begins errors: "subsystems/a at 10.0.0.1:4420"
    TransportOptions transport;
  };
  std::vector<Path> paths;
  std::string host_nqn;
  std::string subsystem_nqn;
  std::shared_ptr<const nvme::auth::ChapSecrets> chap;  // nullptr: none
  nvmf::LoginLine* arithmetic = nullptr;                // nullptr only without these
};

// What one queue is known by, and takes from its life.
struct IoQueueId {
  uint32_t path = 0;  // in IoQueueTarget
  nvme::host::LifeId life = 0;
  nvme::fabrics::Uuid host_id{};  // that the life's association has
  uint16_t controller_id = 0;
  uint16_t queue_id = 0;
  uint32_t entries = 0;  // one more than commands under way
  uint32_t in_capsule_bytes = 0;
  uint32_t kato_ms = 0;        // of the life's association
  nvmf::LoginPlace place = 0;  // of an earlier try, in the line of those that log in
};

class IoQueue : public nvme::fabrics::QueuePairOwner {
 public:
  static constexpr uint64_t kConnectTimeoutNs = 10 * kNsPerSecond;
  static constexpr uint64_t kLoginTimeoutNs = 10 * kNsPerSecond;
  // How often a queue is connected within a life, and after what pause at least, before the life counts as broken: a target may still hold the
  // identifier of a queue whose connection was reset. A target that does not let this host in is left at once.
  static constexpr uint32_t kConnectTriesMax = 5;
  static constexpr uint64_t kConnectPauseNs = 100 * kNsPerMs;

  // "subsystems/a at 10.0.0.1:4420, queue 1".
  static std::string NameOf(const IoQueueTarget& target, const IoQueueId& id);

  IoQueue(const IoQueueTarget& target, const IoQueueId& id, Reactor& reactor);
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  void Start() { queue_->Start(); }
  void End(const Error& reason) { queue_->Abort(reason); }
  // To be called from time to time until the queue is ready: ends it when the target is too late.
  void CheckOverdue();
  // Other commands than the login's may be submitted to queue().
  bool ready() const { return login_.ready(); }
  bool ended() const { return queue_->ended(); }
  nvme::fabrics::QueuePair& queue() { return *queue_; }

  // ---- Once it has ended, and was never ready: for the next try
  // That was no failed try: this host had not come to compute its answer, so that the next one keeps the place, or has itself no memory for
  // keys or sockets.
  bool IsForgiven(const Error& reason) const {
    return arithmetic_.ended_in_line() || reason.code == ErrorCode::kResourceExhausted;
  }
  nvmf::LoginPlace place() const { return arithmetic_.place(); }
  uint64_t PauseNs() const;

 protected:
  ~IoQueue() = default;

  static constexpr bool IsOfLogin(uint64_t cookie) { return nvme::host::QueueLogin::IsOf(cookie); }
  // A completion of the login's; true: the queue is ready now. It may have ended within.
  bool TakeLogin(uint64_t cookie, const nvme::fabrics::CompletionEntry& entry, uint64_t data_bytes);
  // Once it was ready: the queue takes no command any more, and some come back, as Ended does, later.
  virtual void Breaks(const Error& /*reason*/) {}
  // To be called first by Ended; the reason that people are to read.
  Error EndLogin(const Error& reason);

 private:
  void Connected() final;
  void Computed();

  Reactor& reactor_;
  const uint32_t in_capsule_bytes_;
  LoginArithmetic arithmetic_;
  nvme::host::QueueLogin login_;
  const std::unique_ptr<TransportQueue> queue_;
};

}  // namespace cleat::modules
