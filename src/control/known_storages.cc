// SPDX-License-Identifier: Apache-2.0
#include "control/known_storages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "control/names.h"

namespace cleat::control {
namespace {

using Clock = std::chrono::steady_clock;

std::string_view FolderOf(std::string_view path) {
  return path.substr(0, path.rfind('/'));
}

void SayInLog(spdlog::level::level_enum level, const std::string& line) {
  spdlog::log(level, "{}", line);
}

}  // namespace

// All of it is for holders of the mutex.
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

  void Put(const File& file, const StorageIdentity& identity);
  void Remove(const std::string& disk);
  void Outdate(const std::string& disk);

  // The look that may be answered in time. There is one at most.
  UnderWay* Current();
  bool Hangs(const std::string& path) const;
  size_t HangingIn(std::string_view folder) const;
  std::vector<std::string> Hanging() const;  // disks' names
  // Of `files`, what to look at next; files in folders where nothing hangs come first. files.end(): none, for now.
  Files::iterator Next();

  void Begin(Files::iterator next, size_t thread);
  void End(size_t thread, const Result<StorageIdentity>& identity);
  void NoticeHang();
  void SayWhatWaits();
  size_t under_way() const {
    return static_cast<size_t>(
        std::ranges::count_if(looks, [](const auto& look) { return look.has_value(); }));
  }
  // Nothing will come of waiting longer.
  bool Idle() { return Current() == nullptr && Next() == files.end(); }

  std::chrono::milliseconds patience;
  Identify identify;
  Say say;

  std::mutex mutex;
  std::condition_variable more;      // for the threads, each of which can do what there is to do
  std::condition_variable answered;  // for who waits for looks
  Files files;                       // to be looked at
  std::array<std::optional<UnderWay>, kThreads> looks;  // by thread
  bool said_what_waits = false;                         // since a look began or ceased to hang
  bool stopping = false;
  std::map<std::string, Known> by_disk;
  std::multimap<StorageIdentity::Whole, std::string> by_whole;
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
  answered.notify_all();
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
        fmt::format("{}: its file '{}' answers again", DiskName(look.file.disk), look.file.path));
  }
}

void KnownStorages::Shared::NoticeHang() {
  UnderWay* const look = Current();
  if (look == nullptr || Clock::now() < look->until) return;
  look->hangs = true;
  said_what_waits = false;
  answered.notify_all();
  say(spdlog::level::warn,
      fmt::format(
          "{}: its file '{}' has not answered for {} ms: until it does, another disk of the same file "
          "may not be noticed. See to what it lies on, a network file system or a FUSE server perhaps",
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
          "{} disks' files, that of {} the first, are not looked at for now, since as many looks hang as "
          "may, at those of {}: two disks of one file are not noticed, and only the engines' locks keep them "
          "apart. See to what the files that hang lie on; when one answers, the others are looked at",
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
  shared_->say = say ? std::move(say) : SayInLog;
  for (size_t i = 0; i < kThreads; ++i) threads_.emplace_back([shared = shared_, i] { Run(shared, i); });
}

KnownStorages::~KnownStorages() {
  {
    std::unique_lock lock(shared_->mutex);
    shared_->stopping = true;
    shared_->files.clear();
    shared_->more.notify_all();
    shared_->answered.wait_for(lock, shared_->patience, [this] { return shared_->Current() == nullptr; });
    for (size_t i = 0; i < kThreads; ++i) {
      const auto& look = shared_->looks[i];
      if (!look) continue;
      shared_->say(spdlog::level::warn,
                   fmt::format("{}: its file '{}' does not answer, and is not waited for",
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
  std::unique_lock lock(shared->mutex);
  while (!shared->stopping) {
    shared->NoticeHang();
    if (const auto* current = shared->Current()) {
      const auto until = current->until;
      shared->more.wait_until(lock, until);
      continue;
    }
    const auto next = shared->Next();
    if (next == shared->files.end()) {
      shared->SayWhatWaits();
      shared->more.wait(lock);
      continue;
    }
    shared->Begin(next, thread);
    const File file = shared->looks[thread]->file;
    // Another thread has to watch this look's time.
    shared->more.notify_one();
    lock.unlock();
    const auto identity = shared->identify(file);
    lock.lock();
    shared->End(thread, identity);
    shared->answered.notify_all();
  }
}

// ---- For callers

void KnownStorages::Look(std::vector<File> files) {
  if (files.empty()) return;
  const std::lock_guard lock(shared_->mutex);
  for (File& file : files) shared_->files.insert_or_assign(std::move(file.disk), std::move(file.path));
  shared_->more.notify_one();
}

bool KnownStorages::AwaitLooks() const {
  std::unique_lock lock(shared_->mutex);
  shared_->answered.wait_for(lock, shared_->patience, [this] { return shared_->Idle(); });
  return shared_->files.empty() && shared_->under_way() == 0;
}

void KnownStorages::Keep(const File& file, const StorageIdentity& identity) {
  const std::lock_guard lock(shared_->mutex);
  shared_->Outdate(file.disk);
  shared_->Put(file, identity);
}

void KnownStorages::Forget(const std::string& disk) {
  const std::lock_guard lock(shared_->mutex);
  shared_->Outdate(disk);
  shared_->Remove(disk);
}

void KnownStorages::LookAtOthersWith(const std::string& disk, const StorageIdentity& identity) {
  std::vector<File> files;
  for (std::string& other : OthersWith(disk, identity)) {
    const std::lock_guard lock(shared_->mutex);
    const auto found = shared_->by_disk.find(other);
    if (found != shared_->by_disk.end()) files.push_back({std::move(other), found->second.path});
  }
  Look(std::move(files));
}

std::vector<std::string> KnownStorages::OthersWith(const std::string& disk,
                                                   const StorageIdentity& identity) const {
  const std::lock_guard lock(shared_->mutex);
  std::vector<std::string> others;
  const auto [first, last] = shared_->by_whole.equal_range(identity.whole);
  for (auto it = first; it != last; ++it) {
    if (it->second != disk && shared_->by_disk.at(it->second).identity.Overlaps(identity))
      others.push_back(it->second);
  }
  return others;
}

}  // namespace cleat::control
