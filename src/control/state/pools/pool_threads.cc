// SPDX-License-Identifier: Apache-2.0
#include "control/state/pools/pool_threads.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "control/model/names.h"
#include "control/pools/host_drive.h"
#include "control/state/pools/host_uid.h"
#include "pool/layout.h"
#include "pool/pool_drive.h"

namespace cleat::control {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kErasePauseMax{1};
// How long Stop waits for a drive's answer.
constexpr std::chrono::seconds kStopPatience{1};

double Seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

// A pool's thread, and what others know of it. The thread and PoolThreads share it, so that a thread whose drive hangs may outlive the rest.
struct PoolThreads::OnePool : std::enable_shared_from_this<OnePool> {
  OnePool(std::string its_id, PoolWork& its_work, const Pace& its_pace, HealthQuestion question)
      : id(std::move(its_id)), work(its_work), pace(its_pace), health(std::move(question)) {}

  void Start() {
    thread = std::thread([self = shared_from_this()] { self->Run(); });
  }
  // False: the thread has ended, since its pool was gone.
  bool Wake();
  void Stop();
  // For how long the present call to the drive has lasted; zero: there is none.
  Clock::duration CallLasts();

  void Run();
  bool MayEnd();
  bool Open(const PoolWork::DriveInfo& info);
  Status OpenDrive(const PoolWork::DriveInfo& info, const OpenHostDrive& open, const UniqueFd& found);
  void Close();
  void End();
  Status WriteFirst(const pool::Label& label, const PoolWork::Work& first);
  bool DoNext();
  bool AskHealth();
  bool Look();
  bool WriteMap(const PoolWork::Work& next);
  bool EraseStep(uint32_t next);
  bool ExtentErased();
  bool EraseFailed(const Error& why);
  bool Failed(const Error& why);
  void LeaveExtent();
  bool WaitFor(Clock::duration time, bool until_woken = true);
  // Runs `call`, which may take as long as the drive does, and touches the drive alone. nullopt: everything ends, and nothing of the state
  // may be touched any more.
  template <typename Call>
  auto Ask(Call call) -> std::optional<decltype(call())>;

  const std::string id;
  PoolWork& work;
  const Pace pace;
  const HealthQuestion health;
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
  Clock::time_point last_look;
  PoolWork::Key key;  // of the pool whose drive is open, or was last
  std::unique_ptr<HostDrive> drive;
  std::optional<pool::PoolDrive> pool_drive;
  std::optional<StorageIdentity> identity;
  uint64_t extent_bytes = 0;
  Clock::time_point health_due;    // when the drive is asked for its condition again
  uint32_t from = 0;               // the first extent that was not looked at in this round
  bool left_some = false;          // in this round: engines have them locked
  std::optional<uint32_t> extent;  // that is being erased, and is locked
  uint64_t erased_bytes = 0;       // of it
  std::map<uint32_t, Clock::time_point>
      bad;  // extents that could not be erased, and when they are tried again
};

// ---- From outside

bool PoolThreads::OnePool::Wake() {
  const MutexLock lock(mutex);
  woken = true;
  changed.NotifyAll();
  return !ended;
}

Clock::duration PoolThreads::OnePool::CallLasts() {
  const MutexLock lock(mutex);
  return in_call ? Clock::now() - call_since : Clock::duration::zero();
}

void PoolThreads::OnePool::Stop() {
  bool hangs = false;
  {
    const MutexLock lock(mutex);
    stopping = true;
    changed.NotifyAll();
    while (!ended && !in_call) changed.Wait(mutex);
    // A drive that answers soon is waited for.
    const auto until = Clock::now() + kStopPatience;
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
  if (pool != nullptr && pool->Wake()) return;
  if (pool != nullptr) pool->thread.join();  // it has ended
  pool = std::make_shared<OnePool>(id, work_, pace_, health_);
  pool->Start();
}

void PoolThreads::Watch() {
  pthread_setname_np(pthread_self(), "pool-watch");
  for (;;) {
    std::map<std::string, std::shared_ptr<OnePool>> pools;
    {
      const MutexLock lock(mutex_);
      const auto until = Clock::now() + pace_.look_at;
      while (!stopping_ && stop_.WaitUntil(mutex_, until)) {
      }
      if (stopping_) return;
      pools = pools_;
    }
    for (const auto& [id, pool] : pools) {
      const auto lasts = pool->CallLasts();
      if (lasts < pace_.patience) continue;
      if (work_.NotAnswering(
              id, fmt::format("the drive does not answer: a call to it lasts for more than {} s: see the "
                              "kernel's log (dmesg)",
                              Seconds(pace_.patience))))
        spdlog::warn(
            "{}: drive does not answer: a call to it lasts for more than {} s; see the kernel's log (dmesg)",
            PoolName(id), Seconds(pace_.patience));
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
    if (drive != nullptr && (!info || info->key.uid != key.uid)) End();
    if (stopped || (!info && MayEnd())) break;
    if (!info) continue;
    if (drive == nullptr && !Open(*info)) {
      if (!stopped) WaitFor(pace.retry);
      continue;
    }
    DoNext();
  }
  Close();
  const MutexLock lock(mutex);
  ended = true;
  changed.NotifyAll();
}

// The pool is gone, and no other one was made with its id meanwhile.
bool PoolThreads::OnePool::MayEnd() {
  const MutexLock lock(mutex);
  ended = !std::exchange(woken, false);
  return ended;
}

bool PoolThreads::OnePool::Open(const PoolWork::DriveInfo& info) {
  key = info.key;
  extent_bytes = info.label.extent_bytes;
  UniqueFd found;
  drive = work.TakeOpened(key);
  if (drive == nullptr) {
    auto device = work.FindDrive(info);
    if (!device.ok()) return Failed(device.error());
    found = std::move(*device);
  }
  const auto opened = Ask([&, open = work.opener()] { return OpenDrive(info, open, found); });
  if (!opened) return false;
  Status status = *opened;
  if (status.ok() && !info.labelled) status = work.Labelled(key);
  if (!status.ok()) return Failed(status.error());
  const auto map = Ask([&] { return pool::ReadMap(*drive, info.label); });
  if (!map) return false;
  if (!map->ok()) return Failed(map->error());
  // The condition is read first, so that a pool that is READY has one.
  if (!AskHealth()) return false;
  const PoolWork::Found on_drive{.host = pool_drive->host(), .map = **map, .identity = identity};
  const auto first = work.Opened(key, on_drive);
  if (!first.ok()) return Failed(first.error());
  const auto written = Ask([&] { return WriteFirst(info.label, *first); });
  if (!written) return false;
  if (!written->ok()) return Failed(written->error());
  work.Ready(key, first->changes);
  last_failure.clear();
  spdlog::info("{}: drive open: {}", PoolName(id), info.device);
  return true;
}

// A cleatd that ended between the store and the label leaves a drive that may be somebody else's by now: nobody writes to it.
Status PoolThreads::OnePool::OpenDrive(const PoolWork::DriveInfo& info, const OpenHostDrive& open,
                                       const UniqueFd& found) {
  const bool looked_at = drive != nullptr;
  if (!looked_at) {
    CLEAT_ASSIGN(drive, open(found, info.device));
  }
  const auto found_identity = IdentifyStorage(drive->file(), info.device);
  identity = found_identity.ok() ? std::optional(*found_identity) : std::nullopt;
  pool_drive.emplace(*drive, info.label.pool[0] + drive->size_bytes());
  if (!info.labelled && looked_at) return pool_drive->Format(info.label);
  Status opened = pool_drive->Open(info.label);
  if (opened.ok() || info.labelled) return opened;
  return Error(ErrorCode::kFailedPrecondition,
               "cleatd ended before the drive got its label: delete the pool, and make it anew (" +
                   opened.error().message + ")");
}

Status PoolThreads::OnePool::WriteFirst(const pool::Label& label, const PoolWork::Work& first) {
  if (IsAnotherHosts(pool_drive->host())) CLEAT_TRY(pool_drive->Relabel(label));
  return first.map ? pool_drive->WriteMap(*first.map) : Status(Ok{});
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
  bad.clear();
  from = 0;
}

// The pool is gone, or another one has its id.
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
                 Seconds(pace.retry));
  work.Failed(key, why.message);
  return false;
}

// Does one step of what the drive needs, or waits when it needs nothing.
bool PoolThreads::OnePool::DoNext() {
  const PoolWork::Work next = work.NextWork(key, from);
  if (Clock::now() >= health_due)
    return AskHealth();  // whatever else is to be done: it waits for one command
  if (next.map) return WriteMap(next);
  if (next.to_erase) return EraseStep(*next.to_erase);
  // The round is over.
  LeaveExtent();
  const bool some = std::exchange(left_some, false);
  from = 0;
  const Clock::duration until_asked = std::max(health_due - Clock::now(), Clock::duration::zero());
  return WaitFor(std::min<Clock::duration>(until_asked, some ? pace.locked : pace.idle)) && Look();
}

bool PoolThreads::OnePool::AskHealth() {
  auto read = Ask([&] { return health.read(drive->file()); });
  if (!read) return false;
  health_due = Clock::now() + health.every;
  work.SetHealth(key, std::move(*read));
  return true;
}

// The thread has to look by itself: neither the kernel nor an engine tells it that its drive was pulled out, answers no more, or was taken by
// a host that can't see its locks.
bool PoolThreads::OnePool::Look() {
  if (Clock::now() - last_look < pace.idle) return true;
  last_look = Clock::now();
  const auto label = Ask([&] { return pool::ReadLabel(*drive); });
  if (!label) return false;
  if (!label->ok()) return Failed(label->error());
  const std::optional<pool::Label>& found = **label;
  if (found && found->pool == key.uid && found->host == pool_drive->host()) return true;
  return Failed({ErrorCode::kFailedPrecondition,
                 "the drive has lost its label, or has another one now: see who else uses it"});
}

bool PoolThreads::OnePool::WriteMap(const PoolWork::Work& next) {
  const auto written = Ask([&] { return pool_drive->WriteMap(*next.map); });
  if (!written) return false;
  if (!written->ok()) {
    Failed(written->error());
    return WaitFor(pace.retry, false);
  }
  work.MapWritten(key, next.changes);
  return true;
}

// An extent that an engine still has locked - its last I/O has not ended, say - is left for the next round.
bool PoolThreads::OnePool::EraseStep(uint32_t next) {
  if (extent != next) {
    LeaveExtent();
    const auto tried_at = bad.find(next);
    const bool is_bad = tried_at != bad.end() && Clock::now() < tried_at->second;
    if (is_bad || !drive->TryLock(pool::kDataOffset + uint64_t{next} * extent_bytes, extent_bytes)) {
      left_some = left_some || !is_bad;
      from = next + 1;
      return true;
    }
    extent = next;
  }
  const auto begun = Clock::now();
  const auto erased = Ask([&] { return pool_drive->EraseStep(next, erased_bytes); });
  if (!erased) return false;
  if (!erased->ok()) return EraseFailed(erased->error());
  if (erased_bytes == extent_bytes && !ExtentErased()) return false;
  return WaitFor(std::min<Clock::duration>(Clock::now() - begun, kErasePauseMax));
}

// A store that can't be written is asked again; the extent need not be erased again.
bool PoolThreads::OnePool::ExtentErased() {
  const uint32_t done = *extent;
  if (bad.erase(done) > 0 && bad.empty()) {
    work.SetNote(key, {});
    last_failure.clear();
  }
  while (!work.Erased(key, done).ok()) {
    if (!WaitFor(pace.retry, false)) return false;
  }
  LeaveExtent();
  return true;
}

// An extent that can't be erased does not keep others from being erased.
bool PoolThreads::OnePool::EraseFailed(const Error& why) {
  const uint32_t failed = *extent;
  LeaveExtent();
  bad[failed] = Clock::now() + pace.bad;
  from = failed + 1;
  if (std::exchange(last_failure, why.message) != why.message)
    spdlog::warn("{}: extent {} not erased: {}; it is given to no disk, and tried again in {} s",
                 PoolName(id), failed, why.message, Seconds(pace.bad));
  work.SetNote(key, fmt::format("extent {} can't be erased: {}", failed, why.message));
  return true;
}

}  // namespace cleat::control
