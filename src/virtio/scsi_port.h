// SPDX-License-Identifier: Apache-2.0
// What the queues of one I/O reactor know of a virtio-scsi device: its targets as they are reached from here, and the
// request queues that run here. One for each reactor and model, touched on that reactor alone; it outlives the queues.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/intrusive_list.h"
#include "reactor/reactor.h"
#include "reactor/task.h"
#include "scsi/unit_channel.h"
#include "virtio/disk_channel_ref.h"
#include "virtio/earlier_io.h"
#include "virtio/scsi_format.h"

namespace cleat::virtio {

class ScsiQueue;

class ScsiPort {
 public:
  // `earlier`: see EarlierIo; nullptr: no engine was before this one.
  ScsiPort(Reactor& reactor, EarlierIo* earlier) : reactor_(reactor), earlier_(earlier) {}
  ~ScsiPort();
  ScsiPort(const ScsiPort&) = delete;
  ScsiPort& operator=(const ScsiPort&) = delete;

  Reactor& reactor() { return reactor_; }
  EarlierIo* earlier_io() { return earlier_; }
  scsi::UnitChannel* unit(uint32_t target) { return units_[target].get(); }  // nullptr: no such target
  // The addresses of the logical units, for the device's REPORT LUNS unit.
  uint32_t ListUnits(std::span<scsi::Lun, kScsiTargetsMax> out) const;

  observe::DiskCounters* counters(uint32_t target) { return counters_[target]; }
  uint32_t tag(uint32_t target) const {
    return tags_[target];
  }  // its disk's, for in-flight logs (DiskIdentity)
  // `disk` has a channel.
  void Add(uint32_t target, std::shared_ptr<scsi::LogicalUnit> unit, const DiskChannelRef& disk,
           const block::Geometry& geometry);
  // New commands find nobody; goes on when those in flight have ended, and have been counted.
  Task<void> Remove(uint32_t target);

  // ---- Task management
  enum class Quiesced : uint8_t {
    kYes,  // every affected command that the guest had offered has ended, and its answer is in the used ring
    kStopped,  // a queue was stopped with commands that nobody has looked at
    kNoUnit,   // no such target, and nothing is held that was for it
  };
  Task<Quiesced> Quiesce(uint32_t target, scsi::Abort why, std::optional<uint64_t> tag);
  // Whether Quiesce would find a command to end.
  bool Has(uint32_t target, std::optional<uint64_t> tag);

  // ---- For the queues
  // Counted: while any of them drains, commands do not wait for limits. Commands may end before it returns.
  void BypassLimits(bool on);
  void Register(ScsiQueue& queue);
  void Unregister(ScsiQueue& queue);

 private:
  Task<bool> FetchOffered();
  Task<void> AwaitHeld(uint32_t target);
  void TellUnits();

  Reactor& reactor_;
  EarlierIo* const earlier_;
  scsi::TransferMemory memory_;
  std::array<std::unique_ptr<scsi::UnitChannel>, kScsiTargetsMax> units_;
  std::array<observe::DiskCounters*, kScsiTargetsMax> counters_{};
  std::array<uint32_t, kScsiTargetsMax> tags_{};
  observe::ReactorCounters* reactor_counters_ = nullptr;  // since the first disk that came with it
  std::vector<ScsiQueue*> queues_;
  uint32_t bypass_ = 0;
};

}  // namespace cleat::virtio
