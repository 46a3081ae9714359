// SPDX-License-Identifier: Apache-2.0
// The driver's side of one virtqueue, in guest memory: what a guest's kernel does, with any legal chain, and raw access
// for chains that are not. Split (virtio 1.2, 2.7) in split_driver_ring.h, packed (2.8) in packed_driver_ring.h. The
// device's writes are checked as a careful guest would; a device that breaks the rules breaks the ring (see broken()),
// it never breaks us.
//
// Owned by a VirtioDriver or a test, which has to have stopped the device before it destroys the ring; uses a
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
#include "perf/vhost_user/guest_memory.h"
#include "perf/wire/virtqueue.h"

namespace cleat::perf {

// A piece of a request in guest memory; one descriptor.
struct Segment {
  uint64_t gpa = 0;
  uint32_t len = 0;
  bool writable = false;  // by the device
};

struct RingOptions {
  uint16_t size = 128;            // kSizeMax at most; a power of two when split
  bool event_idx = true;          // as negotiated
  uint16_t indirect_entries = 0;  // capacity of each head's indirect table; 0: none are made
  bool packed = false;            // as negotiated
};

enum class PopResult : uint8_t { kNone, kDone, kBroken };

struct UsedEntry {
  uint64_t token = 0;
  uint32_t written_bytes = 0;  // as the device says; never more than the chain's writable bytes
};

class PackedDriverRing;

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
  virtual ~DriverRing();
  DriverRing(const DriverRing&) = delete;
  DriverRing& operator=(const DriverRing&) = delete;

  // Puts a chain (at least one segment) into the available ring, not yet seen by the device. Nothing when
  // there are too few free descriptors or the chain is longer than an indirect table. `token` comes back in
  // the UsedEntry.
  virtual std::optional<uint16_t> Add(std::span<const Segment> chain, bool indirect, uint64_t token) = 0;

  // Makes what was added visible; says whether the device wants a kick. Submit() also kicks.
  virtual bool Publish() = 0;
  void Submit();
  void Kick();  // in any case

  virtual PopResult Pop(UsedEntry* used) = 0;
  bool broken() const { return !broken_reason_.empty(); }
  const std::string& broken_reason() const { return broken_reason_; }

  // Waiting: ask for calls, wait on call_fd() only when that says that nothing has come yet, and when done
  // with waiting ask for none again, which is how a ring begins (polling).
  virtual bool EnableCalls() = 0;  // false: used entries are there already
  virtual void DisableCalls() = 0;
  void ClearCall();  // takes a signal from call_fd(), if there is one
  // All three in one: true when there is something to Pop, false at the time-out.
  bool WaitUsed(uint64_t timeout_ns);

  uint16_t size() const { return options_.size; }
  bool packed() const { return options_.packed; }
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
  // The bases that a front end tells: of a ring that begins, and for a back end that takes over after a crash.
  virtual uint32_t first_base() const = 0;
  virtual uint32_t base_after_crash() const = 0;
  bool kick_pending() const;         // the device has not taken the last kick yet
  virtual bool HasUsed() const = 0;  // something lies there to be popped

  // For misbehaviour with a packed ring; nullptr for a split one.
  virtual PackedDriverRing* AsPacked() { return nullptr; }

  // ---- Posted chains, for a load that is to cost little: a chain's descriptors are taken once (Reserve), written when
  // its form changes (Prepare), and put into the available ring as often as wanted (Post, PopPosted: of the two final
  // classes, inline). A ring has these or Add's chains in flight, never both at once.
  struct Posted {
    uint16_t id = 0;
    uint32_t written_bytes = 0;
  };
  // For a chain of up to `segments`. Nothing when too few descriptors are free or the indirect table is too short.
  virtual std::optional<uint16_t> Reserve(uint16_t segments, bool indirect) = 0;
  virtual void Prepare(uint16_t id, std::span<const Segment> chain) = 0;  // not while it is in flight
  virtual void Unreserve(uint16_t id) = 0;                                // likewise
  bool HasUnpublished() const { return unpublished_ != 0; }

  // ---- Of a split ring only.
  virtual uint16_t avail_idx() const;
  // The device's own index, from memory.
  virtual uint16_t device_used_idx() const;
  // For misbehaviour: descriptors to write freely, a head put in the available ring unchecked (with it come
  // back as many as were taken), and the index set to anything. The used entry of such a head is accepted
  // with any length.
  virtual std::optional<std::vector<uint16_t>> TakeRaw(uint16_t count);
  virtual wire::Descriptor& RawDescriptor(uint16_t index);
  virtual void PushRaw(uint16_t head, uint16_t descriptors, uint64_t token);
  virtual void PublishRawIndex(uint16_t avail_idx);

 protected:
  static constexpr uint64_t kAnyLength = UINT32_MAX;
  struct Head {
    uint64_t token = 0;
    uint64_t writable_bytes = 0;
    uint16_t descriptors = 0;  // 0: not in flight
  };

  DriverRing(GuestMemory& memory, const RingOptions& options) : memory_(memory), options_(options) {}
  // The three parts and the indirect tables.
  Status AllocateMemory(uint64_t desc_bytes, uint64_t avail_bytes, uint64_t used_bytes);
  virtual Status Initialize() = 0;
  // virtio 1.2, 2.7.10 and 2.8.10: does going from `old_idx` to `new_idx` pass `event`?
  static bool PassesEvent(uint16_t event, uint16_t new_idx, uint16_t old_idx) {
    return static_cast<uint16_t>(new_idx - event - 1) < static_cast<uint16_t>(new_idx - old_idx);
  }
  PopResult Break(std::string reason);
  // The cold half of CheckUsed for posted chains.
  [[gnu::cold, gnu::noinline]] PopResult BreakUsed(uint32_t id, uint32_t written_bytes);
  // Finds fault with what the device says of a used chain.
  std::optional<std::string> CheckUsed(uint32_t id, uint32_t written_bytes) const;
  uint64_t table_bytes() const {
    return sizeof(wire::Descriptor) * uint64_t{options_.indirect_entries} * options_.size;
  }
  uint64_t TableGpa(uint16_t head) const {
    return tables_gpa_ + sizeof(wire::Descriptor) * uint64_t{options_.indirect_entries} * head;
  }
  uint8_t* Table(uint16_t head) {
    return tables_ + sizeof(wire::Descriptor) * size_t{options_.indirect_entries} * head;
  }

  GuestMemory& memory_;
  const RingOptions options_;
  uint64_t desc_gpa_ = 0, avail_gpa_ = 0, used_gpa_ = 0, tables_gpa_ = 0;
  uint64_t desc_bytes_ = 0, avail_bytes_ = 0, used_bytes_ = 0;
  uint8_t* tables_ = nullptr;
  UniqueFd kick_fd_, call_fd_, err_fd_;

  // Ours, never read back from memory that the device can write.
  struct Reserved {
    uint64_t writable_bytes = 0;
    uint16_t descriptors = 0;  // 0: not reserved
    uint16_t used_descriptors = 0;
    bool indirect = false;
  };
  std::vector<Head> heads_;
  std::vector<Reserved> reserved_;
  uint16_t free_count_ = 0;
  uint16_t in_flight_ = 0;
  uint32_t unpublished_ = 0;  // chains that were added since
  std::string broken_reason_;
  Stats stats_;
};

}  // namespace cleat::perf
