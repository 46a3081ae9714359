// SPDX-License-Identifier: Apache-2.0
#include "control/known_storages.h"

#include <fcntl.h>
#include <pthread.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "control/names.h"

namespace cleat::control {

struct KnownStorages::Shared {
  struct Known {
    std::string path;
    StorageIdentity identity;
  };
  // All of it is for holders of the mutex.
  void Put(const File& file, const StorageIdentity& identity) {
    Remove(file.disk);
    by_disk.emplace(file.disk, Known{file.path, identity});
    by_whole.emplace(identity.whole, file.disk);
  }
  void Remove(const std::string& disk) {
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
  bool idle() const { return files.empty() && !looking; }

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> files;  // to be looked at: paths by disk
  bool looking = false;
  bool outdated = false;  // what is being looked at was kept or forgotten meanwhile
  std::string looked_at;  // disk
  bool stopping = false;
  std::map<std::string, Known> by_disk;
  std::multimap<StorageIdentity::Whole, std::string> by_whole;
};

KnownStorages::KnownStorages() : shared_(std::make_shared<Shared>()) {
  thread_ = std::thread([shared = shared_] { Run(shared); });
}

KnownStorages::~KnownStorages() {
  {
    std::unique_lock lock(shared_->mutex);
    shared_->stopping = true;
    shared_->files.clear();
    shared_->changed.notify_all();
    const bool ended = shared_->changed.wait_for(lock, kPatience, [this] { return !shared_->looking; });
    if (!ended) {
      spdlog::warn("{}: its file does not answer, and is not waited for", DiskName(shared_->looked_at));
      thread_.detach();
    }
  }
  if (thread_.joinable()) thread_.join();
}

void KnownStorages::Run(const std::shared_ptr<Shared>& shared) {
  pthread_setname_np(pthread_self(), "disk-files");
  std::unique_lock lock(shared->mutex);
  while (true) {
    shared->changed.wait(lock, [&] { return shared->stopping || !shared->files.empty(); });
    if (shared->stopping) return;
    const File file{shared->files.begin()->first, shared->files.begin()->second};
    shared->files.erase(shared->files.begin());
    shared->looking = true;
    shared->outdated = false;
    shared->looked_at = file.disk;
    lock.unlock();
    const UniqueFd opened(open(file.path.c_str(), O_PATH | O_CLOEXEC));
    const auto identity = opened ? IdentifyStorage(opened, DiskName(file.disk))
                                 : Result<StorageIdentity>(ErrnoError(errno, file.path));
    lock.lock();
    shared->looking = false;
    if (!shared->outdated && identity.ok()) shared->Put(file, *identity);
    if (!shared->outdated && !identity.ok()) shared->Remove(file.disk);
    shared->changed.notify_all();
  }
}

void KnownStorages::Look(std::vector<File> files) {
  const std::lock_guard lock(shared_->mutex);
  for (File& file : files) shared_->files.insert_or_assign(std::move(file.disk), std::move(file.path));
  shared_->changed.notify_all();
}

bool KnownStorages::AwaitLooks() const {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_for(lock, kPatience, [this] { return shared_->idle(); });
}

void KnownStorages::Keep(const File& file, const StorageIdentity& identity) {
  const std::lock_guard lock(shared_->mutex);
  shared_->outdated |= shared_->looked_at == file.disk;
  shared_->files.erase(file.disk);
  shared_->Put(file, identity);
}

void KnownStorages::Forget(const std::string& disk) {
  const std::lock_guard lock(shared_->mutex);
  shared_->outdated |= shared_->looked_at == disk;
  shared_->files.erase(disk);
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
