// SPDX-License-Identifier: Apache-2.0
#include "control/state/pools/pool_threads.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "control/model/names.h"
#include "control/pools/block_drive.h"
#include "pool/pool_drive.h"

namespace cleat::control {
namespace {

using Clock = std::chrono::steady_clock;

// Extents that an engine still has locked are tried again after so long.
constexpr std::chrono::seconds kLockedWait{1};
constexpr std::chrono::seconds kErasePauseMax{1};

}  // namespace

// A pool's thread, and what others know of it. The thread and PoolThreads share it, so that a thread whose drive hangs may outlive the rest.
struct PoolThreads::OnePool : std::enable_shared_from_this<OnePool> {
  OnePool(std::string its_id, PoolWork& its_work) : id(std::move(its_id)), work(its_work) {}

  void Start() {
    thread = std::thread([self = shared_from_this()] { self->Run(); });
  }
  void Wake() {
    const MutexLock lock(mutex);
    woken = true;
    changed.NotifyAll();
  }
  void Stop();
  // For how long the present call to the drive has lasted; zero: there is none.
  Clock::duration CallLasts() {
    const MutexLock lock(mutex);
    return in_call ? Clock::now() - call_since : Clock::duration::zero();
  }

  void Run();
  bool Open();
  Status OpenDrive(const PoolWork::DriveInfo& info);
  Status Label(const pool::Label& label, bool may_overwrite);
  void Close();
  void End();
  bool DoNext();
  bool WriteMap(const pool::Map& map);
  bool EraseStep(uint32_t extent);
  bool Failed(const Error& why);
  void LeaveExtent();
  bool WaitFor(Clock::duration time, bool until_woken = true);
  // Runs `call`, which may take as long as the drive does. nullopt: everything ends, and nothing of the state may be touched any more.
  template <typename Call>
  auto Ask(Call call) -> std::optional<decltype(call())>;

  const std::string id;
  PoolWork& work;
  std::thread thread;

  Mutex mutex;
  CondVar changed;
  bool woken CLEAT_GUARDED_BY(mutex) = false;
  bool stopping CLEAT_GUARDED_BY(mutex) = false;
  bool ended CLEAT_GUARDED_BY(mutex) = false;
  bool in_call CLEAT_GUARDED_BY(mutex) = false;
  Clock::time_point call_since CLEAT_GUARDED_BY(mutex);

  // ---- The thread's own
  bool stopped = false;
  std::string last_failure;  // since the drive was open
  std::unique_ptr<BlockDrive> drive;
  std::optional<pool::PoolDrive> pool_drive;
  uint64_t extent_bytes = 0;
  std::optional<uint32_t> extent;  // that is being erased, and is locked
  uint64_t erased_bytes = 0;       // of it
  std::set<uint32_t> not_now;      // extents that engines have locked
  Clock::time_point not_now_until;
};

// ---- From outside

void PoolThreads::OnePool::Stop() {
  bool hangs = false;
  {
    const MutexLock lock(mutex);
    stopping = true;
    changed.NotifyAll();
    while (!ended && !in_call) changed.Wait(mutex);
    // A drive that answers soon is waited for.
    const auto until = Clock::now() + kErasePauseMax;
    while (!ended && changed.WaitUntil(mutex, until)) {
    }
    hangs = !ended;
  }
  if (!thread.joinable()) return;
  if (hangs) {
    thread.detach();
  } else {
    thread.join();
  }
}

void PoolThreads::Start() {
  std::vector<std::string> ids = work_.Ids();
  {
    const MutexLock lock(mutex_);
    started_ = true;
  }
  for (const std::string& id : ids) Wake(id);
  watch_ = std::thread([this] { Watch(); });
}

void PoolThreads::Stop() {
  std::map<std::string, std::shared_ptr<OnePool>> pools;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    pools.swap(pools_);
  }
  stop_.NotifyAll();
  if (watch_.joinable()) watch_.join();
  for (const auto& [id, pool] : pools) pool->Stop();
}

void PoolThreads::Wake(const std::string& id) {
  const MutexLock lock(mutex_);
  if (!started_ || stopping_) return;
  std::shared_ptr<OnePool>& pool = pools_[id];
  if (pool != nullptr) return pool->Wake();
  pool = std::make_shared<OnePool>(id, work_);
  pool->Start();
}

void PoolThreads::Watch() {
  pthread_setname_np(pthread_self(), "pool-watch");
  for (;;) {
    std::map<std::string, std::shared_ptr<OnePool>> pools;
    {
      const MutexLock lock(mutex_);
      const auto until = Clock::now() + kLookAt;
      while (!stopping_ && stop_.WaitUntil(mutex_, until)) {
      }
      if (stopping_) return;
      pools = pools_;
    }
    for (const auto& [id, pool] : pools) {
      const auto lasts = pool->CallLasts();
      if (lasts < kPatience) continue;
      if (work_.NotAnswering(
              id, fmt::format("the drive does not answer: a call to it lasts for more than {} s: see the "
                              "kernel's log (dmesg)",
                              kPatience.count())))
        spdlog::warn(
            "{}: drive does not answer: a call to it lasts for more than {} s; see the kernel's log (dmesg)",
            PoolName(id), kPatience.count());
    }
  }
}

// ---- The thread

template <typename Call>
auto PoolThreads::OnePool::Ask(Call call) -> std::optional<decltype(call())> {
  {
    const MutexLock lock(mutex);
    stopped = stopping;
    if (stopped) return std::nullopt;
    in_call = true;
    call_since = Clock::now();
  }
  std::optional<decltype(call())> answer(call());
  const MutexLock lock(mutex);
  in_call = false;
  stopped = stopping;
  changed.NotifyAll();
  if (stopped) return std::nullopt;
  return answer;
}

// Returns false when everything ends.
bool PoolThreads::OnePool::WaitFor(Clock::duration time, bool until_woken) {
  const auto until = Clock::now() + time;
  const MutexLock lock(mutex);
  while (!stopping && !(until_woken && woken) && changed.WaitUntil(mutex, until)) {
  }
  woken = false;
  stopped = stopping;
  return !stopped;
}

void PoolThreads::OnePool::Run() {
  pthread_setname_np(pthread_self(), fmt::format("pool-{}", id).substr(0, 15).c_str());
  while (!stopped) {
    const auto info = work.DriveOf(id);
    if (!info) {
      if (drive != nullptr) End();
      WaitFor(std::chrono::hours(1));  // a pool of that name may be made again
      continue;
    }
    if (drive == nullptr && !Open()) {
      if (!stopped) WaitFor(kRetry);
      continue;
    }
    DoNext();
  }
  Close();
  const MutexLock lock(mutex);
  ended = true;
  changed.NotifyAll();
}

bool PoolThreads::OnePool::Open() {
  const auto info = work.DriveOf(id);
  if (!info) return false;
  extent_bytes = info->label.extent_bytes;
  const auto opened = Ask([&] { return OpenDrive(*info); });
  if (!opened) return false;
  Status status = *opened;
  if (status.ok() && !info->labelled) status = work.Labelled(id);
  if (!status.ok()) return Failed(status.error());
  const auto map = Ask([&] { return pool::ReadMap(*drive, info->label); });
  if (!map) return false;
  if (!map->ok()) return Failed(map->error());
  if (Status taken = work.Opened(id, **map); !taken.ok()) return Failed(taken.error());
  last_failure.clear();
  spdlog::info("{}: drive open: {}", PoolName(id), info->device);
  return true;
}

Status PoolThreads::OnePool::OpenDrive(const PoolWork::DriveInfo& info) {
  CLEAT_ASSIGN(auto opened, work.OpenDrive(id, info.device));
  drive = std::move(opened.drive);
  pool_drive.emplace(*drive, info.label.pool[0] + drive->size_bytes());
  if (!info.labelled) {
    CLEAT_TRY(Label(info.label, opened.to_be_labelled));
  }
  return pool_drive->Open(info.label);
}

// A cleatd that ended between the store and the label leaves a drive that may be somebody else's by now.
Status PoolThreads::OnePool::Label(const pool::Label& label, bool may_overwrite) {
  const auto present = pool::ReadLabel(*drive);
  if (present.ok() && *present && (**present).pool == label.pool) return Ok{};
  if (!may_overwrite) {
    CLEAT_TRY(drive->CheckEmpty());
    if (!present.ok() || *present)
      return Error(ErrorCode::kFailedPrecondition, "another pool's label is on the drive: delete this pool");
  }
  return pool_drive->Format(label);
}

void PoolThreads::OnePool::LeaveExtent() {
  if (extent && drive != nullptr)
    drive->Unlock(pool::kDataOffset + uint64_t{*extent} * extent_bytes, extent_bytes);
  extent.reset();
  erased_bytes = 0;
}

void PoolThreads::OnePool::Close() {
  LeaveExtent();
  pool_drive.reset();
  drive.reset();
}

// The pool is gone.
void PoolThreads::OnePool::End() {
  LeaveExtent();
  const auto unlabelled = Ask([&] { return pool_drive->Unlabel(); });
  if (unlabelled && !unlabelled->ok())
    spdlog::warn("{}: label not taken from the drive: {}; make the next pool of it with --overwrite",
                 PoolName(id), unlabelled->error().message);
  Close();
}

bool PoolThreads::OnePool::Failed(const Error& why) {
  Close();
  if (std::exchange(last_failure, why.message) != why.message)
    spdlog::warn("{}: drive not usable now: {}; tried again in {} s", PoolName(id), why.message,
                 kRetry.count());
  work.Failed(id, why.message);
  return false;
}

// One step of what the drive needs; waits when it needs nothing.
bool PoolThreads::OnePool::DoNext() {
  if (Clock::now() >= not_now_until) not_now.clear();
  const PoolWork::Work next = work.NextWork(id, not_now);
  if (next.map) return WriteMap(*next.map);
  if (next.to_erase) return EraseStep(*next.to_erase);
  LeaveExtent();
  return WaitFor(not_now.empty() ? Clock::duration(std::chrono::minutes(1)) : Clock::duration(kLockedWait));
}

bool PoolThreads::OnePool::WriteMap(const pool::Map& map) {
  const auto written = Ask([&] { return pool_drive->WriteMap(map); });
  if (!written) return false;
  if (!written->ok()) {
    Failed(written->error());
    return WaitFor(kRetry, false);
  }
  work.MapWritten(id, map.generation);
  return true;
}

// An extent that an engine still has locked - its last I/O has not ended, say - is left for later.
bool PoolThreads::OnePool::EraseStep(uint32_t next) {
  if (extent != next) {
    LeaveExtent();
    if (!drive->TryLock(pool::kDataOffset + uint64_t{next} * extent_bytes, extent_bytes)) {
      if (not_now.empty()) not_now_until = Clock::now() + kLockedWait;
      not_now.insert(next);
      return true;
    }
    extent = next;
  }
  const auto begun = Clock::now();
  const auto erased = Ask([&] { return pool_drive->EraseStep(next, erased_bytes); });
  if (!erased) return false;
  if (!erased->ok()) {
    Failed(erased->error());
    return WaitFor(kRetry, false);
  }
  if (erased_bytes == extent_bytes) {
    LeaveExtent();
    if (Status stored = work.Erased(id, next); !stored.ok()) return WaitFor(kRetry);
  }
  return WaitFor(std::min<Clock::duration>(Clock::now() - begun, kErasePauseMax));
}

}  // namespace cleat::control
