// SPDX-License-Identifier: Apache-2.0
#include "crash_swaps.h"

#include <algorithm>
#include <utility>

namespace cleat::sim {
namespace {

constexpr uint64_t kStoringNsMax = kNsPerMs;  // cleatd's, from an engine's report to the engines' next order
constexpr uint64_t kResetNsMax = 3 * kNsPerMs;  // from a swap to the VM's reset
constexpr uint64_t kReturnNsMax = kNsPerMs;     // ... to when it is taken back

}  // namespace

CrashSwaps::CrashSwaps(World& world, const KillSwitch& kill, std::vector<CrashVm>& vms,
                       const std::vector<std::unique_ptr<CrashGuest>>& guests, uint64_t seed)
    : world_(world), kill_(kill), vms_(vms), guests_(guests), random_(seed), recorded_(vms.size()) {}

GuestDisk CrashSwaps::DiskOf(CrashMedium& medium) {
  return {&medium.model(), 1, false, medium.may_fail()};
}

CrashGuest& CrashSwaps::GuestOf(const CrashVm& vm) const {
  return *guests_[static_cast<size_t>(&vm - vms_.data())];
}

bool CrashSwaps::MaySwap(const CrashVm& vm) const {
  const CrashGuest& guest = GuestOf(vm);
  return guest.has_log() && !guest.replacing() && !guest.resetting();
}

void CrashSwaps::SetProcesses(std::vector<EngineProcess*> processes) {
  if (!processes.empty()) std::fill(recorded_.begin(), recorded_.end(), 0);
  processes_ = std::move(processes);
}

// ---- What cleatd stores

void CrashSwaps::OnReport(const CrashVm& vm, const engine::ControllerReport& report) {
  if (!report.next_disk.known() || report.next_disk == vm.last_disk) return;
  Spawn(Store(vms_[static_cast<size_t>(&vm - vms_.data())], report.next_disk));
}

// A report of a disk that is attached no more comes too late.
Task<void> CrashSwaps::Store(CrashVm& vm, DiskIdentity last) {
  ++busy_;
  co_await world_.control().SleepFor(random_.Below(kStoringNsMax));
  if (!kill_.dead() && last == vm.medium().identity()) {
    vm.last_disk = last;
    PutEverywhere(vm);
  }
  --busy_;
}

void CrashSwaps::PutEverywhere(const CrashVm& vm) {
  for (EngineProcess* process : processes_) {
    // The process may have given the controller away.
    if (!process->terminating() && process->engine().ControllerByName(EngineProcess::ControllerOf(vm)))
      Fails(vm, "telling the last disk", process->PutController(vm, EngineProcess::Stance::kServe));
  }
}

// The disk that is taken away is the last one, unless cleatd knows of one that the guest had before, and still has.
void CrashSwaps::KeepLastDisk(CrashVm& vm) {
  if (!vm.last_disk.known()) vm.last_disk = vm.medium().identity();
}

void CrashSwaps::Replace(CrashVm& vm) {
  KeepLastDisk(vm);
  const CrashMedium& first = vm.medium();
  vm.attached = (vm.attached + 1) % vm.media.size();
  ++count_;
  world_.Note(vm.name + " is given " + vm.medium().name());
  // What a dead process has under way still goes to and from the guest's memory, which a reset would not change.
  GuestOf(vm).ReplaceDisk({DiskOf(vm.medium()), world_.now_ns() + random_.Below(kResetNsMax),
                           [&first] { return first.all_landed(); }});
}

bool CrashSwaps::Fails(const CrashVm& vm, const char* what, const Status& status) {
  if (kill_.dead() || world_.failed()) return true;
  if (!status) world_.Violation(vm.name + ": " + what + ": " + status.error().message);
  return !status;
}

// ---- While no process is there

void CrashSwaps::OnDeath() {
  for (size_t i = 0; i < vms_.size(); ++i) recorded_[i] = vms_[i].medium().waited_for();
}

void CrashSwaps::SwapBetweenProcesses() {
  for (size_t i = 0; i < vms_.size(); ++i) {
    const bool blk = vms_[i].type == engine::ControllerType::kBlk;
    const bool recorded = guests_[i]->open() == recorded_[i] && vms_[i].medium().all_landed();
    if (MaySwap(vms_[i]) && (blk || recorded)) Replace(vms_[i]);
  }
}

// ---- Under running guests

void CrashSwaps::SwapUnderGuests(EngineProcess& process) {
  for (CrashVm& vm : vms_) {
    if (vm.type == engine::ControllerType::kBlk && MaySwap(vm)) Spawn(Swap(vm, process));
  }
}

Task<void> CrashSwaps::Swap(CrashVm& vm, EngineProcess& process) {
  ++busy_;
  auto exchange = Exchange(vm, process);
  const bool exchanged = co_await std::move(exchange);
  if (exchanged && random_.Chance(1, 2)) {
    co_await world_.control().SleepFor(random_.Below(kReturnNsMax));
    auto back = Return(vm, process);
    co_await std::move(back);
  }
  --busy_;
}

Task<bool> CrashSwaps::Exchange(CrashVm& vm, EngineProcess& process) {
  Replace(vm);
  PutEverywhere(vm);
  auto detach = process.DetachDisk(vm);
  if (Fails(vm, "detaching", co_await std::move(detach))) co_return false;
  auto attach = process.AttachDisk(vm);
  co_return !Fails(vm, "attaching the next disk", co_await std::move(attach));
}

// Attaches the disk again that the guest still knows. The guest may be reset meanwhile, and have forgotten it.
Task<void> CrashSwaps::Return(CrashVm& vm, EngineProcess& process) {
  CrashGuest& guest = GuestOf(vm);
  if (kill_.dead() || !guest.replacing() || guest.resetting()) co_return;
  auto detach = process.DetachDisk(vm);
  if (Fails(vm, "detaching the next disk", co_await std::move(detach))) co_return;
  if (guest.replacing() && !guest.resetting()) {
    vm.attached = (vm.attached + vm.media.size() - 1) % vm.media.size();
    guest.KeepDisk();
    ++returned_;
    world_.Note(vm.name + " is given " + vm.medium().name() + " back");
  }
  auto attach = process.AttachDisk(vm);
  Fails(vm, "attaching again", co_await std::move(attach));
}

}  // namespace cleat::sim
