// SPDX-License-Identifier: Apache-2.0
// The block device abstraction: what every back end and filter implements and every front end is written
// against.
//
//   Device   one open disk (or a filter over one). Made and closed by coroutines on the control reactor.
//   Channel  that disk's state on one I/O reactor: where requests are submitted. Made, used and destroyed on
//            that reactor, shares nothing with other reactors' channels.
//
// A Device outlives its channels; a Channel the requests submitted to it, and calls of its AbortQueued and of its ThrottleControl.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "block/in_doubt.h"
#include "block/memory.h"
#include "block/request.h"
#include "reactor/reactor.h"
#include "reactor/task.h"

namespace cleat::pool {
struct ExtentRun;  // pool/extents.h
}  // namespace cleat::pool

namespace cleat::block {

enum class AccessMode : uint8_t { kReadOnly, kReadWrite };

// The smallest and largest values are checked by CheckGeometry.
struct Geometry {
  uint64_t size_bytes = 0;              // a multiple of logical_block_bytes
  uint32_t logical_block_bytes = 512;   // 512 or 4096: the unit of addressing
  uint32_t physical_block_bytes = 512;  // a power of two >= logical: the unit without read-modify-write
  uint32_t optimal_io_bytes = 0;        // 0: nothing to say
  bool discard = false;
  uint32_t discard_granularity_bytes = 0;
  uint64_t discard_max_bytes = 0;  // one request
  bool write_zeroes = false;       // reads back zero, always
  uint64_t write_zeroes_max_bytes = 0;
  bool write_cache = false;  // completed writes need a flush to be durable
};
Status CheckGeometry(const Geometry& geometry, const std::string& disk);

// What is fixed when a disk is created; each back end completes it to a Geometry.
struct DiskShape {
  DiskShape(std::string disk_name, uint64_t size, uint32_t logical_block, uint32_t physical_block)
      : name(std::move(disk_name)),
        size_bytes(size),
        logical_block_bytes(logical_block),
        physical_block_bytes(physical_block) {}

  Geometry ToGeometry() const {
    Geometry geometry;
    geometry.size_bytes = size_bytes;
    geometry.logical_block_bytes = logical_block_bytes;
    geometry.physical_block_bytes = physical_block_bytes;
    return geometry;
  }

  std::string name;  // "disks/ID": what errors call it
  uint64_t size_bytes;
  uint32_t logical_block_bytes;
  uint32_t physical_block_bytes;
};

// The limits that a channel's requests wait for, as far as front ends have to get past them. Of the one layer of a stack that has
// limits, on its channel's reactor, for as long as the channel.
class ThrottleControl {
 public:
  // While it is on, nothing waits for limits: what does and what comes goes on at once, in order, and the limits are exceeded and
  // owed for. Requests may be completed before it returns.
  virtual void SetBypass(bool on) = 0;
  // When what went past the limits will have been paid for, on the reactor's clock; 0: nothing is owed, or hardly anything. What
  // others take meanwhile does not put it off, limits that change may. Front ends keep a guest that comes back from starting as
  // much anew before that.
  virtual uint64_t DebtUntilNs() const = 0;
  // Whether a request waits for the limits.
  virtual bool HasWaiting() const = 0;

 protected:
  ~ThrottleControl() = default;
};

class Channel {
 public:
  virtual ~Channel() = default;

  // Takes the request until it calls request.Complete(), possibly before this returns. The front end (see
  // pipeline.h) has checked range, alignment and access; a back end may rely on it.
  virtual void Submit(Request& request) = 0;

  // A read or write from `offset_bytes` on is about to be submitted, if nothing comes between: the memory that it will
  // need may be brought into the cache. Called only when wants_prefetch(); a filter asks and tells the channel below.
  virtual bool wants_prefetch() const { return false; }
  virtual void Prefetch(Op /*op*/, uint64_t /*offset_bytes*/) {}

  // The device has grown (Device::Resize): requests may now reach to its new end. On the channel's reactor.
  // A filter tells the channel below.
  virtual void Resized() {}

  // Requests that wait here, and that no layer below has seen, are completed with kAborted: they are not wanted any more.
  // `only`: that one, if it is here; nullptr: all. A filter takes its own out, then asks below: what comes then is new.
  virtual void AbortQueued(const Request* /*only*/) {}
  // The limits before the storage; nullptr: there are none. Asked once, by who opened the channel. A filter has its own or, as
  // FilterChannel, what is below.
  virtual ThrottleControl* throttle() { return nullptr; }
  // The channel below the limits, for requests that have passed them already. Asked once, as throttle().
  virtual Channel& unlimited() { return *this; }
};

class Device {
 public:
  virtual ~Device() = default;

  // Changes only by Resize, which is the owner's to call; whoever needs it elsewhere has a copy.
  const Geometry& geometry() const { return geometry_; }
  const std::string& name() const { return name_; }

  // How I/O reaches the storage, for people, where there is a choice: "NVMe commands (/dev/ng0n1)"; empty: there is none. Never changes.
  virtual std::string io_path() const { return {}; }

  // How many frames this device and those below it push on a request.
  virtual uint32_t frames() const = 0;

  // On `reactor`, the I/O reactor that will use it.
  virtual Result<std::unique_ptr<Channel>> OpenChannel(Reactor& reactor) = 0;

  // The reservation hook: a lock on the open file that the I/O goes through, RBD's exclusive lock, NVMe reservations.
  // From Acquire's return to Release's no other process can write this disk through an owner's path, no write of
  // an earlier owner can land any more, and no read of an earlier user (SetUser) either. Acquired before the first request, released after the last is completed.
  //   failed_precondition  another one owns it, who is named
  //   unavailable          the owner seems to be gone or going, but that its last writes have landed can't be proven
  //                        yet, though it was waited for: try again, and let no guest in meanwhile
  // Devices without contention have nothing to do.
  virtual Task<Status> Acquire(AccessMode /*mode*/) { co_return Ok{}; }
  virtual Task<Status> Release() { co_return Ok{}; }
  // How long Acquire waits for an owner that is on its way out, from the next one on. Devices have a default of their own (nullopt),
  // which is for predecessors that died; who asks again and again wants to hear sooner who has it.
  virtual void SetAcquireTimeout(std::optional<uint64_t> /*wait_ns*/) {}
  // Names the user of the disk, among those that may read it together. Acquire under a name takes the place of the user of that name
  // before, and waits for the last reads of that user as for an owner's last writes, since they go to the same guest's memory. Before Acquire.
  virtual void SetUser(const std::string& /*user*/) {}

  // Takes the size that the storage has grown to; `size_bytes` is above the present one and a multiple of the
  // logical block. kFailedPrecondition when there is not so much. Requests go on meanwhile; those beyond the
  // old end come only after every channel was told (Channel::Resized).
  virtual Task<Status> Resize(uint64_t /*size_bytes*/) {
    co_return Error(ErrorCode::kUnimplemented, name_ + ": this kind of disk can't change its size");
  }

  // Gives a disk of a pool more of its drive, before Resize: `extents`, which live until the task is over, are all that it has then, those of
  // before first. If it is acquired it owns them, too; channels use them once they were told (Channel::Resized). On an error it has what it
  // had. The same extents again are OK.
  //   kUnavailable         somebody has one of them locked, or the drive's map does not have them as the disk's yet: try again
  //   kFailedPrecondition  not the pool's drive any more, or a drive without these extents
  //   kInvalidArgument     they do not begin with those that it has; no disk of a pool
  //   else                 the drive can't be read, or what it carries is damaged
  virtual Task<Status> Extend(const std::vector<pool::ExtentRun>& /*extents*/) {
    co_return Error(ErrorCode::kInvalidArgument, name_ + ": it is no disk of a pool, and has no extents");
  }

  // What becomes of requests that wait for writes in doubt, from now on, also of those that wait already. Devices that have no such writes
  // have nothing to do.
  virtual void SetInDoubt(const InDoubt& /*rule*/) {}
  // How the paths to the storage do; nullopt: of a device that has none of its own.
  virtual std::optional<PathsReport> paths() const { return std::nullopt; }

  // How the disk ends here, before Release and Close.
  enum class Parting : uint8_t {
    kToNextEngine,  // or it was never this one's: without a word
    kToOtherHost,  // its VM migrates; it may come back. Release may fail with kAborted: not yet, it is owned as before
    kDetached,       // others may have it
    kStaysAttached,  // the process ends: what keeps others away has to stay, for the next engine
    kAttachFailed,  // as kDetached, where no engine had it before this one; else as kStaysAttached: a guest is on it, perhaps
  };
  virtual void SetParting(Parting /*parting*/) {}
  // Another host is to have the disk of this attachment (a revision that none other has) as soon as Release can give it to that one
  // (kToOtherHost), which ends this; so does a detach. 0: its guest is here. Engines to come know it where the device has memory that outlives
  // an engine, and elsewhere it is forgotten. It says nothing of another attachment: what is left of one that was deleted while no engine had
  // the disk is over. While it is acquired.
  virtual void SetLeaving(uint64_t /*attachment*/) {}
  virtual bool IsLeaving(uint64_t /*attachment*/) const { return false; }

  // No channel is left. After it the device is only destroyed.
  virtual Task<Status> Close() { co_return Ok{}; }

 protected:
  void SetSize(uint64_t size_bytes) { geometry_.size_bytes = size_bytes; }
  Device(std::string name, const Geometry& geometry) : name_(std::move(name)), geometry_(geometry) {}

 private:
  std::string name_;
  Geometry geometry_;
};

}  // namespace cleat::block
