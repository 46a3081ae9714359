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

  // Under running guests, by that process; of virtio-blk, whose guests don't notice. Busy until it is done.
  void SwapUnderGuests(EngineProcess& process);
  // While no process is there. Of virtio-scsi only where all that the guest had asked for was recorded as the first
  // disk's when the last process died, and has landed: what nobody has fetched yet is for whatever disk the target has
  // then, of which the guest is told by a unit attention; and its requests are answered at once, which gives it their
  // memory back.
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
