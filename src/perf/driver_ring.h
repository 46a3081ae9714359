// SPDX-License-Identifier: Apache-2.0
// The driver's side of one split virtqueue (virtio 1.2, 2.7), in guest memory: what a guest's kernel does,
// with any legal chain, and raw access for chains that are not. The device's writes are checked as a careful
// guest would; a device that breaks the rules breaks the ring (see broken()), it never breaks us.
//
// Owned by a BlkDriver or a test, which has to have stopped the device before it destroys the ring; uses a
// GuestMemory that outlives it. One thread. Nothing is allocated after Create, and Add, Publish and Pop make
// no system calls.
//
//   ring->Add(chain, /*indirect=*/false, token);   // as many as fit
//   ring->Submit();                                // one index update and at most one kick for all of them
//   while (ring->Pop(&used) == PopResult::kDone) ...
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "perf/guest_memory.h"
#include "perf/vhost_user_wire.h"

namespace cleat::perf {

// A piece of a request in guest memory; one descriptor.
struct Segment {
  uint64_t gpa = 0;
  uint32_t len = 0;
  bool writable = false;  // by the device
};

struct RingOptions {
  uint16_t size = 128;            // a power of two, kSizeMax at most
  bool event_idx = true;          // as negotiated
  uint16_t indirect_entries = 0;  // capacity of each head's indirect table; 0: none are made
};

enum class PopResult : uint8_t { kNone, kDone, kBroken };

struct UsedEntry {
  uint64_t token = 0;
  uint32_t written_bytes = 0;  // as the device says; never more than the chain's writable bytes
};

class DriverRing {
 public:
  static constexpr uint16_t kSizeMax = 32768;

  struct Stats {
    uint64_t chains = 0;
    uint64_t kicks = 0;
    uint64_t kicks_suppressed = 0;  // the device had said that it was awake
    uint64_t calls = 0;             // eventfd signals taken
  };

  static Result<std::unique_ptr<DriverRing>> Create(GuestMemory& memory, const RingOptions& options);
  ~DriverRing();
  DriverRing(const DriverRing&) = delete;
  DriverRing& operator=(const DriverRing&) = delete;

  // Puts a chain (at least one segment) into the available ring, not yet seen by the device. Nothing when
  // there are too few free descriptors or the chain is longer than an indirect table. `token` comes back in
  // the UsedEntry.
  std::optional<uint16_t> Add(std::span<const Segment> chain, bool indirect, uint64_t token);

  // Makes what was added visible; says whether the device wants a kick. Submit() also kicks.
  bool Publish();
  void Submit();
  void Kick();  // in any case

  PopResult Pop(UsedEntry* used);
  bool broken() const { return !broken_reason_.empty(); }
  const std::string& broken_reason() const { return broken_reason_; }

  // Waiting: ask for calls, wait on call_fd() only when that says that nothing has come yet, and when done
  // with waiting ask for none again, which is how a ring begins (polling).
  bool EnableCalls();  // false: used entries are there already
  void DisableCalls();
  void ClearCall();  // takes a signal from call_fd(), if there is one
  // All three in one: true when there is something to Pop, false at the time-out.
  bool WaitUsed(uint64_t timeout_ns);

  uint16_t size() const { return options_.size; }
  uint16_t free_descriptors() const { return free_count_; }
  uint16_t in_flight() const { return in_flight_; }
  const RingOptions& options() const { return options_; }
  const Stats& stats() const { return stats_; }
  int kick_fd() const { return kick_fd_.get(); }
  int call_fd() const { return call_fd_.get(); }
  int err_fd() const { return err_fd_.get(); }
  uint64_t desc_gpa() const { return desc_gpa_; }
  uint64_t avail_gpa() const { return avail_gpa_; }
  uint64_t used_gpa() const { return used_gpa_; }
  uint16_t avail_idx() const { return avail_shadow_; }
  // The device's own index, from memory: the ring's base for a back end that takes over after a crash.
  uint16_t device_used_idx() const;
  bool kick_pending() const;  // the device has not taken the last kick yet

  // For misbehaviour: descriptors to write freely, a head put in the available ring unchecked (with it come
  // back as many as were taken), and the index set to anything. The used entry of such a head is accepted
  // with any length.
  std::optional<std::vector<uint16_t>> TakeRaw(uint16_t count);
  wire::Descriptor& RawDescriptor(uint16_t index);
  void PushRaw(uint16_t head, uint16_t descriptors, uint64_t token);
  void PublishRawIndex(uint16_t avail_idx);

 private:
  struct Head {
    uint64_t token = 0;
    uint64_t writable_bytes = 0;
    uint16_t descriptors = 0;  // 0: not in flight
  };

  DriverRing(GuestMemory& memory, const RingOptions& options) : memory_(memory), options_(options) {}
  Status AllocateMemory();
  uint16_t TakeDescriptor();
  void Release(uint16_t head);
  PopResult Break(std::string reason);
  void WriteChain(std::span<const Segment> chain, uint16_t head);
  void WriteIndirect(std::span<const Segment> chain, uint16_t head);
  uint64_t TableGpa(uint16_t head) const;

  GuestMemory& memory_;
  const RingOptions options_;
  uint64_t desc_gpa_ = 0, avail_gpa_ = 0, used_gpa_ = 0, tables_gpa_ = 0;
  wire::Descriptor* desc_ = nullptr;
  uint16_t* avail_ = nullptr;  // flags, idx, ring[size], used_event
  uint8_t* used_ = nullptr;    // u16 flags, u16 idx, UsedElement[size], u16 avail_event
  wire::Descriptor* tables_ = nullptr;
  UniqueFd kick_fd_, call_fd_, err_fd_;

  // Ours, never read back from memory that the device can write.
  std::vector<uint16_t> next_;  // of the free list, and of each chain in flight
  std::vector<Head> heads_;
  uint16_t free_head_ = 0;
  uint16_t free_count_ = 0;
  uint16_t in_flight_ = 0;
  uint16_t avail_shadow_ = 0;
  uint16_t avail_published_ = 0;
  uint16_t used_seen_ = 0;    // entries taken
  uint16_t used_cached_ = 0;  // the device's index when last read
  bool calls_enabled_ = false;
  std::string broken_reason_;
  Stats stats_;
};

}  // namespace cleat::perf
