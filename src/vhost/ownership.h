// SPDX-License-Identifier: Apache-2.0
// Whose disks a device's rings would write: the gate before the first ring. A device whose VM migrates shows the same
// disks on two hosts, and one of them at a time may serve. The session says when its rings want to run and when they
// are gone; what is behind the gate is not the transport's business.
//
//   AcquireAsync   the first ring of a connection is complete. It, and those after it, start once owned() is true
//   CancelAcquire  no ring is left, and none waits
//   HandOff        the same, by GET_VRING_BASE with the dirty log on: the VM goes to another host
//
// The source of a migration hands off, its destination acquires; if the migration is aborted, the source acquires again.
// Without a migration owned() is true all the time. On the control reactor; nothing here waits. Outlives the endpoints
// that use it.
#pragma once

#include <functional>
#include <string>

namespace cleat::vhost {

// What a connection shows of what its guest's driver still has under way, as far as the rings have been configured by now.
struct DriverMemory {
  bool of_this_disk =
      false;  // an in-flight log has requests to the device's disk (virtio::DeviceModel::log_disk)
  bool of_another_disk = false;  // ... or to another one of the same host's, or was made for its guest
  bool used_log = false;         // an in-flight region that some ring has been served with, now or earlier
  bool new_log = false;          // one that no ring ever was
  bool at_start = true;          // every ring begins where a driver begins that has just come up
  // QEMU lets go of the region when its guest resets the device, and rings begin anew then.
  bool forgotten() const { return at_start && !used_log; }
  bool operator==(const DriverMemory&) const = default;
};

class Ownership {
 public:
  virtual ~Ownership() = default;

  // Called before each question whether rings may start.
  virtual void Learn(const DriverMemory& /*memory*/) {}

  // Rings may start.
  virtual bool owned() const = 0;
  // `on_owned` is called, on a later turn, each time that owned() has become true; until CancelAcquire or HandOff. What can't be
  // acquired is tried again for as long.
  virtual void AcquireAsync(std::function<void()> on_owned) = 0;
  // What was acquired stays so; what is just being acquired is released.
  virtual void CancelAcquire() = 0;
  // No request is in flight: others may acquire the disks from now on. owned() is false when it returns.
  virtual void HandOff() = 0;
  // For people: what is waited for, and who has it; empty when nothing is.
  virtual std::string pending_reason() const = 0;
};

}  // namespace cleat::vhost
