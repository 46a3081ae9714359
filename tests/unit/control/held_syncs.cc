// SPDX-License-Identifier: Apache-2.0
#include "held_syncs.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "base/mutex.h"

namespace cleat::control {
namespace {

constexpr std::chrono::seconds kPatience{30};

Mutex mutex;
CondVar changed;
bool holding CLEAT_GUARDED_BY(mutex) = false;
size_t held CLEAT_GUARDED_BY(mutex) = 0;
std::atomic<size_t> syncs = 0;

void WaitForRelease() {
  const MutexLock lock(mutex);
  if (!holding) return;
  ++held;
  changed.NotifyAll();
  while (holding) changed.Wait(mutex);
  --held;
}

}  // namespace

HeldSyncs::HeldSyncs() {
  const MutexLock lock(mutex);
  holding = true;
}

HeldSyncs::~HeldSyncs() {
  Release();
}

bool HeldSyncs::AwaitHeld() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const MutexLock lock(mutex);
  while (held == 0) {
    if (!changed.WaitUntil(mutex, deadline)) return held != 0;
  }
  return true;
}

void HeldSyncs::Release() {
  const MutexLock lock(mutex);
  holding = false;
  changed.NotifyAll();
}

size_t HeldSyncs::count() {
  return syncs;
}

}  // namespace cleat::control

// Takes the place of the C library's for this program and the libraries that it uses.
extern "C" int fdatasync(int fd) {
  ++cleat::control::syncs;
  cleat::control::WaitForRelease();
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}
