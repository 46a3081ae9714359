// SPDX-License-Identifier: Apache-2.0
// 50 devices, one of them hostile: what do the other 49 and the control plane notice? Windows with and without
// the hostile one alternate, so that whatever else the machine does hits both. In the windows without it the
// fiftieth guest is an honest one that works as hard, so that what is compared is malice and not one guest more.
//
// The test asserts what must hold on any machine: everybody goes on in every window, every call succeeds, every
// byte is right. The ratios are measurements: they are printed, and written to CLEAT_BENCH_JSON if that is set.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
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
#include "perf/deadline.h"
#include "perf/hostile.h"

namespace cleat::system_test {
namespace {

constexpr int kHonest = 49;
constexpr uint64_t kDiskBytes = uint64_t{8} << 20;
constexpr uint32_t kIoBytes = 4096;
constexpr uint64_t kWindowNs = 400 * kNsPerMs;
constexpr int kPairsPerAttack = 5;
constexpr const char* kVictim = "hostile";
constexpr const char* kSpare = "spare";

std::string Id(int i) {
  return fmt::format("vm{}", i);
}

// One request in flight for each guest; each write is read back and compared, block by block.
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
    for (Guest& guest : guests_) Submit(guest);
    return Ok{};
  }

  // Requests completed by all; `least` by the one that got least.
  uint64_t Run(uint64_t window_ns, uint64_t* least) {
    const perf::Deadline deadline(window_ns);
    std::vector<uint64_t> done(guests_.size());
    while (!deadline.passed()) {
      for (size_t i = 0; i < guests_.size(); ++i) done[i] += Turn(guests_[i]);
    }
    *least = *std::min_element(done.begin(), done.end());
    uint64_t all = 0;
    for (const uint64_t count : done) all += count;
    return all;
  }

 private:
  struct Guest {
    std::unique_ptr<Peer> peer;
    uint64_t buffer_gpa = 0;
    uint64_t number = 0;  // of the request in flight: even ones write, odd ones read the same
  };

  static uint64_t* Content(Guest& guest) { return guest.peer->memory().At<uint64_t>(guest.buffer_gpa); }
  static void Submit(Guest& guest) {
    perf::BlkIo io;
    const bool write = guest.number % 2 == 0;
    io.op = write ? perf::BlkOp::kWrite : perf::BlkOp::kRead;
    io.offset_bytes = guest.number / 2 * kIoBytes % kDiskBytes;
    io.length_bytes = kIoBytes;
    io.data_gpa = guest.buffer_gpa;
    *Content(guest) = write ? guest.number : ~uint64_t{0};
    EXPECT_TRUE(guest.peer->driver().Submit(0, io));
    guest.peer->driver().Kick(0);
  }
  static uint64_t Turn(Guest& guest) {
    perf::BlkCompletion completion;
    if (guest.peer->driver().Poll(0, {&completion, 1}) == 0) return 0;
    EXPECT_EQ(completion.status, perf::wire::kBlkOk);
    const uint64_t written = guest.number / 2 * 2;
    if (*Content(guest) != written) ADD_FAILURE() << "read " << *Content(guest) << ", not " << written;
    ++guest.number;
    Submit(guest);
    return 1;
  }

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
  uint64_t least = 0;
  window.iops = static_cast<double>(crowd.Run(kWindowNs, &least)) * kNsPerSecond / kWindowNs;
  stop = true;
  control.join();
  fiftieth.join();
  EXPECT_GT(least, 0U) << "a guest stood still in a window of '" << attack.name << "'";
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
    std::vector<double> control;
    for (int pair = 0; pair < kPairsPerAttack; ++pair) {
      const Window without = Measure(host, crowd, honest);
      const Window with = Measure(host, crowd, attack);
      iops.push_back(with.iops / without.iops);
      control.push_back(with.control_ms / without.control_ms);
      if (HasFailure()) return;
    }
    const Ratio r = RatioOf(iops);
    const Ratio c = RatioOf(control);
    fmt::print("{:<14} throughput x{:.2f} ({:.2f} to {:.2f}), control latency x{:.2f} ({:.2f} to {:.2f})\n",
               attack.name, r.median, r.least, r.most, c.median, c.least, c.most);
    json += fmt::format(R"({}  {{"attack": "{}", "throughput_ratio": [{:.3f}, {:.3f}, {:.3f}], )"
                        R"("control_latency_ratio": [{:.3f}, {:.3f}, {:.3f}]}})",
                        json.empty() ? "" : ",\n", attack.name, r.least, r.median, r.most, c.least, c.median,
                        c.most);
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
}  // namespace cleat::system_test
