// SPDX-License-Identifier: Apache-2.0
// The host loses power at each step of a pool's life: at each write of the store and each operation on the drive while the pool is made, and while disks are
// made, grow, are deleted, undeleted and purged, and written by their guests. Of what was not flushed to the drive any part may be there. What
// is found then, by who reads store and drive, and by the cleatd that follows, is right - and is not where the order of steps is broken.
#include <sqlite3.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <set>

#include "base/mutex.h"
#include "base/random.h"
#include "pool_rig.h"
#include "tests/environment.h"
#include "tests/unit/pool/memory_drive.h"

namespace cleat::control::pool_rig::pool_crash_test {
namespace {

using pool::test::MemoryDrive;
using std::chrono::milliseconds;
using Block = MemoryDrive::Block;

constexpr uint32_t kExtents = 6;
constexpr uint64_t kNever = 1'000'000;  // steps
constexpr uint64_t kDriveBytes = pool::kDataOffset + kExtents * kExtentBytes;

constexpr const char* kForeign = "a guest reads another one's bytes";
constexpr const char* kUnmapped =
    "a guest's bytes are where neither the map has a disk nor anything is to be erased";
constexpr const char* kDirty = "what is free has somebody's bytes";
constexpr const char* kLost = "what a guest flushed is gone";
constexpr const char* kNotMended = "the next cleatd does not get the drive right";
constexpr const char* kBadStore = "the store contradicts itself";

// Negative controls: how the order is broken.
struct Broken {
  bool guest_before_map = false;      // a disk is written before the drive's map has it
  bool erased_before_zeroed = false;  // an extent counts as erased, and is not
  bool free_before_flush = false;     // ... and is, but not for good
};

// ---- A host, whose power goes at a step

class Power {
 public:
  explicit Power(const Broken& broken) : broken_(broken), drive_(kDriveBytes) {
    drive_.faults.zeroes_nothing = broken.erased_before_zeroed;
  }
  // Steps are counted from now on; there is no power from that one on.
  void Arm(uint64_t cut_at) {
    const MutexLock lock(mutex_);
    steps_ = store_steps_ = 0;
    cut_at_ = cut_at;
  }
  // What was not flushed is there or not.
  void Return(uint64_t seed) {
    const MutexLock lock(mutex_);
    Random random(seed);
    drive_.LosePower(random);
    on_ = true;
    cut_at_ = std::numeric_limits<uint64_t>::max();
  }
  bool on() const { return on_; }

  // The store's side: whether it writes that.
  bool MayWrite() {
    const MutexLock lock(mutex_);
    store_steps_ += on_ ? 1 : 0;
    return on_ && !IsCut();
  }
  // Since Arm: of the store, and all.
  std::pair<uint64_t, uint64_t> steps() {
    const MutexLock lock(mutex_);
    return {store_steps_, steps_};
  }
  // A step on the drive; one that power goes at may have any effect.
  template <typename Call>
  Status Do(Call call) {
    const MutexLock lock(mutex_);
    if (!on_) return Error(ErrorCode::kIo, "the test's host has no power");
    if (IsCut()) drive_.faults.cut_at = drive_.operations() + 1;
    return call(drive_);
  }
  // Looks at it, which is no step.
  template <typename Call>
  auto Look(Call call) {
    const MutexLock lock(mutex_);
    return call(drive_);
  }
  const Broken& broken() const { return broken_; }
  std::function<void()> before_map;  // is written

 private:
  bool IsCut() CLEAT_REQUIRES(mutex_) {
    if (++steps_ >= cut_at_) on_ = false;
    return !on_;
  }

  const Broken broken_;
  Mutex mutex_;
  MemoryDrive drive_ CLEAT_GUARDED_BY(mutex_);
  uint64_t steps_ CLEAT_GUARDED_BY(mutex_) = 0;
  uint64_t store_steps_ CLEAT_GUARDED_BY(mutex_) = 0;
  uint64_t cut_at_ CLEAT_GUARDED_BY(mutex_) = std::numeric_limits<uint64_t>::max();
  std::atomic<bool> on_ = true;
};

// SQLite's writes, all of this process, go by the power for as long as this lives.
class StoreOn {
 public:
  explicit StoreOn(Power& power) {
    power_ = &power;
    Set(reinterpret_cast<sqlite3_syscall_ptr>(&Write));
  }
  ~StoreOn() { Set(nullptr); }
  StoreOn(const StoreOn&) = delete;
  StoreOn& operator=(const StoreOn&) = delete;

 private:
  static ssize_t Write(int fd, const void* data, size_t bytes, off_t at) {
    if (power_->MayWrite()) return pwrite(fd, data, bytes, at);
    errno = EIO;
    return -1;
  }
  // Which of them it uses depends on how it was built. None: its own again.
  static void Set(sqlite3_syscall_ptr call) {
    sqlite3_vfs* const vfs = sqlite3_vfs_find(nullptr);
    for (const char* name : {"pwrite", "pwrite64"}) vfs->xSetSystemCall(vfs, name, call);
  }

  static Power* power_;
};
Power* StoreOn::power_ = nullptr;

// The drive as cleatd has it.
class PoweredDrive final : public HostDrive {
 public:
  PoweredDrive(Power& power, UniqueFd file) : power_(power), file_(std::move(file)) {}

  uint64_t size_bytes() const override { return kDriveBytes; }
  const UniqueFd& file() const override { return file_; }
  Status Read(uint64_t offset_bytes, std::span<uint8_t> to) override {
    if (!power_.on()) return Error(ErrorCode::kIo, "the test's host has no power");
    if (power_.broken().erased_before_zeroed && offset_bytes >= pool::kDataOffset) {
      std::memset(to.data(), 0, to.size());
      return Ok{};
    }
    return power_.Look([&](MemoryDrive& drive) { return drive.Read(offset_bytes, to); });
  }
  Status Write(uint64_t offset_bytes, std::span<const uint8_t> from) override {
    if (power_.broken().guest_before_map && offset_bytes >= pool::kMapOffsets[0]) power_.before_map();
    return power_.Do([&](MemoryDrive& drive) { return drive.Write(offset_bytes, from); });
  }
  Status Zero(uint64_t offset_bytes, uint64_t length_bytes) override {
    erasing_ = offset_bytes >= pool::kDataOffset;
    return power_.Do([&](MemoryDrive& drive) { return drive.Zero(offset_bytes, length_bytes); });
  }
  Status Flush() override {
    if (std::exchange(erasing_, false) && power_.broken().free_before_flush) return Ok{};
    return power_.Do([](MemoryDrive& drive) { return drive.Flush(); });
  }
  bool TryLock(uint64_t /*offset_bytes*/, uint64_t /*length_bytes*/) override { return true; }
  void Unlock(uint64_t /*offset_bytes*/, uint64_t /*length_bytes*/) override {}
  Status CheckEmpty() const override { return Ok{}; }

 private:
  Power& power_;
  const UniqueFd file_;
  bool erasing_ = false;
};

Block BlockOf(const std::string& uid) {
  Block block{};
  for (size_t at = 0; at + uid.size() <= block.size(); at += uid.size())
    std::memcpy(block.data() + at, uid.data(), uid.size());
  return block;
}

template <typename Visit>
void ForEachExtent(const pool::ExtentRuns& runs, Visit visit) {
  for (const pool::ExtentRun& run : runs) {
    for (uint32_t extent = run.first; extent < run.end(); ++extent) visit(extent);
  }
}

// ---- What is done, until power goes, and what is found then

class Life {
 public:
  explicit Life(const Broken& broken) : power_(broken), store_on_(power_) {
    const UniqueFd file(open(device_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    CLEAT_CHECK(ftruncate(file.get(), static_cast<off_t>(kDriveBytes)) == 0);
    power_.before_map = [this] { VisitAllTooEarly(); };
    CLEAT_CHECK(Start());
  }
  ~Life() { Stop(); }
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  // Returns whether power went.
  bool Live(uint64_t cut_at) {
    power_.Arm(cut_at);
    for (const auto& part : Parts()) {
      if (power_.on()) part();
    }
    return !power_.on();
  }
  std::set<std::string> WhatIsWrongAfter(uint64_t seed) {
    Stop();
    power_.before_map = [] {};
    power_.Return(seed);
    CheckAsItLies();
    if (!Start()) {
      Found(kBadStore, "it is not loaded");
    } else {
      CheckMended();
    }
    return found_;
  }

 private:
  std::vector<std::function<void()>> Parts() {
    return {[this] { (void)state_->pools().Create(NewPool("p", device_)); },
            [this] { AwaitErased(); },
            [this] { Make("a", 2); },
            [this] { Make("b", 1); },
            [this] { Grow("a", 3); },
            [this] { Delete("b", false); },
            [this] { Undelete("b"); },
            [this] { Delete("b", false); },
            [this] { Purge("b"); },
            [this] { AwaitErased(); },
            [this] { Make("c", 3); },  // of which one was another's
            [this] { Delete("a", true); },
            [this] { AwaitErased(); },
            [this] { Make("d", 2); }};
  }

  bool Start() {
    memory_ = std::make_unique<MemfdKeeper>();
    auto store = Store::Open(dir_.path());
    if (!store.ok()) return false;
    store_ = std::move(*store);
    auto state = HostState::Load(*store_, *memory_, WatchHub::kQueueMax, nullptr, {.time_s = 86'400});
    if (!state.ok()) return false;
    state_ = std::move(*state);
    const OpenHostDrive drives = [this](const UniqueFd& /*found*/,
                                        const std::string& path) -> Result<std::unique_ptr<HostDrive>> {
      return std::unique_ptr<HostDrive>(
          std::make_unique<PoweredDrive>(power_, UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC))));
    };
    state_->SetDrives(drives, {.retry = milliseconds(5)});
    state_->StartPoolThreads();
    return true;
  }
  void Stop() {
    if (state_ != nullptr) state_->StopPoolThreads();
    state_.reset();
    store_.reset();
  }
  void Found(const char* what, const std::string& where) {
    found_.insert(what);
    where_ += std::string(what) + ": " + where + "\n";
  }

  // ---- Calls
  void Make(const std::string& id, uint32_t extents) {
    const auto disk = state_->disks().Create(PoolDisk(id, extents));
    if (disk.ok()) VisitWhenMapped(*disk);
  }
  void Grow(const std::string& id, uint32_t extents) {
    v1::UpdateDiskRequest request;
    request.mutable_disk()->set_name(DiskName(id));
    request.mutable_disk()->mutable_spec()->set_size_bytes(extents * kExtentBytes);
    request.mutable_update_mask()->add_paths("spec.size_bytes");
    const auto disk = state_->disks().Update(request);
    if (disk.ok()) VisitWhenMapped(*disk);
  }
  void Delete(const std::string& id, bool purge) {
    v1::DeleteDiskRequest request = DeleteDisk(id);
    request.set_purge(purge);
    (void)state_->disks().Delete(request);
  }
  void Undelete(const std::string& id) {
    v1::UndeleteDiskRequest request;
    request.set_name(DiskName(id));
    const auto disk = state_->kept_disks().Undelete(request);
    if (disk.ok()) VisitWhenMapped(*disk);
  }
  void Purge(const std::string& id) {
    v1::PurgeDiskRequest request;
    request.set_name(DiskName(id));
    (void)state_->kept_disks().Purge(request);
  }
  bool AwaitUntil(const std::function<bool()>& so) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (power_.on() && !so()) {
      if (std::chrono::steady_clock::now() >= until) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
  }
  v1::PoolStatus PoolStatus() {
    v1::GetPoolRequest request;
    request.set_name("pools/p");
    const auto pool = state_->pools().Get(request);
    return pool.ok() ? pool->status() : v1::PoolStatus();
  }
  bool AwaitErased() {
    return AwaitUntil([&] {
      const v1::PoolStatus status = PoolStatus();
      return status.state() == v1::POOL_STATE_READY && status.to_erase_bytes() == 0;
    });
  }

  // ---- Guests
  // The drive's map, as an engine reads it: whose each extent is.
  std::optional<pool::Map> MapOnDrive() {
    return power_.Look([](MemoryDrive& drive) -> std::optional<pool::Map> {
      const auto label = pool::ReadLabel(drive);
      if (!label.ok() || !*label) return std::nullopt;
      const auto map = pool::ReadMap(drive, **label);
      return map.ok() ? *map : std::nullopt;
    });
  }
  bool IsMapped(const v1::Disk& disk, bool deleted) {
    const auto map = MapOnDrive();
    return map && std::any_of(map->disks.begin(), map->disks.end(), [&](const pool::MapDisk& mapped) {
             return fmt::format("{:016x}", mapped.identity) == disk.uid() && mapped.deleted == deleted &&
                    mapped.extents == ExtentsOf(disk.spec());
           });
  }
  void VisitWhenMapped(const v1::Disk& disk) {
    AwaitUntil([&] { return IsMapped(disk, false); });
    Visit(disk);
  }
  void VisitAllTooEarly() {
    for (const v1::Disk& disk : DisksOf(*state_, false)) Visit(disk);
  }
  // Reads all, and writes both ends of each extent.
  void Visit(const v1::Disk& disk) {
    const MutexLock lock(visits_);
    CheckBytes(disk);
    const Block own = BlockOf(disk.uid());
    bool written = true;
    ForEachExtent(ExtentsOf(disk.spec()), [&](uint32_t extent) {
      for (const uint64_t at : {OffsetOf(extent), OffsetOf(extent + 1) - pool::kBlockBytes})
        written = written && power_.Do([&](MemoryDrive& drive) { return drive.Write(at, own); }).ok();
    });
    if (!written || !power_.Do([](MemoryDrive& drive) { return drive.Flush(); }).ok()) return;
    ForEachExtent(ExtentsOf(disk.spec()), [&](uint32_t extent) { flushed_[extent] = disk.uid(); });
  }
  void CheckBytes(const v1::Disk& disk) {
    const Block own = BlockOf(disk.uid());
    ForEachExtent(ExtentsOf(disk.spec()), [&](uint32_t extent) {
      for (const uint64_t at : {OffsetOf(extent), OffsetOf(extent + 1) - pool::kBlockBytes}) {
        const Block block = power_.Look([&](MemoryDrive& drive) { return drive.At(at); });
        if (block != own && block != Block{})
          Found(kForeign, fmt::format("{}, extent {}", disk.name(), extent));
      }
    });
  }
  bool HasData(uint32_t extent) {
    return power_.Look([&](MemoryDrive& drive) { return drive.HasData(OffsetOf(extent), kExtentBytes); });
  }

  // ---- Looking
  // Before anybody mends anything: whoever has only the drive, and whoever has only the store, gives nobody's bytes to another one.
  void CheckAsItLies() {
    auto store = Store::Open(dir_.path());
    if (!store.ok()) return Found(kBadStore, store.error().message);
    const Rows rows = (*store)->Load().value();
    if (rows.pools.empty()) return;
    pool::ExtentSet known;
    known.Add(rows.pools.front().to_erase);
    if (const auto map = MapOnDrive()) {
      for (const pool::MapDisk& disk : map->disks) {
        ForEachExtent(disk.extents, [&](uint32_t extent) {
          if (known.IsFree({extent, 1})) known.Add(pool::ExtentRun{extent, 1});
        });
      }
    }
    for (uint32_t extent = 0; extent < kExtents; ++extent) {
      if (HasData(extent) && known.IsFree({extent, 1})) Found(kUnmapped, fmt::format("extent {}", extent));
    }
  }
  void CheckMended() {
    v1::GetPoolRequest request;
    request.set_name("pools/p");
    if (!state_->pools().Get(request).ok() && !MakePoolAnew()) return;
    AwaitUntil([&] { return PoolStatus().state() != v1::POOL_STATE_OPENING; });
    if (PoolStatus().message().find("before the drive got its label") != std::string::npos && !MakePoolAnew())
      return;
    if (!AwaitErased()) return Found(kNotMended, PoolStatus().ShortDebugString());
    pool::ExtentSet free;
    free.Add(pool::ExtentRun{0, kExtents});
    for (const bool deleted : {false, true}) {
      for (const v1::Disk& disk : DisksOf(*state_, deleted)) {
        free.Remove(ExtentsOf(disk.spec()));
        CheckBytes(disk);
        CheckFlushed(disk);
        if (!AwaitUntil([&] { return IsMapped(disk, deleted); })) Found(kNotMended, disk.name());
      }
    }
    ForEachExtent(free.Runs(), [&](uint32_t extent) {
      if (HasData(extent)) Found(kDirty, fmt::format("extent {}", extent));
    });
    const auto count = static_cast<uint32_t>(free.count());
    if (count > 0 && !state_->disks().Create(PoolDisk("last", count)).ok()) Found(kNotMended, "free extents");
  }
  // What the drive's operator would do.
  bool MakePoolAnew() {
    v1::DeletePoolRequest request;
    request.set_name("pools/p");
    v1::CreatePoolRequest anew = NewPool("p", device_);
    anew.set_overwrite(true);
    if (state_->pools().Delete(request).ok() && state_->pools().Create(anew).ok()) return true;
    Found(kNotMended, "the pool can't be made anew");
    return false;
  }
  void CheckFlushed(const v1::Disk& disk) {
    ForEachExtent(ExtentsOf(disk.spec()), [&](uint32_t extent) {
      if (flushed_[extent] != disk.uid()) return;
      const Block block = power_.Look([&](MemoryDrive& drive) { return drive.At(OffsetOf(extent)); });
      if (block != BlockOf(disk.uid())) Found(kLost, fmt::format("{}, extent {}", disk.name(), extent));
    });
  }

 public:
  const std::string& where() const { return where_; }
  std::pair<uint64_t, uint64_t> steps() { return power_.steps(); }

 private:
  const test::TempDir dir_{test::FolderInMemory()};
  const std::string device_ = dir_ / "drive";
  Power power_;
  const StoreOn store_on_;
  std::unique_ptr<MemfdKeeper> memory_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HostState> state_;
  Mutex visits_;                             // also by the pool's thread, where the order is broken
  std::map<uint32_t, std::string> flushed_;  // by extent: whose bytes are there for good
  std::set<std::string> found_;
  std::string where_;
};

// A step takes five times as long under AddressSanitizer, which looks at memory rather than at the order of steps: there power goes at every
// third one, unless all were asked for.
uint64_t StepsApart() {
#if defined(CLEAT_ASAN)
  constexpr uint64_t kApart = 3;
#else
  constexpr uint64_t kApart = 1;
#endif
  return std::max<uint64_t>(1, test::FromEnvironment("CLEAT_POWER_CUT_EVERY", kApart));
}

// What is found with power going at one step after the other, from `*steps` on, and once after the last; ends when `until` was found.
std::set<std::string> FindAll(const Broken& broken, const char* until, uint64_t* steps) {
  std::set<std::string> found;
  bool cut = true;
  for (const uint64_t apart = StepsApart(); cut && !found.contains(until); *steps += apart) {
    Life life(broken);
    cut = life.Live(*steps);
    found.merge(life.WhatIsWrongAfter(*steps));
    if (std::string(until).empty()) {
      EXPECT_EQ("", life.where()) << "power went at step " << *steps;
    }
    if (testing::Test::HasFailure()) break;
  }
  return found;
}

TEST(PoolCrash, WhereverPowerGoesStoreAndDriveAreRightAndNobodyReadsAnothersBytes) {
  uint64_t steps = 1;
  EXPECT_EQ(std::set<std::string>{}, FindAll({}, "", &steps));
  Life whole({});
  EXPECT_FALSE(whole.Live(kNever));
  const auto [of_store, all] = whole.steps();
  fmt::print(
      "power went at 1 of {} steps, up to step {}; a life without that has {}, {} of them the store's\n",
      StepsApart(), steps, all, of_store);
  EXPECT_GT(steps, 100U);
  EXPECT_GT(of_store, 15U);
  EXPECT_GT(all, of_store + 60);
}

TEST(PoolCrash, AGuestThatWritesBeforeTheMapHasItsDiskIsFound) {
  uint64_t steps = 1;
  EXPECT_TRUE(FindAll({.guest_before_map = true}, kUnmapped, &steps).contains(kUnmapped)) << steps;
}

TEST(PoolCrash, AnExtentThatIsGivenBeforeItWasErasedIsFound) {
  uint64_t steps = kNever;  // also where power stays
  EXPECT_TRUE(FindAll({.erased_before_zeroed = true}, kForeign, &steps).contains(kForeign)) << steps;
}

TEST(PoolCrash, AnExtentThatIsFreeBeforeItsZeroesAreFlushedIsFound) {
  uint64_t steps = 1;
  EXPECT_TRUE(FindAll({.free_before_flush = true}, kDirty, &steps).contains(kDirty)) << steps;
}

}  // namespace
}  // namespace cleat::control::pool_rig::pool_crash_test
