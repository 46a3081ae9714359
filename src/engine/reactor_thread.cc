// SPDX-License-Identifier: Apache-2.0
#include "engine/reactor_thread.h"

#include <pthread.h>
#include <sched.h>

#include <string>
#include <utility>

namespace cleat::engine {

Result<std::unique_ptr<ReactorThread>> ReactorThread::Start(const Clock& clock, const Reactor::Options& options,
                                                            std::optional<uint32_t> cpu) {
  auto reactor = Reactor::Make(clock, options);
  if (!reactor) return std::move(reactor).error();
  std::unique_ptr<ReactorThread> self(new ReactorThread(std::move(reactor).value()));
  Reactor* running = self->reactor_.get();
  self->thread_ = std::thread([running] { running->Run(); });
  const std::string name = options.name.substr(0, 15);  // the kernel's limit
  pthread_setname_np(self->thread_.native_handle(), name.c_str());
  if (cpu) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    if (*cpu < CPU_SETSIZE) CPU_SET(*cpu, &cpus);
    const int failed = pthread_setaffinity_np(self->thread_.native_handle(), sizeof(cpus), &cpus);
    if (failed != 0) {
      return ErrnoError(failed, "pinning " + options.name + " to core " + std::to_string(*cpu) +
                                    ": choose cores that this process may use (taskset -p)");
    }
  }
  return self;
}

ReactorThread::~ReactorThread() {
  if (!thread_.joinable()) return;
  reactor_->Stop();
  thread_.join();
}

}  // namespace cleat::engine
