// SPDX-License-Identifier: Apache-2.0
// A file that is a pool's drive, mostly holes.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "modules/uring/placement.h"
#include "pool/drive.h"
#include "pool/pool_drive.h"

namespace cleat::test {

// What cleatd does on a drive, on a file or a block device.
class WritingDrive final : public pool::Drive {
 public:
  explicit WritingDrive(const std::string& path) : fd_(open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    struct stat found {};
    CLEAT_CHECK(fd_.valid() && fstat(fd_.get(), &found) == 0);
    is_block_device_ = S_ISBLK(found.st_mode);
  }

  uint64_t size_bytes() const override { return static_cast<uint64_t>(lseek(fd_.get(), 0, SEEK_END)); }
  Status Read(uint64_t offset_bytes, std::span<uint8_t> to) override {
    return Whole(pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset_bytes)), to.size());
  }
  Status Write(uint64_t offset_bytes, std::span<const uint8_t> from) override {
    return Whole(pwrite(fd_.get(), from.data(), from.size(), static_cast<off_t>(offset_bytes)), from.size());
  }
  Status Zero(uint64_t offset_bytes, uint64_t length_bytes) override {
    // A drive does this by itself. In an emulated guest it takes seconds to write as many zeroes as a pool's maps take.
    if (is_block_device_ && fallocate(fd_.get(), FALLOC_FL_ZERO_RANGE, static_cast<off_t>(offset_bytes),
                                      static_cast<off_t>(length_bytes)) == 0)
      return Ok{};
    return Write(offset_bytes, std::vector<uint8_t>(length_bytes, 0));
  }
  Status Flush() override { return Whole(fsync(fd_.get()), 0); }

 private:
  static Status Whole(ssize_t done, uint64_t wanted) {
    if (done == static_cast<ssize_t>(wanted)) return Ok{};
    return Error(ErrorCode::kIo, "the drive did not do all");
  }

  const UniqueFd fd_;
  bool is_block_device_ = false;
};

constexpr uint64_t kPoolExtentBytes = pool::kExtentBytesMin;
constexpr pool::Uid kPoolUid{1, 2, 3};

inline pool::Label PoolLabel(uint32_t extents) {
  pool::Label label;
  label.pool = kPoolUid;
  label.host = {9};
  label.extent_bytes = kPoolExtentBytes;
  label.extents = extents;
  label.name = "pool";
  return label;
}

inline modules::Placement PlacementOf(const pool::MapDisk& disk) {
  return {kPoolUid, kPoolExtentBytes, disk.extents, DiskIdentity(disk.identity)};
}

inline uint64_t BytesOf(const pool::MapDisk& disk) {
  return pool::CountOf(disk.extents) * kPoolExtentBytes;
}

// Where a byte of the disk lies, found anew by what layout.h says.
inline uint64_t OnDrive(const pool::MapDisk& disk, uint64_t at) {
  std::vector<uint64_t> extents;
  for (const pool::ExtentRun& run : disk.extents) {
    for (uint32_t i = 0; i < run.count; ++i) extents.push_back(run.first + i);
  }
  return pool::kDataOffset + extents.at(at / kPoolExtentBytes) * kPoolExtentBytes + at % kPoolExtentBytes;
}

// Makes the drive at `path` a pool of that many extents with these disks.
inline void MakePool(const std::string& path, uint32_t extents, std::vector<pool::MapDisk> disks) {
  WritingDrive drive(path);
  pool::PoolDrive pool(drive, 1);
  Status done = pool.Format(PoolLabel(extents));
  ASSERT_TRUE(done.ok()) << done.error().message;
  pool::Map map;
  map.pool = kPoolUid;
  map.disks = std::move(disks);
  done = pool.WriteMap(std::move(map));
  ASSERT_TRUE(done.ok()) << done.error().message;
}

// The next map of a pool that was made so.
inline void WriteMap(const std::string& path, uint32_t extents, pool::Map map) {
  WritingDrive drive(path);
  pool::PoolDrive pool(drive, 1);
  const Status opened = pool.Open(PoolLabel(extents));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const Status done = pool.WriteMap(std::move(map));
  ASSERT_TRUE(done.ok()) << done.error().message;
}

inline uint64_t PoolFileBytes(uint32_t extents) {
  return pool::kDataOffset + extents * kPoolExtentBytes;
}

}  // namespace cleat::test
