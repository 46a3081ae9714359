// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth/authentication.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "keys/traces.h"
#include "nvme/auth/dh_exchange.h"
#include "nvme/fabrics/commands.h"

namespace cleat::nvme::auth {

using fabrics::CompletionEntry;
using fabrics::QueuePair;

Authentication::Authentication(AuthenticationConfig config)
    : config_(std::move(config)), region_(block::MemoryRegion::Borrow(message_.data(), message_.size())) {
  CLEAT_CHECK(config_.secrets != nullptr && config_.random && config_.timeout_ns > 0);
}

Authentication::~Authentication() = default;

void Authentication::Start(QueuePair& queue, uint64_t now_ns) {
  CLEAT_CHECK(state_ == State::kIdle);
  config_.random({reinterpret_cast<uint8_t*>(&transaction_), sizeof(transaction_)});
  const NegotiateMessage message = NegotiateOf(config_.offer, transaction_);
  std::memcpy(message_.data(), &message, sizeof(message));
  Send(queue, State::kNegotiate, sizeof(message), now_ns);
}

void Authentication::Send(QueuePair& queue, State next, size_t message_bytes, uint64_t now_ns) {
  state_ = next;
  deadline_ns_ = now_ns + config_.timeout_ns;
  const auto bytes = static_cast<uint32_t>(message_bytes);
  segment_ = {.region = region_.get(), .offset_bytes = 0, .length_bytes = bytes};
  queue.Submit({.entry = fabrics::EntryOf(fabrics::AuthenticationSend(bytes)),
                .to_target = {&segment_, 1},
                .from_target = {},
                .cookie = kCookie});
}

void Authentication::Receive(QueuePair& queue, State next, uint64_t now_ns) {
  state_ = next;
  deadline_ns_ = now_ns + config_.timeout_ns;
  segment_ = {.region = region_.get(), .offset_bytes = 0, .length_bytes = kMessageBytesMax};
  queue.Submit({.entry = fabrics::EntryOf(fabrics::AuthenticationReceive(kMessageBytesMax)),
                .to_target = {},
                .from_target = {&segment_, 1},
                .cookie = kCookie});
}

Result<Progress> Authentication::Take(QueuePair& queue, const CompletionEntry& entry, uint64_t data_bytes,
                                      uint64_t now_ns) {
  // The target has been told why; whether it liked to hear that changes nothing.
  if (state_ == State::kFailure2) {
    state_ = State::kFailed;
    return *failure_;
  }
  if (!entry.status().ok()) {
    state_ = State::kFailed;
    return StatusError(entry);
  }
  const std::span<const uint8_t> bytes(message_.data(), std::min<uint64_t>(data_bytes, message_.size()));
  switch (state_) {
    case State::kNegotiate:
      Receive(queue, State::kChallenge, now_ns);
      return Progress::kWaiting;
    case State::kChallenge:
      return TakeChallenge(queue, bytes, now_ns);
    case State::kReply:
      Receive(queue, State::kSuccess1, now_ns);
      return Progress::kWaiting;
    case State::kSuccess1:
      return TakeSuccess1(queue, bytes, now_ns);
    case State::kSuccess2:
      state_ = State::kDone;
      return Progress::kDone;
    default:
      CLEAT_CHECK(false);  // no command is in flight
      return Progress::kWaiting;
  }
}

Result<Progress> Authentication::TakeChallenge(QueuePair& queue, std::span<const uint8_t> bytes,
                                               uint64_t now_ns) {
  if (const auto refusal = ParseChallenge(bytes, transaction_, config_.offer, challenge_))
    return Refuse(queue, *refusal, now_ns);
  while (host_sequence_ == 0)
    config_.random({reinterpret_cast<uint8_t*>(&host_sequence_), sizeof(host_sequence_)});
  if (both_ways()) config_.random(std::span(host_challenge_).first(BytesOf(challenge_.hash)));
  state_ = State::kComputing;
  return Progress::kCompute;
}

void Authentication::Compute() {
  CLEAT_CHECK(state_ == State::kComputing);
  DhExchange exchange;
  Terms terms{.hash = challenge_.hash,
              .transaction = transaction_,
              .host_nqn = config_.host_nqn,
              .subsystem_nqn = config_.subsystem_nqn,
              .shared = nullptr};
  if (challenge_.group != DhGroup::kNull) {
    auto exchanged = ExchangeDh(challenge_.group, challenge_.dh_value);
    if (!exchanged) {
      refused_ = {.tell = Explanation::kIncorrectPayload,
                  .code = exchanged.error().code == ErrorCode::kInvalidArgument ? ErrorCode::kDataLoss
                                                                                : exchanged.error().code,
                  .text = "the target's challenge: " + exchanged.error().message};
      return;
    }
    exchange = std::move(exchanged).value();
    terms.shared = &exchange.shared;
  }
  if (const Result<void> made = MakeResponses(terms); !made.ok()) {
    refused_ = {.tell = Explanation::kFailed, .code = made.error().code, .text = made.error().message};
    return;
  }
  dh_value_ = std::move(exchange.value);
  keys::WipeTraces();
}

Result<void> Authentication::MakeResponses(const Terms& terms) {
  CLEAT_ASSIGN(host_response_, HostResponse(terms, config_.secrets->host,
                                            {.sequence = challenge_.sequence, .value = challenge_.value}));
  if (!both_ways()) return cleat::Ok{};
  const Nonce challenge{.sequence = host_sequence_,
                        .value = std::span(host_challenge_).first(BytesOf(challenge_.hash))};
  CLEAT_ASSIGN(controller_response_, ControllerResponse(terms, *config_.secrets->controller, challenge));
  return cleat::Ok{};
}

void Authentication::Continue(QueuePair& queue, uint64_t now_ns) {
  CLEAT_CHECK(state_ == State::kComputing && (refused_ || !host_response_.empty()));
  challenge_.value = {};
  challenge_.dh_value = {};
  if (refused_) {
    SendFailure(queue, *refused_, now_ns);
    return;
  }
  Send(queue, State::kReply, WriteReply(), now_ns);
}

size_t Authentication::WriteReply() {
  const size_t hash_bytes = BytesOf(challenge_.hash);
  ReplyHead head;
  head.head.transaction = transaction_;
  head.hash_bytes = static_cast<uint8_t>(hash_bytes);
  head.challenge_valid = both_ways() ? 1 : 0;
  head.dh_bytes = static_cast<uint16_t>(dh_value_.size());
  head.sequence = host_sequence_;
  uint8_t* at = message_.data();
  const auto append = [&at](const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(at, from, bytes);
    at += bytes;
  };
  append(&head, sizeof(head));
  append(host_response_.bytes().data(), hash_bytes);
  append(host_challenge_.data(), hash_bytes);  // zeros where the controller is not asked
  append(dh_value_.data(), dh_value_.size());
  host_response_ = keys::Secret();
  return static_cast<size_t>(at - message_.data());
}

Result<Progress> Authentication::TakeSuccess1(QueuePair& queue, std::span<const uint8_t> bytes,
                                              uint64_t now_ns) {
  Success1 success;
  if (const auto refusal = ParseSuccess1(bytes, transaction_, challenge_.hash, success))
    return Refuse(queue, *refusal, now_ns);
  if (!both_ways()) {
    state_ = State::kDone;
    return Progress::kDone;
  }
  const auto refusal = CheckController(success);
  controller_response_ = keys::Secret();
  if (refusal) return Refuse(queue, *refusal, now_ns);
  Success2Message message;
  message.head.transaction = transaction_;
  std::memcpy(message_.data(), &message, sizeof(message));
  Send(queue, State::kSuccess2, sizeof(message), now_ns);
  return Progress::kWaiting;
}

std::optional<Refusal> Authentication::CheckController(const Success1& success) const {
  if (!success.response_valid) {
    return Refusal{
        .tell = Explanation::kFailed,
        .code = ErrorCode::kPermissionDenied,
        .text =
            "the target does not prove that it is the subsystem, as is configured: set the subsystem's "
            "secret (dhchap_ctrl_key) at the target, or configure none here"};
  }
  if (!keys::EqualInConstantTime(success.response, controller_response_.bytes())) {
    return Refusal{.tell = Explanation::kFailed,
                   .code = ErrorCode::kPermissionDenied,
                   .text = fmt::format(
                       "the target does not have the secret of subsystem {} that is configured here: compare "
                       "the two; where they are the same, another host answers at this address",
                       config_.subsystem_nqn)};
  }
  return std::nullopt;
}

Result<Progress> Authentication::Refuse(QueuePair& queue, const Refusal& refusal, uint64_t now_ns) {
  if (!refusal.tell) {
    state_ = State::kFailed;
    return Error(refusal.code, config_.who + ": " + refusal.text);
  }
  SendFailure(queue, refusal, now_ns);
  return Progress::kWaiting;
}

void Authentication::SendFailure(QueuePair& queue, const Refusal& refusal, uint64_t now_ns) {
  failure_ = Error(refusal.code, config_.who + ": " + refusal.text);
  FailureMessage message;
  message.head.transaction = transaction_;
  message.explanation = refusal.tell.value_or(Explanation::kFailed);
  std::memcpy(message_.data(), &message, sizeof(message));
  Send(queue, State::kFailure2, sizeof(message), now_ns);
}

std::optional<Error> Authentication::Overdue(uint64_t now_ns) const {
  const bool waits = state_ != State::kIdle && state_ != State::kComputing && state_ != State::kDone &&
                     state_ != State::kFailed;
  if (!waits || now_ns < deadline_ns_) return std::nullopt;
  if (state_ == State::kFailure2) return failure_;
  return Error(ErrorCode::kDeadlineExceeded,
               fmt::format("{}: the target has not gone on with the authentication in {} ms", config_.who,
                           config_.timeout_ns / 1'000'000));
}

Error Authentication::StatusError(const CompletionEntry& entry) const {
  const Status status = entry.status();
  return {status.do_not_retry() ? ErrorCode::kFailedPrecondition : ErrorCode::kUnavailable,
          fmt::format(
              "{}: the target breaks the authentication off: {}; look whether it is set up for this host and "
              "subsystem",
              config_.who, fabrics::NameOfFabricsStatus(status))};
}

std::string Authentication::chosen() const {
  return fmt::format("{}, {}", NameOf(challenge_.hash), NameOf(challenge_.group));
}

}  // namespace cleat::nvme::auth
