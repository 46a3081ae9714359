// SPDX-License-Identifier: Apache-2.0
// A disk in an image of a Ceph cluster, through librbd. Whatever may block happens on the thread of the image's rados
// client (rados_client.h); reactors submit I/O and collect completions.
//
// Ownership: a writer holds librbd's exclusive lock, taken explicitly, for as long as it has Acquired the device;
// nobody else can write then, and whoever lost the lock can't either. Beside the lock stands who has it
// (owner_record.h). Readers take no lock.
//
// A cluster that hangs holds up: the disk's I/O, which waits, however long (it is never given up: what librados gives
// up still lands), and every coroutine here. Nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "block/device.h"
#include "modules/rbd/client_pool.h"
#include "modules/rbd/rbd_cluster.h"
#include "reactor/task.h"

namespace cleat::modules {

// The most that one discard or write zeroes may cover: eight objects of the usual size, each an operation of its own.
inline constexpr uint64_t kRbdZeroBytesMax = uint64_t{32} << 20;
inline constexpr uint64_t kRbdLockWaitNs = kNsPerSecond;

// On the control reactor, between OpenRbd's return and Close's; the owner of the device may close it from there.
struct RbdEvents {
  // The image has another size now: by `rbd resize`, or by Device::Resize. Once for each change that is seen, the last
  // one for certain.
  std::function<void(uint64_t size_bytes)> resized;
  // Nothing of this disk will work again until it is closed and opened anew: why, for people. Once.
  std::function<void(const Error& why)> fenced;
};

struct RbdOptions {
  RbdOptions(block::DiskShape s, std::shared_ptr<const ClusterOptions> c, std::string pool_name,
             std::string image_name, block::AccessMode mode)
      : shape(std::move(s)),
        cluster(std::move(c)),
        pool(std::move(pool_name)),
        image(std::move(image_name)),
        access(mode) {}

  block::DiskShape shape;
  std::shared_ptr<const ClusterOptions> cluster;
  std::string pool;
  std::string name_space;  // empty: the pool's default one
  std::string image;
  std::string snapshot;  // not empty: the image as it was then; for readers alone
  block::AccessMode access;
  // What the image is known to have had, if the disk has become larger since: Acquire makes it as large as the disk. 0: it
  // is as large as the disk.
  uint64_t image_bytes_min = 0;
  RbdEvents events;
  // How long Acquire waits for an owner that lives: it may be on its way out.
  uint64_t lock_wait_ns = kRbdLockWaitNs;
};

// On the control reactor. `clients` outlives the device. Takes no lock.
//   kInvalidArgument     options that make no sense: a writer of a snapshot, a bad cluster
//   kNotFound            no such pool, image or snapshot
//   kPermissionDenied    wrong key, or capabilities that do not suffice
//   kFailedPrecondition  smaller than it is known to have been, or, for readers, than the disk; without the feature
//                        exclusive-lock; its own settings are unsafe
//   kUnavailable         no monitor answers within the cluster's timeout
// Acquire: kFailedPrecondition names the living owner; kUnavailable when the cluster does not answer. An owner that is
// proven dead - a process of this machine that is gone - is shut out (blocklisted, once for all of its images) and its
// lock broken. kFailedPrecondition also when the image has become smaller, or can't grow to the disk's size: the lock is
// given back then.
// Resize grows the image if it has not grown yet. Without the device being acquired it takes the lock for that long, as Acquire
// does, or has a living owner do it: kUnavailable when that one does not watch the image any more.
Task<Result<std::unique_ptr<block::Device>>> OpenRbd(RbdOptions options, ClientPool& clients);

}  // namespace cleat::modules
