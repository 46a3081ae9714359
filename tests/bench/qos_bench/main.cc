// SPDX-License-Identifier: Apache-2.0
// What limits cost, and how well they are kept against the wall clock. One reactor on this thread, disks that are
// LimitedDevices over storage that answers at once, no virtqueues around them.
//
//   cost        3,072 disks in 48 groups, with limits of requests and bytes for disk and group that none of them reaches,
//               against 3,072 without; one request a visit, disk after disk, in turns of the two
//   accuracy    disks and groups whose guests want more than they may have, side by side: delivered against promised
//   host        48 groups of 64 such disks with 32 requests in flight each, on storage that takes 1 us a request
//
//   cleat-qos-bench --json FILE [--quick]
#include <sched.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif
#include <time.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "base/tick_clock.h"
#include "host_bench/figures.h"
#include "qos/group.h"
#include "qos/limited_device.h"
#include "qos_bench/guest.h"

namespace cleat::bench {
namespace {

constexpr uint32_t kDisks = 3072;
constexpr uint32_t kGroups = 48;

struct Plan {
  uint32_t cost_rounds = 101;
  uint64_t cost_requests = 300'000;
  double accuracy_s = 10;
  double host_s = 5;
};

qos::Limits LimitsOf(uint64_t iops, uint64_t bytes) {
  qos::Limits limits;
  limits[qos::Meter::kIops] = {iops, 0, 0};
  limits[qos::Meter::kBytes] = {bytes, 0, 0};
  return limits;
}

// ---- Cost

uint64_t ThreadNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * kNsPerSecond + static_cast<uint64_t>(time.tv_nsec);
}

// Disks that are visited one after the other with one request each, so that with many of them active nothing of the
// last visit is in the cache.
class Visited {
 public:
  Visited(Reactor& reactor, uint32_t active, const qos::Limits& own, qos::Groups* groups)
      : reactor_(reactor) {
    for (uint32_t i = 0; i < kDisks; ++i) {
      auto group = groups != nullptr ? groups->Find("groups/" + std::to_string(i % kGroups)) : nullptr;
      disks_.push_back(
          qos::LimitedDevice::Make(std::make_unique<NullDevice>(0), own, std::move(group)).value());
      channels_.push_back(disks_.back()->OpenChannel(reactor_).value());
    }
    // In no order that a prefetcher could learn.
    Random random(active);
    for (uint32_t i = 0; i < active; ++i) {
      visits_.push_back({channels_[uint64_t{i} * kDisks / active].get(), std::make_unique<block::Request>()});
      std::swap(visits_[random.Below(i + 1)], visits_.back());
    }
  }

  // Nanoseconds of this thread's time a request.
  double Run(uint64_t requests) {
    const uint64_t begin_ns = ThreadNs();
    size_t next = 0;
    for (uint64_t i = 0; i < requests; ++i) {
      if (i % 32 == 0) reactor_.RefreshNow();  // as once a batch
      Visit& visit = visits_[next];
      if (++next == visits_.size()) next = 0;
      block::Request& request = *visit.request;
      request.op = block::Op::kRead;
      request.length_bytes = 4096;
      request.Push([](block::Request&, const block::Frame&) {}, nullptr);
      visit.channel->Submit(request);
      // A queue's turn is a thousand instructions, so the processor can't work on several disks at a time.
      std::atomic_signal_fence(std::memory_order_seq_cst);
#if defined(__x86_64__)
      _mm_lfence();
#endif
      CLEAT_CHECK(request.depth() == 0);  // none waited
    }
    return static_cast<double>(ThreadNs() - begin_ns) / static_cast<double>(requests);
  }

 private:
  struct Visit {
    block::Channel* channel;
    std::unique_ptr<block::Request> request;
  };
  Reactor& reactor_;
  std::vector<std::unique_ptr<qos::LimitedDevice>> disks_;
  std::vector<std::unique_ptr<block::Channel>> channels_;
  std::vector<Visit> visits_;
};

void MeasureCost(const Clock& clock, const Plan& plan, uint32_t active, const std::string& name,
                 Figures& figures) {
  // 100 M requests a second is what no core reaches, so nobody waits; each active disk may have its part of it.
  constexpr uint64_t kOfAll = 100'000'000;
  auto reactor = Reactor::Make(clock, {}).value();
  qos::Groups groups(*reactor);
  for (uint32_t i = 0; i < kGroups; ++i) {
    const uint64_t iops = active < kGroups ? kOfAll : 4 * kOfAll / kGroups;
    CLEAT_CHECK(groups.Put({"groups/" + std::to_string(i), i, LimitsOf(iops, iops * 4096)}).ok());
  }
  const uint64_t own_iops = kOfAll / active * 2;
  std::vector<double> costs;
  std::vector<double> limited_ns;
  {
    Visited limited(*reactor, active, LimitsOf(std::min(own_iops, kOfAll), own_iops * 4096), &groups);
    Visited unlimited(*reactor, active, {}, nullptr);
    for (uint32_t round = 0; round < plan.cost_rounds; ++round) {
      const bool first = round % 2 == 0;
      const double one = (first ? limited : unlimited).Run(plan.cost_requests);
      const double other = (first ? unlimited : limited).Run(plan.cost_requests);
      costs.push_back(first ? one - other : other - one);
      limited_ns.push_back(first ? one : other);
    }
  }
  figures.Add(name, "ns", costs);
  figures.Add(name + "_whole", "ns", limited_ns);
}

// ---- Against the wall clock

void RunFor(Reactor& reactor, const Clock& clock, double seconds) {
  const uint64_t end_ns = clock.NowNs() + static_cast<uint64_t>(seconds * 1e9);
  while (clock.NowNs() < end_ns) reactor.RunOnce();
}

double Jain(const std::vector<double>& shares) {
  double sum = 0;
  double squares = 0;
  for (const double share : shares) {
    sum += share;
    squares += share * share;
  }
  return squares > 0 ? sum * sum / (static_cast<double>(shares.size()) * squares) : 0;
}

// One more or less is in the nature of counting.
double ErrorPercent(uint64_t delivered, double promised) {
  const double off = std::abs(static_cast<double>(delivered) - promised);
  return off <= 1 ? 0 : 100 * off / promised;
}

void MeasureAccuracy(const Clock& clock, const Plan& plan, Figures& figures) {
  auto reactor = Reactor::Make(clock, {}).value();
  qos::Groups groups(*reactor);
  struct Subject {
    double per_second;
    std::vector<std::unique_ptr<Guest>> guests;
  };
  std::vector<Subject> subjects;
  for (const uint64_t iops : {1, 100, 6'000, 1'000'000}) {
    qos::Limits limits;
    limits[qos::Meter::kIops] = {iops, 0, 0};
    subjects.push_back({static_cast<double>(iops), {}});
    subjects.back().guests.push_back(std::make_unique<Guest>(*reactor, limits, nullptr, 64, 0));
  }
  for (const uint64_t iops : {6'000, 200'000}) {
    const std::string name = "groups/" + std::to_string(iops);
    qos::Limits limits;
    limits[qos::Meter::kIops] = {iops, 0, 0};
    CLEAT_CHECK(groups.Put({name, static_cast<uint32_t>(subjects.size()), limits}).ok());
    subjects.push_back({static_cast<double>(iops), {}});
    for (int i = 0; i < 8; ++i) {
      subjects.back().guests.push_back(
          std::make_unique<Guest>(*reactor, qos::Limits{}, groups.Find(name), 32, 0));
    }
  }
  RunFor(*reactor, clock, 0.2);
  for (Subject& subject : subjects) {
    for (auto& guest : subject.guests) guest->Begin();
  }
  const uint64_t begin_ns = clock.NowNs();
  RunFor(*reactor, clock, plan.accuracy_s);
  const double seconds = static_cast<double>(clock.NowNs() - begin_ns) / 1e9;
  double worst = 0;
  double jain = 1;
  for (Subject& subject : subjects) {
    uint64_t passed = 0;
    std::vector<double> shares;
    for (auto& guest : subject.guests) {
      passed += guest->passed();
      shares.push_back(static_cast<double>(guest->passed()));
    }
    const double error = ErrorPercent(passed, subject.per_second * seconds);
    std::printf("  %zu disks, %.0f a second: %.4f %% off, Jain %.5f\n", shares.size(), subject.per_second,
                error, Jain(shares));
    worst = std::max(worst, error);
    if (shares.size() > 1) jain = std::min(jain, Jain(shares));
  }
  figures.Add("qos_error_percent_max", "%", {worst});
  figures.Add("qos_jain_min", "", {jain});
  for (Subject& subject : subjects) subject.guests.clear();
}

void MeasureHost(const Clock& clock, const Plan& plan, Figures& figures) {
  constexpr uint64_t kGroupIops = 6'000;  // 288,000 for the host
  auto reactor = Reactor::Make(clock, {}).value();
  qos::Groups groups(*reactor);
  std::vector<std::unique_ptr<Guest>> guests;
  for (uint32_t i = 0; i < kDisks; ++i) {
    const std::string name = "groups/" + std::to_string(i % kGroups);
    qos::Limits limits;
    limits[qos::Meter::kIops] = {kGroupIops, 0, 0};
    CLEAT_CHECK(groups.Put({name, i % kGroups, limits}).ok());
    guests.push_back(std::make_unique<Guest>(*reactor, qos::Limits{}, groups.Find(name), 32, kNsPerUs));
  }
  RunFor(*reactor, clock, 0.5);
  for (auto& guest : guests) guest->Begin();
  const uint64_t begin_ns = clock.NowNs();
  RunFor(*reactor, clock, plan.host_s);
  const double seconds = static_cast<double>(clock.NowNs() - begin_ns) / 1e9;
  uint64_t passed = 0;
  double jain = 1;
  for (uint32_t group = 0; group < kGroups; ++group) {
    std::vector<double> shares;
    for (uint32_t i = group; i < kDisks; i += kGroups)
      shares.push_back(static_cast<double>(guests[i]->passed()));
    for (const double share : shares) passed += static_cast<uint64_t>(share);
    jain = std::min(jain, Jain(shares));
  }
  figures.Add("qos_3072_delivered_percent", "%",
              {100 * static_cast<double>(passed) / (seconds * kGroupIops * kGroups)});
  figures.Add("qos_3072_jain_min", "", {jain});
  guests.clear();
}

int Main(int argc, char** argv) {
  CLI::App app("What limits cost, and how well they are kept.");
  std::string json;
  std::string bin_dir;
  int core = -1;
  bool quick = false;
  app.add_option("--json", json, "The figures, to a file or - for standard output")->required();
  app.add_option("--bin-dir", bin_dir, "Not used: nothing else is run");
  app.add_option("--engine-core", core, "Core to run on");
  app.add_flag("--quick", quick, "A smoke test. Its figures mean nothing");
  CLI11_PARSE(app, argc, argv);
  if (core >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0) std::perror("cleat-qos-bench: --engine-core");
  }
  Plan plan;
  if (quick) plan = {2, 50'000, 0.3, 0.3};
  const TickClock clock(Rate());
  Figures figures;
  MeasureCost(clock, plan, 10, "qos_cost_ns_active_10_of_3072", figures);
  MeasureCost(clock, plan, kDisks, "qos_cost_ns_active_all_of_3072", figures);
  MeasureAccuracy(clock, plan, figures);
  MeasureHost(clock, plan, figures);
  const Status written = figures.Write(json);
  if (!written) {
    std::fprintf(stderr, "cleat-qos-bench: %s\n", written.error().message.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace cleat::bench

int main(int argc, char** argv) {
  return cleat::bench::Main(argc, argv);
}
