// SPDX-License-Identifier: Apache-2.0
// An engine that stands still under its guest's load, with writes sent, unsent and not even fetched; another one
// takes its image over, for another guest that goes on with the data; then the first one goes on where it was.
// None of its writes may land any more: whatever the second guest was told is written stays.
//
// Nobody takes an image from an engine that only stands still (rbd_host_outage_test.cc). So the second engine is
// either given the proof that the first is dead - a record that names another process - or finds the image freed
// by an operator, as docs/ceph.md has it for machines that are known to be dead.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "modules/rbd/owner_record.h"
#include "modules/rbd/rbd_image.h"
#include "tests/ceph/rbd_host_rig.h"
#include "tests/support/paths.h"
#include "tests/system/io_load.h"

namespace cleat::system_test::rbd_takeover_test {
namespace {

constexpr uint32_t kBlockBytes = 4096;
constexpr uint32_t kStaleBytes = 64 * 1024;
// What the engine gives to librbd at once (8 MiB), some of which is sent, some not; and more, which waits in the
// channel.
constexpr uint64_t kGiven = 128;
constexpr uint64_t kFetched = kGiven + 32;
constexpr uint64_t kUnfetched = 64;  // the guest asks for these when the engine stands still already
// Of all that was asked for, so many can't have been sent before the image was another's.
constexpr uint64_t kLateMin = kFetched - kGiven + kUnfetched;
constexpr uint64_t kAnswerLimitNs = 120 * kNsPerSecond;
const std::string kImage = "taken";

enum class Recovery {
  kProof,     // the owner's record names a process that is gone
  kOperator,  // by hand: blocklist, then the lock
  kNone,      // of images that nobody locks
};

struct Seen {
  uint64_t failed = 0;  // stale writes, by what their guest was told in the end
  uint64_t done = 0;
  std::string finding;  // the checker's, of the second guest
};

class TakeoverRig {
 public:
  explicit TakeoverRig(const std::string& preload = {})
      : first_({.with_keys = true, .engine_preload = preload}),
        second_({.with_keys = true, .engine_preload = preload}) {}

  Seen Run(Recovery recovery) {
    Seen seen;
    Begin(recovery != Recovery::kNone);
    if (!testing::Test::HasFatalFailure()) StandStillUnderLoad();
    if (!testing::Test::HasFatalFailure()) Recover(recovery);
    if (!testing::Test::HasFatalFailure()) GoOnElsewhere(&seen);
    // Whatever happened: an engine that stands still can't be ended well.
    kill(first_.engine().pid(), SIGCONT);
    if (!testing::Test::HasFatalFailure()) End();
    return seen;
  }

 private:
  void Begin(bool lockable) {
    ASSERT_TRUE(first_.ok() && second_.ok());
    if (lockable) {
      ceph_.CreateImage(kImage, kDiskBytes);
    } else {
      ceph_.CreateImageWithout(kImage, kDiskBytes, RBD_FEATURE_EXCLUSIVE_LOCK);
    }
    for (Host* host : {&first_, &second_})
      ASSERT_OK(CreateClusterOn(*host, ceph_, "ceph", ceph_.Key("cleat")));
    ASSERT_TRUE(first_.AttachNew("disk", Rbd(kImage)));
    guest_ = Boot(first_);
    ASSERT_NE(guest_, nullptr);
    IoLoad load(guest_->driver(), blocks_, {.seed = 1, .depth = 8});
    ASSERT_OK(load.Run(500));
  }

  static std::unique_ptr<Peer> Boot(Host& host) {
    auto peer = Peer::Start(host.SocketPath("disk"), {.queue_size = 512});
    EXPECT_OK(peer);
    return peer ? std::move(*peer) : nullptr;
  }

  void StandStillUnderLoad() {
    auto buffers = guest_->driver().AllocateBuffer((kFetched + kUnfetched) * kStaleBytes);
    ASSERT_OK(buffers);
    const Stopped stopped(ceph_, "osd.0");
    Write(*buffers, 0, kFetched);
    WaitInFlight(kFetched);
    test::StopProcess(first_.engine().pid());
    Write(*buffers, kFetched, kUnfetched);
  }

  // Each to a place of its own. What becomes of them is not known to the model: they are never acknowledged.
  void Write(uint64_t buffers_gpa, uint64_t first, uint64_t count) {
    for (uint64_t i = first; i < first + count; ++i) {
      perf::BlkIo io;
      io.op = perf::BlkOp::kWrite;
      io.offset_bytes = i * kStaleBytes;
      io.length_bytes = kStaleBytes;
      io.data_gpa = buffers_gpa + i * kStaleBytes;
      io.token = i;
      blocks_.BeginWrite(io.offset_bytes, guest_->driver().memory().Span(io.data_gpa, kStaleBytes));
      ASSERT_TRUE(guest_->driver().Submit(0, io));
    }
    guest_->driver().Kick(0);
  }

  void WaitInFlight(uint64_t count) {
    const perf::Deadline deadline(kAnswerLimitNs);
    for (uint64_t seen = 0; seen != count;) {
      v1::GetStatsRequest request;
      request.set_name("disks/disk");
      v1::GetStatsResponse response;
      grpc::ClientContext context;
      ASSERT_OK(first_.api().stub().GetStats(&context, request, &response));
      seen = response.disks_size() == 1 ? response.disks(0).in_flight() : 0;
      ASSERT_FALSE(deadline.passed()) << seen << " requests are in flight";
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // counters tell nobody that they change
    }
  }

  void Recover(Recovery recovery) {
    if (recovery == Recovery::kProof) ClaimDead();
    if (recovery == Recovery::kOperator) FreeByHand();
    const uint32_t before = ceph_.BlocklistedCount();
    ASSERT_TRUE(second_.AttachNew("disk", Rbd(kImage)));
    blocklisted_ = ceph_.BlocklistedCount() - before;
    successor_ = Boot(second_);
    ASSERT_NE(successor_, nullptr);
  }

  // The record of the first engine, as if its process had started at another time: the one that is meant is proven
  // dead.
  void ClaimDead() {
    const std::vector<std::string> keys = ceph_.MetadataKeys(kImage);
    ASSERT_EQ(keys.size(), 1U);
    auto record = modules::RecordOfThisProcess(kEngineId);
    ASSERT_OK(record);
    record->pid = first_.engine().pid();
    record->start_ticks = 1;
    ASSERT_EQ(modules::PutImageMetadata(ceph_.io(), ceph_.HeaderOf(kImage), keys[0],
                                        modules::EncodeOwnerRecord(*record)),
              0);
  }

  // docs/ceph.md, "Who owns an image".
  void FreeByHand() {
    const auto lockers = nlohmann::json::parse(RunRbd("lock ls --format json rbd/" + kImage));
    ASSERT_EQ(lockers.size(), 1U) << lockers;
    const std::string address = lockers[0]["address"];
    ceph_.MonCommand(
        fmt::format(R"({{"prefix": "osd blocklist", "blocklistop": "add", "addr": "{}"}})", address));
    RunRbd(fmt::format("lock rm rbd/{} '{}' {}", kImage, lockers[0]["id"].get<std::string>(),
                       lockers[0]["locker"].get<std::string>()));
  }

  // What the program `rbd` says.
  std::string RunRbd(const std::string& arguments) {
    const std::string command = fmt::format("rbd -c {} {} 2>/dev/null", ceph_.conf(), arguments);
    FILE* pipe = popen(command.c_str(), "r");  // NOLINT(cert-env33-c): our own command
    std::string output;
    std::array<char, 256> line{};
    while (pipe != nullptr && std::fgets(line.data(), line.size(), pipe) != nullptr) output += line.data();
    EXPECT_TRUE(pipe != nullptr && pclose(pipe) == 0) << command;
    return output;
  }

  void GoOnElsewhere(Seen* seen) {
    {
      // What was in flight may be there or not; what had been acknowledged is.
      IoLoad load(successor_->driver(), blocks_, {.seed = 2});
      ASSERT_OK(load.Verify());
      ASSERT_OK(load.Run(500));
    }
    ASSERT_NO_FATAL_FAILURE(WriteEverything());
    IoLoad load(successor_->driver(), blocks_, {.seed = 3});
    load.Start();
    ASSERT_TRUE(load.WaitProgress(50));
    ASSERT_EQ(kill(first_.engine().pid(), SIGCONT), 0);
    AwaitStale(seen);
    static_cast<void>(load.WaitProgress(100));  // it ends when it finds something
    Status good = load.Stop();
    if (good) good = load.Verify();
    if (!good) seen->finding = good.error().message;
  }

  // So that whatever lands late is seen, wherever it does.
  void WriteEverything() {
    std::vector<uint8_t> data(perf::kSyncChunkBytes);
    for (uint64_t at = 0; at < kDiskBytes; at += data.size()) {
      blocks_.BeginWrite(at, data);
      ASSERT_OK(successor_->driver().WriteSync(at, data));
      blocks_.Acknowledge(at, data.size());
    }
  }

  // All that the first guest had asked for is answered.
  void AwaitStale(Seen* seen) {
    while (seen->done + seen->failed < kFetched + kUnfetched) {
      ASSERT_OK(guest_->driver().Wait(kAnswerLimitNs));
      std::array<perf::BlkCompletion, 32> completions;
      const size_t count = guest_->driver().Poll(0, completions);
      for (size_t i = 0; i < count; ++i) {
        const bool good = completions[i].status == perf::wire::kBlkOk;
        ++(good ? seen->done : seen->failed);
        if (good && completions[i].token >= kGiven) ++late_;
      }
    }
  }

  void End() {
    guest_->Cut();
    successor_->Cut();
    ASSERT_TRUE(first_.Remove("disk"));
    ASSERT_TRUE(second_.Remove("disk"));
  }

 public:
  uint64_t late() const {
    return late_;
  }  // writes of the first engine that were done after the take-over for certain
  uint32_t blocklisted() const { return blocklisted_; }  // by the second engine

 private:
  MiniCeph ceph_;
  Host first_;
  Host second_;
  perf::StampedBlocks blocks_{kDiskBytes, kBlockBytes, 1};
  std::unique_ptr<Peer> guest_;
  std::unique_ptr<Peer> successor_;
  uint64_t late_ = 0;
  uint32_t blocklisted_ = 0;
};

void Tell(const char* what, const Seen& seen, const TakeoverRig& rig) {
  fmt::print(
      "{}: of the stale writes {} done ({} for certain after the take-over), {} refused; finding: {}\n", what,
      seen.done, rig.late(), seen.failed, seen.finding.empty() ? "none" : seen.finding);
}

TEST(RbdTakeover, AnEngineThatWakesUpTooLateWritesNothing) {
  TakeoverRig rig;
  const Seen seen = rig.Run(Recovery::kProof);
  Tell("by proof", seen, rig);
  EXPECT_EQ(rig.blocklisted(), 1U);
  EXPECT_EQ(seen.finding, "");
  EXPECT_EQ(rig.late(), 0U);
  EXPECT_GE(seen.failed, kLateMin);
}

TEST(RbdTakeover, NorDoesOneThatAnOperatorShutOut) {
  TakeoverRig rig;
  const Seen seen = rig.Run(Recovery::kOperator);
  Tell("by hand", seen, rig);
  EXPECT_EQ(seen.finding, "");
  EXPECT_EQ(rig.late(), 0U);
  EXPECT_GE(seen.failed, kLateMin);
}

// ---- Negative controls: the same with engines without the one or the other.

class RbdTakeoverControl : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized)
      GTEST_SKIP() << "sanitizers don't share a process with preloaded libraries: NOTHING was tested";
  }
};

TEST_F(RbdTakeoverControl, WithoutTheBlocklistItIsFound) {
  TakeoverRig rig(test::BuiltForTests("libcleat_no_blocklist.so"));
  const Seen seen = rig.Run(Recovery::kProof);
  Tell("no blocklist", seen, rig);
  EXPECT_EQ(rig.blocklisted(), 0U);
  EXPECT_NE(seen.finding, "");
  EXPECT_EQ(seen.done, kFetched + kUnfetched);
}

TEST_F(RbdTakeoverControl, WithoutALockItIsFound) {
  TakeoverRig rig(test::BuiltForTests("libcleat_no_rbd_lock.so"));
  const Seen seen = rig.Run(Recovery::kNone);
  Tell("no lock", seen, rig);
  EXPECT_NE(seen.finding, "");
  EXPECT_EQ(seen.done, kFetched + kUnfetched);
}

}  // namespace
}  // namespace cleat::system_test::rbd_takeover_test
