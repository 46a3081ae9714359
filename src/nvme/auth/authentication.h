// SPDX-License-Identifier: Apache-2.0
// A host's side of DH-HMAC-CHAP on one queue: what goes between its Connect and its first other command where a secret is configured or the
// target asks. The host proves that it has its secret; where a secret of the subsystem is configured too, the subsystem has to do the same,
// and a target that leaves that out is refused.
//
// Source: NVM Express Base Specification 2.0 ("base"), 8.13 (in-band authentication), 6.1 and 6.2 (its commands).
//
// Ownership and thread: the owner of the queue pair owns this beside it, on the same thread, and hands on what concerns it: Start once
// Connect has succeeded, Take with each completion of kCookie, Overdue from time to time. An error is the end; the owner aborts the queue
// pair with it. The arithmetic takes up to a tenth of a second and allocates, and so is apart: after Progress::kCompute, Compute runs on
// whichever thread the owner has for that, and nothing else of this is called (and it is not destroyed) until it has returned; then
// Continue.
//
// Limits: one command at a time, five in all; a message has at most kMessageBytesMax. The clock and random numbers are passed in; keys of
// the DH exchange alone are made by OpenSSL. Secrets are not copied but for the time of Compute, and what is made of them is wiped.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "block/memory.h"
#include "keys/secret.h"
#include "nvme/auth/chap_secret.h"
#include "nvme/auth/messages.h"
#include "nvme/auth/responses.h"
#include "nvme/fabrics/queues/queue_pair.h"

namespace cleat::nvme::auth {

struct AuthenticationConfig {
  std::string who;  // begins errors: "subsystems/a at 10.0.0.1:4420, queue 1"
  std::string host_nqn;
  std::string subsystem_nqn;
  std::shared_ptr<const ChapSecrets> secrets;
  Offer offer;
  RandomBytes random;
  uint64_t timeout_ns = 0;  // of each command
};

enum class Progress : uint8_t {
  kWaiting,  // for the target
  kCompute,  // for Compute and Continue
  kDone,     // the queue may be used
};

class Authentication {
 public:
  static constexpr uint64_t kCookie = UINT64_MAX - 1;

  explicit Authentication(AuthenticationConfig config);
  ~Authentication();
  Authentication(const Authentication&) = delete;
  Authentication& operator=(const Authentication&) = delete;

  // Once. The queue pair has room for one command whenever none of this is in flight.
  void Start(fabrics::QueuePair& queue, uint64_t now_ns);
  Result<Progress> Take(fabrics::QueuePair& queue, const fabrics::CompletionEntry& entry, uint64_t data_bytes,
                        uint64_t now_ns);
  // Any thread; see above.
  void Compute();
  void Continue(fabrics::QueuePair& queue, uint64_t now_ns);
  // An error once the target has not answered in time.
  std::optional<Error> Overdue(uint64_t now_ns) const;
  // While the target is being told why this host refuses it: that reason, which outlives the connection. A target may close on hearing it.
  std::optional<Error> refusal() const { return state_ == State::kFailure2 ? failure_ : std::nullopt; }

  bool done() const { return state_ == State::kDone; }
  // Whether the subsystem has proved itself too. done().
  bool both_ways() const { return config_.secrets->controller.has_value(); }
  // "SHA-256, ffdhe2048", once the target has chosen; for people.
  std::string chosen() const;

 private:
  enum class State : uint8_t {
    kIdle,
    kNegotiate,  // sent
    kChallenge,  // asked for
    kComputing,
    kReply,     // sent
    kSuccess1,  // asked for
    kSuccess2,  // sent
    kFailure2,  // sent: failure_ is the end
    kDone,
    kFailed,
  };

  void Send(fabrics::QueuePair& queue, State next, size_t message_bytes, uint64_t now_ns);
  void Receive(fabrics::QueuePair& queue, State next, uint64_t now_ns);
  Result<Progress> TakeChallenge(fabrics::QueuePair& queue, std::span<const uint8_t> bytes, uint64_t now_ns);
  Result<Progress> TakeSuccess1(fabrics::QueuePair& queue, std::span<const uint8_t> bytes, uint64_t now_ns);
  std::optional<Refusal> CheckController(const Success1& success) const;
  Result<Progress> Refuse(fabrics::QueuePair& queue, const Refusal& refusal, uint64_t now_ns);
  void SendFailure(fabrics::QueuePair& queue, const Refusal& refusal, uint64_t now_ns);
  Result<void> MakeResponses(const Terms& terms);
  size_t WriteReply();
  Error StatusError(const fabrics::CompletionEntry& entry) const;

  const AuthenticationConfig config_;
  State state_ = State::kIdle;
  uint64_t deadline_ns_ = 0;
  uint16_t transaction_ = 0;
  std::optional<Error> failure_;

  // Set from the challenge on.
  Challenge challenge_;  // its spans lie in message_, until Continue
  uint32_t host_sequence_ = 0;
  std::array<uint8_t, kHashBytesMax> host_challenge_{};

  // What Compute makes.
  std::optional<Refusal> refused_;
  keys::Secret host_response_;
  keys::Secret controller_response_;  // the one that is expected; empty where none is
  std::vector<uint8_t> dh_value_;

  // What is sent, and room for what comes. Nothing in it is a secret.
  std::array<uint8_t, kMessageBytesMax> message_{};
  std::shared_ptr<block::MemoryRegion> region_;  // of message_
  block::Segment segment_;
};

}  // namespace cleat::nvme::auth
