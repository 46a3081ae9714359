// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth/controller/controller_authentication.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "keys/traces.h"

namespace cleat::nvme::auth {
namespace {

HostRefusal TellFailed(std::string text) {
  return {.tell = Explanation::kFailed, .text = std::move(text)};
}

// The trouble is this end's: no message has a word for it, and what there is would have the host's people look for a wrong secret.
HostRefusal TroubleHere(const Error& error) {
  return {.tell = std::nullopt, .text = error.message};
}

void AppendTo(std::vector<uint8_t>& message, std::span<const uint8_t> bytes) {
  message.insert(message.end(), bytes.begin(), bytes.end());
}

template <typename Head>
std::vector<uint8_t> MessageOf(const Head& head) {
  const auto* const at = reinterpret_cast<const uint8_t*>(&head);
  return {at, at + sizeof(head)};
}

}  // namespace

ControllerAuthentication::ControllerAuthentication(ControllerAuthenticationConfig config)
    : config_(std::move(config)) {
  CLEAT_CHECK(config_.secrets != nullptr && config_.random);
}

ControllerAuthentication::~ControllerAuthentication() = default;

std::string ControllerAuthentication::chosen() const {
  return fmt::format("{}, {}", NameOf(terms_.hash), NameOf(terms_.group));
}

// ---- What the host sends

Due ControllerAuthentication::Take(std::span<const uint8_t> message) {
  switch (state_) {
    case State::kNegotiate:
      return TakeNegotiate(message);
    case State::kReply:
      return TakeReply(message);
    case State::kSuccess2:
      return TakeSuccess2(message);
    case State::kChallenge:
    case State::kSuccess1:
    case State::kProved:
      return Refuse({.tell = Explanation::kIncorrectMessage,
                     .text = "the host sends a message where it should ask for one"});
    case State::kFailure1:
    case State::kOver:
      // The host is refused already: what it still sends changes nothing.
      state_ = State::kOver;
      return Due::kOver;
    case State::kMakingKey:
    case State::kChecking:
      break;
  }
  CLEAT_CHECK(false);  // Compute is due
  return Due::kOver;
}

Due ControllerAuthentication::Refuse(const HostRefusal& refusal) {
  refusal_ = refusal.text;
  told_ = refusal.tell.value_or(Explanation::kFailed);
  key_.reset();
  controller_response_ = keys::Secret();
  state_ = refusal.tell ? State::kFailure1 : State::kOver;
  return refusal.tell ? Due::kHost : Due::kOver;
}

Due ControllerAuthentication::TakeNegotiate(std::span<const uint8_t> message) {
  if (const auto refusal = ParseNegotiate(message, terms_)) return Refuse(*refusal);
  if (terms_.group == DhGroup::kNull) {
    MakeChallenge();
    return Due::kHost;
  }
  state_ = State::kMakingKey;
  return Due::kCompute;
}

Due ControllerAuthentication::TakeReply(std::span<const uint8_t> message) {
  message_.assign(message.begin(),
                  message.begin() + static_cast<ptrdiff_t>(std::min(message.size(), kMessageBytesMax)));
  if (const auto refusal = ParseReply(message_, terms_, reply_)) return Refuse(*refusal);
  // A host that gives a challenge back wants this end to answer it in its stead (base 8.13.5.3).
  if (reply_.asks && keys::EqualInConstantTime(reply_.challenge, challenge()))
    return Refuse(TellFailed("the host's challenge is the one that it was given"));
  state_ = State::kChecking;
  return Due::kCompute;
}

Due ControllerAuthentication::TakeSuccess2(std::span<const uint8_t> message) {
  if (const auto refusal = ParseSuccess2(message, terms_.transaction)) return Refuse(*refusal);
  state_ = State::kProved;
  return Due::kProved;
}

// ---- The arithmetic

void ControllerAuthentication::Compute() {
  CLEAT_CHECK(state_ == State::kMakingKey || state_ == State::kChecking);
  if (state_ == State::kMakingKey) {
    auto key = DhKey::Make(terms_.group);
    if (key.ok()) {
      key_.emplace(std::move(key).value());
    } else {
      refused_ = TroubleHere(key.error());
    }
  } else {
    auto checked = Check();
    refused_ = checked.ok() ? std::move(checked).value() : TroubleHere(checked.error());
  }
  keys::WipeTraces();
}

// An error: it could not be found out.
Result<std::optional<HostRefusal>> ControllerAuthentication::Check() {
  using Checked = std::optional<HostRefusal>;
  Terms terms{.hash = terms_.hash,
              .transaction = terms_.transaction,
              .host_nqn = config_.host_nqn,
              .subsystem_nqn = config_.subsystem_nqn,
              .shared = nullptr};
  keys::Secret shared;
  if (key_) {
    auto derived = key_->Derive(reply_.dh_value);
    if (!derived.ok() && derived.error().code == ErrorCode::kInvalidArgument) {
      return Checked(HostRefusal{.tell = Explanation::kIncorrectPayload,
                                 .text = "the host's reply: " + derived.error().message});
    }
    CLEAT_ASSIGN(shared, std::move(derived));
    terms.shared = &shared;
  }
  CLEAT_ASSIGN(const keys::Secret expected,
               HostResponse(terms, config_.secrets->host, {.sequence = sequence_, .value = challenge()}));
  if (!keys::EqualInConstantTime(reply_.response, expected.bytes())) {
    return Checked(TellFailed(
        "the host does not have the secret that is configured for it here: compare the two, with their "
        "transformations (DHHC-1:HH:); where they are the same, another host says that it is this one"));
  }
  if (!reply_.asks) return Checked();
  if (!config_.secrets->controller) {
    return Checked(TellFailed(
        "the host wants a proof that this is the subsystem, for which no secret is configured here: give the "
        "subsystem's secret for this host, or configure none at the host (dhchap_ctrl_secret)"));
  }
  CLEAT_ASSIGN(controller_response_,
               ControllerResponse(terms, *config_.secrets->controller,
                                  {.sequence = reply_.sequence, .value = reply_.challenge}));
  return Checked();
}

Due ControllerAuthentication::Continue() {
  CLEAT_CHECK(state_ == State::kMakingKey || state_ == State::kChecking);
  if (refused_) return Refuse(*refused_);
  if (state_ == State::kMakingKey) {
    CLEAT_CHECK(key_.has_value());
    MakeChallenge();
    return Due::kHost;
  }
  key_.reset();
  reply_.response = reply_.challenge = reply_.dh_value = {};
  message_ = {};
  state_ = State::kSuccess1;
  return Due::kHost;
}

void ControllerAuthentication::MakeChallenge() {
  config_.random(std::span(challenge_).first(BytesOf(terms_.hash)));
  while (sequence_ == 0) config_.random({reinterpret_cast<uint8_t*>(&sequence_), sizeof(sequence_)});
  state_ = State::kChallenge;
}

// ---- What the host gets

ControllerAuthentication::Given ControllerAuthentication::Give(size_t room_bytes) {
  CLEAT_CHECK(state_ != State::kMakingKey && state_ != State::kChecking);
  if (state_ != State::kChallenge && state_ != State::kSuccess1 && state_ != State::kFailure1 &&
      state_ != State::kOver) {
    (void)Refuse({.tell = Explanation::kIncorrectMessage,
                  .text = "the host asks for a message where it should send one"});
  }
  Given given;
  given.message = state_ == State::kChallenge  ? WriteChallenge()
                  : state_ == State::kSuccess1 ? WriteSuccess1()
                                               : WriteFailure1();
  if (given.message.size() > room_bytes) return {};
  if (state_ == State::kChallenge) {
    state_ = State::kReply;
  } else if (state_ == State::kSuccess1) {
    controller_response_ = keys::Secret();
    state_ = reply_.asks ? State::kSuccess2 : State::kProved;
    if (!reply_.asks) given.due = Due::kProved;
  } else {
    state_ = State::kOver;
    given.due = Due::kOver;
  }
  return given;
}

std::vector<uint8_t> ControllerAuthentication::WriteChallenge() const {
  const std::span<const uint8_t> dh_value = key_ ? std::span(key_->value()) : std::span<const uint8_t>();
  ChallengeHead head;
  head.head = {.type = MessageType::kChap, .id = MessageId::kChallenge, .transaction = terms_.transaction};
  head.hash_bytes = static_cast<uint8_t>(BytesOf(terms_.hash));
  head.hash = static_cast<uint8_t>(terms_.hash);
  head.group = static_cast<uint8_t>(terms_.group);
  head.dh_bytes = static_cast<uint16_t>(dh_value.size());
  head.sequence = sequence_;
  std::vector<uint8_t> message = MessageOf(head);
  AppendTo(message, challenge());
  AppendTo(message, dh_value);
  return message;
}

std::vector<uint8_t> ControllerAuthentication::WriteSuccess1() const {
  Success1Head head;
  head.head = {.type = MessageType::kChap, .id = MessageId::kSuccess1, .transaction = terms_.transaction};
  head.hash_bytes = static_cast<uint8_t>(BytesOf(terms_.hash));
  head.response_valid = reply_.asks ? 1 : 0;
  std::vector<uint8_t> message = MessageOf(head);
  AppendTo(message, controller_response_.bytes());
  return message;
}

std::vector<uint8_t> ControllerAuthentication::WriteFailure1() const {
  FailureMessage message;
  message.head = {
      .type = MessageType::kCommon, .id = MessageId::kFailure1, .transaction = terms_.transaction};
  message.explanation = told_;
  return MessageOf(message);
}

}  // namespace cleat::nvme::auth
