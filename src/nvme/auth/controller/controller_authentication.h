// SPDX-License-Identifier: Apache-2.0
// A controller's side of DH-HMAC-CHAP on one queue; a host's is in authentication.h. The host has to prove that it has its secret before anything
// else is done on the queue. Where it asks for that, the controller proves that it has the subsystem's.
//
//   AUTH_Negotiate -> compute -> Challenge -> Reply -> compute -> Success1 [-> Success2]  proved
//   at any time: Failure1 once the host asks for what comes next, or Failure2 of the host's  over
//
// A host that asks for the subsystem's proof where there is no such secret is refused, but only once its own proof was right: who has no secret
// learns nothing. A secure channel (SC_C) is refused. So is a reply whose challenge is the one that it replies to, as by a host that has none
// but what it hears. A queue proves its host once: a second negotiation, in its midst or afterwards, is refused.
//
// Source: NVM Express Base Specification 2.0 ("base"), 8.13 (in-band authentication).
//
// Ownership and thread: the owner of the queue owns this, on the queue's thread, and hands on the data of Authentication Send and Receive, one
// command at a time. The arithmetic takes up to a tenth of a second and allocates, and so is apart: after Due::kCompute, Compute runs on
// whichever thread the owner has for that, and nothing else of this is called (and it is not destroyed) until it has returned; then
// Continue. Times are the owner's to limit.
//
// Limits: a message has at most kMessageBytesMax. Random numbers are passed in; keys of the DH exchange alone are made by OpenSSL. Secrets are
// not copied but for the time of Compute, and what is made of them is wiped.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "keys/secret.h"
#include "nvme/auth/algorithms.h"
#include "nvme/auth/chap_secret.h"
#include "nvme/auth/controller/host_messages.h"
#include "nvme/auth/dh_exchange.h"
#include "nvme/auth/messages.h"
#include "nvme/auth/responses.h"

namespace cleat::nvme::auth {

struct ControllerAuthenticationConfig {
  std::string host_nqn;
  std::string subsystem_nqn;
  std::shared_ptr<const ChapSecrets> secrets;
  RandomBytes random;
};

// Whose turn it is.
enum class Due : uint8_t {
  kHost,     // the command is answered as a success, and the host goes on
  kCompute,  // for Compute and Continue; the command is answered then
  kProved,   // the command is answered, and the queue may be used
  kOver,     // the command is answered, and the queue ends: refusal() says why
};

class ControllerAuthentication {
 public:
  explicit ControllerAuthentication(ControllerAuthenticationConfig config);
  ~ControllerAuthentication();
  ControllerAuthentication(const ControllerAuthentication&) = delete;
  ControllerAuthentication& operator=(const ControllerAuthentication&) = delete;

  // What Authentication Send has brought.
  Due Take(std::span<const uint8_t> message);
  // Any thread; see above.
  void Compute();
  Due Continue();

  // What Authentication Receive gets, for which the host has so much room.
  struct Given {
    std::vector<uint8_t> message;  // empty: the room is too small, and nothing has changed
    Due due = Due::kHost;
  };
  Given Give(size_t room_bytes);

  bool proved() const { return state_ == State::kProved; }
  // Whether the subsystem has proved itself too. proved().
  bool both_ways() const { return reply_.asks; }
  // Why the host is not believed, for people; the caller names the host before it. nullopt: nothing speaks against it so far.
  const std::optional<std::string>& refusal() const { return refusal_; }
  // "SHA-256, ffdhe3072", once the host has negotiated; for people.
  std::string chosen() const;

 private:
  enum class State : uint8_t {
    kNegotiate,  // awaited
    kMakingKey,
    kChallenge,  // to be given
    kReply,      // awaited
    kChecking,
    kSuccess1,  // to be given
    kSuccess2,  // awaited
    kProved,
    kFailure1,  // to be given
    kOver,
  };

  Due TakeNegotiate(std::span<const uint8_t> message);
  Due TakeReply(std::span<const uint8_t> message);
  Due TakeSuccess2(std::span<const uint8_t> message);
  Due Refuse(const HostRefusal& refusal);
  void MakeChallenge();
  Result<std::optional<HostRefusal>> Check();
  std::vector<uint8_t> WriteChallenge() const;
  std::vector<uint8_t> WriteSuccess1() const;
  std::vector<uint8_t> WriteFailure1() const;
  std::span<const uint8_t> challenge() const { return std::span(challenge_).first(BytesOf(terms_.hash)); }

  const ControllerAuthenticationConfig config_;
  State state_ = State::kNegotiate;
  std::optional<std::string> refusal_;
  Explanation told_ = Explanation::kFailed;

  // Set from the negotiation on.
  Negotiation terms_;
  std::array<uint8_t, kHashBytesMax> challenge_{};
  uint32_t sequence_ = 0;  // S1
  std::vector<uint8_t> message_;
  HostReply reply_;  // its spans lie in message_

  // What Compute makes.
  std::optional<DhKey> key_;  // from the challenge until the reply
  std::optional<HostRefusal> refused_;
  keys::Secret controller_response_;  // empty where the host does not ask
};

}  // namespace cleat::nvme::auth
