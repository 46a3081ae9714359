// SPDX-License-Identifier: Apache-2.0
// How a host comes to use one queue of a controller, the admin queue or an I/O queue: Connect, then DH-HMAC-CHAP where it is due. No other
// command goes on the queue before.
//
// Authentication is due where the target asks for it (AUTHREQ in the answer to Connect), and where a secret of the subsystem is configured,
// whether it asks or not: a subsystem that has not proved itself is not used. A host's secret alone proves nothing to the host, so that with
// it a target which does not ask is used as it is.
//
// Source: NVM Express Base Specification 2.0 ("base"), 6.3 (Connect and its answer), 8.13 (in-band authentication).
//
// Ownership and thread: the owner of the queue pair owns this beside it, on the same thread, and hands on what concerns it: Begin once the
// queue pair is connected, Take with the completions that IsOf says, Overdue from time to time. An error is the end; the owner aborts the
// queue pair with it. The arithmetic of authentication takes up to a tenth of a second: HostChap::compute has it done elsewhere.
//
// Limits: one command at a time. The target has `timeout_ns` for all of them together; the time of the arithmetic does not count. A target's
// own clock goes on meanwhile, and ends a login that goes on too late: it waits a keep alive timeout for the host's next message. So half of
// that, and kComputeTimeoutMaxNs at most, bounds the arithmetic with its wait.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "block/memory.h"
#include "nvme/auth/authentication.h"
#include "nvme/fabrics/commands.h"
#include "nvme/fabrics/queues/queue_pair.h"

namespace cleat::nvme::host {

// What a host authenticates with.
struct HostChap {
  std::shared_ptr<const auth::ChapSecrets> secrets;  // nullptr: there are none, and the rest is not used
  auth::Offer offer;
  auth::RandomBytes random;
  // Called from within Take. Has Compute of the authentication called on a thread that may be busy for so long, and later, on the login's own
  // thread, Computed of the login, unless that is gone by then; holding the pointer is enough while Compute runs.
  std::function<void(const std::shared_ptr<auth::Authentication>& authentication)> compute;
};

struct QueueLoginConfig {
  std::string who;  // begins errors: "subsystems/a at 10.0.0.1:4420, queue 1"
  fabrics::HostIdentity host;
  std::string subsystem_nqn;
  HostChap chap;
  uint16_t queue_id = 0;                             // 0: the admin queue
  uint16_t controller_id = fabrics::kAnyController;  // of an I/O queue: the association's
  uint32_t entries = 0;
  uint32_t kato_ms = 0;  // of the association; 0: the target keeps none
  uint64_t timeout_ns = 0;
};

class QueueLogin {
 public:
  // The arithmetic may take so long, with its wait for a thread where many queues log in at once. Without a keep alive timeout a target
  // waits two minutes.
  static constexpr uint64_t kComputeTimeoutMaxNs = 60'000'000'000;

  explicit QueueLogin(QueueLoginConfig config);
  QueueLogin(const QueueLogin&) = delete;
  QueueLogin& operator=(const QueueLogin&) = delete;

  // Whether a completion is of a command that was sent here.
  static constexpr bool IsOf(uint64_t cookie) { return cookie >= auth::Authentication::kCookie; }

  // Once. The queue pair has room for one command whenever none of these is in flight.
  void Begin(fabrics::QueuePair& queue, uint64_t now_ns);
  // True: the queue may be used. False: the login goes on.
  Result<bool> Take(fabrics::QueuePair& queue, uint64_t cookie, const fabrics::CompletionEntry& entry,
                    uint64_t data_bytes, uint64_t now_ns);
  // See HostChap::compute. Not after the queue pair has ended.
  void Computed(fabrics::QueuePair& queue, uint64_t now_ns);
  // An error once the target, or this host's arithmetic, has taken too long.
  std::optional<Error> Overdue(uint64_t now_ns) const;
  // What to call the end of the queue pair, which ended for `reason`, kCancelled if this host has ended it: Linux closes the connection while
  // it is being told why it is refused.
  Error WhyEnded(const Error& reason) const;

  bool ready() const { return state_ == State::kReady; }
  // Which controller the target has connected; from the answer to Connect on.
  uint16_t controller_id() const { return controller_id_; }
  // Whether the subsystem has proved itself; ready().
  bool proved() const { return proved_; }

 private:
  static constexpr uint64_t kConnectCookie = UINT64_MAX;
  static_assert(auth::Authentication::kCookie == kConnectCookie - 1);
  enum class State : uint8_t { kIdle, kConnect, kAuthentication, kCompute, kReady, kFailed };

  Result<bool> TakeConnect(fabrics::QueuePair& queue, const fabrics::CompletionEntry& entry, uint64_t now_ns);
  Result<bool> TakeAuthentication(fabrics::QueuePair& queue, const fabrics::CompletionEntry& entry,
                                  uint64_t data_bytes, uint64_t now_ns);
  void BeginAuthentication(fabrics::QueuePair& queue, uint64_t now_ns);
  cleat::Status CheckAnswer(const fabrics::ConnectAnswer& answer) const;
  Error Refused(const Error& error) const;
  uint64_t ComputeTimeoutNs() const;

  const QueueLoginConfig config_;
  State state_ = State::kIdle;
  uint64_t deadline_ns_ = 0;  // of the target; of the arithmetic while it is kCompute
  uint64_t left_ns_ = 0;      // of the target's time, while it is kCompute
  uint16_t controller_id_ = 0;
  bool asked_ = false;  // the target wants authentication
  bool proved_ = false;
  std::shared_ptr<auth::Authentication> authentication_;
  fabrics::ConnectData data_;
  std::shared_ptr<block::MemoryRegion> region_;  // of data_
  block::Segment segment_;
};

}  // namespace cleat::nvme::host
