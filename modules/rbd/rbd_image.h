// SPDX-License-Identifier: Apache-2.0
// An open image and what may block of it. Made, used and closed on its rados client's thread, but for what says
// otherwise; held by the device and by work on that thread. Closed before its last holder lets go, or never: at the end
// of a process that could not wait.
#pragma once

#include <rados/librados.h>
#include <rbd/librbd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "modules/rbd/owner_record.h"
#include "modules/rbd/rados_client.h"
#include "modules/rbd/used_pools.h"

namespace cleat::modules {

struct RbdOptions;

// The client that has the exclusive lock.
struct LockOwner {
  std::string client;   // "client.4123"
  std::string cookie;   // which of that client's
  std::string address;  // "10.0.0.7:0/312"
  std::optional<OwnerRecord> record;
  OwnerState state = OwnerState::kElsewhere;  // kElsewhere without a record
};

class RbdImage {
 public:
  // The errors of OpenRbd; `*shut_out` when the reason is that this client was blocklisted.
  static Result<std::shared_ptr<RbdImage>> Open(const RadosConnection& at, const RbdOptions& options,
                                                bool* shut_out);
  ~RbdImage();
  RbdImage(const RbdImage&) = delete;
  RbdImage& operator=(const RbdImage&) = delete;

  const std::string& where() const { return where_; }  // "image rbd/ns/a@snap of clusters/c"; any thread
  rbd_image_t handle() const { return image_; }        // for I/O; any thread, until Close
  bool read_only() const { return read_only_; }        // any thread
  // Smaller discards do nothing; 0: none are too small.
  uint32_t discard_granularity_bytes() const { return discard_granularity_bytes_; }
  uint32_t object_bytes() const { return object_bytes_; }

  Result<uint64_t> SizeBytes() const;
  // nullopt: it has that many bytes now, or more; else who has the lock, without which it does not grow. An image that has
  // less than `known_bytes` is not made larger: somebody has cut off what it had. The lock is taken as TryLock does, and given
  // back if it was not ours before.
  Result<std::optional<LockOwner>> Grow(const OwnerRecord& self, uint64_t known_bytes, uint64_t size_bytes);

  // Takes the lock: nullopt when it is ours now, else who has it.
  Result<std::optional<LockOwner>> TryLock(const OwnerRecord& self);
  Status Unlock();
  // The owner was shut out: its lock goes. Ok also when it is gone already.
  Status BreakLock(const LockOwner& owner);

  // `changed` is called on threads of librbd's when something about the image has changed; after Close never again.
  Status Watch(std::function<void()> changed);

  Status Close();
  // The same for an image that is in no hurry: librbd closes it beside the client's thread, and calls `closed` on one of its own. It asks
  // all who watch the image for an answer first, for five seconds when one of them has died and the cluster has not noticed yet.
  using Closed = std::function<void(const Status&)>;
  static void CloseAside(std::shared_ptr<RbdImage> image, Closed closed);

  // A call failed because this client was blocklisted. Any thread.
  bool shut_out() const { return shut_out_.load(std::memory_order_relaxed); }
  // The first caller is told true. Any thread.
  bool SetFenced() { return !fenced_.exchange(true, std::memory_order_relaxed); }

 private:
  RbdImage() = default;
  Status OpenImage(const RadosConnection& at, const RbdOptions& options);
  void AddDataPool();
  Status Examine(const RbdOptions& options);
  Status CheckSize(uint64_t present_bytes, uint64_t known_bytes, uint64_t wanted_bytes) const;
  Status CheckSettings();
  Error UnsafeSetting(const std::string& name, const std::string& value, const std::string& safe) const;
  Result<bool> IsOurs() const;
  Status SetSize(uint64_t size_bytes);
  Result<std::optional<LockOwner>> FindOwner(const OwnerRecord& self) const;
  void LetGo();               // of all but the image
  Status Finish(int result);  // when that is closed
  Status PutRecord(const std::string& client, const std::string& text);
  void RemoveRecord(const std::string& client);
  Error Failed(int result, const std::string& what) const;

  std::string who_;    // the disk
  std::string where_;  // the image
  RadosConnection at_;
  std::vector<UsedPools::Use> pools_;  // the image is in, until it is closed
  rados_ioctx_t io_ = nullptr;
  rbd_image_t image_ = nullptr;
  std::string header_;  // the header object's name
  bool read_only_ = false;
  bool record_put_ = false;
  uint32_t discard_granularity_bytes_ = 0;
  uint32_t object_bytes_ = 0;
  bool watching_ = false;
  uint64_t watch_ = 0;
  std::function<void()> changed_;
  mutable std::atomic<bool> shut_out_{false};
  std::atomic<bool> fenced_{false};
};

// The metadata of an image without librbd, which wants the lock for it: as librbd itself has it in the header object
// (class "rbd", methods metadata_set and metadata_remove). For tests as well. 0 or a negative errno.
int PutImageMetadata(rados_ioctx_t io, const std::string& header, const std::string& key,
                     const std::string& value);
int RemoveImageMetadata(rados_ioctx_t io, const std::string& header, const std::string& key);

}  // namespace cleat::modules
