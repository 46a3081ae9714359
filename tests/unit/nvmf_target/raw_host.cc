// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/nvmf_target/raw_host.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace cleat::test {

using nvme::fabrics::CompletionEntry;
using nvme::fabrics::SubmissionEntry;
using nvme::tcp::PduType;

RawHost::RawHost(TargetRig& rig, nvme::fabrics::HostIdentity host)
    : rig_(rig), host_(std::move(host)), fd_(rig.Connect()) {
  ShakeHands();
}

RawHost::RawHost(TargetRig& rig, nvme::tls::ConnectionKey key)
    : rig_(rig), fd_(rig.Connect()), tls_(std::make_unique<TlsClient>(std::move(key))) {
  tls_->Handshake();
  SendRecords();
  bool over = false;
  while (!established_ && !over) {
    std::vector<uint8_t> wire(4096);
    rig_.Turn();
    const ssize_t some = recv(fd_.get(), wire.data(), wire.size(), MSG_DONTWAIT);
    over = some == 0 || (some < 0 && errno != EAGAIN);
    if (some <= 0) continue;
    tls_->Give({wire.data(), static_cast<size_t>(some)});
    established_ = tls_->Handshake();
    SendRecords();
  }
  if (established_) ShakeHands();
}

void RawHost::ShakeHands() {
  nvme::tcp::IcReq request;
  request.header = {PduType::kIcReq, 0, sizeof(request), 0, sizeof(request)};
  SendBytes(&request, sizeof(request));
  std::vector<uint8_t> response;
  CLEAT_CHECK(Receive(sizeof(nvme::tcp::IcResp), response));
}

void RawHost::SendBytes(const void* data, size_t bytes) {
  if (tls_ == nullptr) return SendWire(data, bytes);
  tls_->Write({static_cast<const uint8_t*>(data), bytes});
  SendRecords();
}

void RawHost::SendRecords() {
  const std::vector<uint8_t> records = tls_->Take();
  SendWire(records.data(), records.size());
}

// Turns the other side while the socket is full.
void RawHost::SendWire(const void* data, size_t bytes) const {
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

ssize_t RawHost::ReceiveSome(uint8_t* to, size_t bytes) {
  if (tls_ != nullptr && opened_.empty()) {
    std::vector<uint8_t> wire(64 * 1024);
    const ssize_t some = recv(fd_.get(), wire.data(), wire.size(), MSG_DONTWAIT);
    if (some <= 0) return some < 0 && errno == EAGAIN ? 0 : -1;
    tls_->Give({wire.data(), static_cast<size_t>(some)});
    auto opened = tls_->Read();
    if (!opened) return -1;
    opened_ = std::move(*opened);
  }
  if (tls_ != nullptr) {
    const size_t some = std::min(bytes, opened_.size());
    std::copy_n(opened_.begin(), some, to);
    opened_.erase(opened_.begin(), opened_.begin() + static_cast<ptrdiff_t>(some));
    return static_cast<ssize_t>(some);
  }
  const ssize_t some = recv(fd_.get(), to, bytes, MSG_DONTWAIT);
  if (some > 0) return some;
  return some < 0 && errno == EAGAIN ? 0 : -1;
}

bool RawHost::WaitForGoodbye() {
  for (;;) {
    std::vector<uint8_t> wire(4096);
    rig_.Turn();
    const ssize_t some = recv(fd_.get(), wire.data(), wire.size(), MSG_DONTWAIT);
    if (some < 0 && errno == EAGAIN) continue;
    if (some <= 0) return tls_->failed();  // with the last answer
    tls_->Give({wire.data(), static_cast<size_t>(some)});
    if (!tls_->Read()) return true;
  }
}

bool RawHost::Receive(size_t bytes, std::vector<uint8_t>& out) {
  out.resize(bytes);
  size_t got = 0;
  bool over = false;
  rig_.Until([&] {
    const ssize_t some = got < bytes ? ReceiveSome(out.data() + got, bytes - got) : 0;
    if (some > 0) got += static_cast<size_t>(some);
    over = some < 0;
    return over || got == bytes;
  });
  return got == bytes;
}

std::optional<CompletionEntry> RawHost::Answer() {
  data_.clear();
  for (;;) {
    std::vector<uint8_t> bytes;
    nvme::tcp::CommonHeader header;
    if (!Receive(sizeof(header), bytes)) return std::nullopt;
    std::memcpy(&header, bytes.data(), sizeof(header));
    std::vector<uint8_t> rest;
    if (!Receive(header.pdu_bytes - sizeof(header), rest)) return std::nullopt;
    if (header.type == PduType::kC2hData)
      data_.insert(data_.end(), rest.begin() + (sizeof(nvme::tcp::C2hData) - sizeof(header)), rest.end());
    if (header.type != PduType::kCapsuleResp) continue;
    CompletionEntry entry;
    std::memcpy(&entry, rest.data(), sizeof(entry));
    return entry;
  }
}

bool RawHost::IsQuiet() const {
  constexpr int kTurns = 200;
  for (int turn = 0; turn < kTurns; ++turn) rig_.Turn();
  uint8_t byte = 0;
  return recv(fd_.get(), &byte, sizeof(byte), MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

uint16_t RawHost::AskedTag() {
  nvme::tcp::R2t asked;
  std::vector<uint8_t> bytes;
  CLEAT_CHECK(Receive(sizeof(asked), bytes));
  std::memcpy(static_cast<void*>(&asked), bytes.data(), sizeof(asked));
  CLEAT_CHECK(asked.header.type == PduType::kR2t);
  return asked.ttag;
}

std::optional<CompletionEntry> RawHost::Connect(const nvme::fabrics::HostIdentity& host, uint32_t kato_ms) {
  const auto data = nvme::fabrics::ConnectDataOf(host, TargetRig::kNqn, nvme::fabrics::kAnyController);
  const auto* const at = reinterpret_cast<const uint8_t*>(&data);
  return Do(nvme::fabrics::EntryOf(nvme::fabrics::Connect(
                {.queue_id = 0, .entries = 32, .kato_ms = kato_ms, .flow_control = true})),
            {at, at + sizeof(data)});
}

uint64_t RawHost::ConnectAdmin(uint32_t kato_ms) {
  const auto answer = Connect(host_, kato_ms);
  CLEAT_CHECK(answer && answer->status().ok());
  return answer->result;
}

uint16_t RawHost::BecomeAdmin(uint32_t kato_ms) {
  const auto controller = static_cast<uint16_t>(ConnectAdmin(kato_ms));
  Enable();
  return controller;
}

void RawHost::Enable() {
  constexpr uint32_t kEnabled = 4U << 20 | 6U << 16 | 1;
  const auto enabled = Do(
      nvme::fabrics::EntryOf(nvme::fabrics::PropertySet(nvme::fabrics::Property::kConfiguration, kEnabled)));
  CLEAT_CHECK(enabled && enabled->status().ok());
  const auto queues = Do(nvme::fabrics::EntryOf(nvme::SetFeature(nvme::Feature::kQueues, 7U << 16 | 7)));
  CLEAT_CHECK(queues && queues->status().ok());
}

void RawHost::SendConnect(uint16_t queue_id, uint16_t controller_id) {
  const auto data = nvme::fabrics::ConnectDataOf(host_, TargetRig::kNqn, controller_id);
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
