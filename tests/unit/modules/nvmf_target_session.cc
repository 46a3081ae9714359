// SPDX-License-Identifier: Apache-2.0
// The connection of a host: PDUs that come and go, and to whom a command is given.
#include <sys/socket.h>

#include <algorithm>

#include "tests/unit/modules/nvmf_target_session.h"

namespace cleat::test {
namespace {

// CRC32C by its definition, a bit at a time.
uint32_t Crc32c(std::span<const uint8_t> data) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t n = 0; n < 256; ++n) {
      uint32_t c = n;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? c >> 1 ^ 0x82f63b78U : c >> 1;
      t[n] = c;
    }
    return t;
  }();
  uint32_t crc = ~0U;
  for (const uint8_t byte : data) crc = table[(crc ^ byte) & 0xff] ^ crc >> 8;
  return ~crc;
}

}  // namespace

void NvmfTarget::Session::Run() {
  while (OnePdu()) {
  }
  shutdown(socket, SHUT_RDWR);
  over = true;
}

bool NvmfTarget::Session::ReadAll(uint8_t* to, size_t bytes) const {
  while (bytes > 0) {
    const ssize_t got = recv(socket, to, bytes, 0);
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool NvmfTarget::Session::SendAll(const Bytes& data, size_t limit) {
  size_t at = 0;
  const size_t end = std::min(data.size(), limit);
  const size_t step = target.faults.bytewise ? 1 : end;
  while (at < end) {
    const ssize_t sent = send(socket, data.data() + at, std::min(step, end - at), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return end == data.size();
}

// Header, its digest, data, its digest.
bool NvmfTarget::Session::SendPdu(uint8_t type, uint8_t flags, Bytes header, std::span<const uint8_t> data) {
  const bool header_digest = digests_header && type != kIcResp;
  const bool data_digest = digests_data && !data.empty();
  const size_t data_at = header.size() + (header_digest ? 4 : 0);
  const size_t all = data_at + data.size() + (data_digest ? 4 : 0);
  header[0] = type;
  header[1] =
      static_cast<uint8_t>(flags | (header_digest ? kHeaderDigest : 0) | (data_digest ? kDataDigest : 0));
  header[2] = static_cast<uint8_t>(header.size());
  header[3] = data.empty() ? 0 : static_cast<uint8_t>(data_at);
  Put(header, 4, all, 4);
  Bytes pdu = header;
  pdu.resize(all);
  if (header_digest)
    Put(pdu, header.size(), Crc32c(header) ^ (target.faults.wrong_header_digest ? 1U : 0U), 4);
  std::copy(data.begin(), data.end(), pdu.begin() + static_cast<ptrdiff_t>(data_at));
  if (data_digest)
    Put(pdu, data_at + data.size(), Crc32c(data) ^ (target.faults.wrong_data_digest ? 1U : 0U), 4);
  const std::lock_guard lock(send_mutex);
  if (!data.empty() && target.faults.cut_in_data) return SendAll(pdu, data_at + data.size() / 2);
  return SendAll(pdu);
}

bool NvmfTarget::Session::OnePdu() {
  Bytes header(8);
  if (!ReadAll(header.data(), 8)) return false;
  const size_t header_bytes = header[2];
  const uint64_t all = Get(&header[4], 4);
  if (header_bytes < 8 || all < header_bytes || all > (uint64_t{8} << 20)) return false;
  Bytes pdu = header;
  pdu.resize(all);
  if (!ReadAll(pdu.data() + 8, all - 8)) return false;
  header.assign(pdu.begin(), pdu.begin() + static_cast<ptrdiff_t>(header_bytes));
  if (target.options_.strict && !IsInOrder(header)) return Bad();
  if (header[0] == kIcReq) return header_bytes == 128 && Initialize(header);
  if (header[0] == kHostTerm) return false;
  if (((header[1] & kHeaderDigest) != 0) != digests_header) return Bad();
  if (digests_header && all < header_bytes + 4) return Bad();
  if (digests_header && Get(&pdu[header_bytes], 4) != Crc32c(header)) return Bad();
  Bytes data;
  if (header[3] != 0) {
    const bool digest = (header[1] & kDataDigest) != 0;
    const size_t end = all - (digest ? 4 : 0);
    if (header[3] > end || digest != digests_data) return Bad();
    data.assign(pdu.begin() + header[3], pdu.begin() + static_cast<ptrdiff_t>(end));
    if (digest && Get(&pdu[end], 4) != Crc32c(data)) return Bad();
  }
  if (header[0] == kCommand && header_bytes == 72)
    return Command(Bytes(header.begin() + 8, header.end()), data);
  if (header[0] == kToTarget && header_bytes == 24) return DataCame(header, data);
  return Bad();
}

bool NvmfTarget::Session::Bad() {
  ++target.counts.digest_errors;
  return false;
}

bool NvmfTarget::Session::Initialize(const Bytes& request) {
  ++target.counts.ic_requests;
  if (target.faults.never_icresp) return true;
  const bool grant = target.options_.digests;
  const bool header_digest = grant && (request[11] & 1) != 0;
  const bool data_digest = grant && (request[11] & 2) != 0;
  Bytes response(128);
  response[11] = static_cast<uint8_t>((header_digest ? 1 : 0) | (data_digest ? 2 : 0));
  Put(response, 12, target.options_.h2c_bytes_max, 4);
  const bool sent = SendPdu(kIcResp, 0, response);
  digests_header = header_digest;
  digests_data = data_digest;
  initialized = true;
  return sent;
}

bool NvmfTarget::Session::Respond(const Bytes& entry, uint64_t result, uint16_t status) {
  Bytes header(24);
  Put(header, 8, result, 8);
  Put(header, 16, (head = static_cast<uint16_t>((head + 1) % (sq_size + 1U))), 2);
  Put(header, 20, Get(&entry[2], 2), 2);
  Put(header, 22, status << 1, 2);
  return SendPdu(kResponse, 0, header);
}

bool NvmfTarget::Session::SendData(const Bytes& entry, const Bytes& data) {
  for (size_t at = 0; at < data.size();) {
    const size_t piece = std::min<size_t>(data.size() - at, target.options_.c2h_bytes);
    Bytes header(24);
    Put(header, 8, Get(&entry[2], 2), 2);
    Put(header, 12, at, 4);
    Put(header, 16, piece, 4);
    const bool last = at + piece == data.size();
    const bool success = last && target.options_.success_flag;
    if (!SendPdu(kToHost, static_cast<uint8_t>((last ? kLast : 0) | (success ? kSuccess : 0)), header,
                 std::span(data).subspan(at, piece)))
      return false;
    at += piece;
    if (success) head = static_cast<uint16_t>((head + 1) % (sq_size + 1U));
    if (success) return true;
  }
  return Respond(entry);
}

// The data that the host has asked for, as much of it as it has asked for.
bool NvmfTarget::Session::Return(const Bytes& entry, Bytes data) {
  data.resize(std::min<uint64_t>(data.size(), Get(&entry[32], 4)));
  return SendData(entry, data);
}

bool NvmfTarget::Session::Command(const Bytes& entry, const Bytes& data) {
  if (target.options_.strict) {
    if (const uint16_t status = WrongWith(entry, data); status != 0) return Respond(entry, 0, status);
  }
  const bool is_chap = entry[0] == 0x7f && (entry[4] == 0x05 || entry[4] == 0x06);
  if (is_chap) return Authentication(entry, data);
  if (chap_due) {
    ++target.counts.too_early;
    return Respond(entry, 0, kAuthenticationRequired);
  }
  if (entry[0] == 0x7f) return Fabrics(entry, data);
  if (queue == 0) return Admin(entry);
  ++target.counts.io_commands;
  if (target.faults.cut_io.exchange(false)) return false;
  const bool is_write = entry[0] == 0x01 || entry[0] == 0x08 || entry[0] == 0x09;  // with zeroes and discards
  if (target.faults.mute_io || (target.faults.mute_writes && is_write)) {
    ++target.counts.muted;
    return true;
  }
  return Io(entry, data);
}

}  // namespace cleat::test
