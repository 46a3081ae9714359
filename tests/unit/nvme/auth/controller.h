// SPDX-License-Identifier: Apache-2.0
// A controller that authenticates, as the other end of a queue. Written by the specification's text (NVM Express Base 2.0, 8.13) with
// numbers of its own and none of what nvme/auth has: the groups are made from their formula (RFC 7919, appendix A), the exponentiation is
// the plain one. It gives "honest" messages, which a test may change on their way.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nvme/fabrics/queues/queue_pair.h"

namespace cleat::nvme::auth {

using Bytes = std::vector<uint8_t>;

inline constexpr const char* kTestHostNqn =
    "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001";
inline constexpr const char* kTestSubsystemNqn = "nqn.2016-06.io.cleat:auth";

// A secret as the two sides are given it: 00 01 02 ... of 32, 48 and 64 bytes, transformed by nothing, SHA-256, SHA-384, SHA-512.
struct TestSecret {
  const char* text;
  uint8_t transformation;
  size_t size_bytes;
};
inline constexpr TestSecret kTestSecrets[] = {
    {"DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", 0, 32},
    {"DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", 1, 32},
    {"DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:", 2, 48},
    {"DHHC-1:03:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P4zODhA="
     ":",
     3, 64},
};

// The prime of a group, big-endian: 2^b - 2^(b-64) + ([2^(b-130) e] + X) 2^64 - 1.
Bytes PrimeOf(uint8_t group);
// base^exponent modulo the group's prime, as long as that.
Bytes PowerOf(uint8_t group, const Bytes& base, const Bytes& exponent);

class TestController final : public fabrics::QueuePair {
 public:
  // What a test chooses.
  uint8_t hash = 1;
  uint8_t group = 0;
  Bytes host_secret;  // raw
  uint8_t host_transformation = 0;
  std::string host_nqn = kTestHostNqn;
  std::string subsystem_nqn = kTestSubsystemNqn;
  std::optional<Bytes> own_secret;  // nullopt: it proves nothing
  uint8_t own_transformation = 0;
  // Changes a message on its way to the host: the number is the MessageId.
  std::function<void(uint8_t id, Bytes& message)> tamper;
  // The status field (type << 8 | code) of the n-th command.
  std::function<uint16_t(size_t number)> status;

  uint32_t room() const override { return command_ ? 0 : 1; }
  void Submit(const fabrics::QueuedCommand& command) override;
  void Abort(const Error&) override {}

  bool waiting() const { return command_.has_value(); }
  // Answers the command that waits: its completion, and how much of its data was filled.
  std::pair<fabrics::CompletionEntry, uint64_t> Answer();

  // The same a message at a time, for a target that has commands of its own: what Authentication Send brought, and what Authentication
  // Receive, for which there is so much room, gets.
  void TakeMessage(const Bytes& message);
  Bytes GiveMessage(size_t room_bytes);

  // What the host has said.
  size_t commands = 0;
  Bytes negotiate;
  Bytes reply;
  bool host_accepted = false;  // its response was right
  bool success2 = false;
  std::optional<uint8_t> failure2;  // the explanation

 private:
  void TakeReply(const Bytes& message);
  Bytes NextMessage();
  Bytes Response(const char* role, const Bytes& secret, uint8_t transformation, const std::string& nqn,
                 const std::string& peer, const Bytes& challenge, uint32_t sequence) const;

  std::optional<fabrics::QueuedCommand> command_;
  uint8_t due_ = 0;  // the message that the next Authentication Receive gets
  uint16_t transaction_ = 0;
  Bytes challenge_;
  Bytes exponent_;
  Bytes shared_;  // of the exchange; empty: none
  Bytes host_challenge_;
  uint32_t host_sequence_ = 0;
  bool asked_ = false;
};

// 00 01 02 ...
Bytes RawSecret(size_t size_bytes);

}  // namespace cleat::nvme::auth
