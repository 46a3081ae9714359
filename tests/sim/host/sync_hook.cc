// SPDX-License-Identifier: Apache-2.0
#include "sync_hook.h"

#include <cerrno>
#include <utility>

#include "base/thread_scheduler.h"

namespace cleat::sim {
namespace {

std::function<bool(int fd)> hook;

}  // namespace

void SetSyncHook(std::function<bool(int fd)> sync) {
  hook = std::move(sync);
}

static int Sync(int fd) {
  if (hook == nullptr || ThreadScheduler::of_this_thread == nullptr || hook(fd)) return 0;
  errno = EIO;
  return -1;
}

}  // namespace cleat::sim

// Both take the place of the C library's, for this program and the libraries that it uses.
extern "C" int fdatasync(int fd) {
  return cleat::sim::Sync(fd);
}
extern "C" int fsync(int fd) {
  return cleat::sim::Sync(fd);
}
