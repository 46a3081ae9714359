// SPDX-License-Identifier: Apache-2.0
// A pool's drive: a block device, or a regular file. Keeps what else uses drives away from it as long as it lives:
//
//   the kernel's exclusive claim (O_EXCL) on a block device     mounts, RAID, LVM, partitioning, engines that have it as a whole disk
//   a shared flock on a block device                            engines that have it as a whole disk
//   an exclusive OFD lock on bytes 0 to 4095                    another cleatd; engines that have the file as a whole disk
//
// Engines that serve the pool's disks have the drive open beside it. Owned by one thread at a time, which it may block for as long as the
// drive takes.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "control/pools/host_drive.h"

namespace cleat::control {

class BlockDrive final : public HostDrive {
 public:
  // `found`: the drive, opened by the policy of paths (O_PATH); `path` is its name in errors, which begin with it.
  //   kFailedPrecondition  neither a block device nor a regular file; in use by a mount, RAID, LVM or a whole disk; larger blocks than a pool's
  //   kUnavailable         locked by another process, which may be one that was killed and whose last write is under way
  //   kPermissionDenied    this process may not write it, or it is read-only
  //   else                 as open(2) says
  static Result<std::unique_ptr<BlockDrive>> Open(const UniqueFd& found, const std::string& path);
  // The same, for who has any drive.
  static Result<std::unique_ptr<HostDrive>> OpenAny(const UniqueFd& found, const std::string& path);

  // A drive to look at what is on it, whoever uses it: takes no lock and no claim, flushes nothing, and can't be written (kIo). Errors as
  // Open's.
  static Result<std::unique_ptr<BlockDrive>> OpenToRead(const UniqueFd& found, const std::string& path);

  // A multiple of pool::kBlockBytes: what is left at the end is not used.
  uint64_t size_bytes() const override { return size_bytes_; }
  bool is_block_device() const { return block_device_; }
  const UniqueFd& file() const override { return fd_; }

  Status Read(uint64_t offset_bytes, std::span<uint8_t> to) override;
  Status Write(uint64_t offset_bytes, std::span<const uint8_t> from) override;
  // Takes the drive's own command where it has one: the space is given back where the kernel knows that it reads as zeroes then.
  Status Zero(uint64_t offset_bytes, uint64_t length_bytes) override;
  Status Flush() override;

  bool TryLock(uint64_t offset_bytes, uint64_t length_bytes) override;
  void Unlock(uint64_t offset_bytes, uint64_t length_bytes) override;
  Status CheckEmpty() const override;

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  explicit BlockDrive(std::string path) : path_(std::move(path)) {}
  Status OpenFile(const UniqueFd& found, int access);
  Status UsePageCacheWhereItMust();
  Status Lock();
  Status Claim();
  Status Measure();
  Status WriteZeroes(uint64_t offset_bytes, uint64_t length_bytes);
  Error Failed(int error_number, const char* what, uint64_t offset_bytes) const;

  const std::string path_;
  UniqueFd fd_;
  UniqueFd claim_;  // of a block device
  bool block_device_ = false;
  uint64_t size_bytes_ = 0;
  std::unique_ptr<uint8_t[], Free> buffer_;  // aligned for O_DIRECT
};

}  // namespace cleat::control
