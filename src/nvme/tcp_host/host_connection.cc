// SPDX-License-Identifier: Apache-2.0
#include "nvme/tcp_host/host_connection.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "base/check.h"
#include "block/segments.h"

namespace cleat::nvme::tcp {
namespace {

// Transient Transport Error (base 2.0, 3.3.3.2.1.1: 0/22h), in a completion's field with the phase tag.
constexpr uint16_t kTransientTransportError = 0x22 << 1;
// Opcodes say in their lowest bits which way data goes (base 2.0, 3.3.3.1).
constexpr uint8_t kOpcodeToController = 0x01;

Refusal OutOfSequence(size_t offset, std::string text) {
  return {TermReason::kPduSequence, static_cast<uint32_t>(offset), std::move(text)};
}

}  // namespace

HostConnection::HostConnection(const HostConnectionOptions& options, fabrics::QueuePairOwner& owner)
    : owner_(owner),
      name_(options.name),
      digests_(options.digests),
      in_capsule_bytes_(options.in_capsule_bytes),
      table_(options.depth),
      sends_(options.depth, options.digests),
      receiver_(kHostReceives, *this),
      buffer_(options.receive_buffer_bytes) {}

void HostConnection::Start() {
  CLEAT_CHECK(!started_ && !ended_);
  started_ = true;
  sends_.PushIcReq();
}

void HostConnection::Submit(const fabrics::QueuedCommand& command) {
  CLEAT_CHECK(room() > 0);
  const uint64_t to_bytes = block::SumBytes(command.to_target);
  const uint64_t from_bytes = block::SumBytes(command.from_target);
  CLEAT_CHECK(to_bytes == 0 || from_bytes == 0);
  CLEAT_CHECK(to_bytes + from_bytes <= kCommandDataMaxBytes);
  const bool of_fabrics = command.entry.opcode == fabrics::kFabricsOpcode;
  const uint32_t in_capsule_max =
      of_fabrics && in_capsule_bytes_ < kAdminInCapsuleBytes ? kAdminInCapsuleBytes : in_capsule_bytes_;

  CommandSlot& slot = table_.Take();
  slot.to_target = command.to_target;
  slot.from_target = command.from_target;
  slot.cookie = command.cookie;
  slot.data_bytes = static_cast<uint32_t>(to_bytes + from_bytes);
  slot.in_capsule = to_bytes > 0 && to_bytes <= in_capsule_max;
  slot.may_lack_data = to_bytes > 0 && !slot.in_capsule && (command.entry.opcode & kOpcodeToController) != 0;
  sends_.PushCapsule(slot, command.entry);
}

void HostConnection::Abort(const Error& reason) {
  if (ended_) return;
  sends_.Clear();
  End(reason);
}

void HostConnection::Sent(size_t bytes) {
  // All is counted before the owner hears of anything: it may end the connection, and then is told how far each command came.
  CommandSlot* complete = nullptr;
  while (bytes > 0) {
    CommandSlot* const slot = sends_.Consume(bytes);
    if (slot == nullptr) continue;
    if (!slot->data_queued) {
      slot->capsule_sent = true;
      continue;
    }
    slot->data_queued = false;
    slot->moved_bytes += slot->pdu.data_bytes;
    if (slot->answered) {
      complete = slot;  // the only one: commands none of whose bytes went are not held back
    } else if (slot->moved_bytes < slot->asked_bytes) {
      sends_.PushData(*slot);
    }
  }
  if (complete != nullptr) Complete(*complete);
}

void HostConnection::Received(size_t bytes) {
  CLEAT_CHECK(started_);
  if (!ended_) receiver_.Received(bytes);
}

After HostConnection::HeaderCame(const PduHeader& pdu, Payload& payload) {
  const PduType type = pdu.common.type;
  if (type == PduType::kC2hTermReq) {
    Terminated(pdu.term_req);
    return After::kEnded;
  }
  std::optional<Refusal> refusal;
  if ((type == PduType::kIcResp) == connected_) {
    refusal = OutOfSequence(offsetof(CommonHeader, type),
                            fmt::format("{} {}", NameOf(type), connected_ ? "again" : "before ICResp"));
  } else if (type == PduType::kIcResp) {
    refusal = Connect(pdu.ic_resp);
  } else if (type == PduType::kCapsuleResp) {
    refusal = Take(pdu.capsule_resp);
  } else if (type == PduType::kC2hData) {
    refusal = Take(pdu.c2h_data, payload);
  } else {
    refusal = Take(pdu.r2t);
  }
  if (refusal) {
    const auto* const header = reinterpret_cast<const uint8_t*>(&pdu);
    Refused(*refusal, {header, pdu.common.header_bytes});
  }
  return ended_ ? After::kEnded : After::kGoOn;
}

std::optional<Refusal> HostConnection::Connect(const IcResp& pdu) {
  if (!sends_.empty()) return OutOfSequence(offsetof(CommonHeader, type), "ICResp before ICReq was sent");
  if (auto refusal = CheckIcResp(pdu, digests_)) return refusal;
  sends_.set_controller_limits(pdu.controller_data_align, pdu.h2c_data_max_bytes);
  receiver_.set_digests(digests_);
  connected_ = true;
  owner_.Connected();
  return std::nullopt;
}

std::optional<Refusal> HostConnection::Find(PduType type, uint16_t cid, size_t offset, CommandSlot*& slot) {
  slot = table_.Find(cid);
  if (slot == nullptr) {
    return Refusal{TermReason::kInvalidHeaderField, static_cast<uint32_t>(offset),
                   fmt::format("{} for CID {:#x}, which no command has", NameOf(type), cid)};
  }
  if (!slot->capsule_sent) {
    return OutOfSequence(offset,
                         fmt::format("{} for CID {:#x}, whose command was not sent yet", NameOf(type), cid));
  }
  if (slot->answered)
    return OutOfSequence(offset, fmt::format("{} for CID {:#x}, which was answered", NameOf(type), cid));
  return std::nullopt;
}

std::optional<Refusal> HostConnection::Take(const CapsuleResp& pdu) {
  constexpr size_t kCid = offsetof(CapsuleResp, entry) + offsetof(fabrics::CompletionEntry, cid);
  CommandSlot* slot = nullptr;
  if (auto refusal = Find(PduType::kCapsuleResp, pdu.entry.cid, kCid, slot)) return refusal;
  return Answer(*slot, pdu.entry);
}

std::optional<Refusal> HostConnection::Take(const C2hData& pdu, Payload& payload) {
  CommandSlot* slot = nullptr;
  if (auto refusal = Find(PduType::kC2hData, pdu.cid, offsetof(C2hData, cid), slot)) return refusal;
  if (slot->data_bytes == 0 || slot->from_target.empty()) {
    return OutOfSequence(offsetof(C2hData, cid),
                         fmt::format("C2HData for CID {:#x}, whose command reads nothing", pdu.cid));
  }
  const bool last = (pdu.header.flags & kFlagLast) != 0;
  const bool success = (pdu.header.flags & kFlagSuccess) != 0;
  if (success && !last) {
    return Refusal{TermReason::kInvalidHeaderField, offsetof(CommonHeader, flags),
                   fmt::format("C2HData for CID {:#x} with SUCCESS that is not the last", pdu.cid)};
  }
  if (slot->last_came) {
    return OutOfSequence(offsetof(C2hData, cid),
                         fmt::format("C2HData for CID {:#x} after its last", pdu.cid));
  }
  if (pdu.offset_bytes != slot->moved_bytes || pdu.data_bytes > slot->data_bytes - slot->moved_bytes) {
    return Refusal{
        TermReason::kDataOutOfRange, offsetof(C2hData, offset_bytes),
        fmt::format("C2HData for CID {:#x} of {} bytes at {}, where {} of {} bytes have come", pdu.cid,
                    pdu.data_bytes, pdu.offset_bytes, slot->moved_bytes, slot->data_bytes)};
  }
  slot->last_came = last;
  receiving_ = slot;
  receiving_bytes_ = pdu.data_bytes;
  receiving_succeeds_ = success;
  payload = {slot->from_target, slot->moved_bytes, pdu.data_bytes};
  return std::nullopt;
}

bool HostConnection::PayloadCame(bool digest_is_right) {
  CommandSlot& slot = *std::exchange(receiving_, nullptr);
  slot.moved_bytes += receiving_bytes_;
  if (!digest_is_right) slot.digest_wrong = true;
  if (!receiving_succeeds_) return true;
  fabrics::CompletionEntry success;
  success.cid = slot.cid;
  // A command that reads may always succeed: nothing is refused here.
  const auto refusal = Answer(slot, success);
  CLEAT_CHECK(!refusal);
  return !ended_;
}

std::optional<Refusal> HostConnection::Take(const R2t& pdu) {
  CommandSlot* slot = nullptr;
  if (auto refusal = Find(PduType::kR2t, pdu.cid, offsetof(R2t, cid), slot)) return refusal;
  if (slot->data_bytes == 0 || slot->to_target.empty() || slot->in_capsule) {
    return OutOfSequence(offsetof(R2t, cid),
                         fmt::format("R2T for CID {:#x}, whose command has no data to send", pdu.cid));
  }
  if (slot->moved_bytes < slot->asked_bytes) {
    return Refusal{
        TermReason::kLimitExceeded, offsetof(R2t, cid),
        fmt::format("R2T for CID {:#x} while the one before is answered; one at a time was agreed", pdu.cid)};
  }
  if (pdu.data_bytes == 0 || pdu.offset_bytes != slot->moved_bytes ||
      pdu.data_bytes > slot->data_bytes - slot->moved_bytes) {
    return Refusal{TermReason::kDataOutOfRange, offsetof(R2t, offset_bytes),
                   fmt::format("R2T for CID {:#x} of {} bytes at {}, where {} of {} bytes were sent", pdu.cid,
                               pdu.data_bytes, pdu.offset_bytes, slot->moved_bytes, slot->data_bytes)};
  }
  slot->ttag = pdu.ttag;
  slot->asked_bytes = slot->moved_bytes + pdu.data_bytes;
  sends_.PushData(*slot);
  return std::nullopt;
}

std::optional<Refusal> HostConnection::Answer(CommandSlot& slot, const fabrics::CompletionEntry& entry) {
  const bool sends_more = !slot.to_target.empty() && !slot.in_capsule && slot.moved_bytes < slot.data_bytes;
  if (sends_more && entry.status().ok()) {
    return OutOfSequence(offsetof(CapsuleResp, entry),
                         fmt::format("success for CID {:#x}, of whose {} bytes of data the controller has {}",
                                     slot.cid, slot.data_bytes, slot.moved_bytes));
  }
  slot.answer = entry;
  if (slot.digest_wrong && entry.status().ok()) slot.answer.status_field = kTransientTransportError;
  // What is half sent goes on from the command's memory, which so stays in use until it went (Sent). What has not begun is not sent at all:
  // the controller has freed its tag.
  if (slot.data_queued && !sends_.Withdraw(slot)) {
    slot.answered = true;
    return std::nullopt;
  }
  Complete(slot);
  return std::nullopt;
}

void HostConnection::Complete(CommandSlot& slot) {
  const uint64_t cookie = slot.cookie;
  const fabrics::CompletionEntry entry = slot.answer;
  const uint64_t data_bytes = slot.from_target.empty() || slot.digest_wrong ? 0 : slot.moved_bytes;
  // First, so that the owner has room for the next.
  table_.Free(slot);
  owner_.Completed(cookie, entry, data_bytes);
}

void HostConnection::Terminated(const TermReq& pdu) {
  sends_.Clear();
  const uint32_t information = pdu.information_low | uint32_t{pdu.information_high} << 16;
  End(Error(
      ErrorCode::kIo,
      fmt::format("{}: the controller ended the connection: {} (FES {}, FEI {:#x}); its log may say more",
                  name_, NameOf(static_cast<TermReason>(pdu.reason)), pdu.reason, information)));
}

void HostConnection::Refused(const Refusal& refusal, std::span<const uint8_t> header) {
  sends_.PushTermReq(refusal.reason, refusal.information, header);
  End(Error(ErrorCode::kIo,
            fmt::format("{}: connection ended, the controller sent {} ({}); look for a fault of the "
                        "controller or the network",
                        name_, refusal.text, NameOf(refusal.reason))));
}

fabrics::Reached HostConnection::ReachedBy(const CommandSlot& slot) {
  if (!slot.capsule_begun) return fabrics::Reached::kNothing;
  if (slot.may_lack_data && !slot.data_begun) return fabrics::Reached::kNoData;
  return fabrics::Reached::kPerhapsAll;
}

void HostConnection::End(const Error& reason) {
  ended_ = true;
  receiving_ = nullptr;
  for (CommandSlot& slot : table_.slots()) {
    if (!slot.in_use) continue;
    if (slot.answered) {
      Complete(slot);
      continue;
    }
    const uint64_t cookie = slot.cookie;
    const fabrics::Reached reached = ReachedBy(slot);
    table_.Free(slot);
    owner_.Unanswered(cookie, reached);
  }
  owner_.Ended(reason);
}

}  // namespace cleat::nvme::tcp
