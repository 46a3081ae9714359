// SPDX-License-Identifier: Apache-2.0
// A pretend VM that outlives the engine's processes, as QEMU does: its memory, its rings and the in-flight memory stay,
// and each process that connects is given them. The guest in it keeps many requests under way, checks every answer, and
// nothing tells it that a process died. A SimGuest (sim_guest.h) goes through all that a VM does; this one only lives.
//
// Freeze and Thaw undo what a dead process still did: the bytes and the notifications are again those of its death.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "crash_medium.h"
#include "guest_queue.h"
#include "kill_switch.h"
#include "sim_endpoint.h"
#include "store_order.h"
#include "world.h"

namespace cleat::sim {

class CrashGuest final : public SimPeer, public Actor {
 public:
  struct Options {
    std::string name;
    uint64_t seed = 1;
    bool packed = false;
    GuestDeviceType device = GuestDeviceType::kBlk;
    Defect defect = Defect::kNone;
    uint64_t think_ns_max = 50 * kNsPerUs;
    uint32_t burst_max = 6;
    uint32_t slots_max = 8;
    uint32_t resets_per_thousand = 0;       // of the device by its driver, a step
    uint32_t unit_resets_per_thousand = 0;  // by task management; virtio-scsi
  };

  CrashGuest(World& world, const KillSwitch& kill, const Options& options);
  ~CrashGuest() override;

  perf::GuestMemory& memory() { return *memory_; }
  void SetDisk(const GuestDisk& disk) { disk_ = disk; }
  const DiskModel* known_disk() const { return disk_.model; }
  // Another disk has taken this one's place. A virtio-blk guest knows nothing of it until its VM is reset, at that time,
  // or as soon as that may be; a virtio-scsi guest asks for nothing more, and knows the new one when all that it had
  // asked for was answered.
  struct Replacement {
    GuestDisk disk;
    uint64_t reset_ns = 0;
    std::function<bool()> may_reset;
  };
  void ReplaceDisk(Replacement next);
  // The first disk is attached again before the guest has forgotten it.
  void KeepDisk() { next_.reset(); }
  bool replacing() const { return next_.has_value(); }
  bool resetting() const { return resetting_ || unit_resetting_; }
  // The guest has an in-flight region, so its device has been started with a disk.
  bool has_log() const { return inflight_bytes_ != nullptr; }
  void AddLoad(uint64_t requests) { budget_ += requests; }

  bool settled() const { return budget_ == 0 && open() == 0 && made_ && !resetting_ && !replacing(); }
  uint64_t open() const;
  uint64_t completed() const;
  void CheckIdle();
  void GiveUp();  // what is open will never be answered; before it dies
  RingPlaces places() const;

  // ---- A process dies: keeps what it leaves behind; puts it back, and sees what it had been told.
  void Freeze();
  void Thaw();

  // ---- SimPeer
  bool listening() const override { return !kill_.dead(); }
  Task<Status> Serve(Connection& connection) override;
  void Disconnected() override;

  // ---- Actor
  bool Step() override;
  uint64_t NextNs() const override;
  std::string Describe() const override;

 private:
  struct Signals {
    bool call, kick;
  };
  Task<Status> Converse(Connection& connection);
  Task<Status> Negotiate(Connection& connection);
  Task<Status> MapMemory(Connection& connection);
  Task<Status> SetInflight(Connection& connection);
  Task<Status> SetUpRing(Connection& connection, uint32_t index);
  Task<Status> Reset(Connection& connection);
  void MakeQueues(Connection& connection);
  void DropQueues();
  bool scsi() const { return options_.device == GuestDeviceType::kScsi; }
  bool wants_more() const { return made_ && !resetting_ && budget_ > 0 && !(scsi() && replacing()); }
  bool ToBeReset() const {
    return replacing() && !scsi() && !resetting_ && connection_ != nullptr && next_->may_reset();
  }
  void KnowNextDisk();
  Task<Status> BetweenMessages(Connection& connection);
  bool Collect(bool must_look);
  void ResetUnit();
  void CheckUnitReset(uint8_t answer);
  void Burst();

  World& world_;
  const KillSwitch& kill_;
  const Options options_;
  Random random_;
  GuestDisk disk_;
  std::optional<Replacement> next_;  // of disk_

  std::unique_ptr<perf::GuestMemory> memory_;
  std::unique_ptr<perf::LayoutPlanner> planner_;
  std::vector<std::unique_ptr<GuestQueue>> queues_;
  uint64_t features_ = 0;
  bool made_ = false;       // the rings
  bool resetting_ = false;  // the driver wants to, and the device has not done it yet
  bool unit_resetting_ = false;
  bool unit_was_reset_ = false;
  bool full_ = false;  // nothing more fits into the rings
  Connection* connection_ = nullptr;
  vhost::Session::InflightArea inflight_;
  uint8_t* inflight_bytes_ = nullptr;  // mapped; nullptr: there is none yet

  std::vector<uint8_t> kept_memory_;
  std::vector<uint8_t> kept_inflight_;
  std::vector<Signals> kept_signals_;

  uint64_t budget_ = 0;
  uint64_t completed_before_ = 0;  // in rings that are gone
  uint64_t next_burst_ns_ = 0;
};

}  // namespace cleat::sim
