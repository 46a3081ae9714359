// SPDX-License-Identifier: Apache-2.0
// One writer at a time, whatever becomes of it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "modules/rbd/rbd_image.h"
#include "tests/ceph/rbd_rig.h"
#include "tests/support/paths.h"

namespace cleat::modules::rbd_ownership_test {
namespace {

constexpr uint64_t kBytes = 4 * kMiB;
constexpr int kTries = 5;

// An engine in a process of its own: rbd_writer, that owns images and writes to them without end, or another one.
class Writer {
 public:
  Writer(const MiniCeph& ceph, const std::vector<std::string>& images, const char* tool = "rbd_writer") {
    std::array<int, 2> pipe_ends{};
    CLEAT_CHECK(pipe(pipe_ends.data()) == 0);
    const std::string program = test::BuiltForTests(tool);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(pipe_ends[1], STDOUT_FILENO);
      close(pipe_ends[0]);
      const std::string monitors = ceph.Monitors();
      const std::string key = ceph.Key("cleat");
      std::vector<const char*> arguments = {program.c_str(), monitors.c_str(), key.c_str()};
      for (const std::string& image : images) arguments.push_back(image.c_str());
      arguments.push_back(nullptr);
      execv(program.c_str(), const_cast<char* const*>(arguments.data()));
      _exit(127);
    }
    close(pipe_ends[1]);
    output_ = fdopen(pipe_ends[0], "r");
  }
  ~Writer() {
    Kill();
    Reap();
    fclose(output_);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // The next line; "" at its end. "owner" when it has everything, then "wrote" now and then.
  std::string Line() {
    std::array<char, 256> line{};
    if (std::fgets(line.data(), line.size(), output_) == nullptr) return {};
    line[std::strcspn(line.data(), "\n")] = '\0';
    return line.data();
  }
  pid_t pid() const { return pid_; }
  void Signal(int signal) const { kill(pid_, signal); }
  void Kill() const { kill(pid_, SIGKILL); }
  void Reap() {
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  FILE* output_ = nullptr;
};

// The watch of a client that died with the image open, until the cluster notices that: librbd waits for its answer, which never comes.
class DeadWatch {
 public:
  DeadWatch(const MiniCeph& ceph, const std::string& header) : io_(ceph.io()) {
    const auto say_nothing = [](void*, uint64_t, uint64_t, uint64_t, void*, size_t) {};
    CLEAT_CHECK(rados_watch2(io_, header.c_str(), &watch_, say_nothing, nullptr, nullptr) == 0);
  }
  ~DeadWatch() { rados_unwatch2(io_, watch_); }
  DeadWatch(const DeadWatch&) = delete;
  DeadWatch& operator=(const DeadWatch&) = delete;

 private:
  rados_ioctx_t io_;
  uint64_t watch_ = 0;
};

class RbdOwnership : public testing::Test {
 protected:
  RbdOptions Options(const std::string& image) { return CephHost::Options(ceph_.Cluster(), image, kBytes); }
  Status AcquireOf(CephHost& host, block::Device& device) {
    return host.control().Await<Status>([&] { return device.Acquire(AccessMode::kReadWrite); });
  }
  MiniCeph& ceph_ = MiniCeph::Shared();
  CephHost host_{"green"};
};

TEST_F(RbdOwnership, ASecondOwnerIsRefusedByName) {
  ceph_.CreateImage("two", kBytes);
  CephHost blue("blue");
  auto first = blue.OpenDisk(Options("two"));
  ASSERT_NE(first, nullptr);
  auto options = Options("two");
  options.lock_wait_ns = 100 * kNsPerMs;
  auto second = host_.Open(options);
  ASSERT_TRUE(second.ok()) << second.error().message;
  const Status refused = AcquireOf(host_, **second);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  const std::string words = "process " + std::to_string(getpid()) + " (engine blue) on this machine";
  EXPECT_NE(refused.error().message.find(words), std::string::npos) << refused.error().message;
  Arena arena(4096);
  EXPECT_EQ(first->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);  // it has not noticed
  // Given up, it is the second's; what the first one wrote since would be refused.
  ASSERT_TRUE(first->Release().ok());
  EXPECT_TRUE(AcquireOf(host_, **second).ok());
  EXPECT_EQ(first->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kReservationConflict);
  // Records go with the locks that they are about.
  EXPECT_EQ(ceph_.MetadataKeys("two").size(), 1U);
  second.value().reset();
  first.reset();
}

TEST_F(RbdOwnership, TheSameEngineDoesNotOwnItTwice) {
  ceph_.CreateImage("twice", kBytes);
  auto first = host_.OpenDisk(Options("twice"));
  auto options = Options("twice");
  options.lock_wait_ns = 0;
  auto second = host_.Open(options);
  ASSERT_TRUE(first != nullptr && second.ok());
  const Status refused = AcquireOf(host_, **second);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("another disk of this engine"), std::string::npos)
      << refused.error().message;
  Arena arena(4096);
  EXPECT_EQ(first->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
}

// One that waits for the owner gets it as soon as it is let go of.
TEST_F(RbdOwnership, WaitsForAnOwnerOnItsWayOut) {
  ceph_.CreateImage("waits", kBytes);
  CephHost blue("blue");
  auto first = blue.OpenDisk(Options("waits"));
  auto options = Options("waits");
  options.lock_wait_ns = 60 * kNsPerSecond;
  auto second = host_.Open(options);
  ASSERT_TRUE(first != nullptr && second.ok());
  auto acquired = host_.control().Begin<Status>([&] { return (*second)->Acquire(AccessMode::kReadWrite); });
  EXPECT_EQ(acquired.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  ASSERT_TRUE(first->Release().ok());
  EXPECT_TRUE(acquired.get().ok());
  // The record is the second's.
  EXPECT_EQ(ceph_.MetadataKeys("waits").size(), 1U);
}

// The process is gone, its client shut out, and its lock broken, without waiting for its watch to time out: who waited for
// that would wait for hours.
TEST_F(RbdOwnership, AKilledOwnerIsSucceededAtOnce) {
  const std::vector<std::string> images = {"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"};
  ceph_.SetOfOsd("osd_client_watch_timeout", "36000");
  for (const std::string& image : images) ceph_.CreateImage(image, kBytes);
  Writer writer(ceph_, images);
  ASSERT_EQ(writer.Line(), "owner");
  ASSERT_EQ(writer.Line(), "wrote");
  // While it lives it is not broken, also when it does not answer.
  auto options = Options("k0");
  options.lock_wait_ns = 0;
  {
    const auto early = host_.Open(options);
    ASSERT_TRUE(early.ok());
    writer.Signal(SIGSTOP);
    const Status refused = AcquireOf(host_, **early);
    writer.Signal(SIGCONT);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition) << refused.error().message;
    EXPECT_NE(refused.error().message.find("process " + std::to_string(writer.pid())), std::string::npos);
  }
  ASSERT_EQ(writer.Line(), "wrote");
  const uint32_t before = ceph_.BlocklistedCount();
  writer.Kill();  // and left unreaped: it is a zombie
  const auto since = std::chrono::steady_clock::now();
  std::vector<std::future<test::OpenResult>> opening;
  for (const std::string& image : images) opening.push_back(host_.BeginOpen(Options(image)));
  std::vector<std::unique_ptr<block::Device>> devices;
  for (auto& one : opening) devices.push_back(std::move(one.get()).value());
  std::vector<std::future<Status>> acquiring;
  for (auto& device : devices) {
    acquiring.push_back(
        host_.control().Begin<Status>([&] { return device->Acquire(AccessMode::kReadWrite); }));
  }
  for (auto& one : acquiring) {
    ASSERT_EQ(one.wait_for(test::kWaitMax), std::future_status::ready) << "nobody takes over";
    const Status acquired = one.get();
    EXPECT_TRUE(acquired.ok()) << acquired.error().message;
  }
  const auto took = std::chrono::steady_clock::now() - since;
  RecordProperty("take_over_ms",
                 std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
  EXPECT_EQ(ceph_.BlocklistedCount(), before + 1);  // one client, for all of its images
  EXPECT_EQ(host_.control().Call<uint64_t>([&] { return host_.pool().shut_out_count(); }), 1U);
  EXPECT_EQ(ceph_.MetadataKeys("k3").size(), 1U);
  ceph_.SetOfOsd("osd_client_watch_timeout", "30");
}

// As in an upgrade after the death of an engine that had opened the images: all of them have a watch that does not answer, and each guest
// would wait until the image of the one before is closed.
TEST_F(RbdOwnership, ADeadClientsWatchHoldsUpNoOtherImage) {
  for (const char* image : {"watched", "beside"}) ceph_.CreateImage(image, kBytes);
  const auto beside = host_.OpenDisk(Options("beside"));
  ASSERT_NE(beside, nullptr);
  // A machine that is busy for as long as librbd waits tells nothing: then once more.
  bool released_first = false;
  for (int i = 0; i < kTries && !released_first; ++i) {
    auto watched = host_.Open(Options("watched"));
    ASSERT_TRUE(watched.ok()) << watched.error().message;
    block::Device& device = **watched;
    ASSERT_TRUE(AcquireOf(host_, device).ok());
    ASSERT_EQ(host_.ClientStatus().size(), 1U) << "both are of one client";
    std::optional<DeadWatch> watch(std::in_place, ceph_, ceph_.HeaderOf("watched"));
    ASSERT_TRUE(host_.control().Await<Status>([&] { return device.Release(); }).ok());
    auto closing = host_.control().Begin<Status>([&] { return device.Close(); });
    EXPECT_TRUE(beside->Release().ok());
    released_first = closing.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
    watch.reset();
    EXPECT_TRUE(closing.get().ok());
    EXPECT_TRUE(beside->Acquire().ok());
  }
  EXPECT_TRUE(released_first) << "an image waited for another one's end";
}

// What a dead engine's client still had on its way does not land: here the engine is not dead at all but frozen, which
// is worse, and somebody made sure by other means that it will never be asked again.
TEST_F(RbdOwnership, LateWritesDoNotLand) {
  ceph_.CreateImage("late", kBytes);
  Writer writer(ceph_, {"late"});
  ASSERT_EQ(writer.Line(), "owner");
  ASSERT_EQ(writer.Line(), "wrote");
  writer.Signal(SIGSTOP);
  // Its record, as if its process had started at another time: the one that is meant is proven dead then.
  rbd_image_t image = nullptr;
  ASSERT_EQ(rbd_open(ceph_.io(), "late", &image, nullptr), 0);
  rbd_close(image);
  const std::vector<std::string> keys = ceph_.MetadataKeys("late");
  ASSERT_EQ(keys.size(), 1U);
  OwnerRecord record = RecordOfThisProcess("blue").value();
  record.pid = writer.pid();
  record.start_ticks = 1;
  ASSERT_EQ(PutImageMetadata(ceph_.io(), ceph_.HeaderOf("late"), keys[0], EncodeOwnerRecord(record)), 0);
  const auto disk = host_.OpenDisk(Options("late"));
  ASSERT_NE(disk, nullptr);
  Arena arena(kBytes);
  std::memset(arena.data(), 0x77, kBytes);
  ASSERT_EQ(disk->Do(Op::kWrite, 0, kBytes, &arena), IoStatus::kOk);
  writer.Signal(SIGCONT);
  std::string last = writer.Line();
  for (int i = 0; i < 100 && last == "wrote"; ++i)
    last = writer.Line();  // some were said before it was stopped
  EXPECT_EQ(last, "fenced");
  writer.Kill();
  for (const uint8_t byte : ceph_.ReadAll("late")) ASSERT_EQ(byte, 0x77);
}

// ---- A resize by an engine that does not own the image (librbd would take the lock, with no record beside it)

// Wherever it dies: the next owner needs no operator.
TEST_F(RbdOwnership, AnEngineKilledWithAResizeIsSucceededAtOnce) {
  for (const std::string step : {"locked", "grown", "over"}) {
    SCOPED_TRACE(step);
    const bool owned = step != "over";  // it is the owner for as long as it takes, and no longer
    // A dead watch that is not shut out holds up those who come later, by five seconds.
    ceph_.SetOfOsd("osd_client_watch_timeout", owned ? "36000" : "1");
    const std::string image = "resize-" + step;
    ceph_.CreateImage(image, kBytes);
    Writer grower(ceph_, {image, std::to_string(kBytes), step}, "rbd_grower");
    ASSERT_EQ(grower.Line(), step);
    const uint32_t before = ceph_.BlocklistedCount();
    const std::vector<std::string> records = ceph_.MetadataKeys(image);
    ceph_.SetOfOsd("osd_client_watch_timeout", "30");
    grower.Kill();
    const auto device = host_.Open(Options(image));
    ASSERT_TRUE(device.ok()) << device.error().message;
    const Status acquired = AcquireOf(host_, **device);
    EXPECT_TRUE(acquired.ok()) << acquired.error().message;
    EXPECT_EQ(records.size(), owned ? 1U : 0U);
    EXPECT_EQ(ceph_.BlocklistedCount(), before + (owned ? 1 : 0));
    EXPECT_EQ(ceph_.ReadAll(image).size(), step == "locked" ? kBytes : 2 * kBytes);
  }
}

TEST_F(RbdOwnership, AResizeByAnotherLeavesTheImageToItsOwner) {
  ceph_.CreateImage("by-another", kBytes);
  CephHost blue("blue");
  const auto standby = blue.Open(Options("by-another"));
  ASSERT_TRUE(standby.ok()) << standby.error().message;
  const auto grow_to = [&](uint64_t bytes) {
    return blue.control().Await<Status>([&] { return (*standby)->Resize(bytes); });
  };
  EXPECT_TRUE(grow_to(2 * kBytes).ok());
  EXPECT_EQ(ceph_.ReadAll("by-another").size(), 2 * kBytes);
  EXPECT_TRUE(ceph_.MetadataKeys("by-another").empty());
  const auto owner = host_.OpenDisk(Options("by-another"));  // nobody's
  ASSERT_NE(owner, nullptr);
  // No other host makes the image larger then, nor does another disk of the owner's own client.
  const auto beside = host_.Open(Options("by-another"));
  ASSERT_TRUE(beside.ok());
  for (const Status& refused :
       {grow_to(3 * kBytes), host_.control().Await<Status>([&] { return (*beside)->Resize(3 * kBytes); })}) {
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(refused.error().message.find("is made larger by who has its lock"), std::string::npos)
        << refused.error().message;
  }
  EXPECT_EQ(ceph_.ReadAll("by-another").size(), 2 * kBytes);
  // What the owner has done the others see, a little later.
  ASSERT_TRUE(owner->Resize(3 * kBytes).ok());
  while (!grow_to(3 * kBytes).ok()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(ceph_.ReadAll("by-another").size(), 3 * kBytes);
  Arena arena(4096);
  EXPECT_EQ(owner->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(ceph_.MetadataKeys("by-another").size(), 1U);
  // The image's lock went with the resize by the one, and with the release by the other.
  ASSERT_TRUE(owner->Release().ok());
  EXPECT_TRUE(AcquireOf(blue, **standby).ok());
}

// A lock of somebody else's stays whatever is asked for.
TEST_F(RbdOwnership, AResizeBreaksNoForeignLock) {
  for (const char* image : {"foreign", "silent"}) ceph_.CreateImage(image, kBytes);
  const uint32_t before = ceph_.BlocklistedCount();
  const auto resize = [&](const std::string& image) {
    const auto device = host_.Open(Options(image));
    EXPECT_TRUE(device.ok());
    return host_.control().Await<Status>([&] { return (*device)->Resize(2 * kBytes); });
  };
  rbd_image_t image = nullptr;
  ASSERT_EQ(rbd_open(ceph_.io(), "foreign", &image, nullptr), 0);
  ASSERT_EQ(rbd_lock_acquire(image, RBD_LOCK_MODE_EXCLUSIVE), 0);
  const Status refused = resize("foreign");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << refused.error().message;
  int still_owner = 0;
  EXPECT_EQ(rbd_is_exclusive_lock_owner(image, &still_owner), 0);
  EXPECT_EQ(still_owner, 1);
  uint64_t bytes = 0;
  EXPECT_EQ(rbd_get_size(image, &bytes), 0);
  EXPECT_EQ(bytes, kBytes);
  EXPECT_EQ(rbd_close(image), 0);

  // An owner that has the lock and does not watch the image, as after half a minute without its network: librbd would break it.
  const std::string header = ceph_.HeaderOf("silent");
  const std::string cookie = "auto 94000000000000";
  ASSERT_EQ(rados_lock_exclusive(ceph_.io(), header.c_str(), "rbd_lock", cookie.c_str(), "", nullptr, 0), 0);
  const Status by_nobody = resize("silent");
  ASSERT_FALSE(by_nobody.ok());
  EXPECT_EQ(by_nobody.error().code, ErrorCode::kUnavailable) << by_nobody.error().message;
  EXPECT_EQ(rados_unlock(ceph_.io(), header.c_str(), "rbd_lock", cookie.c_str()), 0) << "it is not there";
  EXPECT_EQ(ceph_.ReadAll("silent").size(), kBytes);
  EXPECT_EQ(ceph_.BlocklistedCount(), before);
}

// Owners that nothing can be proven about stay, and are named.
TEST_F(RbdOwnership, WhatIsNotProvenIsLeftAlone) {
  ceph_.CreateImage("unproven", kBytes);
  rbd_image_t image = nullptr;
  ASSERT_EQ(rbd_open(ceph_.io(), "unproven", &image, nullptr), 0);
  ASSERT_EQ(rbd_lock_acquire(image, RBD_LOCK_MODE_EXCLUSIVE), 0);
  auto options = Options("unproven");
  options.lock_wait_ns = 0;
  const auto device = host_.Open(options);
  ASSERT_TRUE(device.ok());
  const uint32_t before = ceph_.BlocklistedCount();
  const auto refuse = [&](const std::string& words) {
    const Status refused = AcquireOf(host_, **device);
    ASSERT_FALSE(refused.ok()) << words;
    EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(refused.error().message.find(words), std::string::npos) << refused.error().message;
  };
  refuse("which is no engine of Cleat");
  const std::string key = OwnerRecordKey("client." + std::to_string(rados_get_instance_id(ceph_.admin())));
  const std::string header = ceph_.HeaderOf("unproven");
  OwnerRecord record = RecordOfThisProcess("red").value();
  record.pid = 1;  // alive, or not to be looked at: not this one's start time in any case
  record.machine = "0123456789abcdef0123456789abcdef";
  ASSERT_EQ(PutImageMetadata(ceph_.io(), header, key, EncodeOwnerRecord(record)), 0);
  refuse("on the machine 0123456789abcdef0123456789abcdef");
  record = RecordOfThisProcess("red").value();
  record.pid_namespace = "pid:[1]";
  ASSERT_EQ(PutImageMetadata(ceph_.io(), header, key, EncodeOwnerRecord(record)), 0);
  refuse("engine red");
  ASSERT_EQ(PutImageMetadata(ceph_.io(), header, key, "cleat1 machine= nonsense"), 0);
  refuse("which is no engine of Cleat");
  EXPECT_EQ(ceph_.BlocklistedCount(), before);
  EXPECT_EQ(rbd_close(image), 0);
}

TEST(OwnerRecord, ProvesDeathAndNothingElse) {
  const OwnerRecord self = RecordOfThisProcess("an engine").value();
  EXPECT_EQ(self.engine, "an_engine");
  EXPECT_EQ(ParseOwnerRecord(EncodeOwnerRecord(self)), self);
  EXPECT_FALSE(ParseOwnerRecord("").has_value());
  EXPECT_FALSE(ParseOwnerRecord("cleat1 machine=a boot=b pidns=c pid=x start=1 engine=e").has_value());
  EXPECT_EQ(JudgeOwner(self, self, true), OwnerState::kAlive);
  OwnerRecord owner = self;
  owner.start_ticks += 1;
  EXPECT_EQ(JudgeOwner(owner, self, false), OwnerState::kDead);
  owner = self;
  owner.boot = "earlier";
  EXPECT_EQ(JudgeOwner(owner, self, true), OwnerState::kDead);
  EXPECT_EQ(JudgeOwner(owner, self, false), OwnerState::kElsewhere);  // a clone with the same machine id
  owner.machine = "other";
  EXPECT_EQ(JudgeOwner(owner, self, true), OwnerState::kElsewhere);
  // A zombie is dead, and nobody at all as well.
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  owner = self;
  owner.pid = child;
  EXPECT_EQ(JudgeOwner(owner, self, true), OwnerState::kDead);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(JudgeOwner(owner, self, true), OwnerState::kDead);
}

// Our own client shut out, by whomever: its disks say so and stay so, others get a new client, and opened anew they work.
TEST_F(RbdOwnership, ABlocklistedClientIsReplaced) {
  ceph_.CreateImage("shut0", kBytes);
  ceph_.CreateImage("shut1", kBytes);
  std::promise<std::string> why;
  auto options = Options("shut0");
  options.events.fenced = [&why](const Error& error) { why.set_value(error.message); };
  auto disk = host_.OpenDisk(options);
  ASSERT_NE(disk, nullptr);
  Arena arena(4096);
  ASSERT_EQ(disk->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
  const std::string old_client = host_.ClientStatus().at(0).id;
  ceph_.BlocklistOwnerOf("shut0");
  EXPECT_EQ(disk->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kFenced);
  auto told = why.get_future();
  ASSERT_EQ(told.wait_for(test::kWaitMax), std::future_status::ready);
  const std::string message = told.get();
  EXPECT_NE(message.find("disks/shut0"), std::string::npos) << message;
  EXPECT_NE(message.find("was blocklisted by clusters/c"), std::string::npos) << message;
  EXPECT_TRUE(host_.ClientStatus().at(0).blocklisted);
  const auto other = host_.OpenDisk(Options("shut1"));
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(other->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(disk->Do(Op::kRead, 0, 4096, &arena), IoStatus::kFenced);
  disk->Close().ok();
  const auto again = host_.OpenDisk(Options("shut0"));
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
  for (const auto& client : host_.ClientStatus()) EXPECT_NE(client.id, old_client);
}

// Nothing was going on, so nobody had noticed: the next image finds out, and takes a new client.
TEST_F(RbdOwnership, ABlocklistedClientThatNobodyUsedIsReplaced) {
  ceph_.CreateImage("quiet0", kBytes);
  ceph_.CreateImage("quiet1", kBytes);
  const auto disk = host_.OpenDisk(Options("quiet0"));
  ASSERT_NE(disk, nullptr);
  ceph_.BlocklistOwnerOf("quiet0");
  const auto other = host_.OpenDisk(Options("quiet1"));
  ASSERT_NE(other, nullptr);
  Arena arena(4096);
  EXPECT_EQ(other->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
}

}  // namespace
}  // namespace cleat::modules::rbd_ownership_test
