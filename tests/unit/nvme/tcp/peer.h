// SPDX-License-Identifier: Apache-2.0
// Both ends of an NVMe/TCP connection for tests: a host's connection whose owner writes down what it hears, and a controller that puts its
// PDUs together byte by byte, with nothing of the product's structures or digests.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "block/memory.h"
#include "nvme/tcp_host/host_connection.h"

namespace cleat::nvme::tcp::test {

using Bytes = std::vector<uint8_t>;

inline void Put(Bytes& to, uint64_t value, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; ++i) to.push_back(static_cast<uint8_t>(value >> (8 * i)));
}
inline uint64_t Get(const Bytes& from, size_t at, uint32_t bytes) {
  uint64_t value = 0;
  for (uint32_t i = 0; i < bytes; ++i) value |= uint64_t{from.at(at + i)} << (8 * i);
  return value;
}

// Bit by bit.
inline uint32_t SlowCrc(const uint8_t* data, size_t bytes) {
  uint32_t crc = 0xffffffff;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78 : 0);
  }
  return ~crc;
}

inline Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Controller {
  Digests digests;

  static Bytes IcResp(uint8_t digest_bits, uint32_t h2c_max = 65536, uint8_t cpda = 0, uint16_t version = 0) {
    Bytes pdu = {1, 0, 128, 0, 128, 0, 0, 0};
    Put(pdu, version, 2);
    pdu.push_back(cpda);
    pdu.push_back(digest_bits);
    Put(pdu, h2c_max, 4);
    pdu.resize(128);
    return pdu;
  }
  Bytes IcResp() const {
    return IcResp(static_cast<uint8_t>((digests.header ? 1 : 0) | (digests.data ? 2 : 0)));
  }
  static Bytes TermReq(uint16_t reason, uint32_t information) {
    Bytes pdu = {3, 0, 24, 0, 24, 0, 0, 0};
    Put(pdu, reason, 2);
    Put(pdu, information, 4);
    pdu.resize(24);
    return pdu;
  }
  Bytes Resp(uint16_t cid, uint16_t status = 0) const {
    Bytes pdu = Common(5, 0, 0, 24);
    Put(pdu, 0x1122334455667788, 8);
    Put(pdu, 0, 4);
    Put(pdu, cid, 2);
    Put(pdu, status << 1, 2);
    return WithHeaderDigest(std::move(pdu));
  }
  Bytes R2t(uint16_t cid, uint16_t ttag, uint32_t offset, uint32_t bytes) const {
    Bytes pdu = Common(9, 0, 0, 24);
    Put(pdu, cid, 2);
    Put(pdu, ttag, 2);
    Put(pdu, offset, 4);
    Put(pdu, bytes, 4);
    Put(pdu, 0, 4);
    return WithHeaderDigest(std::move(pdu));
  }
  // flags: 4 last, 8 success.
  Bytes Data(uint16_t cid, uint32_t offset, const Bytes& data, uint8_t flags, uint32_t padding = 0) const {
    const uint32_t pdo = 24 + (digests.header ? 4 : 0) + padding;
    Bytes pdu = Common(7, flags | (digests.data ? 2 : 0), static_cast<uint8_t>(pdo),
                       pdo + static_cast<uint32_t>(data.size()) + (digests.data ? 4 : 0));
    Put(pdu, cid, 2);
    Put(pdu, 0, 2);
    Put(pdu, offset, 4);
    Put(pdu, data.size(), 4);
    Put(pdu, 0, 4);
    pdu = WithHeaderDigest(std::move(pdu));
    pdu.resize(pdo, 0xee);
    pdu = std::move(pdu) + data;
    if (digests.data) Put(pdu, SlowCrc(data.data(), data.size()), 4);
    return pdu;
  }

 private:
  // `whole`: PLEN without header digest where there is no data, with it else.
  Bytes Common(uint8_t type, uint32_t flags, uint8_t pdo, uint32_t whole) const {
    Bytes pdu = {type, static_cast<uint8_t>(flags | (digests.header ? 1 : 0)), 24, pdo};
    Put(pdu, whole + (pdo == 0 && digests.header ? 4 : 0), 4);
    return pdu;
  }
  Bytes WithHeaderDigest(Bytes pdu) const {
    if (digests.header) Put(pdu, SlowCrc(pdu.data(), pdu.size()), 4);
    return pdu;
  }
};

// Memory in segments with a margin around that must not change.
class TestMemory {
 public:
  static constexpr size_t kMargin = 64;
  TestMemory(const std::vector<uint32_t>& lengths, uint8_t seed) {
    size_t bytes = kMargin;
    for (const uint32_t length : lengths) bytes += length + kMargin;
    bytes_.resize(bytes);
    for (size_t i = 0; i < bytes; ++i) bytes_[i] = static_cast<uint8_t>(i * 7 + seed);
    region_ = block::MemoryRegion::Borrow(bytes_.data(), bytes_.size());
    size_t at = kMargin;
    for (const uint32_t length : lengths) {
      segments.push_back({region_.get(), at, length});
      at += length + kMargin;
    }
    before_ = bytes_;
  }
  Bytes Content() const {
    Bytes content;
    for (const block::Segment& segment : segments)
      content.insert(content.end(), segment.data(), segment.data() + segment.length_bytes);
    return content;
  }
  bool MarginsAreWhole() const {
    Bytes now = bytes_;
    for (const block::Segment& s : segments)
      std::copy_n(before_.begin() + static_cast<ptrdiff_t>(s.offset_bytes), s.length_bytes,
                  now.begin() + static_cast<ptrdiff_t>(s.offset_bytes));
    return now == before_;
  }
  bool Untouched() const { return bytes_ == before_; }
  std::vector<block::Segment> segments;

 private:
  Bytes bytes_;
  Bytes before_;
  std::shared_ptr<block::MemoryRegion> region_;
};

struct Host final : fabrics::QueuePairOwner {
  struct Answer {
    uint64_t cookie;
    uint16_t status;
    uint64_t data_bytes;
    bool operator==(const Answer&) const = default;
  };
  struct Left {
    uint64_t cookie;
    fabrics::Reached reached;
    bool operator==(const Left&) const = default;
  };

  explicit Host(HostConnectionOptions options = {}) : connection(With(std::move(options)), *this) {
    connection.Start();
  }
  static HostConnectionOptions With(HostConnectionOptions options) {
    options.name = "the test's controller";
    return options;
  }

  void Connected() override { ++connected; }
  void Completed(uint64_t cookie, const fabrics::CompletionEntry& entry, uint64_t data_bytes) override {
    answers.push_back({cookie, static_cast<uint16_t>(entry.status_field >> 1), data_bytes});
    if (abort_on_completion) connection.Abort(Error(ErrorCode::kCancelled, "the owner's own wish"));
  }
  void Unanswered(uint64_t cookie, fabrics::Reached reached) override { left.push_back({cookie, reached}); }
  void Ended(const Error& reason) override {
    ++ended;
    why = reason.message;
  }

  // What the connection wants to send, at most `bytes_max` of it.
  Bytes Send(size_t bytes_max = SIZE_MAX, size_t pieces = 64) {
    Bytes sent;
    while (sent.size() < bytes_max) {
      std::vector<iovec> iovecs(pieces);
      const uint32_t count = connection.FillSend(iovecs);
      size_t batch = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const size_t part = std::min(iovecs[i].iov_len, bytes_max - sent.size());
        const auto* from = static_cast<const uint8_t*>(iovecs[i].iov_base);
        sent.insert(sent.end(), from, from + part);
        batch += part;
      }
      if (batch == 0) break;
      connection.Sent(batch);
    }
    return sent;
  }
  // Gives it `bytes`, at most `step` with each call.
  void Receive(const Bytes& bytes, size_t step = SIZE_MAX, size_t pieces = 8) {
    size_t at = 0;
    while (at < bytes.size()) {
      std::vector<iovec> iovecs(pieces);
      const uint32_t count = connection.ReceiveSpace(iovecs);
      if (count == 0) return;
      size_t came = 0;
      for (uint32_t i = 0; i < count; ++i) {
        const size_t part = std::min({iovecs[i].iov_len, bytes.size() - at, step - came});
        std::memcpy(iovecs[i].iov_base, bytes.data() + at, part);
        at += part;
        came += part;
      }
      connection.Received(came);
    }
  }
  void Connect(const Bytes& response) {
    Send();
    Receive(response);
  }
  void Read(uint64_t cookie, const TestMemory& memory) {
    fabrics::QueuedCommand command{
        .entry = {}, .to_target = {}, .from_target = memory.segments, .cookie = cookie};
    command.entry.opcode = 2;
    connection.Submit(command);
  }
  void Write(uint64_t cookie, const TestMemory& memory) {
    fabrics::QueuedCommand command{
        .entry = {}, .to_target = memory.segments, .from_target = {}, .cookie = cookie};
    command.entry.opcode = 1;
    connection.Submit(command);
  }

  HostConnection connection;
  bool abort_on_completion = false;
  int connected = 0;
  int ended = 0;
  std::string why;
  std::vector<Answer> answers;
  std::vector<Left> left;
};

}  // namespace cleat::nvme::tcp::test
