// SPDX-License-Identifier: Apache-2.0
// The owner of a controller's connection for tests: keeps commands with memory of their own, writes down what it hears, and answers what it is
// told to.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "block/memory.h"
#include "nvme/tcp_target/target_connection.h"

namespace cleat::nvme::tcp::test {

struct OwnedCommand : TargetCommand {
  std::vector<uint8_t> bytes;
  std::shared_ptr<block::MemoryRegion> region;
  block::Segment segment;
  bool in_use = false;

  void Give(uint32_t size) {
    bytes.assign(size, 0xee);
    region = block::MemoryRegion::Borrow(bytes.data(), size);
    segment = {region.get(), 0, size};
    data = {&segment, size > 0 ? 1U : 0U};
  }
};

class TargetOwner final : public fabrics::TargetQueueOwner {
 public:
  explicit TargetOwner(uint32_t commands = 64) {
    for (uint32_t i = 0; i < commands; ++i) {
      pool.push_back(std::make_unique<OwnedCommand>());
      pool.back()->tag = static_cast<uint16_t>(i);
    }
  }

  TargetCommand* Take(const fabrics::SubmissionEntry& /*entry*/, uint32_t in_capsule_bytes) override {
    for (const auto& command : pool) {
      if (command->in_use || room == 0) continue;
      --room;
      command->in_use = true;
      command->Give(in_capsule_bytes);
      return command.get();
    }
    return nullptr;
  }
  TargetCommand* TakeHere(const fabrics::SubmissionEntry& entry, std::span<const uint8_t> here) override {
    ++offered;
    auto* const command = static_cast<OwnedCommand*>(Take(entry, static_cast<uint32_t>(here.size())));
    if (command == nullptr || !keeps) return command;
    command->region = block::MemoryRegion::Borrow(const_cast<uint8_t*>(here.data()), here.size());
    command->segment.region = command->region.get();
    return command;
  }
  void Ahead(const fabrics::SubmissionEntry& entry) override { ahead.push_back(entry.cid); }
  TargetCommand* Find(uint16_t tag) override {
    return tag < pool.size() && pool[tag]->in_use ? pool[tag].get() : nullptr;
  }
  void Run(TargetCommand& command) override { run(static_cast<OwnedCommand&>(command)); }
  void DataCame(TargetCommand& command) override { data_came(static_cast<OwnedCommand&>(command)); }
  void Give(TargetCommand& command) override {
    auto& owned = static_cast<OwnedCommand&>(command);
    on_give(owned);
    owned.in_use = false;
    owned.region.reset();
    owned.bytes = {};
    ++given;
  }
  void Ended(const Error& reason) override { ended = reason.message; }

  std::vector<std::unique_ptr<OwnedCommand>> pool;
  uint32_t room = UINT32_MAX;  // commands that Take still gives
  uint32_t given = 0;
  bool keeps = false;  // data that has come stays where it is
  uint32_t offered = 0;
  std::vector<uint16_t> ahead;  // CIDs
  std::function<void(OwnedCommand&)> on_give = [](OwnedCommand&) {};
  std::function<void(OwnedCommand&)> run = [](OwnedCommand&) {};
  std::function<void(OwnedCommand&)> data_came = [](OwnedCommand&) {};
  std::optional<std::string> ended;
};

// All that the connection has to send, in pieces of at most `step` bytes.
inline std::vector<uint8_t> SendAll(TargetConnection& connection, size_t step = SIZE_MAX) {
  std::vector<uint8_t> out;
  std::array<iovec, 5> iovecs;
  while (const uint32_t count = connection.FillSend(iovecs)) {
    size_t sent = 0;
    for (uint32_t i = 0; i < count && sent < step; ++i) {
      const size_t part = std::min(iovecs[i].iov_len, step - sent);
      const auto* const from = static_cast<const uint8_t*>(iovecs[i].iov_base);
      out.insert(out.end(), from, from + part);
      sent += part;
    }
    connection.Sent(sent);
  }
  return out;
}

// Returns how many bytes it took: fewer where it has ended or waits for room.
inline size_t ReceiveAll(TargetConnection& connection, const std::vector<uint8_t>& bytes,
                         size_t step = SIZE_MAX) {
  std::array<iovec, 3> iovecs;
  std::array<uint8_t, 700> buffer;
  size_t at = 0;
  while (at < bytes.size() && !connection.ended() && !connection.waits()) {
    const uint32_t count = connection.ReceiveSpace(iovecs, buffer);
    size_t came = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const size_t part = std::min({iovecs[i].iov_len, bytes.size() - at, step - came});
      if (part > 0) std::memcpy(iovecs[i].iov_base, bytes.data() + at, part);
      at += part;
      came += part;
    }
    connection.Received(came);
    buffer.fill(0xdd);  // the next connection's
  }
  return at;
}

}  // namespace cleat::nvme::tcp::test
