// SPDX-License-Identifier: Apache-2.0
#include "control/paths/known_storages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "control/model/names.h"

namespace cleat::control {
namespace {

using Clock = std::chrono::steady_clock;

std::string_view FolderOf(std::string_view path) {
  return path.substr(0, path.rfind('/'));
}

}  // namespace

struct KnownStorages::Shared {
  struct Known {
    std::string path;
    StorageIdentity identity;
  };
  struct UnderWay {
    File file;
    Clock::time_point until;  // longer, and it hangs
    bool hangs = false;
    bool outdated = false;  // what is being looked at was kept or forgotten meanwhile
  };
  using Files = std::map<std::string, std::string>;  // paths by disk

  void Put(const File& file, const StorageIdentity& identity) CLEAT_REQUIRES(mutex);
  void Remove(const std::string& disk) CLEAT_REQUIRES(mutex);
  void Outdate(const std::string& disk) CLEAT_REQUIRES(mutex);

  // The look that may be answered in time. There is one at most.
  UnderWay* Current() CLEAT_REQUIRES(mutex);
  bool Hangs(const std::string& path) const CLEAT_REQUIRES(mutex);
  size_t HangingIn(std::string_view folder) const CLEAT_REQUIRES(mutex);
  std::vector<std::string> Hanging() const CLEAT_REQUIRES(mutex);  // disks' names
  // Of `files`, what to look at next; files in folders where nothing hangs come first. files.end(): none, for now.
  Files::iterator Next() CLEAT_REQUIRES(mutex);

  void Begin(Files::iterator next, size_t thread) CLEAT_REQUIRES(mutex);
  void End(size_t thread, const Result<StorageIdentity>& identity) CLEAT_REQUIRES(mutex);
  // Without the mutex meanwhile.
  Result<StorageIdentity> IdentifyUnlocked(const File& file) CLEAT_REQUIRES(mutex);
  void NoticeHang() CLEAT_REQUIRES(mutex);
  void SayWhatWaits() CLEAT_REQUIRES(mutex);
  size_t under_way() const CLEAT_REQUIRES(mutex) {
    return static_cast<size_t>(
        std::ranges::count_if(looks, [](const auto& look) { return look.has_value(); }));
  }
  // Nothing will come of waiting longer.
  bool Idle() CLEAT_REQUIRES(mutex) { return Current() == nullptr && Next() == files.end(); }

  std::chrono::milliseconds patience;
  Identify identify;
  Say say;

  Mutex mutex;
  CondVar more;                         // for the threads, each of which can do what there is to do
  CondVar answered;                     // for who waits for looks
  Files files CLEAT_GUARDED_BY(mutex);  // to be looked at
  std::array<std::optional<UnderWay>, kThreads> looks CLEAT_GUARDED_BY(mutex);  // by thread
  bool said_what_waits CLEAT_GUARDED_BY(mutex) = false;  // since a look began or ceased to hang
  bool stopping CLEAT_GUARDED_BY(mutex) = false;
  std::map<std::string, Known> by_disk CLEAT_GUARDED_BY(mutex);
  std::multimap<StorageIdentity::Whole, std::string> by_whole CLEAT_GUARDED_BY(mutex);
};

// ---- What is known

void KnownStorages::Shared::Put(const File& file, const StorageIdentity& identity) {
  Remove(file.disk);
  by_disk.emplace(file.disk, Known{file.path, identity});
  by_whole.emplace(identity.whole, file.disk);
}

void KnownStorages::Shared::Remove(const std::string& disk) {
  const auto found = by_disk.find(disk);
  if (found == by_disk.end()) return;
  const auto [first, last] = by_whole.equal_range(found->second.identity.whole);
  for (auto it = first; it != last; ++it) {
    if (it->second != disk) continue;
    by_whole.erase(it);
    break;
  }
  by_disk.erase(found);
}

void KnownStorages::Shared::Outdate(const std::string& disk) {
  for (auto& look : looks) {
    if (look && look->file.disk == disk) look->outdated = true;
  }
  files.erase(disk);
  answered.NotifyAll();
}

// ---- Looks

KnownStorages::Shared::UnderWay* KnownStorages::Shared::Current() {
  for (auto& look : looks) {
    if (look && !look->hangs) return &*look;
  }
  return nullptr;
}

bool KnownStorages::Shared::Hangs(const std::string& path) const {
  return std::ranges::any_of(
      looks, [&](const auto& look) { return look && look->hangs && look->file.path == path; });
}

size_t KnownStorages::Shared::HangingIn(std::string_view folder) const {
  return static_cast<size_t>(std::ranges::count_if(
      looks, [&](const auto& look) { return look && look->hangs && FolderOf(look->file.path) == folder; }));
}

std::vector<std::string> KnownStorages::Shared::Hanging() const {
  std::vector<std::string> names;
  for (const auto& look : looks) {
    if (look && look->hangs) names.push_back(DiskName(look->file.disk));
  }
  return names;
}

KnownStorages::Shared::Files::iterator KnownStorages::Shared::Next() {
  if (under_way() >= kLooksMax) return files.end();
  auto second_best = files.end();
  for (auto it = files.begin(); it != files.end(); ++it) {
    const size_t hanging = HangingIn(FolderOf(it->second));
    if (hanging == 0) return it;
    // A second look would hang like the first, and take a thread from the others.
    if (second_best == files.end() && hanging < kHangingInFolderMax && !Hangs(it->second)) second_best = it;
  }
  return second_best;
}

void KnownStorages::Shared::Begin(Files::iterator next, size_t thread) {
  looks[thread] = UnderWay{.file = {next->first, next->second}, .until = Clock::now() + patience};
  files.erase(next);
}

void KnownStorages::Shared::End(size_t thread, const Result<StorageIdentity>& identity) {
  const UnderWay look = *std::exchange(looks[thread], std::nullopt);
  if (!look.outdated && identity.ok()) Put(look.file, *identity);
  if (!look.outdated && !identity.ok()) Remove(look.file.disk);
  if (!look.hangs) return;
  said_what_waits = false;
  // A look that hung beyond cleatd's end may come back when the log is gone already.
  if (!stopping) {
    say(spdlog::level::info,
        fmt::format("{}: file answers again: '{}'", DiskName(look.file.disk), look.file.path));
  }
}

Result<StorageIdentity> KnownStorages::Shared::IdentifyUnlocked(const File& file) {
  const MutexUnlock unlocked(mutex);
  return identify(file);
}

void KnownStorages::Shared::NoticeHang() {
  UnderWay* const look = Current();
  if (look == nullptr || Clock::now() < look->until) return;
  look->hangs = true;
  said_what_waits = false;
  answered.NotifyAll();
  say(spdlog::level::warn,
      fmt::format("{}: file does not answer: '{}', for {} ms; another disk of the same file may not be "
                  "noticed: see to what it lies on, a network file system or a FUSE server perhaps",
                  DiskName(look->file.disk), look->file.path, patience.count()));
}

void KnownStorages::Shared::SayWhatWaits() {
  std::vector<std::string_view> waiting;
  for (const auto& [disk, path] : files) {
    if (!Hangs(path)) waiting.push_back(disk);
  }
  if (waiting.empty() || std::exchange(said_what_waits, true)) return;
  say(spdlog::level::err,
      fmt::format(
          "disks' files: {} wait to be examined, that of {} the first: those of {} do not answer; only the "
          "engines' locks keep two disks of one file apart: see to what the files that do not answer lie on",
          waiting.size(), DiskName(waiting.front()), fmt::join(Hanging(), ", ")));
}

// ---- Threads

Result<StorageIdentity> KnownStorages::IdentifyFile(const File& file) {
  const UniqueFd opened(open(file.path.c_str(), O_PATH | O_CLOEXEC));
  if (!opened) return ErrnoError(errno, file.path);
  return IdentifyStorage(opened, DiskName(file.disk));
}

KnownStorages::KnownStorages(std::chrono::milliseconds patience, Identify identify, Say say)
    : shared_(std::make_shared<Shared>()) {
  shared_->patience = patience;
  shared_->identify = std::move(identify);
  shared_->say = say ? std::move(say) : log::Write;
  for (size_t i = 0; i < kThreads; ++i) threads_.emplace_back([shared = shared_, i] { Run(shared, i); });
}

KnownStorages::~KnownStorages() {
  {
    const MutexLock lock(shared_->mutex);
    shared_->stopping = true;
    shared_->files.clear();
    shared_->more.NotifyAll();
    const auto until = Clock::now() + shared_->patience;
    while (shared_->Current() != nullptr && shared_->answered.WaitUntil(shared_->mutex, until)) {
    }
    for (size_t i = 0; i < kThreads; ++i) {
      const auto& look = shared_->looks[i];
      if (!look) continue;
      shared_->say(spdlog::level::warn,
                   fmt::format("{}: file not waited for: '{}' does not answer, and cleatd stops",
                               DiskName(look->file.disk), look->file.path));
      threads_[i].detach();
    }
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void KnownStorages::Run(const std::shared_ptr<Shared>& shared, size_t thread) {
  pthread_setname_np(pthread_self(), "disk-files");
  const MutexLock lock(shared->mutex);
  while (!shared->stopping) {
    shared->NoticeHang();
    if (const auto* current = shared->Current()) {
      const auto until = current->until;
      shared->more.WaitUntil(shared->mutex, until);
      continue;
    }
    const auto next = shared->Next();
    if (next == shared->files.end()) {
      shared->SayWhatWaits();
      shared->more.Wait(shared->mutex);
      continue;
    }
    shared->Begin(next, thread);
    const File file = shared->looks[thread]->file;
    // Another thread has to watch this look's time.
    shared->more.NotifyOne();
    shared->End(thread, shared->IdentifyUnlocked(file));
    shared->answered.NotifyAll();
  }
}

// ---- For callers

void KnownStorages::Look(std::vector<File> files) {
  if (files.empty()) return;
  const MutexLock lock(shared_->mutex);
  for (File& file : files) shared_->files.insert_or_assign(std::move(file.disk), std::move(file.path));
  shared_->more.NotifyOne();
}

bool KnownStorages::AwaitLooks() const {
  const MutexLock lock(shared_->mutex);
  const auto until = Clock::now() + shared_->patience;
  while (!shared_->Idle() && shared_->answered.WaitUntil(shared_->mutex, until)) {
  }
  return shared_->files.empty() && shared_->under_way() == 0;
}

void KnownStorages::Keep(const File& file, const StorageIdentity& identity) {
  const MutexLock lock(shared_->mutex);
  shared_->Outdate(file.disk);
  shared_->Put(file, identity);
}

void KnownStorages::Forget(const std::string& disk) {
  const MutexLock lock(shared_->mutex);
  shared_->Outdate(disk);
  shared_->Remove(disk);
}

void KnownStorages::LookAtOthersWith(const std::string& disk, const StorageIdentity& identity) {
  std::vector<File> files;
  for (std::string& other : OthersWith(disk, identity)) {
    const MutexLock lock(shared_->mutex);
    const auto found = shared_->by_disk.find(other);
    if (found != shared_->by_disk.end()) files.push_back({std::move(other), found->second.path});
  }
  Look(std::move(files));
}

std::vector<std::string> KnownStorages::OthersWith(const std::string& disk,
                                                   const StorageIdentity& identity) const {
  const MutexLock lock(shared_->mutex);
  std::vector<std::string> others;
  const auto [first, last] = shared_->by_whole.equal_range(identity.whole);
  for (auto it = first; it != last; ++it) {
    if (it->second != disk && shared_->by_disk.at(it->second).identity.Overlaps(identity))
      others.push_back(it->second);
  }
  return others;
}

}  // namespace cleat::control
