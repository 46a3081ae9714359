// SPDX-License-Identifier: Apache-2.0
// Encrypted disks over storage in plain memory that a test can look into, hold back and let fail.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "modules/crypto/crypto.h"
#include "tests/unit/modules/test_disk.h"
#include "tests/unit/modules/xts_reference.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::test {

// What has been asked of it. Outlives the device.
struct Storage {
  explicit Storage(uint64_t bytes, uint32_t block = 512) : content(bytes, 0x5a), block_bytes(block) {}

  struct Seen {
    block::Op op;
    uint64_t offset_bytes;
    uint64_t length_bytes;
    bool fua;
  };
  std::vector<uint8_t> content;
  uint32_t block_bytes;
  std::vector<Seen> seen;
  bool holding = false;              // requests wait until LetGo
  bool recalls = false;              // what waits is in a line, out of which it may be aborted
  std::deque<block::Request*> held;  // in the order in which they came
  uint64_t fail_from = UINT64_MAX;   // what begins there or later fails
  uint32_t resized = 0;

  void LetGo(size_t index = 0) {
    block::Request* request = held[index];
    held.erase(held.begin() + static_cast<ptrdiff_t>(index));
    Serve(*request);
  }
  void AbortQueued(const block::Request* only) {
    std::deque<block::Request*> line = std::exchange(held, {});
    for (block::Request* request : line) {
      if (only != nullptr && only != request) {
        held.push_back(request);
      } else {
        request->Complete(block::IoStatus::kAborted);
      }
    }
  }
  void Serve(block::Request& request) {
    if (request.op != block::Op::kFlush && request.offset_bytes >= fail_from)
      return request.Complete(block::IoStatus::kNoSpace);
    uint8_t* at = content.data() + request.offset_bytes;
    for (const block::Segment& segment : request.segments) {
      if (request.op == block::Op::kRead) std::memcpy(segment.data(), at, segment.length_bytes);
      if (request.op == block::Op::kWrite) std::memcpy(at, segment.data(), segment.length_bytes);
      at += segment.length_bytes;
    }
    if (request.op == block::Op::kDiscard) std::memset(at, 0, request.length_bytes);
    request.Complete(block::IoStatus::kOk);
  }
};

class StorageDevice final : public block::Device {
 public:
  explicit StorageDevice(Storage& storage) : Device("disks/c", GeometryOf(storage)), storage_(storage) {}
  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    return std::unique_ptr<block::Channel>(std::make_unique<StorageChannel>(storage_));
  }
  Task<Status> Resize(uint64_t size_bytes) override {
    storage_.content.resize(size_bytes, 0x5a);
    SetSize(size_bytes);
    co_return Ok{};
  }

 private:
  struct StorageChannel final : block::Channel {
    explicit StorageChannel(Storage& s) : storage(s) {}
    void Submit(block::Request& request) override {
      storage.seen.push_back({request.op, request.offset_bytes, request.length_bytes, request.fua});
      if (storage.holding) return storage.held.push_back(&request);
      storage.Serve(request);
    }
    void Resized() override { ++storage.resized; }
    void AbortQueued(const block::Request* only) override {
      if (storage.recalls) storage.AbortQueued(only);
    }
    Storage& storage;
  };
  static block::Geometry GeometryOf(const Storage& storage) {
    block::Geometry geometry;
    geometry.size_bytes = storage.content.size();
    geometry.logical_block_bytes = geometry.physical_block_bytes = storage.block_bytes;
    geometry.discard = true;
    geometry.discard_granularity_bytes = storage.block_bytes;
    geometry.discard_max_bytes = 1 << 20;
    return geometry;
  }
  Storage& storage_;
};

inline std::vector<uint8_t> RandomBytes(uint64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
  return bytes;
}

inline std::vector<uint8_t> TestKey(keys::Cipher cipher) {
  return RandomBytes(keys::DataKeyBytes(cipher), 99);
}

struct CryptoShape {
  keys::Cipher cipher;
  uint32_t unit_bytes;
  uint32_t block_bytes;
};
inline constexpr CryptoShape kCryptoShapes[] = {
    {keys::Cipher::kAes256Xts, 512, 512},
    {keys::Cipher::kAes128Xts, 512, 4096},
    {keys::Cipher::kAes256Xts, 4096, 4096},
    {keys::Cipher::kAes128Xts, 4096, 4096},
};

// One encrypted disk on its own reactor and pool.
class CryptoRig {
 public:
  explicit CryptoRig(const CryptoShape& shape, uint64_t disk_bytes = 4 << 20,
                     modules::BouncePool::Limits limits = {})
      : storage(disk_bytes, shape.block_bytes), reference(TestKey(shape.cipher), shape.unit_bytes) {
    CLEAT_CHECK(hub.AddReactor(reactors[0], limits).ok());
    auto made = MakeCrypto(storage, shape, hub);
    CLEAT_CHECK(made.ok());
    disk =
        std::make_unique<TestDisk>(std::move(made).value(), reactors[0], [this] { reactors.RunUntilIdle(); });
  }

  static Result<std::unique_ptr<block::Device>> MakeCrypto(Storage& storage, const CryptoShape& shape,
                                                           const modules::CryptoHub& hub) {
    modules::CryptoOptions options(shape.cipher, shape.unit_bytes, keys::Secret::Copy(TestKey(shape.cipher)));
    auto made =
        modules::CryptoDevice::Make(std::make_unique<StorageDevice>(storage), std::move(options), hub);
    if (!made) return std::move(made).error();
    return std::unique_ptr<block::Device>(std::move(made).value());
  }
  // What the disk holds, as a reader of the standard would see it.
  std::vector<uint8_t> Plain(uint64_t offset, uint64_t bytes) const {
    return reference.Decrypt(std::span(storage.content).subspan(offset, bytes), offset);
  }

  Storage storage;
  XtsReference reference;
  VirtualReactors reactors;
  modules::CryptoHub hub;
  std::unique_ptr<TestDisk> disk;
};

}  // namespace cleat::test
