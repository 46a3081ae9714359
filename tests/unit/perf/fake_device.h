// SPDX-License-Identifier: Apache-2.0
// The device's side of a ring and a disk in memory, as short as it can be and still be correct, to test the
// driver's side against. It checks what it reads as a device must. A ring is one thread's, FakeDisk::Execute
// is any thread's.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "perf/guest_memory.h"
#include "perf/vhost_user_wire.h"

namespace cleat::perf {

class FakeDisk {
 public:
  explicit FakeDisk(uint64_t bytes) : bytes_(bytes) {}
  uint8_t Execute(const wire::BlkHeader& header, std::span<const uint8_t> out, std::span<uint8_t> in);
  std::vector<uint8_t>& bytes() { return bytes_; }
  uint64_t flushes() const { return flushes_; }
  // Write number `count` from now is acknowledged and forgotten.
  void LoseWrite(uint64_t count) { writes_until_loss_ = count; }
  wire::BlkConfig Config(uint16_t queues) const;

 private:
  bool Inside(uint64_t sector, uint64_t length_bytes) const;
  std::mutex mutex_;  // a back end and its successor may use the disk at once
  std::vector<uint8_t> bytes_;
  uint64_t flushes_ = 0;
  uint64_t writes_until_loss_ = UINT64_MAX;
};

// Finds guest memory: by guest-physical address; nullptr where there is none.
using Translate = std::function<uint8_t*(uint64_t gpa, uint64_t size_bytes)>;

class FakeRing {
 public:
  struct Layout {
    uint16_t size = 0;
    uint8_t* desc = nullptr;
    uint8_t* avail = nullptr;
    uint8_t* used = nullptr;
  };

  // `base` is where the available ring is read from next.
  void Start(const Layout& layout, uint16_t base, bool event_idx);
  void Move(const Layout& layout) { layout_ = layout; }
  // Serves what is available, at most `count` chains; how many it served. Nothing more once broken.
  size_t Process(FakeDisk& disk, const Translate& translate, size_t count = SIZE_MAX);
  // Asks for a kick when more comes; true when more has come already.
  bool Rearm();
  // Whether the driver wants a call for what Process completed since the last time.
  bool WantsCall();

  bool broken() const { return broken_; }
  uint16_t last_avail() const { return last_avail_; }
  size_t longest_chain() const { return longest_chain_; }
  void PushUsed(uint32_t id, uint32_t len);  // also for lies

 private:
  struct Piece {
    uint8_t* bytes;
    uint32_t len;
    bool writable;
  };
  uint16_t AvailIdx() const;
  bool Walk(uint16_t head, const Translate& translate, std::vector<Piece>* pieces);
  bool Serve(uint16_t head, FakeDisk& disk, const Translate& translate);

  Layout layout_;
  bool event_idx_ = false;
  bool broken_ = false;
  uint16_t last_avail_ = 0;
  uint16_t used_idx_ = 0;
  uint16_t used_signalled_ = 0;
  size_t longest_chain_ = 0;
};

}  // namespace cleat::perf
