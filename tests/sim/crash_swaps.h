// SPDX-License-Identifier: Apache-2.0
// Disks that take one another's place at a VM's controller, as an operator has it: detach one, attach the other, under a
// running guest or while no engine is there, and sometimes back again. Plays cleatd's part: what it stores, and what it
// tells the engines. A guest goes on with the disk that it knows until it has forgotten it (CrashGuest::ReplaceDisk).
//
// Owned by the run.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "crash_guest.h"
#include "crash_medium.h"
#include "engine_process.h"
#include "kill_switch.h"
#include "world.h"

namespace cleat::sim {

class CrashSwaps {
 public:
  // All outlive it.
  CrashSwaps(World& world, const KillSwitch& kill, std::vector<CrashVm>& vms,
             const std::vector<std::unique_ptr<CrashGuest>>& guests, uint64_t seed);

  // An engine reports which disk the guest has from now on. That is stored, and all engines are told.
  void OnReport(const CrashVm& vm, const engine::ControllerReport& report);
  // Who is told what is stored, while they live. None: all have ended, or died.
  void SetProcesses(std::vector<EngineProcess*> processes);

  // Swaps the disks of virtio-blk controllers under their guests, who don't notice, through that process. Busy until it is done.
  void SwapUnderGuests(EngineProcess& process);
  // Swaps disks while no process is there. A virtio-scsi disk is left alone unless all that its guest had asked for was
  // recorded as that disk's when the last process died, and has landed: a request that nobody has fetched yet is for
  // whatever disk the target has then, of which a unit attention tells the guest; and recorded requests are answered at
  // once, which gives the guest their memory back.
  void SwapBetweenProcesses();
  // The process dies: its media know yet what it has asked for.
  void OnDeath();

  bool busy() const { return busy_ > 0; }
  uint64_t count() const { return count_; }
  uint64_t returned() const { return returned_; }

  static GuestDisk DiskOf(CrashMedium& medium);

 private:
  CrashGuest& GuestOf(const CrashVm& vm) const;
  bool MaySwap(const CrashVm& vm) const;
  void KeepLastDisk(CrashVm& vm);
  void Replace(CrashVm& vm);
  void PutEverywhere(const CrashVm& vm);
  bool Fails(const CrashVm& vm, const char* what, const Status& status);
  Task<void> Store(CrashVm& vm, DiskIdentity last);
  Task<void> Swap(CrashVm& vm, EngineProcess& process);
  Task<bool> Exchange(CrashVm& vm, EngineProcess& process);
  Task<void> Return(CrashVm& vm, EngineProcess& process);

  World& world_;
  const KillSwitch& kill_;
  std::vector<CrashVm>& vms_;
  const std::vector<std::unique_ptr<CrashGuest>>& guests_;
  Random random_;
  std::vector<EngineProcess*> processes_;
  std::vector<uint64_t> recorded_;  // requests that a process left under way when it died, of each VM
  uint64_t busy_ = 0;
  uint64_t count_ = 0;
  uint64_t returned_ = 0;
};

}  // namespace cleat::sim
