// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/nvmf_target/raw_host.h"

#include <sys/socket.h>

#include <cstring>

namespace cleat::test {

using nvme::fabrics::CompletionEntry;
using nvme::fabrics::SubmissionEntry;
using nvme::tcp::PduType;

RawHost::RawHost(TargetRig& rig) : rig_(rig), fd_(rig.Connect()) {
  nvme::tcp::IcReq request;
  request.header = {PduType::kIcReq, 0, sizeof(request), 0, sizeof(request)};
  SendBytes(&request, sizeof(request));
  std::vector<uint8_t> response;
  CLEAT_CHECK(Receive(sizeof(nvme::tcp::IcResp), response));
}

// Turns the other side while the socket is full.
void RawHost::SendBytes(const void* data, size_t bytes) const {
  const auto* at = static_cast<const uint8_t*>(data);
  rig_.Until([&] {
    const ssize_t sent = send(fd_.get(), at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    CLEAT_CHECK(sent >= 0 || errno == EAGAIN);
    if (sent > 0) {
      at += sent;
      bytes -= static_cast<size_t>(sent);
    }
    return bytes == 0;
  });
}

void RawHost::Send(SubmissionEntry entry, const std::vector<uint8_t>& data) {
  nvme::tcp::CapsuleCmd capsule;
  capsule.header = {PduType::kCapsuleCmd, 0, sizeof(capsule),
                    static_cast<uint8_t>(data.empty() ? 0 : sizeof(capsule)),
                    static_cast<uint32_t>(sizeof(capsule) + data.size())};
  entry.cid = cid_++;
  entry.flags = nvme::fabrics::kFlagsSgl;
  if (!data.empty()) {
    entry.data.type = nvme::fabrics::kSglInCapsule;
    entry.data.length_bytes = static_cast<uint32_t>(data.size());
  } else if (entry.data.type == 0) {
    entry.data.type = nvme::fabrics::kSglByTransport;
  }
  capsule.entry = entry;
  std::vector<uint8_t> bytes(sizeof(capsule));
  std::memcpy(bytes.data(), &capsule, sizeof(capsule));
  bytes.insert(bytes.end(), data.begin(), data.end());
  SendBytes(bytes.data(), bytes.size());
}

bool RawHost::Receive(size_t bytes, std::vector<uint8_t>& out) {
  out.resize(bytes);
  size_t got = 0;
  bool over = false;
  rig_.Until([&] {
    const ssize_t some = recv(fd_.get(), out.data() + got, bytes - got, MSG_DONTWAIT);
    if (some > 0) got += static_cast<size_t>(some);
    over = some == 0 || (some < 0 && errno != EAGAIN);
    return over || got == bytes;
  });
  return got == bytes;
}

std::optional<CompletionEntry> RawHost::Answer() {
  for (;;) {
    std::vector<uint8_t> bytes;
    nvme::tcp::CommonHeader header;
    if (!Receive(sizeof(header), bytes)) return std::nullopt;
    std::memcpy(&header, bytes.data(), sizeof(header));
    std::vector<uint8_t> rest;
    if (!Receive(header.pdu_bytes - sizeof(header), rest)) return std::nullopt;
    if (header.type != PduType::kCapsuleResp) continue;
    CompletionEntry entry;
    std::memcpy(&entry, rest.data(), sizeof(entry));
    return entry;
  }
}

uint16_t RawHost::AskedTag() {
  nvme::tcp::R2t asked;
  std::vector<uint8_t> bytes;
  CLEAT_CHECK(Receive(sizeof(asked), bytes));
  std::memcpy(static_cast<void*>(&asked), bytes.data(), sizeof(asked));
  CLEAT_CHECK(asked.header.type == PduType::kR2t);
  return asked.ttag;
}

uint16_t RawHost::BecomeAdmin(uint32_t kato_ms) {
  const auto data =
      nvme::fabrics::ConnectDataOf(TargetRig::Host(), TargetRig::kNqn, nvme::fabrics::kAnyController);
  const auto* const at = reinterpret_cast<const uint8_t*>(&data);
  const auto answer = Do(nvme::fabrics::EntryOf(nvme::fabrics::Connect(
                             {.queue_id = 0, .entries = 32, .kato_ms = kato_ms, .flow_control = true})),
                         {at, at + sizeof(data)});
  CLEAT_CHECK(answer && answer->status().ok());
  constexpr uint32_t kEnabled = 4U << 20 | 6U << 16 | 1;
  const auto enabled = Do(
      nvme::fabrics::EntryOf(nvme::fabrics::PropertySet(nvme::fabrics::Property::kConfiguration, kEnabled)));
  CLEAT_CHECK(enabled && enabled->status().ok());
  const auto queues = Do(nvme::fabrics::EntryOf(nvme::SetFeature(nvme::Feature::kQueues, 7U << 16 | 7)));
  CLEAT_CHECK(queues && queues->status().ok());
  return static_cast<uint16_t>(answer->result);
}

void RawHost::SendConnect(uint16_t queue_id, uint16_t controller_id) {
  const auto data = nvme::fabrics::ConnectDataOf(TargetRig::Host(), TargetRig::kNqn, controller_id);
  const auto* const at = reinterpret_cast<const uint8_t*>(&data);
  Send(nvme::fabrics::EntryOf(nvme::fabrics::Connect(
           {.queue_id = queue_id, .entries = 128, .kato_ms = 0, .flow_control = true})),
       {at, at + sizeof(data)});
}

SubmissionEntry BlocksEntry(nvme::Opcode opcode, uint64_t block, uint32_t blocks, bool in_capsule) {
  SubmissionEntry entry = nvme::fabrics::EntryOf(nvme::OnBlocks(opcode, 1, block, blocks, 0));
  entry.data.type = in_capsule ? nvme::fabrics::kSglInCapsule : nvme::fabrics::kSglByTransport;
  entry.data.length_bytes = blocks * 512;
  return entry;
}

}  // namespace cleat::test
