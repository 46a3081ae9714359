// SPDX-License-Identifier: Apache-2.0
// A controller: the device that a guest sees on one vhost-user socket, and the disks behind it.
//
//   attach:  open the disk -> acquire it -> a channel on each I/O reactor -> the guest device shows it to the guest
//            (an incoming one is acquired when the guest's rings start: engine/controller/disk_ownership.h)
//   resize:  the storage -> the channels -> the guest device tells the guest
//   detach:  the guest device takes it from the guest, its requests end -> channels closed -> released -> closed
//   yield:   the guest device stops and disconnects -> all disks released: it stands by
//   take:    all disks acquired -> the guest device connects
//
// A controller on standby connects to nobody and owns nothing: its disks are opened, so that to take it is quick.
//
// On the control reactor, one operation at a time on a target (a mutex each), so that a disk that hangs holds
// up no other; I/O goes on beside them. Every step of an attach that fails takes the earlier ones back. Kept
// by shared_ptr: an operation that waits for its turn keeps it alive, and finds it closed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "engine/attached/attached_disk.h"
#include "engine/attached/controller_context.h"
#include "engine/attached/target.h"
#include "engine/controller/disk_ownership.h"
#include "engine/guest_devices/guest_device.h"
#include "engine/protocol/spec.h"
#include "reactor/sync.h"
#include "reactor/task.h"

namespace cleat::engine {

// What goes with a controller to the next engine.
struct Yielded {
  HandOver hand_over;
  UniqueFd connections;  // GuestDevice::Yield's
};

class Controller {
 public:
  // `group`: that its spec names, or nullptr. `descriptors`: for its endpoint and its guest's connection.
  enum class Role { kServe, kStandBy };
  Controller(ControllerContext& context, const ControllerSpec& spec, std::shared_ptr<qos::Group> group,
             DescriptorBudget::Reservation descriptors, Role role = Role::kServe);
  ~Controller();  // closed

  // Its disks are there, as far as they can be: the guest may be let in. The same again is OK; an error leaves
  // it as it was.
  Status Serve();

  ControllerReport Report() const;
  std::vector<AttachmentReport> Attachments() const;
  std::optional<AttachmentReport> Attachment(uint32_t target) const;
  bool Has(const std::string& disk) const;
  // What may change while it lives: its revision, and its last disk.
  void Update(const ControllerSpec& spec);
  // Returns when the secrets of its hosts are unwrapped, or could not be.
  Task<void> AwaitHosts() { return guest_device_->AwaitHosts(); }
  const ControllerSpec& spec() const { return spec_; }
  bool stands_by() const { return stands_by_; }

  // OK once the disk is open and the guest can find it. An error leaves the controller as it was. The same
  // attachment again is OK. `attachment` lives until the task is over.
  Task<Status> Attach(const AttachmentSpec& attachment);
  // OK when nothing of it is left. Lasts as long as the storage takes for what is in flight.
  Task<Status> Detach(uint32_t target);
  // Every attachment of the disk here takes the size, unless it has a larger one; OK when there is none. `resize` lives
  // until the task is over.
  Task<Status> Resize(const ResizeSpec& resize);
  // Every attachment of the disk here has these limits from now on, and the on_no_space and in_doubt that go along with them; one that is
  // being opened, too.
  void Limit(const LimitSpec& limit);
  // ---- Hand-over (controller_hand_over.cc)
  // Stops, drains, releases all disks and disconnects, by that time: it stands by. What its disks have used goes to
  // whoever takes it. An error leaves it as it was; one that stands by is OK.
  Task<Result<Yielded>> Yield(uint64_t deadline_ns);
  // Acquires all disks and serves. An error leaves it standing by, and closes `connections`, which are another engine's of Yield; one that
  // serves is OK. `hand_over` lives until the task is over.
  Task<Status> Take(const HandOver& hand_over, UniqueFd connections);
  // What another engine has counted of its disks is added to what is counted here. `counters` as in observe/carried_counters.h;
  // `hand_over` is that engine's, and says where to look. It lives until the task is over.
  Task<void> ImportCounters(UniqueFd counters, const HandOver& hand_over);

  // For good: detaches what is left; refuses everything afterwards. kRefuseIfAttached: failed_precondition
  // while a disk is attached.
  enum class CloseMode { kRefuseIfAttached, kDetach };
  Task<Status> Close(CloseMode mode);

 private:
  Task<Status> Show(AttachedDisk& disk);
  Task<void> Teardown(Target& target, block::Device::Parting parting);
  Task<Status> AcquireAll();
  Task<void> ReleaseAll();
  std::optional<Error> TryLockAll(std::vector<AsyncMutex::Guard>& guards);
  void SetStates(AttachmentState from, AttachmentState to);
  Status CheckAttachable(const AttachmentSpec& attachment) const;
  Status CheckUntaken(const Target& target, const AttachmentSpec& attachment) const;
  void SetState(AttachedDisk& disk, AttachmentState state, const std::string& message);
  void Changed() const { context_.on_controller_changed(spec_.name); }

  ControllerContext& context_;
  ControllerSpec spec_;
  const std::shared_ptr<qos::Group> group_;
  const DescriptorBudget::Reservation descriptors_;
  const std::vector<Reactor*> reactors_;  // that its queues run on
  std::vector<std::unique_ptr<Target>> targets_;
  DiskOwnership ownership_;
  std::unique_ptr<GuestDevice> guest_device_;
  bool stands_by_ = false;
  bool closed_ = false;
};

}  // namespace cleat::engine
