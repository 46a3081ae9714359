// SPDX-License-Identifier: Apache-2.0
#include "nvme/tcp_target/target_connection.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::tcp {
namespace {

using fabrics::CompletionEntry;
using fabrics::SubmissionEntry;

// Base 2.0, 3.3.3.2.1.1.
constexpr Status kTransientTransportError{0x22};
constexpr Status kSglLengthInvalid{0x0f};
constexpr Status kSglTypeInvalid{0x11};

Refusal OutOfSequence(size_t offset, std::string text) {
  return {TermReason::kPduSequence, static_cast<uint32_t>(offset), std::move(text)};
}

constexpr size_t kDescriptorAt = offsetof(CapsuleCmd, entry) + offsetof(SubmissionEntry, data);

// What is wrong with the descriptor of the command's data, of which `in_capsule_bytes` came along; nullopt: nothing.
std::optional<Status> CheckDescriptor(const fabrics::SglDescriptor& descriptor, uint32_t in_capsule_bytes) {
  // Of a command without data hosts say what they like.
  if (descriptor.length_bytes == 0 && in_capsule_bytes == 0) return std::nullopt;
  if (descriptor.type == fabrics::kSglInCapsule) {
    const bool fits = descriptor.address == 0 && descriptor.length_bytes == in_capsule_bytes;
    return fits ? std::nullopt : std::optional(kSglLengthInvalid);
  }
  if (descriptor.type != fabrics::kSglByTransport) return kSglTypeInvalid;
  return in_capsule_bytes == 0 ? std::nullopt : std::optional(kSglTypeInvalid);
}

}  // namespace

TargetConnection::TargetConnection(const TargetConnectionOptions& options, fabrics::TargetQueueOwner& owner)
    : TargetConnection(options) {
  SetOwner(owner);
}

TargetConnection::TargetConnection(const TargetConnectionOptions& options)
    : options_(options), receiver_(kControllerReceives, *this) {}

// ---- For the owner

void TargetConnection::BecomeQueue(uint32_t entries, bool flow_control, uint32_t in_capsule_bytes) {
  TargetQueue::BecomeQueue(entries, flow_control, in_capsule_bytes);
  in_capsule_bytes_ = in_capsule_bytes;
}

void TargetConnection::Ask(TargetCommand& command) {
  CLEAT_CHECK(command.state == TargetCommand::State::kRunning && !command.in_capsule && !ended_);
  CLEAT_CHECK(command.data_bytes > 0 && command.data_bytes <= fabrics::kTransferBytesMax);
  command.state = TargetCommand::State::kAsked;
  ++asked_;
  responses_.PushR2t(command);
}

void TargetConnection::Answer(TargetCommand& command, Status status, uint64_t result, uint32_t data_bytes) {
  CLEAT_CHECK(command.state == TargetCommand::State::kRunning && (data_bytes == 0 || status.ok()));
  if (ended_) return LetGo(command);
  command.state = TargetCommand::State::kAnswering;
  const CompletionEntry entry = MakeEntry(command, status, result);
  const bool with_data = options_.success_with_data && !flow_control_ && status.ok() && result == 0;
  responses_.PushResponse(command, entry, data_bytes,
                          with_data ? ResponseQueue::Success::kWithData : ResponseQueue::Success::kInCapsule);
}

void TargetConnection::Abort(const Error& reason) {
  if (ended_) return;
  responses_.Clear();
  End(reason);
}

void TargetConnection::Resume() {
  if (waits()) receiver_.Resume();
}

// ---- For the socket

void TargetConnection::Sent(size_t bytes) {
  while (bytes > 0) {
    TargetCommand* const command = responses_.Consume(bytes);
    if (command != nullptr && command->state == TargetCommand::State::kAnswering) LetGo(*command);
  }
}

After TargetConnection::HeaderCame(const PduHeader& pdu, Payload& payload) {
  const PduType type = pdu.common.type;
  std::optional<Refusal> refusal;
  bool later = false;
  if (type == PduType::kH2cTermReq) {
    const auto reason = static_cast<TermReason>(pdu.term_req.reason);
    Abort({ErrorCode::kUnavailable,
           fmt::format("{}: the host ends the connection: {}", options_.name, NameOf(reason))});
    return After::kEnded;
  }
  if ((type == PduType::kIcReq) == connected_) {
    refusal = OutOfSequence(offsetof(CommonHeader, type),
                            fmt::format("{} {}", NameOf(type), connected_ ? "again" : "before ICReq"));
  } else if (type == PduType::kIcReq) {
    refusal = Take(pdu.ic_req);
  } else if (type == PduType::kCapsuleCmd) {
    refusal = Take(pdu.capsule_cmd, payload, later);
  } else {
    refusal = Take(pdu.h2c_data, payload);
  }
  if (refusal) {
    const auto* const header = reinterpret_cast<const uint8_t*>(&pdu);
    Refused(*refusal, {header, pdu.common.header_bytes});
  }
  if (ended_) return After::kEnded;
  return later ? After::kLater : After::kGoOn;
}

std::optional<Refusal> TargetConnection::Take(const IcReq& pdu) {
  if (auto refusal = CheckIcReq(pdu)) return refusal;
  connected_ = true;
  responses_.PushIcResp(pdu, fabrics::kTransferBytesMax);
  receiver_.set_digests(responses_.digests());
  return std::nullopt;
}

std::optional<Refusal> TargetConnection::Take(const CapsuleCmd& pdu, Payload& payload, bool& later) {
  if (commands_ >= entries_) {
    return Refusal{TermReason::kInvalidHeaderField, offsetof(CapsuleCmd, entry),
                   fmt::format("a command more than the {} for which its queue has entries", entries_)};
  }
  if (payload.bytes > in_capsule_bytes_) {
    return Refusal{TermReason::kLimitExceeded, kDescriptorAt,
                   fmt::format("a command with {} bytes of data in its capsule, {} at most", payload.bytes,
                               in_capsule_bytes_)};
  }
  TargetCommand* const command = payload.here.empty() ? owner_->Take(pdu.entry, payload.bytes)
                                                      : owner_->TakeHere(pdu.entry, payload.here);
  if (command == nullptr) {
    later = true;
    return std::nullopt;
  }
  CLEAT_CHECK(command->state == TargetCommand::State::kFree);
  command->entry = pdu.entry;
  command->state = TargetCommand::State::kReceiving;
  command->in_capsule = payload.bytes > 0;
  command->data_bytes = payload.bytes > 0 ? payload.bytes : pdu.entry.data.length_bytes;
  command->moved_bytes = 0;
  command->MakeWire<Wire>();
  Begin(*command);
  if (payload.bytes == 0) {
    CapsuleIsWhole(*command);
    return std::nullopt;
  }
  receiving_ = command;
  receiving_bytes_ = payload.bytes;
  payload.to = command->data;
  return std::nullopt;
}

std::optional<Refusal> TargetConnection::Take(const H2cData& pdu, Payload& payload) {
  TargetCommand* command = restored_.empty() ? nullptr : FindRestored(pdu.ttag, pdu.cid);
  if (command == nullptr) command = owner_->Find(pdu.ttag);
  if (command == nullptr || command->state != TargetCommand::State::kAsked) {
    return OutOfSequence(offsetof(H2cData, ttag),
                         fmt::format("H2CData for the tag {:#x}, for which nothing was asked", pdu.ttag));
  }
  if (command->to_send.linked())
    return OutOfSequence(offsetof(H2cData, ttag), "H2CData before its R2T was sent");
  if (pdu.cid != command->entry.cid) {
    return Refusal{TermReason::kInvalidHeaderField, offsetof(H2cData, cid),
                   fmt::format("H2CData for CID {:#x}, {:#x} expected", pdu.cid, command->entry.cid)};
  }
  const uint32_t rest = command->data_bytes - command->moved_bytes;
  if (pdu.offset_bytes != command->moved_bytes || pdu.data_bytes > rest) {
    return Refusal{TermReason::kDataOutOfRange, offsetof(H2cData, offset_bytes),
                   fmt::format("H2CData of {} bytes at {}, where {} of {} bytes have come", pdu.data_bytes,
                               pdu.offset_bytes, command->moved_bytes, command->data_bytes)};
  }
  if (((pdu.header.flags & kFlagLast) != 0) != (pdu.data_bytes == rest)) {
    return Refusal{TermReason::kInvalidHeaderField, offsetof(CommonHeader, flags),
                   fmt::format("H2CData of {} of {} bytes whose LAST says otherwise", pdu.data_bytes, rest)};
  }
  receiving_ = command;
  receiving_bytes_ = pdu.data_bytes;
  payload.to = command->data;
  payload.offset_bytes = command->moved_bytes;
  return std::nullopt;
}

bool TargetConnection::PayloadCame(bool digest_is_right) {
  TargetCommand& command = *std::exchange(receiving_, nullptr);
  command.moved_bytes += receiving_bytes_;
  WireOf(command).digest_is_wrong |= !digest_is_right;
  if (command.moved_bytes < command.data_bytes) return true;
  if (command.state == TargetCommand::State::kReceiving) {
    CapsuleIsWhole(command);
    return !ended_;
  }
  --asked_;
  command.state = TargetCommand::State::kRunning;
  if (WireOf(command).digest_is_wrong) {
    Answer(command, kTransientTransportError);
  } else {
    owner_->DataCame(command);
  }
  return !ended_;
}

void TargetConnection::CapsuleIsWhole(TargetCommand& command) {
  command.state = TargetCommand::State::kRunning;
  if (WireOf(command).digest_is_wrong) return Answer(command, kTransientTransportError);
  const uint32_t in_capsule_bytes = command.in_capsule ? command.data_bytes : 0;
  if (const auto wrong = CheckDescriptor(command.entry.data, in_capsule_bytes))
    return Answer(command, *wrong);
  owner_->Run(command);
}

void TargetConnection::Refused(const Refusal& refusal, std::span<const uint8_t> header) {
  responses_.PushTermReq(refusal.reason, refusal.information, header);
  End({ErrorCode::kInvalidArgument,
       fmt::format("{}: the host has sent what it may not: {}", options_.name, refusal.text)});
}

void TargetConnection::LetGo(TargetCommand& command) {
  if (command.to_send.linked()) command.to_send.Unlink();
  if (!restored_.empty() && restored_.erase(&command) > 0) command.data = {};
  TargetQueue::GiveBack(command);
}

// What the owner works on stays until it is answered.
void TargetConnection::End(const Error& reason) {
  ended_ = true;
  receiving_ = nullptr;
  asked_ = 0;
  TargetCommand* next = nullptr;
  for (TargetCommand* command = of_queue_.front(); command != nullptr; command = next) {
    next = of_queue_.Next(*command);
    if (command->state != TargetCommand::State::kRunning) LetGo(*command);
  }
  owner_->Ended(reason);
}

}  // namespace cleat::nvme::tcp
