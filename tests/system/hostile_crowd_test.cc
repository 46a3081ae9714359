// SPDX-License-Identifier: Apache-2.0
// 50 devices, one of them hostile: what do the other 49 and the control plane notice? Windows with and without
// the hostile one alternate, so that whatever else the machine does hits both. In the windows without it the
// fiftieth guest is an honest one that works as hard, so that what is compared is malice and not one guest more.
// The 49 ask for a fixed rate each, as guests with a limit do, and not for all that the processors give: attacker
// and crowd live on the same few, and would be compared by what the scheduler gives them.
//
// The test asserts what must hold on any machine: everybody goes on in every window, every call succeeds, every
// byte is right. The ratios are measurements: they are printed, and written to CLEAT_BENCH_JSON if that is set.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "expect_ok.h"
#include "host.h"
#include "peer.h"
#include "perf/hostile/hostile.h"

namespace cleat::system_test::hostile_crowd_test {
namespace {

constexpr int kHonest = 49;
constexpr uint64_t kDiskBytes = uint64_t{8} << 20;
constexpr uint32_t kIoBytes = 4096;
constexpr uint64_t kWindowNs = 400 * kNsPerMs;
constexpr uint64_t kPeriodNs = 5 * kNsPerMs;  // of one guest's requests
constexpr int kRestUs = 100;                  // between two looks at all guests
constexpr int kPairsPerAttack = 5;
constexpr const char* kVictim = "hostile";
constexpr const char* kSpare = "spare";

std::string Id(int i) {
  return fmt::format("vm{}", i);
}

struct Work {
  uint64_t requests = 0;  // completed by all
  uint64_t least = 0;     // by the guest that got least
  double p99_us = 0;      // from when a request was due until it was seen to be done
  uint64_t open_ns = 0;   // the window; longer than asked for when a guest got nothing in that time
};

// A request each kPeriodNs for each guest; each write is read back and compared, block by block.
class Crowd {
 public:
  Status Start(const Host& host) {
    for (int i = 0; i < kHonest; ++i) {
      auto peer = Peer::Start(host.SocketPath(Id(i)), {.queue_size = 16});
      if (!peer) return std::move(peer).error();
      auto buffer = (*peer)->driver().AllocateBuffer(kIoBytes);
      if (!buffer) return std::move(buffer).error();
      guests_.push_back({.peer = std::move(*peer), .buffer_gpa = *buffer});
    }
    return Ok{};
  }

  Work Run(uint64_t window_ns) {
    const uint64_t begin_ns = clock_.NowNs();
    std::vector<uint64_t> done(guests_.size());
    std::vector<uint64_t> latencies_ns;
    Work work;
    // Not all at the same moment.
    for (size_t i = 0; i < guests_.size(); ++i) guests_[i].due_ns = begin_ns + i * kPeriodNs / guests_.size();
    for (bool open = true; open || Busy();) {
      const uint64_t now_ns = clock_.NowNs();
      // A guest that has had nothing yet may be the scheduler's doing: it stands still when it never gets anything.
      const bool all = std::find(done.begin(), done.end(), 0U) == done.end();
      open = now_ns < begin_ns + (all ? window_ns : kWaitTimeoutNs);
      if (open) work.open_ns = now_ns - begin_ns;
      for (size_t i = 0; i < guests_.size(); ++i) {
        Guest& guest = guests_[i];
        if (guest.busy && Complete(guest)) {
          ++done[i];
          latencies_ns.push_back(now_ns - guest.due_ns);
          guest.due_ns = std::max(guest.due_ns + kPeriodNs, now_ns);
        }
        if (open && !guest.busy && now_ns >= guest.due_ns) Submit(guest);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(kRestUs));  // the guests' own pace
    }
    work.requests = latencies_ns.size();
    work.least = *std::min_element(done.begin(), done.end());
    std::sort(latencies_ns.begin(), latencies_ns.end());
    if (!latencies_ns.empty())
      work.p99_us = static_cast<double>(latencies_ns[latencies_ns.size() * 99 / 100]) / kNsPerUs;
    return work;
  }

 private:
  struct Guest {
    std::unique_ptr<Peer> peer;
    uint64_t buffer_gpa = 0;
    uint64_t number = 0;  // of the request: even ones write, odd ones read the same
    bool busy = false;    // it is in flight
    uint64_t due_ns = 0;
  };

  static uint64_t* Content(Guest& guest) { return guest.peer->memory().At<uint64_t>(guest.buffer_gpa); }
  bool Busy() const {
    return std::any_of(guests_.begin(), guests_.end(), [](const Guest& guest) { return guest.busy; });
  }
  static void Submit(Guest& guest) {
    perf::BlkIo io;
    const bool write = guest.number % 2 == 0;
    io.op = write ? perf::BlkOp::kWrite : perf::BlkOp::kRead;
    io.offset_bytes = guest.number / 2 * kIoBytes % kDiskBytes;
    io.length_bytes = kIoBytes;
    io.data_gpa = guest.buffer_gpa;
    *Content(guest) = write ? guest.number : ~uint64_t{0};
    guest.busy = guest.peer->driver().Submit(0, io);
    EXPECT_TRUE(guest.busy);
    guest.peer->driver().Kick(0);
  }
  static bool Complete(Guest& guest) {
    perf::BlkCompletion completion;
    if (guest.peer->driver().Poll(0, {&completion, 1}) == 0) return false;
    EXPECT_EQ(completion.status, perf::wire::kBlkOk);
    const uint64_t written = guest.number / 2 * 2;
    if (*Content(guest) != written) ADD_FAILURE() << "read " << *Content(guest) << ", not " << written;
    ++guest.number;
    guest.busy = false;
    return true;
  }

  MonotonicClock clock_;
  std::vector<Guest> guests_;
};

// ---- What the fiftieth does, again and again until `stop`.

using Stop = std::atomic<bool>;

void WorkHonestly(const std::string& socket, const Stop& stop) {
  auto peer = Peer::Start(socket);
  ASSERT_OK(peer);
  std::vector<uint8_t> data(kIoBytes, 1);
  while (!stop) EXPECT_OK((*peer)->driver().WriteSync(0, data));
}

void FloodKicks(const std::string& socket, const Stop& stop) {
  auto peer = Peer::Start(socket);
  ASSERT_OK(peer);
  while (!stop) (*peer)->driver().ring(0).Kick();
}

void FloodMessages(const std::string& socket, const Stop& stop) {
  while (!stop) {
    auto frontend = perf::Frontend::Listen(socket);
    if (!frontend || !(*frontend)->Accept().ok()) continue;
    while (!stop && (*frontend)->GetFeatures().ok()) {
    }
  }
}

void ComeAndGo(const std::string& socket, const Stop& stop) {
  const auto abuses = perf::SocketAbuseCases();
  for (size_t i = 0; !stop; ++i) {
    auto frontend = perf::Frontend::Listen(socket);
    if (!frontend || !(*frontend)->Accept().ok()) continue;
    (void)perf::Apply(abuses[i % abuses.size()].abuse, **frontend);
  }
}

void BreakRings(const std::string& socket, const Stop& stop) {
  const auto abuses = perf::RingAbuseCases();
  for (size_t i = 0; !stop; ++i) {
    auto peer = Peer::Start(socket);
    if (!peer) continue;
    const auto scratch = (*peer)->driver().AllocateBuffer(perf::kAbuseScratchBytes);
    ASSERT_OK(scratch);
    (void)perf::Apply(abuses[i % abuses.size()].abuse, (*peer)->driver().ring(0), (*peer)->memory(), *scratch,
                      (*peer)->driver().config().capacity_sectors);
    (void)(*peer)->driver().ring(0).WaitUsed(kNsPerMs);
  }
}

struct Attack {
  const char* name;
  void (*run)(const std::string& socket, const Stop& stop);
};
constexpr Attack kAttacks[] = {{"kicks", FloodKicks},
                               {"messages", FloodMessages},
                               {"come and go", ComeAndGo},
                               {"broken rings", BreakRings}};

struct Window {
  double iops = 0;
  double p99_us = 0;
  double control_ms = 0;  // median of attach and detach on the same engine
};

// An attach that is acknowledged and a detach, as long as the window is open.
class Controls {
 public:
  explicit Controls(Host& host) : api_(host.address()) {}
  double Run(const Stop& stop) {
    std::vector<double> times_ms;
    const MonotonicClock clock;
    do {
      const uint64_t begin = clock.NowNs();
      EXPECT_TRUE(api_.Attach(kSpare, kSpare).ok());
      EXPECT_TRUE(WaitAttachment(v1::ATTACHMENT_STATE_READY));
      const grpc::Status detached = api_.Detach(kSpare, kSpare);
      EXPECT_TRUE(detached.ok()) << detached.error_message();
      EXPECT_TRUE(WaitAttachment(v1::ATTACHMENT_STATE_UNSPECIFIED));
      times_ms.push_back(static_cast<double>(clock.NowNs() - begin) / kNsPerMs);
    } while (!stop);
    std::sort(times_ms.begin(), times_ms.end());
    return times_ms[times_ms.size() / 2];
  }

 private:
  bool WaitAttachment(v1::AttachmentState state) {
    return api_.WaitUntil([&](const Model& m) { return m.AttachmentStateOf(kSpare, kSpare) == state; });
  }
  Api api_;
};

Window Measure(Host& host, Crowd& crowd, const Attack& attack) {
  Stop stop = false;
  std::thread fiftieth([&] { attack.run(host.SocketPath(kVictim), stop); });
  Window window;
  std::thread control([&] { window.control_ms = Controls(host).Run(stop); });
  const Work work = crowd.Run(kWindowNs);
  window.iops = static_cast<double>(work.requests) * kNsPerSecond / static_cast<double>(work.open_ns);
  window.p99_us = work.p99_us;
  stop = true;
  control.join();
  fiftieth.join();
  EXPECT_GT(work.least, 0U) << "a guest stood still in a window of '" << attack.name << "'";
  return window;
}

struct Ratio {
  double median = 0, least = 0, most = 0;
};
Ratio RatioOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

TEST(HostileCrowd, FortyNineBesideOneHostile) {
  Host host({.reactors = 1, .log_level = "error"});
  ASSERT_TRUE(host.ok());
  for (int i = 0; i < kHonest; ++i) ASSERT_TRUE(host.AttachNew(Id(i), MemoryDisk(kDiskBytes)));
  ASSERT_TRUE(host.AttachNew(kVictim, MemoryDisk(kDiskBytes)));
  ASSERT_TRUE(host.api().CreateDisk(kSpare, NullDisk(kDiskBytes)).ok());
  ASSERT_TRUE(host.api().CreateController(kSpare, BlkController(host.SocketPath(kSpare))).ok());
  Crowd crowd;
  ASSERT_OK(crowd.Start(host));

  const Attack honest{"honest work", WorkHonestly};
  std::string json;
  for (const Attack& attack : kAttacks) {
    std::vector<double> iops;
    std::vector<double> latency;
    std::vector<double> control;
    for (int pair = 0; pair < kPairsPerAttack; ++pair) {
      const Window without = Measure(host, crowd, honest);
      const Window with = Measure(host, crowd, attack);
      iops.push_back(with.iops / without.iops);
      latency.push_back(with.p99_us / without.p99_us);
      control.push_back(with.control_ms / without.control_ms);
      if (HasFailure()) return;
    }
    const Ratio r = RatioOf(iops);
    const Ratio l = RatioOf(latency);
    const Ratio c = RatioOf(control);
    fmt::print(
        "{:<14} throughput x{:.3f} ({:.3f} to {:.3f}), p99 x{:.2f} ({:.2f} to {:.2f}), "
        "attach and detach x{:.2f} ({:.2f} to {:.2f})\n",
        attack.name, r.median, r.least, r.most, l.median, l.least, l.most, c.median, c.least, c.most);
    json += fmt::format(
        R"({}  {{"attack": "{}", "throughput": [{:.3f}, {:.3f}, {:.3f}], )"
        R"("p99_latency": [{:.3f}, {:.3f}, {:.3f}], "control_latency": [{:.3f}, {:.3f}, {:.3f}]}})",
        json.empty() ? "" : ",\n", attack.name, r.least, r.median, r.most, l.least, l.median, l.most, c.least,
        c.median, c.most);
  }
  const char* path =
      std::getenv("CLEAT_BENCH_JSON");  // NOLINT(concurrency-mt-unsafe): no other thread is left
  if (path != nullptr) {
    std::ofstream(path) << fmt::format(
        "{{\"guests\": {}, \"windows\": {}, \"window_ms\": {}, \"ratios\": \"least, median, most of the "
        "pairs\", "
        "\"attacks\": [\n{}\n]}}\n",
        kHonest, kPairsPerAttack, kWindowNs / kNsPerMs, json);
  }
}

}  // namespace
}  // namespace cleat::system_test::hostile_crowd_test
