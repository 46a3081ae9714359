// SPDX-License-Identifier: Apache-2.0
// Storage in memory for tests: it answers at once, or when it is told to, or with an error, and remembers what it was
// asked for.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "block/pipeline.h"
#include "reactor/reactor.h"

namespace cleat::scsi {

// What the storage is asked for, and how it behaves.
struct TestDisk {
  struct Seen {
    block::Op op;
    uint64_t offset, length;
    bool fua = false, may_unmap = false;
    bool operator==(const Seen&) const = default;
  };
  std::vector<uint8_t> bytes;
  bool hold = false;
  block::IoStatus result = block::IoStatus::kOk;
  std::vector<Seen> seen;
  block::RequestList held;

  bool CompleteOne() {
    block::Request* request = held.PopFront();
    if (request != nullptr) Finish(*request);
    return request != nullptr;
  }
  void Finish(block::Request& request) {
    if (result == block::IoStatus::kOk) Execute(request);
    request.Complete(result);
  }

 private:
  void Execute(const block::Request& request) {
    uint8_t* at = bytes.data() + request.offset_bytes;
    if (request.op == block::Op::kWriteZeroes || request.op == block::Op::kDiscard) {
      std::memset(at, 0, request.length_bytes);
      return;
    }
    for (const block::Segment& segment : request.segments) {
      if (request.op == block::Op::kRead) std::memcpy(segment.data(), at, segment.length_bytes);
      if (request.op == block::Op::kWrite) std::memcpy(at, segment.data(), segment.length_bytes);
      at += segment.length_bytes;
    }
  }
};

class TestDevice final : public block::Device {
 public:
  TestDevice(TestDisk& disk, const block::Geometry& geometry) : Device("disks/test", geometry), disk_(disk) {}
  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    struct TestChannel final : block::Channel {
      explicit TestChannel(TestDisk& d) : disk(d) {}
      void Submit(block::Request& request) override {
        disk.seen.push_back(
            {request.op, request.offset_bytes, request.length_bytes, request.fua, request.may_unmap});
        if (disk.hold) {
          disk.held.PushBack(request);
        } else {
          disk.Finish(request);
        }
      }
      TestDisk& disk;
    };
    return std::unique_ptr<block::Channel>(std::make_unique<TestChannel>(disk_));
  }

 private:
  TestDisk& disk_;
};

inline block::Geometry TestGeometry(uint32_t block_bytes = 512) {
  block::Geometry geometry;
  geometry.size_bytes = 2 << 20;
  geometry.logical_block_bytes = block_bytes;
  geometry.physical_block_bytes = 4096;
  geometry.discard = geometry.write_zeroes = geometry.write_cache = true;
  geometry.discard_granularity_bytes = 4096;
  geometry.discard_max_bytes = geometry.write_zeroes_max_bytes = 64 << 10;
  return geometry;
}

}  // namespace cleat::scsi
