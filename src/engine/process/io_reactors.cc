// SPDX-License-Identifier: Apache-2.0
#include "engine/process/io_reactors.h"

#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace cleat::engine {

Result<std::unique_ptr<IoReactors>> IoReactors::Make(const Settings& settings, uint64_t incarnation) {
  CLEAT_ASSIGN(auto lifetime, modules::IoLifetime::Make(settings.runtime_dir + "/io",
                                                        settings.name + "-" + std::to_string(getpid())));
  std::unique_ptr<IoReactors> io(new IoReactors(std::move(lifetime)));
  CLEAT_TRY(io->MakeThreads(settings, incarnation));
  for (Reactor* reactor : io->reactors_) {
    if (const Status added = io->uring_.AddReactor(*reactor); !added)
      spdlog::warn("{}: no disks on files: {}", reactor->name(), added.error().message);
    if (const Status added = io->crypto_.AddReactor(*reactor); !added)
      spdlog::warn("{}: no encrypted disks: {}", reactor->name(), added.error().message);
  }
  CLEAT_ASSIGN(io->counters_, observe::EngineCounters::Make(settings.name, incarnation, io->reactors_));
  return io;
}

Status IoReactors::MakeThreads(const Settings& settings, uint64_t incarnation) {
  const TickRate rate = TickRate::Measure();
  for (uint32_t i = 0; i < settings.reactors; ++i) {
    Reactor::Options options;
    options.name = "reactor-" + std::to_string(i);
    options.index = i;
    options.spin_ns = settings.spin_us * kNsPerUs;
    options.random_seed = incarnation + i + 1;
    CLEAT_ASSIGN(auto thread, ReactorThread::Make(rate, options));
    threads_.push_back(std::move(thread));
    reactors_.push_back(&threads_.back()->reactor());
  }
  return Ok{};
}

Status IoReactors::Start(const Settings& settings) {
  for (size_t i = 0; i < threads_.size(); ++i) {
    std::optional<uint32_t> cpu;
    if (i < settings.cpus.size()) cpu = settings.cpus[i];
    CLEAT_TRY(threads_[i]->Start(cpu));
  }
  return Ok{};
}

std::vector<StallBreaker::Watched> IoReactors::Threads() const {
  std::vector<StallBreaker::Watched> all;
  for (const auto& thread : threads_) all.push_back({&thread->reactor(), thread->tid()});
  return all;
}

IoReactors::~IoReactors() {
  for (const auto& thread : threads_) thread->Stop();
}

}  // namespace cleat::engine
