// SPDX-License-Identifier: Apache-2.0
// Commands of I/O queues, the data that writes are asked for, and reservations.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/unit/modules/nvmf_target_session.h"

namespace cleat::test {

bool NvmfTarget::Session::Io(const Bytes& entry, const Bytes& data) {
  const uint64_t at = Get(&entry[40], 8) * kBlockBytes;
  const uint64_t bytes = (Get(&entry[48], 2) + 1) * kBlockBytes;
  const bool ranged = entry[0] == 1 || entry[0] == 2 || entry[0] == 8;
  if (target.faults.detached) return Respond(entry, 0, kInvalidNamespace);
  if (target.options_.ana && target.faults.ana_state > 2) {
    ++target.counts.refused;
    return Respond(entry, 0, kAnaInaccessible);
  }
  const uint64_t size_bytes = SizeBytes();
  const bool fits = bytes <= size_bytes && Get(&entry[40], 8) <= (size_bytes - bytes) / kBlockBytes;
  if (ranged && !fits) return Respond(entry, 0, kOutOfRange);
  if (target.options_.reservations && !LetsIn(entry)) return Respond(entry, 0, kConflict);
  switch (entry[0]) {
    case 0x0d:
    case 0x0e:
    case 0x11:
      return target.options_.reservations ? Reserve(entry, data) : Respond(entry, 0, kInvalidOpcode);
    case 0x00:
      ++target.counts.flushes;
      return Respond(entry);
    case 0x01:
      return entry[39] == 0x01 ? Store(entry, data, bytes) : Ask(entry, bytes);
    case 0x02:
      ++target.counts.reads;
      Longest(bytes);
      return Return(entry, ReadData(at, bytes));
    case 0x08:
      ++target.counts.zeroes;
      target.Write(at, Bytes(bytes));
      return Respond(entry);
    case 0x09:
      return Discard(entry, data);
    default:
      return Respond(entry, 0, kInvalidOpcode);
  }
}

NvmfTarget::Session::Bytes NvmfTarget::Session::ReadData(uint64_t at, uint64_t bytes) const {
  Bytes data = target.Read(at, bytes);
  if (target.faults.wrong_reads) data.back() ^= 1;
  return data;
}

uint64_t NvmfTarget::Session::SizeBytes() const {
  const uint64_t shown = target.faults.shows_bytes;
  return shown != 0 ? shown : target.store_->size_bytes.load();
}

// Who is no registrant only reads.
bool NvmfTarget::Session::LetsIn(const Bytes& entry) {
  const bool writes_data = entry[0] == 1 || entry[0] == 8 || entry[0] == 9;
  if (!writes_data) return true;
  bool in = true;
  target.Reservations([&](auto& reservations) { in = reservations.LetsIn(host); });
  if (!in) ++target.counts.conflicts;
  return in;
}

bool NvmfTarget::Session::Reserve(const Bytes& entry, const Bytes& data) {
  nvme::fabrics::SubmissionEntry command;
  static_assert(sizeof(command) == 64);
  std::memcpy(&command, entry.data(), sizeof(command));
  Bytes answer(entry[0] == 0x0e ? Get(&entry[32], 4) : 0);
  uint64_t bytes = 0;
  uint8_t status = 0;
  target.Reservations(
      [&](auto& reservations) { status = reservations.Execute(host, command, data, answer, bytes); });
  answer.resize(bytes);
  return status == 0 && !answer.empty() ? Return(entry, answer) : Respond(entry, 0, status);
}

void NvmfTarget::Session::Longest(uint64_t bytes) const {
  uint64_t before = target.counts.longest_bytes;
  while (before < bytes && !target.counts.longest_bytes.compare_exchange_weak(before, bytes)) {
  }
}

bool NvmfTarget::Session::Discard(const Bytes& entry, const Bytes& data) {
  const uint64_t ranges = Get(&entry[40], 1) + 1;
  if (data.size() < ranges * 16) return Respond(entry, 0, kInvalidField);
  for (uint64_t i = 0; i < ranges; ++i) {
    const uint64_t blocks = Get(&data[i * 16 + 4], 4);
    const uint64_t first = Get(&data[i * 16 + 8], 8);
    const uint64_t all = SizeBytes() / kBlockBytes;
    if (first > all || blocks > all - first) return Respond(entry, 0, kOutOfRange);
  }
  for (uint64_t i = 0; i < ranges; ++i)
    target.Write(Get(&data[i * 16 + 8], 8) * kBlockBytes, Bytes(Get(&data[i * 16 + 4], 4) * kBlockBytes));
  ++target.counts.discards;
  return Respond(entry);
}

bool NvmfTarget::Session::Store(const Bytes& entry, const Bytes& data, uint64_t bytes) {
  if (data.size() != bytes) return Respond(entry, 0, kInvalidField);
  Longest(bytes);
  if (!target.faults.lose_writes && !target.faults.lose_write.exchange(false))
    target.Write(Get(&entry[40], 8) * kBlockBytes, data);
  ++target.counts.writes;
  return Respond(entry);
}

bool NvmfTarget::Session::Ask(const Bytes& entry, uint64_t bytes) {
  if (target.faults.mute_r2t) return true;
  const auto tag = static_cast<uint16_t>(next_tag++);
  PendingWrite& write = writes[tag];
  write.entry = entry;
  write.data.resize(bytes);
  ++target.counts.r2t_writes;
  return AskMore(tag, write);
}

bool NvmfTarget::Session::AskMore(uint16_t tag, PendingWrite& write) {
  const uint64_t bytes = std::min<uint64_t>(write.data.size() - write.got, target.options_.r2t_bytes);
  Bytes header(24);
  Put(header, 8, Get(&write.entry[2], 2), 2);
  Put(header, 10, tag, 2);
  Put(header, 12, write.got, 4);
  Put(header, 16, bytes, 4);
  write.asked = write.got + bytes;
  return SendPdu(kReady, 0, header);
}

bool NvmfTarget::Session::DataCame(const Bytes& header, const Bytes& data) {
  const auto tag = static_cast<uint16_t>(Get(&header[10], 2));
  const auto found = writes.find(tag);
  if (found == writes.end()) return Bad();
  PendingWrite& write = found->second;
  const bool fits = Get(&header[12], 4) == write.got && Get(&header[16], 4) == data.size() &&
                    write.got + data.size() <= write.asked && data.size() <= target.options_.h2c_bytes_max &&
                    Get(&header[8], 2) == Get(&write.entry[2], 2);
  if (!fits) return Bad();
  std::copy(data.begin(), data.end(), write.data.begin() + static_cast<ptrdiff_t>(write.got));
  write.got += data.size();
  if (((header[1] & kLast) != 0) != (write.got == write.asked)) return Bad();
  if (write.got < write.asked) return true;
  if (write.got < write.data.size()) return AskMore(tag, write);
  const PendingWrite whole = std::move(write);
  writes.erase(found);
  return Store(whole.entry, whole.data, whole.data.size());
}

}  // namespace cleat::test
