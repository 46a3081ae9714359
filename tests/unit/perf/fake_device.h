// SPDX-License-Identifier: Apache-2.0
// The device's side of a ring, and a virtio-blk disk in memory, as short as they can be and still be correct,
// to test the driver's side against. They check what they read as a device must. A ring is one thread's,
// FakeDisk::Execute is any thread's.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "perf/vhost_user/guest_memory.h"
#include "perf/wire/virtio_blk.h"

namespace cleat::perf {

// What answers the requests of a ring.
class FakeDevice {
 public:
  virtual ~FakeDevice() = default;
  // One request: the bytes it has for the device, and room for the device's. How many of those the device
  // wrote; nothing when that is no request.
  virtual std::optional<uint32_t> Serve(uint16_t queue, std::span<const uint8_t> out,
                                        std::span<uint8_t> in) = 0;
  // Whether the next request of the queue would be answered now. Event queues keep theirs.
  virtual bool Answers(uint16_t /*queue*/) const { return true; }
  virtual wire::BlkConfig Config(uint16_t /*queues*/) const { return {}; }
};

class FakeDisk final : public FakeDevice {
 public:
  explicit FakeDisk(uint64_t bytes) : bytes_(bytes) {}
  std::optional<uint32_t> Serve(uint16_t queue, std::span<const uint8_t> out, std::span<uint8_t> in) override;
  uint8_t Execute(const wire::BlkHeader& header, std::span<const uint8_t> out, std::span<uint8_t> in);
  std::vector<uint8_t>& bytes() { return bytes_; }
  uint64_t flushes() const { return flushes_; }
  // Write number `count` from now is acknowledged and forgotten.
  void LoseWrite(uint64_t count) { writes_until_loss_ = count; }
  wire::BlkConfig Config(uint16_t queues) const override;

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
  size_t Process(FakeDevice& device, const Translate& translate, size_t count = SIZE_MAX, uint16_t queue = 0);
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
  bool Serve(uint16_t queue, uint16_t head, FakeDevice& device, const Translate& translate);

  Layout layout_;
  bool event_idx_ = false;
  bool broken_ = false;
  uint16_t last_avail_ = 0;
  uint16_t used_idx_ = 0;
  uint16_t used_signalled_ = 0;
  size_t longest_chain_ = 0;
};

}  // namespace cleat::perf
