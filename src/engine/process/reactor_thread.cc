// SPDX-License-Identifier: Apache-2.0
#include "engine/process/reactor_thread.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace cleat::engine {

Result<std::unique_ptr<ReactorThread>> ReactorThread::Make(const TickRate& rate,
                                                           const Reactor::Options& options) {
  std::unique_ptr<ReactorThread> thread(new ReactorThread(rate));
  CLEAT_ASSIGN(thread->reactor_, Reactor::Make(thread->clock_, options));
  return thread;
}

Status ReactorThread::Start(std::optional<uint32_t> cpu) {
  CLEAT_CHECK(!thread_.joinable());
  thread_ = std::thread([this] {
    tid_ = gettid();
    tid_.notify_one();
    reactor_->Run();
  });
  tid_.wait(0);
  pthread_setname_np(thread_.native_handle(),
                     reactor_->name().substr(0, 15).c_str());  // 15: the kernel's limit
  if (!cpu) return Ok{};
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (*cpu < CPU_SETSIZE) CPU_SET(*cpu, &cpus);
  const int failed = pthread_setaffinity_np(thread_.native_handle(), sizeof(cpus), &cpus);
  if (failed == 0) return Ok{};
  return ErrnoError(failed, "pinning " + reactor_->name() + " to core " + std::to_string(*cpu) +
                                ": choose cores that this process may use (see taskset -p)");
}

void ReactorThread::Stop() {
  if (!thread_.joinable()) return;
  reactor_->Stop();
  thread_.join();
}

ReactorThread::~ReactorThread() {
  Stop();
}

}  // namespace cleat::engine
