// SPDX-License-Identifier: Apache-2.0
#include "base/scheduling.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace cleat {
namespace {

// struct sched_attr as Linux 3.14 has it; C libraries got it late.
struct SchedAttr {
  uint32_t size = sizeof(SchedAttr);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0;
  uint64_t deadline = 0;
  uint64_t period = 0;
};

}  // namespace

std::vector<uint32_t> CpusBeside(const std::vector<uint32_t>& taken) {
  std::vector<uint32_t> others;
  cpu_set_t ours;
  if (sched_getaffinity(0, sizeof(ours), &ours) != 0) return others;
  for (uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    const bool is_taken = std::find(taken.begin(), taken.end(), cpu) != taken.end();
    if (CPU_ISSET(cpu, &ours) && !is_taken) others.push_back(cpu);
  }
  return others;
}

Status StayOn(const std::vector<uint32_t>& cpus) {
  if (cpus.empty()) return Ok{};
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const uint32_t cpu : cpus) CPU_SET(cpu, &set);
  const int failed = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
  if (failed != 0) return ErrnoError(failed, "keeping threads on their cores");
  return Ok{};
}

Status HoldCoresFor(uint64_t ns) {
  SchedAttr attr;
  // Whatever an operator has set stays as it is.
  if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) != 0) return ErrnoError(errno, "sched_getattr");
  if (attr.policy != SCHED_OTHER && attr.policy != SCHED_BATCH) return Ok{};
  attr.runtime = ns;
  if (syscall(SYS_sched_setattr, 0, &attr, 0) != 0) return ErrnoError(errno, "sched_setattr");
  return Ok{};
}

}  // namespace cleat
