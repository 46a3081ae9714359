// SPDX-License-Identifier: Apache-2.0
// A cleatd's state with pools on regular files, which are sparse: their threads run, and engines are played by who holds a lock on extents.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "control/model/reasons.h"
#include "control/state/host_state.h"
#include "control/state/pools/pool_extents.h"
#include "control/validate/backends.h"
#include "pool/layout.h"
#include "pool/pool_drive.h"
#include "requests.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::pool_rig {

inline constexpr uint64_t kExtentBytes = pool::kExtentBytesMin;

// The drive's file, as an engine or somebody at its platters sees it: without a lock.
class PlainDrive final : public pool::Drive {
 public:
  explicit PlainDrive(const std::string& path) : fd_(open(path.c_str(), O_RDWR | O_CLOEXEC)) {}

  uint64_t size_bytes() const override { return static_cast<uint64_t>(lseek(fd_.get(), 0, SEEK_END)); }
  Status Read(uint64_t offset_bytes, std::span<uint8_t> to) override {
    const ssize_t bytes = pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset_bytes));
    return bytes == static_cast<ssize_t>(to.size()) ? Status(Ok{}) : Status(Error(ErrorCode::kIo, "short"));
  }
  Status Write(uint64_t offset_bytes, std::span<const uint8_t> from) override {
    const ssize_t bytes = pwrite(fd_.get(), from.data(), from.size(), static_cast<off_t>(offset_bytes));
    return bytes == static_cast<ssize_t>(from.size()) ? Status(Ok{}) : Status(Error(ErrorCode::kIo, "short"));
  }
  Status Zero(uint64_t offset_bytes, uint64_t length_bytes) override {
    return Write(offset_bytes, std::vector<uint8_t>(length_bytes));
  }
  Status Flush() override { return Ok{}; }
  // Locks the extent as an engine that has it open does.
  bool Lock(uint32_t extent, short type = F_WRLCK) {
    struct flock range {};
    range.l_type = type;
    range.l_whence = SEEK_SET;
    range.l_start = static_cast<off_t>(pool::kDataOffset + extent * kExtentBytes);
    range.l_len = static_cast<off_t>(kExtentBytes);
    return fcntl(fd_.get(), F_OFD_SETLK, &range) == 0;
  }
  void Unlock(uint32_t extent) { (void)Lock(extent, F_UNLCK); }

 private:
  UniqueFd fd_;
};

inline uint64_t OffsetOf(uint32_t extent) {
  return pool::kDataOffset + extent * kExtentBytes;
}

// Writes a byte to the first and the last block of each extent; reads whether all of these have it.
inline void Fill(PlainDrive& drive, const pool::ExtentRuns& runs, uint8_t byte) {
  const std::vector<uint8_t> block(pool::kBlockBytes, byte);
  for (const pool::ExtentRun& run : runs) {
    for (uint32_t extent = run.first; extent < run.end(); ++extent) {
      CLEAT_CHECK(drive.Write(OffsetOf(extent), block).ok());
      CLEAT_CHECK(drive.Write(OffsetOf(extent) + kExtentBytes - pool::kBlockBytes, block).ok());
    }
  }
}
inline bool IsAll(PlainDrive& drive, const pool::ExtentRuns& runs, uint8_t byte) {
  std::vector<uint8_t> block(pool::kBlockBytes);
  const std::vector<uint8_t> wanted(pool::kBlockBytes, byte);
  for (const pool::ExtentRun& run : runs) {
    for (uint32_t extent = run.first; extent < run.end(); ++extent) {
      for (const uint64_t at : {OffsetOf(extent), OffsetOf(extent) + kExtentBytes - pool::kBlockBytes}) {
        CLEAT_CHECK(drive.Read(at, block).ok());
        if (block != wanted) return false;
      }
    }
  }
  return true;
}

inline v1::CreatePoolRequest NewPool(const std::string& id, const std::string& device) {
  v1::CreatePoolRequest request;
  request.set_pool_id(id);
  request.mutable_pool()->mutable_spec()->set_device(device);
  request.mutable_pool()->mutable_spec()->set_extent_bytes(kExtentBytes);
  return request;
}

inline v1::CreateDiskRequest PoolDisk(const std::string& id, uint32_t extents,
                                      const std::string& pool = "p") {
  v1::CreateDiskRequest request = NullDisk(id, extents * kExtentBytes);
  request.mutable_disk()->mutable_spec()->mutable_pool()->set_pool(PoolName(pool));
  return request;
}

// The disks that there are, or (`deleted`) those that are kept of deleted ones.
inline std::vector<v1::Disk> DisksOf(HostState& state, bool deleted) {
  v1::ListDisksRequest request;
  request.set_show_deleted(deleted);
  std::vector<v1::Disk> disks;
  const v1::ListDisksResponse all = state.disks().List(request).value();
  for (const v1::Disk& disk : all.disks()) {
    if (disk.has_delete_time() == deleted) disks.push_back(disk);
  }
  return disks;
}

// A drive with another one behind it; what a test has against it overrides.
class PassingDrive : public HostDrive {
 public:
  explicit PassingDrive(std::unique_ptr<HostDrive> below) : below_(std::move(below)) {}

  uint64_t size_bytes() const override { return below_->size_bytes(); }
  const UniqueFd& file() const override { return below_->file(); }
  Status Read(uint64_t offset_bytes, std::span<uint8_t> to) override {
    return below_->Read(offset_bytes, to);
  }
  Status Write(uint64_t offset_bytes, std::span<const uint8_t> from) override {
    return below_->Write(offset_bytes, from);
  }
  Status Zero(uint64_t offset_bytes, uint64_t length_bytes) override {
    return below_->Zero(offset_bytes, length_bytes);
  }
  Status Flush() override { return below_->Flush(); }
  bool TryLock(uint64_t offset_bytes, uint64_t length_bytes) override {
    return below_->TryLock(offset_bytes, length_bytes);
  }
  void Unlock(uint64_t offset_bytes, uint64_t length_bytes) override {
    below_->Unlock(offset_bytes, length_bytes);
  }
  Status CheckEmpty() const override { return below_->CheckEmpty(); }

 private:
  const std::unique_ptr<HostDrive> below_;
};

class PoolRig : public ::testing::Test {
 protected:
  static constexpr uint32_t kExtents = 12;

  void SetUp() override {
    MakeDrive("drive", kExtents);
    Open();
  }
  std::string MakeDrive(const std::string& name, uint32_t extents) {
    const UniqueFd file(open((dir_ / name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    CLEAT_CHECK(ftruncate(file.get(), static_cast<off_t>(OffsetOf(extents))) == 0);
    return dir_ / name;
  }
  // A cleatd that has been started, with or without the threads that look after drives.
  void Open(bool threads = true, uint64_t keep_s = 86'400) {
    Close();
    memory_ = std::make_unique<MemfdKeeper>();
    store_ = std::move(Store::Open(dir_.path()).value());
    state_ = std::move(
        HostState::Load(*store_, *memory_, WatchHub::kQueueMax, nullptr, {.time_s = keep_s}).value());
    if (drives_) state_->SetDrives(drives_, pace_);
    if (threads) state_->StartPoolThreads();
  }
  void Close() {
    if (state_ != nullptr) state_->StopPoolThreads();
    state_.reset();
    store_.reset();
  }
  void RemoveStore() {
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      if (entry.path().filename().string().starts_with("cleat.db") || entry.path().filename() == "lock")
        std::filesystem::remove(entry.path());
    }
  }
  v1::Pool Pool(const std::string& id = "p") {
    v1::GetPoolRequest request;
    request.set_name(PoolName(id));
    const auto pool = state_->pools().Get(request);
    EXPECT_TRUE(pool.ok()) << pool.error().message;
    return pool.ok() ? *pool : v1::Pool();
  }
  // Until the pool is as `wanted` says.
  v1::Pool Await(const std::function<bool(const v1::PoolStatus&)>& wanted, const std::string& id = "p") {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    v1::Pool pool = Pool(id);
    while (!wanted(pool.status()) && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      pool = Pool(id);
    }
    EXPECT_TRUE(wanted(pool.status())) << pool.DebugString();
    return pool;
  }
  void AwaitErased(const std::string& id = "p") {
    Await(
        [](const v1::PoolStatus& s) { return s.state() == v1::POOL_STATE_READY && s.to_erase_bytes() == 0; },
        id);
  }
  void MakePool() {
    const auto made = state_->pools().Create(NewPool("p", dir_ / "drive"));
    ASSERT_TRUE(made.ok()) << made.error().message;
    AwaitErased();
  }
  v1::Disk Create(const v1::CreateDiskRequest& request) {
    const auto disk = state_->disks().Create(request);
    EXPECT_TRUE(disk.ok()) << disk.error().message;
    return disk.ok() ? *disk : v1::Disk();
  }
  v1::Reason WhyNot(const v1::CreateDiskRequest& request) {
    const auto disk = state_->disks().Create(request);
    return disk.ok() ? v1::REASON_UNSPECIFIED : ReasonOf(disk.error());
  }
  void Delete(const std::string& id, bool purge) {
    v1::DeleteDiskRequest request = DeleteDisk(id);
    request.set_purge(purge);
    const auto deleted = state_->disks().Delete(request);
    EXPECT_TRUE(deleted.ok()) << deleted.error().message;
  }
  // What the drive's map has, by the disks' names.
  std::map<std::string, pool::MapDisk> MapOnDrive() {
    PlainDrive drive(dir_ / "drive");
    const auto label = pool::ReadLabel(drive);
    CLEAT_CHECK(label.ok() && label->has_value());
    const auto map = pool::ReadMap(drive, **label);
    CLEAT_CHECK(map.ok());
    std::map<std::string, pool::MapDisk> disks;
    if (!*map) return disks;
    for (const pool::MapDisk& disk : (*map)->disks) {
      v1::Disk described;
      CLEAT_CHECK(described.ParseFromString(disk.description));
      disks.emplace(described.name(), disk);
    }
    return disks;
  }

  test::TempDir dir_;
  OpenHostDrive drives_;  // from the next Open on; empty: files and block devices, as they are
  PoolThreads::Pace pace_;
  std::unique_ptr<MemfdKeeper> memory_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HostState> state_;
};

}  // namespace cleat::control::pool_rig
