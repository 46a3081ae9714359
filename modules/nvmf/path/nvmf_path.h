// SPDX-License-Identifier: Apache-2.0
// A disk's way to its target by one address: an admin queue and the association over it, made anew each time that it breaks, with pauses
// that grow. The I/O queues are others' (nvmf_channel.h): the owner is told when they may connect and when they have to end, and tells when
// they have ended, before which there is no next try.
//
// Each try has a life of its own (64 random bits). The owner hears of a life only once it is live, and of a try that fails before that the
// reason alone.
//
// Ownership: the disk's core owns it, on the control reactor; destroyed at any time, but not from within its own callbacks. The owner is
// called from within callbacks of the admin queue, from timers and from Start, by no other method here, and may call each of them.
//
// Source: NVM Express Base Specification 2.0, 3.5 and 3.6; the pauses are Cleat's own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "modules/nvmf/connect/make_queue.h"
#include "modules/nvmf/login/login_arithmetic.h"
#include "modules/nvmf/transport/transport_queue.h"
#include "nvme/fabrics/names.h"
#include "nvme/host/association.h"
#include "nvme/host/doubt/doubt.h"
#include "reactor/reactor.h"

namespace cleat::modules {

struct NvmfPathConfig {
  nvme::host::AssociationConfig
      association;  // its `life` and `chap` are made here, and with a family the host's identifier
  TransportOptions transport;
  std::shared_ptr<const nvme::auth::ChapSecrets> chap;
  nvmf::LoginLine* arithmetic = nullptr;
  uint64_t reservation_family = 0;  // 0: none
};

// A life's number: never 0, and never one that this or another engine has drawn before.
nvme::host::LifeId DrawLife();

class NvmfPathOwner {
 public:
  // I/O queues of this life may connect.
  virtual void PathLive(uint64_t life, const nvme::host::AssociationInfo& info) = 0;
  // Only between PathLive and PathLost.
  virtual void PathChanged(uint64_t life, uint32_t changed, const nvme::host::AssociationInfo& info) = 0;
  // Once for each life that was live: its I/O queues have to end, and then IoEnded is called. Not after End.
  virtual void PathLost(uint64_t life, const Error& reason) = 0;
  // A try has come to nothing; the next one comes after a pause.
  virtual void TryFailed(const Error& reason) = 0;
  // Once, after End: nothing of it is in use any more.
  virtual void PathOver() = 0;

 protected:
  ~NvmfPathOwner() = default;
};

class NvmfPath final : private nvme::host::AssociationOwner {
 public:
  // The first try after a loss comes at once; after it the pauses double from the least to the greatest. Each is drawn from its upper half,
  // so that a target's hosts do not all come at once. Logins that come to nothing make them longer (login_line.h); a try that ended because
  // this host had too much to compute does not.
  static constexpr uint64_t kPauseMinNs = 100 * kNsPerMs;
  static constexpr uint64_t kPauseMaxNs = 5 * kNsPerSecond;
  // A life that has lasted so long was no failed try: the pauses begin anew.
  static constexpr uint64_t kSteadyNs = 10 * kNsPerSecond;
  static constexpr uint64_t kConnectTimeoutNs = 10 * kNsPerSecond;

  // `reactor`, the control reactor, and `owner` outlive it.
  NvmfPath(NvmfPathConfig config, Reactor& reactor, NvmfPathOwner& owner);
  ~NvmfPath();
  NvmfPath(const NvmfPath&) = delete;
  NvmfPath& operator=(const NvmfPath&) = delete;

  void Start();
  // An I/O queue of this life says that the path is broken, or the owner can't use it. Nothing for a life that is over.
  void Break(uint64_t life, const Error& reason);
  // I/O of this life was refused by the path: its state is to be read again.
  void Recheck(uint64_t life);
  // The life that PathLost told of has no I/O queue any more.
  void IoEnded(uint64_t life);
  // For good; no I/O queue is in use. With `shutdown` the controller is told in an orderly way. PathOver follows. Once.
  void End(bool shutdown);

  bool live() const { return association_ != nullptr && association_->live() && !ending_; }
  // The admin queue's (TransportQueue::tls_maker), where the kernel was to make the records; else empty.
  std::string tls_maker() const {
    return admin_ != nullptr && config_.transport.tls.by_kernel ? admin_->tls_maker() : std::string();
  }

 private:
  struct TickTimer : Timer {
    explicit TickTimer(NvmfPath& p)
        : Timer([](Timer& timer) { static_cast<TickTimer&>(timer).path.Tick(); }), path(p) {}
    NvmfPath& path;
  };
  // What may not happen within a callback of the admin queue, or is to happen later.
  struct StepTimer : Timer {
    explicit StepTimer(NvmfPath& p)
        : Timer([](Timer& timer) { static_cast<StepTimer&>(timer).path.Step(); }), path(p) {}
    NvmfPath& path;
  };

  // ---- AssociationOwner
  void Live(uint64_t life, const nvme::host::AssociationInfo& info) override;
  void Changed(uint64_t life, uint32_t changed, const nvme::host::AssociationInfo& info) override;
  void Lost(uint64_t life, const Error& reason) override;
  void Gone(uint64_t life) override;

  void Try();
  void Tick();
  void Step();
  void StepAt(uint64_t at_ns);
  void PlanNextTry();
  void LoginLost(const Error& reason);

  const NvmfPathConfig config_;
  Reactor& reactor_;
  NvmfPathOwner& owner_;
  LoginArithmetic arithmetic_;
  std::unique_ptr<nvme::host::Association> association_;  // outlives the queue, whose owner it is
  std::unique_ptr<TransportQueue> admin_;
  bool gone_ = false;           // the association and its queue are over, and can be destroyed
  bool io_in_use_ = false;      // from PathLive to IoEnded
  bool ended_in_line_ = false;  // the last try: see LoginArithmetic
  bool ending_ = false;
  bool over_ = false;           // PathOver was called
  uint64_t live_since_ns_ = 0;  // 0: this life was never live
  uint32_t failures_ = 0;       // in a row
  uint64_t try_at_ns_ = 0;      // not before
  std::optional<Error> break_reason_;
  TickTimer tick_{*this};
  StepTimer step_{*this};
};

}  // namespace cleat::modules
