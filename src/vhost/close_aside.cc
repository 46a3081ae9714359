// SPDX-License-Identifier: Apache-2.0
#include "vhost/close_aside.h"

#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <chrono>
#include <deque>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"

namespace cleat::vhost {
namespace {

constexpr std::chrono::seconds kThreadIdle{1};  // then a thread ends

}  // namespace

struct CloseAside::Queue {
  std::deque<UniqueFd> files;  // under the state's mutex
  bool has_thread = false;     // likewise: one works on it, or will
  std::atomic<size_t> closing{0};
  std::function<void()> on_closed;  // on control; empty: the endpoint is gone
};

struct CloseAside::State {
  explicit State(Reactor& c) : control(&c) {}
  Mutex mutex;
  CondVar wake;
  Reactor* control CLEAT_GUARDED_BY(mutex);  // nullptr: gone
  std::deque<std::shared_ptr<Queue>> ready CLEAT_GUARDED_BY(mutex);
  uint32_t threads CLEAT_GUARDED_BY(mutex) = 0;
  uint32_t idle CLEAT_GUARDED_BY(mutex) = 0;
  size_t closing CLEAT_GUARDED_BY(mutex) = 0;
  size_t missing_threads() const CLEAT_REQUIRES(mutex) {
    return ready.size() > idle ? ready.size() - idle : 0;
  }
};

CloseAside::CloseAside(Reactor& control, StartThread start_thread)
    : control_(control), start_thread_(std::move(start_thread)), state_(std::make_shared<State>(control)) {}

CloseAside::~CloseAside() {
  {
    const MutexLock lock(state_->mutex);
    state_->control = nullptr;
  }
  state_->wake.NotifyAll();
}

size_t CloseAside::closing() const {
  const MutexLock lock(state_->mutex);
  return state_->closing;
}

// The library says it with an exception: EAGAIN, a limit of threads or tasks.
Status CloseAside::StartDetached(std::function<void()> main) {
  try {
    std::thread(std::move(main)).detach();
    return Ok{};
  } catch (const std::system_error& error) {
    return ErrnoError(error.code().value(), "making a thread");
  }
}

// For each queue that waits for one.
void CloseAside::AddThreads() {
  size_t missing = 0;
  {
    const MutexLock lock(state_->mutex);
    missing = state_->missing_threads();
  }
  while (missing > 0 && AddThread()) --missing;
}

// False: there are as many as may be, or none can be made now.
bool CloseAside::AddThread() {
  {
    const MutexLock lock(state_->mutex);
    if (state_->threads == kThreadsMax) return false;
    ++state_->threads;
  }
  const Status started = start_thread_([state = state_] { ThreadMain(state); });
  if (started) {
    short_of_threads_ = false;
    return true;
  }
  {
    const MutexLock lock(state_->mutex);
    --state_->threads;
  }
  if (!std::exchange(short_of_threads_, true)) {
    spdlog::warn(
        "close-aside: no thread for files that front ends have sent: {}; tried again: raise TasksMax=",
        started.error().message);
  }
  if (!retry_timer_.pending()) control_.AddTimer(retry_timer_, control_.now_ns() + kThreadRetryNs);
  return false;
}

// Until there has been nothing to close for a while, or there is no CloseAside any more and nothing is left.
void CloseAside::ThreadMain(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "close-aside");
  const MutexLock lock(state->mutex);
  for (;;) {
    ++state->idle;
    const auto until = std::chrono::steady_clock::now() + kThreadIdle;
    while (state->ready.empty() && state->control != nullptr && state->wake.WaitUntil(state->mutex, until)) {
    }
    --state->idle;
    if (state->ready.empty()) {
      --state->threads;
      return;
    }
    const std::shared_ptr<Queue> queue = std::move(state->ready.front());
    state->ready.pop_front();
    while (!queue->files.empty()) {
      UniqueFd file = std::move(queue->files.front());
      queue->files.pop_front();
      const MutexUnlock unlocked(state->mutex);
      file.Reset();  // here it may hang
    }
    queue->has_thread = false;
    state->closing -= queue->closing.exchange(0);
    if (state->control == nullptr) continue;
    state->control->PostCall([queue] {
      if (queue->on_closed) queue->on_closed();
    });
  }
}

PeerFiles::PeerFiles(CloseAside& aside, std::function<void()> on_closed)
    : aside_(aside), state_(aside.state_), queue_(std::make_shared<CloseAside::Queue>()) {
  queue_->on_closed = std::move(on_closed);
}

PeerFiles::~PeerFiles() {
  queue_->on_closed = nullptr;
}

size_t PeerFiles::closing() const {
  return queue_->closing;
}

void PeerFiles::Close(UniqueFd file) {
  if (!file) return;
  std::vector<UniqueFd> files;
  files.push_back(std::move(file));
  Close(std::move(files));
}

void PeerFiles::Close(std::vector<UniqueFd> files) {
  std::erase_if(files, [](const UniqueFd& file) { return !file; });
  if (files.empty()) return;
  {
    const MutexLock lock(state_->mutex);
    queue_->closing += files.size();
    state_->closing += files.size();
    for (UniqueFd& file : files) queue_->files.push_back(std::move(file));
    if (queue_->has_thread) return;
    queue_->has_thread = true;
    state_->ready.push_back(queue_);
    state_->wake.NotifyOne();
    if (state_->missing_threads() == 0) return;
  }
  aside_.AddThread();
}

// Once it is shut down nothing more comes in. Only a stream has no messages without bytes; a listener's queue has connections.
void PeerFiles::CloseSocket(UniqueFd socket) {
  if (!socket) return;
  shutdown(socket.get(), SHUT_RDWR);
  int type = 0;
  socklen_t size = sizeof type;
  int unread_bytes = 0;
  const bool empty = getsockopt(socket.get(), SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
                     type == SOCK_STREAM && ioctl(socket.get(), FIONREAD, &unread_bytes) == 0 &&
                     unread_bytes == 0;
  if (!empty) Close(std::move(socket));
}

}  // namespace cleat::vhost
