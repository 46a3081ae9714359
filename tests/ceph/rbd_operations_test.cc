// SPDX-License-Identifier: Apache-2.0
// Thousands of random operations through the API on disks in Ceph, by several callers at once and with no waiting in
// between, while guests come and go and the clusters' daemons stop and go on at random: every call is answered at once and as
// a model says (rbd_world.h), every operation ends as the model says, and when all is deleted nothing is left: no lock, no
// watch, no thread, no descriptor.
//
//   CLEAT_CEPH_OPERATIONS  how many (5000 is the long run)
//   CLEAT_CEPH_SEED        the seed; it decides what each caller draws and when daemons stop, the threads' timing stays the
//                          kernel's
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/random.h"
#include "tests/ceph/rbd_caller.h"
#include "tests/ceph/rbd_host_rig.h"
#include "tests/ceph/rbd_world.h"
#include "tests/environment.h"
#include "tests/system/io_load.h"

namespace cleat::system_test::rbd_operations_test {
namespace {

using test::FromEnvironment;

constexpr uint64_t kDefaultOperations = kSanitized ? 160 : 280;
constexpr uint64_t kRoundsMax = 10;
constexpr uint32_t kCallers = 4;
constexpr uint64_t kLongStopMs = 3000;
// Of calls that wait for the cluster none is answered while it stands still. Of others nearly all are; some meet its going on.
constexpr uint64_t kJudgedCalls = 4;
constexpr uint64_t kVisitTimeoutNs = 200 * kNsPerMs;
constexpr uint64_t kGrowthBytesMax = uint64_t{kSanitized ? 256 : 96} << 20;

// Stops a cluster's OSD, and now and then its monitor, again and again; the first time for long.
class Trouble {
 public:
  Trouble(MiniCeph& ceph, Stops& stops, uint64_t seed)
      : ceph_(ceph), stops_(stops), random_(seed), thread_([this] { Run(); }) {}
  ~Trouble() {
    ended_.set_value();
    thread_.join();
  }
  Trouble(const Trouble&) = delete;
  Trouble& operator=(const Trouble&) = delete;

 private:
  bool Wait(uint64_t ms) {
    return over_.wait_for(std::chrono::milliseconds(ms)) == std::future_status::timeout;
  }
  void Run() {
    for (bool first = true; Wait(random_.Between(50, 500)); first = false) {
      const Stopped stopped(ceph_, random_.Chance(1, 5) && !first ? "mon.a" : "osd.0");
      ++stops_;
      Wait(first || random_.Chance(1, 12) ? kLongStopMs : random_.Between(1, 400));
      ++stops_;
    }
  }
  MiniCeph& ceph_;
  Stops& stops_;
  Random random_;
  std::promise<void> ended_;
  std::future<void> over_ = ended_.get_future();
  std::thread thread_;
};

// Guests of one caller's blk controller, who come, do some I/O and vanish, politely or not.
class Guest {
 public:
  Guest(Host& host, uint32_t number, uint64_t seed, Tally& tally)
      : path_(host.SocketPath(Caller::ControllerId(number, 0))), random_(seed), tally_(tally) {
    options_.accept_timeout_ns = kVisitTimeoutNs;
    options_.message_timeout_ns = kSettleTimeoutNs;
  }

  void Run(const std::atomic<bool>& stop) {
    while (!stop.load() && !testing::Test::HasFailure()) Visit();
  }

 private:
  void Visit() {
    auto peer = Peer::Listen(path_, options_);
    if (!peer) return;  // nobody there
    perf::BlkOptions options;
    options.num_queues = static_cast<uint16_t>(random_.Between(1, 2));
    options.queue_size = 64;
    if (!(*peer)->Boot(options)) return;  // or no longer
    tally_.visits.fetch_add(1);
    const Status done = DoIo((*peer)->driver());
    // The disk may be taken away at any moment: then the connection ends. Anything else is a failure.
    if (!done && done.error().code != ErrorCode::kUnavailable)
      ADD_FAILURE() << path_ << ": " << done.error().message;
    if (done && random_.Chance(1, 2)) static_cast<void>((*peer)->ShutDown());
  }

  Status DoIo(perf::BlkDriver& driver) {
    std::vector<uint8_t> data(random_.Between(1, 16) * 512);
    std::vector<uint8_t> read(data.size());
    const uint64_t rounds = random_.Between(1, 20);
    for (uint64_t i = 0; i < rounds; ++i) {
      const auto queue = static_cast<uint16_t>(random_.Below(driver.num_queues()));
      const uint64_t offset = random_.Below((World::kMibNew * kMiB - data.size()) / 512) * 512;
      std::fill(data.begin(), data.end(), static_cast<uint8_t>(random_.Next()));
      tally_.requests.fetch_add(2);
      if (Status written = driver.WriteSync(offset, data, queue); !written) return written;
      if (Status done = driver.ReadSync(offset, read, queue); !done) return done;
      if (read != data) {
        return Error(ErrorCode::kDataLoss,
                     fmt::format("{} bytes at {} read other than written", data.size(), offset));
      }
    }
    // Some leave with requests in flight.
    for (uint64_t token = random_.Below(16); token > 0; --token)
      driver.Submit(0, {.op = perf::BlkOp::kFlush, .token = token});
    driver.Kick(0);
    return Ok{};
  }

  const std::string path_;
  Random random_;
  Tally& tally_;
  perf::FrontendOptions options_;
};

// By name; without those of the pools for calls that may block, which stay for the next call, up to their limit.
std::vector<std::string> LastingThreads(pid_t pid) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    std::string name = ReadTextFile(task.path() / "comm");
    if (!name.empty()) name.pop_back();
    if (name != "blocking") names.push_back(std::move(name));
  }
  return names;
}

class RbdOperations : public RbdHostTest {
 protected:
  MiniCeph& CephOf(uint32_t caller) { return caller % 2 == 0 ? ceph_ : other_ceph_; }

  // What is made once and stays is made first.
  void WarmUp() {
    for (const char* id : {"warm-a", "warm-b"}) {
      ceph_.CreateImage(id, kDiskBytes);
      ASSERT_TRUE(host_.AttachNew(id, Rbd(id), 2));
      auto peer = Peer::Start(host_.SocketPath(id));
      ASSERT_OK(peer);
      EXPECT_OK((*peer)->ShutDown());
      ASSERT_TRUE(host_.Remove(id));
      ceph_.RemoveImage(id);
    }
    ExpectNoClients();
  }

  void RunAll(uint64_t operations, uint64_t seed) {
    std::vector<std::unique_ptr<Caller>> callers;
    for (uint32_t i = 0; i < kCallers; ++i)
      callers.push_back(std::make_unique<Caller>(host_, CephOf(i), stops_[i % 2], i, seed + i, tally_));
    std::atomic<bool> stop = false;
    std::vector<std::thread> guests;
    for (uint32_t i = 0; i < kCallers; ++i)
      guests.emplace_back([&, i] { Guest(host_, i, seed + 100 + i, tally_).Run(stop); });
    {
      const Trouble trouble(ceph_, stops_[0], seed + 200);
      const Trouble more_trouble(other_ceph_, stops_[1], seed + 201);
      ForAll(callers, [&](Caller& caller) { caller.Run(operations / kCallers); });
    }
    if (!HasFailure()) ForAll(callers, [](Caller& caller) { caller.Finish(); });
    stop = true;
    for (std::thread& guest : guests) guest.join();
  }

  template <typename What>
  static void ForAll(const std::vector<std::unique_ptr<Caller>>& callers, What what) {
    std::vector<std::thread> threads;
    threads.reserve(callers.size());
    for (const auto& caller : callers) threads.emplace_back([&what, &caller] { what(*caller); });
    for (std::thread& thread : threads) thread.join();
  }

  void ExpectNoClients() {
    EXPECT_TRUE(host_.api().WaitUntil([&](const Model& model) {
      return model.empty() && !model.engines.at(kEngineName).status().has_ceph();
    }));
  }

  void ExpectNothingLeft(const ProcessStats& before, size_t threads_before) {
    ExpectNoClients();
    for (MiniCeph* ceph : {&ceph_, &other_ceph_}) {
      EXPECT_EQ(ceph->BlocklistedCount(), 0U);
      std::array<rbd_image_spec_t, 8> images{};
      size_t count = images.size();
      EXPECT_EQ(rbd_list2(ceph->io(), images.data(), &count), 0);
      EXPECT_EQ(count, 0U);
      rbd_image_spec_list_cleanup(images.data(), count);
    }
    ProcessStats after;
    std::vector<std::string> threads;
    EXPECT_TRUE(host_.WaitEngineStats(
        [&](const ProcessStats& now) {
          threads = LastingThreads(host_.engine().pid());
          return now.descriptors <= before.descriptors && threads.size() <= threads_before;
        },
        &after))
        << after.descriptors << " descriptors, at the start " << before.descriptors << "; threads are "
        << fmt::format("{}", fmt::join(threads, ", "));
    fmt::print("engine: {} -> {} descriptors, {} -> {} threads, {} -> {} KiB\n", before.descriptors,
               after.descriptors, threads_before, threads.size(), before.resident_bytes / 1024,
               after.resident_bytes / 1024);
    EXPECT_LE(after.resident_bytes, before.resident_bytes + kGrowthBytesMax);
  }

  void ExpectItServes() {
    ceph_.CreateImage("after", kDiskBytes);
    ASSERT_TRUE(host_.AttachNew("after", Rbd("after")));
    auto peer = Peer::Start(host_.SocketPath("after"));
    ASSERT_OK(peer);
    perf::StampedBlocks blocks(kDiskBytes, 512, 1);
    IoLoad load((*peer)->driver(), blocks);
    EXPECT_OK(load.Run(kSanitized ? 100 : 500));
    EXPECT_OK(load.Verify());
    ASSERT_OK((*peer)->ShutDown());
    ASSERT_TRUE(host_.Remove("after"));
  }

  void Report(uint64_t seed, uint64_t took_ns) {
    uint64_t operations = 0;
    uint64_t longest_ns = 0;
    std::string_view longest;
    for (const auto& [what, count] : tally_.answers()) {
      fmt::print("  {} times {}\n", count, what);
      if (!what.starts_with(kSettling)) operations += count;
    }
    for (const Act act : kActs) {
      const uint64_t this_ns = tally_.LongestNs(NameOf(act));
      if (IsOfImage(act) || this_ns < longest_ns) continue;
      longest_ns = this_ns;
      longest = NameOf(act);
    }
    fmt::print(
        "{} operations in {} ms from seed {}, {} visits with {} requests; the longest call took {} us ({}), "
        "the "
        "longest wait for an end {} ms\n",
        operations, took_ns / kNsPerMs, seed, tally_.visits.load(), tally_.requests.load(),
        longest_ns / kNsPerUs, longest, tally_.LongestNs(kSettling) / kNsPerMs);
    RecordProperty("longest_call_us", std::to_string(longest_ns / kNsPerUs));
    ExpectNoCallWaits();
  }

  bool MetAStop() {
    const auto calls = tally_.while_stopped();
    return std::any_of(calls.begin(), calls.end(), [](const auto& one) { return one.second.answered > 0; });
  }

  void ExpectNoCallWaits() {
    WhileStopped all;
    for (const auto& [what, calls] : tally_.while_stopped()) {
      fmt::print("  while the cluster stood still: {} {} answered, {} later\n", calls.answered, what,
                 calls.later);
      all.answered += calls.answered;
      all.later += calls.later;
      if (calls.later >= kJudgedCalls) {
        EXPECT_GT(calls.answered, 0U) << what;
      }
    }
    EXPECT_GT(all.answered, 0U) << "no call met a cluster that stands still: nothing was tested";
  }

  MiniCeph other_ceph_;
  std::array<Stops, 2> stops_{};  // of the one and the other
  Tally tally_;
};

TEST_F(RbdOperations, AnyOrderWhileClustersHang) {
  const uint64_t operations = FromEnvironment("CLEAT_CEPH_OPERATIONS", kDefaultOperations);
  const uint64_t seed = FromEnvironment("CLEAT_CEPH_SEED", std::random_device()());
  const std::string again = fmt::format("CLEAT_CEPH_SEED={} CLEAT_CEPH_OPERATIONS={}", seed, operations);
  fmt::print("{}\n", again);
  SCOPED_TRACE(again);
  RecordProperty("seed", std::to_string(seed));
  ASSERT_NO_FATAL_FAILURE(WarmUp());
  RunAll(operations / 10, seed);
  if (HasFailure()) return;
  ExpectNoClients();
  const ProcessStats before = host_.engine().Stats();
  const size_t threads_before = LastingThreads(host_.engine().pid()).size();

  const MonotonicClock clock;
  const uint64_t since_ns = clock.NowNs();
  RunAll(operations - operations / 10, seed + 1000);
  // In a few seconds it may happen that no call falls into a stop.
  for (uint64_t round = 2; round <= kRoundsMax && !MetAStop() && !HasFailure(); ++round)
    RunAll(operations, seed + round * 1000);
  Report(seed, clock.NowNs() - since_ns);
  if (HasFailure()) return;
  ExpectNothingLeft(before, threads_before);
  ExpectItServes();
}

}  // namespace
}  // namespace cleat::system_test::rbd_operations_test
