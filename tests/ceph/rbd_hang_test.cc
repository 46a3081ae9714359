// SPDX-License-Identifier: Apache-2.0
// A cluster that does not answer: its own disks wait, and nobody else does.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "tests/ceph/rbd_rig.h"
#include "tests/support/paths.h"

namespace cleat::modules::rbd_hang_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Stopped;

constexpr uint64_t kBytes = 16 * kMiB;

// CLEAT_CEPH_LONG=1: stops of 20 s, as long as an OSD takes to be given up for dead.
seconds StopTime() {
  return seconds(std::getenv("CLEAT_CEPH_LONG") != nullptr ? 20 : 3);
}

// Counts a timer of a reactor that is asked for once a millisecond: whether the reactor's other work lets it go on.
class Heartbeat {
 public:
  static constexpr uint64_t kBeats = 100;

  explicit Heartbeat(test::RunningReactor& reactor) : reactor_(reactor), timer_(*this) {
    reactor_.Do([this] { Next(); });
  }
  ~Heartbeat() {
    reactor_.Do([this] { timer_.Cancel(); });
  }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  uint64_t beats() const { return beats_.load(); }
  // Whether it had at least half as many beats as another one while `during` ran. With less, its reactor has waited for more
  // than half of that time.
  template <typename During>
  bool KeepsUpWith(const Heartbeat& other, During during) const {
    const uint64_t before = beats();
    const uint64_t before_other = other.beats();
    during();
    const uint64_t others = other.beats() - before_other;
    EXPECT_GE(others, kBeats) << "there is nothing to keep up with";
    return 2 * (beats() - before) >= others;
  }
  // kBeats more, from now on.
  bool GoesOn() const {
    const uint64_t before = beats();
    const auto deadline = std::chrono::steady_clock::now() + test::kWaitMax;
    while (beats() < before + kBeats) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return true;
  }

 private:
  struct Beat : Timer {
    explicit Beat(Heartbeat& h) : Timer(&Fire), heartbeat(h) {}
    static void Fire(Timer& timer) {
      Heartbeat& heartbeat = static_cast<Beat&>(timer).heartbeat;
      heartbeat.beats_.fetch_add(1);
      heartbeat.Next();
    }
    Heartbeat& heartbeat;
  };
  void Next() { reactor_->AddTimer(timer_, MonotonicClock().NowNs() + kNsPerMs); }

  test::RunningReactor& reactor_;
  std::atomic<uint64_t> beats_{0};
  Beat timer_;
};

// Writes and reads without end, many at a time, until it is told to stop. On the I/O reactor's thread.
class Load {
 public:
  static constexpr uint64_t kDepth = 16;

  Load(CephHost& host, test::HostDisk& disk) : host_(host), disk_(disk), arena_(kDepth * 4096) {
    for (uint64_t i = 0; i < kDepth; ++i) {
      slots_.push_back(std::make_unique<Io>());
      Io& io = *slots_.back();
      io.segments = {{&arena_.region(), i * 4096, 4096}};
      io.on_done = [this, &io] { Done(io); };
    }
    host_.io().Do([this] {
      for (auto& io : slots_) Start(*io);
    });
  }

  uint64_t completed() const { return completed_.load(); }
  uint64_t failed() const { return failed_.load(); }
  void Stop() { stopping_.store(true); }
  // Nothing is in flight any more.
  bool Drained(std::chrono::nanoseconds within) {
    const auto deadline = std::chrono::steady_clock::now() + within;
    while (ended_.load() < kDepth) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return true;
  }

 private:
  void Start(Io& io) {
    io.request.op = random_.Chance(1, 2) ? Op::kWrite : Op::kRead;
    io.request.fua = random_.Chance(1, 8);
    io.request.offset_bytes = 4096 * random_.Below(kBytes / 4096);
    io.request.length_bytes = 4096;
    io.request.segments = io.segments;
    io.request.Push(
        [](block::Request&, const block::Frame& frame) { static_cast<Io*>(frame.layer)->on_done(); }, &io);
    disk_.channel().Submit(io.request);
  }
  void Done(Io& io) {
    completed_.fetch_add(1);
    if (io.status() != IoStatus::kOk) failed_.fetch_add(1);
    if (stopping_.load()) {
      ended_.fetch_add(1);
    } else {
      host_.io()->PostCall([this, &io] { Start(io); });
    }
  }

  CephHost& host_;
  test::HostDisk& disk_;
  Arena arena_;
  Random random_{1};
  std::vector<std::unique_ptr<Io>> slots_;
  std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> failed_{0};
  std::atomic<uint64_t> ended_{0};
  std::atomic<bool> stopping_{false};
};

class RbdHang : public testing::Test {
 protected:
  std::unique_ptr<test::HostDisk> Make(const std::string& image) {
    ceph_.CreateImage(image, kBytes);
    return host_.OpenDisk(CephHost::Options(ceph_.Cluster(), image, kBytes));
  }
  // For how long the client has been waiting.
  bool AgeShows() {
    const auto deadline = std::chrono::steady_clock::now() + test::kWaitMax;
    while (host_.ClientStatus().at(0).busy_ns <= kNsPerSecond) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return true;
  }
  MiniCeph& ceph_ = MiniCeph::Shared();
  CephHost host_;
};

TEST_F(RbdHang, AnOsdThatStopsDelaysItsDisksAndNobodyElse) {
  const auto disk = Make("stopped");
  ASSERT_NE(disk, nullptr);
  Load load(host_, *disk);
  const Heartbeat io(host_.io());
  const Heartbeat control(host_.control());
  const MonotonicClock clock;
  test::RunningReactor idle_reactor(clock, "idle");
  const Heartbeat idle(idle_reactor);
  for (int i = 0; i < 3 && !HasFailure(); ++i) {
    const std::string image = "opening" + std::to_string(i);
    ceph_.CreateImage(image, kBytes);
    std::future<test::OpenResult> opening;
    {
      const Stopped stopped(ceph_, "osd.0");
      std::this_thread::sleep_for(milliseconds(100));
      const uint64_t before = load.completed();
      opening = host_.BeginOpen(CephHost::Options(ceph_.Cluster(), image, kBytes));  // waits as well
      bool control_keeps_up = false;
      const bool io_keeps_up = io.KeepsUpWith(idle, [&] {
        control_keeps_up = control.KeepsUpWith(idle, [] { std::this_thread::sleep_for(StopTime()); });
      });
      EXPECT_TRUE(io_keeps_up && control_keeps_up) << "a reactor waits for the OSD";
      EXPECT_TRUE(io.GoesOn() && control.GoesOn()) << "a reactor waits for the OSD";
      EXPECT_LE(load.completed(), before + Load::kDepth);  // the OSD really stood still
      EXPECT_EQ(disk->channel().in_flight(), Load::kDepth);
      EXPECT_EQ(opening.wait_for(seconds(0)), std::future_status::timeout);
      EXPECT_TRUE(AgeShows());
    }
    EXPECT_TRUE(opening.get().ok());
  }
  load.Stop();
  EXPECT_TRUE(load.Drained(test::kWaitMax)) << "requests in flight did not come back";
  EXPECT_EQ(load.failed(), 0U);
}

// The same of a reactor that does open an image itself: it is what the test above would notice.
TEST_F(RbdHang, AReactorThatWaitsForCephIsNoticed) {
  ceph_.CreateImage("blocking", kBytes);
  rados_ioctx_t io = ceph_.io();
  const Heartbeat heartbeat(host_.io());
  const MonotonicClock clock;
  test::RunningReactor idle_reactor(clock, "idle");
  const Heartbeat idle(idle_reactor);
  rbd_image_t image = nullptr;
  {
    const Stopped stopped(ceph_, "osd.0");
    std::promise<void> begun;
    host_.io()->PostCall([&] {
      begun.set_value();
      rbd_open(io, "blocking", &image, nullptr);
    });
    begun.get_future().get();
    const uint64_t before = heartbeat.beats();
    EXPECT_FALSE(heartbeat.KeepsUpWith(idle, [] { std::this_thread::sleep_for(seconds(2)); }));
    EXPECT_EQ(heartbeat.beats(), before);
  }
  host_.io().Do([&] { rbd_close(image); });
  EXPECT_TRUE(heartbeat.GoesOn());
}

// Sleeping is what it does meanwhile: the reactor's turns stand still.
TEST_F(RbdHang, AReactorThatWaitsForCephSleeps) {
  const auto disk = Make("sleeps");
  ASSERT_NE(disk, nullptr);
  Load load(host_, *disk);
  uint64_t turns = 0;
  {
    const Stopped stopped(ceph_, "osd.0");
    std::this_thread::sleep_for(milliseconds(300));
    const uint64_t before = host_.io().Call<uint64_t>([&] { return host_.io()->turns(); });
    std::this_thread::sleep_for(milliseconds(500));
    turns = host_.io().Call<uint64_t>([&] { return host_.io()->turns(); }) - before;
    load.Stop();
  }
  EXPECT_TRUE(load.Drained(test::kWaitMax));
  EXPECT_LT(turns, 100U);
}

TEST_F(RbdHang, AMonitorThatStopsDelaysOnlyItsOwnCluster) {
  MiniCeph other;
  other.CreateImage("fine", kBytes);
  ceph_.CreateImage("held", kBytes);
  const auto running = Make("running");
  ASSERT_NE(running, nullptr);
  std::future<test::OpenResult> opening;
  {
    const Stopped stopped(ceph_, "mon.a");
    // A client that has no connection yet needs the monitor.
    auto cluster = ceph_.Cluster("clusters/new");
    opening = host_.BeginOpen(CephHost::Options(cluster, "held", kBytes));
    const auto fine = host_.OpenDisk(CephHost::Options(other.Cluster("clusters/other"), "fine", kBytes));
    ASSERT_NE(fine, nullptr);
    Arena arena(4096);
    EXPECT_EQ(fine->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
    EXPECT_TRUE(fine->Close().ok());
    // I/O needs none, nor does closing.
    EXPECT_EQ(running->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
    EXPECT_EQ(running->Do(Op::kFlush, 0, 0), IoStatus::kOk);
    EXPECT_TRUE(running->Close().ok());
    EXPECT_EQ(opening.wait_for(seconds(0)), std::future_status::timeout);
  }
  const auto opened = opening.get();
  EXPECT_TRUE(opened.ok()) << opened.error().message;
}

// Closing a disk of a cluster that hangs is begun, and ends when it goes on.
TEST_F(RbdHang, ClosingWaitsAndEnds) {
  auto disk = Make("closing");
  ASSERT_NE(disk, nullptr);
  host_.io().Do([&] {});
  std::future<Status> closing;
  {
    const Stopped stopped(ceph_, "osd.0");
    closing = std::async(std::launch::async, [&] { return disk->Close(); });
    EXPECT_EQ(closing.wait_for(seconds(1)), std::future_status::timeout);
    EXPECT_EQ(host_.ClientStatus().size(), 1U);  // control answers
  }
  EXPECT_TRUE(closing.get().ok());
}

// What bluestore has acknowledged survives the OSD, and what was in flight is done again by librados.
TEST(RbdOsdKilled, NothingFailsAndNothingIsLost) {
  MiniCeph ceph("bluestore");
  CephHost host;
  ceph.CreateImage("crash", kBytes);
  const auto disk = host.OpenDisk(CephHost::Options(ceph.Cluster(), "crash", kBytes));
  ASSERT_NE(disk, nullptr);
  Arena arena(kMiB);
  ASSERT_EQ(disk->Do(Op::kWrite, 0, kMiB, &arena), IoStatus::kOk);
  Load load(host, *disk);
  ceph.Signal("osd.0", SIGKILL);
  ceph.Restart();
  const uint64_t after = load.completed();
  const auto deadline = std::chrono::steady_clock::now() + test::kWaitMax;
  while (load.completed() < after + 100 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  load.Stop();
  EXPECT_TRUE(load.Drained(test::kWaitMax));
  EXPECT_EQ(load.failed(), 0U);
}

// A process whose cluster hangs can still end: with the pool given up, by _exit.
TEST_F(RbdHang, AProcessEndsWithoutItsCluster) {
  ceph_.CreateImage("orphan", kBytes);
  const std::string monitors = ceph_.Monitors();
  const std::string key = ceph_.Key("cleat");
  const std::string program = test::BuiltForTests("rbd_stuck");
  const Stopped stopped(ceph_, "osd.0");  // for longer than the process lives
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    execl(program.c_str(), program.c_str(), monitors.c_str(), key.c_str(), "orphan", nullptr);
    _exit(127);
  }
  int status = 0;
  const auto deadline = std::chrono::steady_clock::now() + test::kWaitMax;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      FAIL() << "it does not end";
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 3);  // it knew that it had to leave a thread behind
}

}  // namespace
}  // namespace cleat::modules::rbd_hang_test
