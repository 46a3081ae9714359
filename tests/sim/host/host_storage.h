// SPDX-License-Identifier: Apache-2.0
// What the engines of a host have in common: the disks' locks, and the guests, of whom each lets one engine in. It is where two engines that
// serve the same thing would meet, which is a violation. Locks of a process that died are free a little later, as the kernel needs time for
// what the process had under way. Owned by the test; outlives the processes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "../world.h"
#include "block/device.h"
#include "engine/disks/disk_factory.h"
#include "vhost/endpoint.h"

namespace cleat::sim {

class HostStorage final : public Actor {
 public:
  // What it takes to open, lock or unlock a disk, each, and to let go of a guest.
  static constexpr uint64_t kDelayNsMax = 5 * kNsPerMs;
  static constexpr uint64_t kLockKeptNsMax = 50 * kNsPerMs;  // by a process that died

  explicit HostStorage(World& world);
  ~HostStorage() override;

  // A process is known by its number, from 1.
  void Begin(uint64_t process) { living_.insert(process); }
  // What it does from now on has no effect.
  void Die(uint64_t process);
  bool IsAlive(uint64_t process) const { return living_.contains(process); }

  // Each takes its time, on the reactor of the process.
  Task<void> Delay(Reactor& control, uint64_t process);
  Task<Status> Lock(Reactor& control, uint64_t process, std::string disk, block::AccessMode mode);
  Task<void> Unlock(Reactor& control, uint64_t process, std::string disk);

  void LetIn(uint64_t process, const std::string& controller);
  void LetGo(uint64_t process, const std::string& controller);
  uint64_t ServerOf(const std::string& controller) const;
  // Of these disks and controllers it is not known who has them, so that a second engine may ask for them: the locks decide.
  void SetUndecided(std::set<std::string> names) { undecided_ = std::move(names); }
  // Whether a guest's requests drain in the time that a hand-over has for them.
  bool DrawDrains() { return !disturbed_ || random_.Chance(3, 4); }
  // Disks fail to open and guests to drain now and then, until they are left in peace.
  void LeaveInPeace() { disturbed_ = false; }
  bool DrawFailure() { return disturbed_ && random_.Chance(1, 20); }

  // ---- Actor
  bool Step() override;
  uint64_t NextNs() const override;
  std::string Describe() const override;

 private:
  struct Locks {
    uint64_t writer = 0;
    std::set<uint64_t> readers;
  };
  void Free(uint64_t process);
  void LetNextIn(const std::string& controller);

  World& world_;
  Random random_;
  bool disturbed_ = true;
  std::set<uint64_t> living_;
  std::set<std::string> undecided_;
  std::map<std::string, Locks> locks_;  // by disk
  std::map<std::string, std::set<uint64_t>>
      waiting_;                                // by controller: processes that its guest has not let in yet
  std::map<std::string, uint64_t> servers_;    // by controller
  std::multimap<uint64_t, uint64_t> to_free_;  // dead processes, by the time when their locks are free
};

// The disks of one process: without storage, and with the host's locks.
class HostDisks final : public engine::DiskFactory {
 public:
  HostDisks(HostStorage& storage, Reactor& control, uint64_t process)
      : storage_(storage), control_(control), process_(process) {}
  Task<Result<engine::OpenDisk>> Open(const engine::DiskSpec& disk, block::AccessMode mode,
                                      std::shared_ptr<qos::Group> group, engine::DiskEvents events) override;

 private:
  HostStorage& storage_;
  Reactor& control_;
  const uint64_t process_;
};

// The endpoints of one process: each guest's socket is there, and the guest never starts its rings.
class HostEndpoints final : public vhost::EndpointFactory {
 public:
  HostEndpoints(HostStorage& storage, Reactor& control, uint64_t process)
      : storage_(storage), control_(control), process_(process) {}
  Result<std::unique_ptr<vhost::Endpoint>> Make(const vhost::EndpointOptions& options,
                                                virtio::DeviceModel& model,
                                                vhost::StatusFn on_status) override;

 private:
  HostStorage& storage_;
  Reactor& control_;
  const uint64_t process_;
};

}  // namespace cleat::sim
