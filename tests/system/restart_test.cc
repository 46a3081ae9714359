// SPDX-License-Identifier: Apache-2.0
// kill -9 of cleatd, of the engine, of the VM's QEMU, under I/O: what was acknowledged stays, what runs goes
// on.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "expect_ok.h"
#include "host.h"
#include "loaded_vm.h"
#include "tests/unit/modules/lock_of_nobody.h"

namespace cleat::system_test::restart_test {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{32} << 20;
constexpr int kKills = kSanitized ? 6 : 15;

uint64_t ConnectionsOf(Host& host, const std::string& id) {
  const auto controller = host.api().GetController(id);
  EXPECT_OK(controller);
  return controller.value.status().connections();
}

TEST(CleatdRestart, UnderIoNothingIsAttachedAgain) {
  Host host;
  ASSERT_TRUE(host.ok());
  const std::map<std::string, v1::DiskSpec> disks{{"file", FileDisk(kDiskBytes, host.Path("disk.img"))},
                                                  {"memory", MemoryDisk(kDiskBytes)}};
  std::map<std::string, std::unique_ptr<LoadedVm>> vms;
  for (const auto& [id, spec] : disks) {
    ASSERT_TRUE(host.AttachNew(id, spec));
    auto peer = Peer::Start(host.SocketPath(id));
    ASSERT_OK(peer);
    vms[id] = std::make_unique<LoadedVm>(std::move(*peer), kDiskBytes, vms.size() + 1);
    ASSERT_TRUE(host.WaitController(id, v1::CONTROLLER_STATE_READY));
  }
  const size_t attached = host.CountInEngineLog(": attached to");
  ASSERT_EQ(attached, disks.size());
  uint64_t seed = 1;
  for (auto& [id, vm] : vms) vm->StartLoad(seed++);
  Random random(42);
  for (int kill = 0; kill < kKills; ++kill) {
    for (auto& [id, vm] : vms) ASSERT_TRUE(vm->load->WaitProgress(random.Below(kSanitized ? 300 : 2000)));
    host.RestartCleatd();
    for (auto& [id, vm] : vms) {
      EXPECT_TRUE(host.WaitController(id, v1::CONTROLLER_STATE_READY));
      EXPECT_EQ(ConnectionsOf(host, id), 1U);
    }
  }
  for (auto& [id, vm] : vms) {
    EXPECT_OK(vm->load->Stop());
    EXPECT_OK(vm->load->Verify());
    EXPECT_FALSE(vm->peer->frontend().PeerGone());
  }
  EXPECT_EQ(host.CountInEngineLog(": attached to"), attached);
  EXPECT_EQ(host.CountInEngineLog(": detached from"), 0U);
}

// An engine that nobody commands goes on serving, also a guest that comes meanwhile.
TEST(CleatdRestart, EngineServesWithoutIt) {
  Host host;
  ASSERT_TRUE(host.ok() && host.AttachNew("a", MemoryDisk(kDiskBytes)));
  host.KillCleatd();
  auto peer = Peer::Start(host.SocketPath("a"));
  ASSERT_OK(peer);
  LoadedVm vm(std::move(*peer), kDiskBytes, 1);
  IoLoad load(vm.peer->driver(), vm.blocks);
  EXPECT_OK(load.Run(1000));
  host.StartCleatd();
  ASSERT_TRUE(host.WaitEngine());
  EXPECT_TRUE(host.WaitController("a", v1::CONTROLLER_STATE_READY));
  EXPECT_OK(load.Run(1000));
  EXPECT_OK(load.Verify());
}

TEST(EngineRestart, EverythingIsAttachedAgain) {
  Host host;
  ASSERT_TRUE(host.ok());
  const std::map<std::string, v1::DiskSpec> disks{{"file", FileDisk(kDiskBytes, host.Path("disk.img"))},
                                                  {"memory", MemoryDisk(kDiskBytes)}};
  std::map<std::string, std::unique_ptr<LoadedVm>> vms;
  for (const auto& [id, spec] : disks) {
    ASSERT_TRUE(host.AttachNew(id, spec));
    auto peer = Peer::Start(host.SocketPath(id));
    ASSERT_OK(peer);
    vms[id] = std::make_unique<LoadedVm>(std::move(*peer), kDiskBytes, vms.size() + 1);
  }
  vms["memory"]->blocks.MayTear();  // the engine copies it itself, and may be killed within a sector
  Random random(43);
  for (int kill = 0; kill < kKills / 3; ++kill) {
    for (auto& [id, vm] : vms) vm->StartLoad(random.Next());
    for (auto& [id, vm] : vms) ASSERT_TRUE(vm->load->WaitProgress(random.Below(1000)));
    host.RestartEngine();
    for (auto& [id, vm] : vms) {
      const Status ended = vm->load->Stop();
      ASSERT_FALSE(ended.ok()) << id << ": the engine was killed and the guest did not notice";
      EXPECT_EQ(ended.error().code, ErrorCode::kUnavailable) << ended.error().message;
      vm->load.reset();
      // What was in flight may or may not have been written; everything else has to be there.
      ASSERT_OK(vm->peer->Boot());
      IoLoad check(vm->peer->driver(), vm->blocks);
      EXPECT_OK(check.Verify());
    }
  }
}

TEST(PeerRestart, KilledInTheMiddleOfIoAndBackAtOnce) {
  Host host;
  ASSERT_TRUE(host.ok() && host.AttachNew("a", FileDisk(kDiskBytes, host.Path("disk.img"))));
  const MonotonicClock clock;
  Random random(44);
  perf::StampedBlocks blocks(kDiskBytes, 512, 1);
  auto peer = Peer::Start(host.SocketPath("a"));
  ASSERT_OK(peer);
  uint64_t slowest_ns = 0;
  constexpr int kRounds = 30;
  for (int round = 0; round < kRounds; ++round) {
    {
      IoLoad load((*peer)->driver(), blocks, {.seed = random.Next()});
      load.Start();
      ASSERT_TRUE(load.WaitProgress(random.Below(300)));
      // From the side, as SIGKILL does it: the load's thread finds the connection gone, its requests in
      // flight.
      shutdown((*peer)->frontend().socket().fd(), SHUT_RDWR);
      EXPECT_FALSE(load.WaitProgress(UINT64_MAX / 2)) << "the load goes on without a connection";
      const Status ended = load.Stop();
      ASSERT_FALSE(ended.ok());
      EXPECT_EQ(ended.error().code, ErrorCode::kUnavailable) << ended.error().message;
    }
    if (round % 2 == 0) {  // QEMU is gone altogether and its socket with it
      peer->reset();
      peer = Peer::Listen(host.SocketPath("a"));
      ASSERT_OK(peer);
    }
    const uint64_t before_ns = clock.NowNs();
    ASSERT_OK((*peer)->Boot());
    slowest_ns = std::max(slowest_ns, clock.NowNs() - before_ns);
    IoLoad check((*peer)->driver(), blocks, {.seed = 3});
    EXPECT_OK(check.Verify());
  }
  RecordProperty("slowest_reconnect_us", static_cast<int>(slowest_ns / kNsPerUs));
  fmt::print("the slowest of {} reconnects took {} us until the rings were up\n", kRounds,
             slowest_ns / kNsPerUs);
}

// The engine is in the middle of opening a disk whose lock nobody gives up.
void OpenWhatIsLocked(Host& host, const std::string& path) {
  ASSERT_TRUE(host.ok());
  ASSERT_OK(host.api().CreateDisk("a", FileDisk(kDiskBytes, path, false)));
  ASSERT_OK(host.api().CreateController("a", BlkController(host.SocketPath("a"))));
  ASSERT_OK(host.api().Attach("a", "a"));
  ASSERT_TRUE(host.api().WaitUntil(
      [](const Model& model) { return model.AttachmentStateOf("a", "a") == v1::ATTACHMENT_STATE_OPENING; }));
  // cleatd says OPENING as soon as it has asked; the engine is to be in the middle of it.
  ASSERT_TRUE(host.WaitEngineLog("waiting for the lock"));
}

// It left with what it had not finished, and a successor goes on when it can.
void ExpectItLeft(Host& host, const Result<int>& ended, const std::string& why, test::LockOfNobody& lock) {
  ASSERT_OK(ended);
  EXPECT_TRUE(WIFEXITED(*ended) && WEXITSTATUS(*ended) == 1) << *ended;
  EXPECT_EQ(host.CountInEngineLog("not drained: " + why + "; 1 disk(s) (disks/a on controllers/a) left"), 1U);
  lock.End();
  host.StartEngine();
  EXPECT_TRUE(host.api().WaitUntil(
      [](const Model& model) { return model.AttachmentStateOf("a", "a") == v1::ATTACHMENT_STATE_READY; }));
}

// Its storage does not answer: the engine leaves all the same when its time is over, and a successor goes on.
TEST(EngineEnd, IsNotHeldUpByStorage) {
  Host host{{.engine_arguments = {"--drain-seconds", "1"}}};
  const std::string path = host.MakeFile("disk.img", kDiskBytes);
  test::LockOfNobody lock(path);
  ASSERT_NO_FATAL_FAILURE(OpenWhatIsLocked(host, path));
  ExpectItLeft(host, host.engine().Terminate(kWaitTimeoutNs), "1 s have passed", lock);
}

// Nobody wants to wait for it any more.
TEST(EngineEnd, ASecondSignalLeavesAtOnce) {
  Host host{{.engine_arguments = {"--drain-seconds", "600"}}};
  const std::string path = host.MakeFile("disk.img", kDiskBytes);
  test::LockOfNobody lock(path);
  ASSERT_NO_FATAL_FAILURE(OpenWhatIsLocked(host, path));
  ASSERT_EQ(kill(host.engine().pid(), SIGTERM), 0);
  ASSERT_TRUE(host.WaitEngineLog(": for 600 s at most"));
  ExpectItLeft(host, host.engine().Terminate(kWaitTimeoutNs), "second signal", lock);
}

// The same guest, the same rings: what QEMU does when the engine goes away and comes back.
TEST(EngineRestart, GuestThatIsIdleGoesOnWithTheSameRings) {
  Host host;
  ASSERT_TRUE(host.ok() && host.AttachNew("a", MemoryDisk(kDiskBytes)));
  auto peer = Peer::Start(host.SocketPath("a"), {.auto_reconnect = true});
  ASSERT_OK(peer);
  perf::StampedBlocks blocks(kDiskBytes, 512, 1);
  IoLoad load((*peer)->driver(), blocks);
  for (int round = 0; round < 3; ++round) {
    EXPECT_OK(load.Run(200));
    host.RestartEngine();
    EXPECT_OK((*peer)->driver().Reconnect());
    EXPECT_OK(load.Run(200));
    EXPECT_OK(load.Verify());
  }
}

// ---- What was acknowledged ----

// The record of a client that changes disks, controllers and attachments at random. A call that got no answer
// leaves two truths possible.
class Client {
 public:
  static constexpr uint64_t kEnded = UINT64_MAX;

  Client(const Host& host, uint64_t seed)
      : host_(host), api_(host.address(), /*patient=*/false), random_(seed) {}

  // Until cleatd is gone.
  void Run(std::atomic<uint64_t>* progress) {
    while (Step()) {
      progress->fetch_add(1);
      progress->notify_all();
    }
    *progress = kEnded;
    progress->notify_all();
  }
  void CheckAgainst(const Model& model) const;

 private:
  enum class Fate : uint8_t { kThere, kGone, kUnknown };

  bool Note(const grpc::Status& status, const std::string& name, Fate wanted);
  bool Step();

  const Host& host_;
  Api api_;
  Random random_;
  std::map<std::string, Fate> record_;
};

bool Client::Note(const grpc::Status& status, const std::string& name, Fate wanted) {
  if (status.ok()) {
    record_[name] = wanted;
    return true;
  }
  const bool lost = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                    status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  if (!lost) return true;  // refused: as it was
  const bool already = record_.contains(name) ? record_[name] == wanted : wanted == Fate::kGone;
  if (!already) record_[name] = Fate::kUnknown;
  return false;
}

bool Client::Step() {
  const std::string disk = fmt::format("d{}", random_.Below(12));
  const std::string controller = fmt::format("c{}", random_.Below(6));
  const std::string attachment = fmt::format("controllers/{}/attachments/{}", controller, disk);
  switch (random_.Below(6)) {
    case 0:
    case 1: {
      const bool memory = disk.back() % 2 == 0;
      const auto spec = memory ? MemoryDisk(1 << 20) : FileDisk(1 << 20, host_.Path(disk + ".img"));
      return Note(api_.CreateDisk(disk, spec).status, "disks/" + disk, Fate::kThere);
    }
    case 2:
      return Note(api_.CreateController(controller, BlkController(host_.Path(controller + ".sock"))).status,
                  "controllers/" + controller, Fate::kThere);
    case 3:
      return Note(api_.Attach(controller, disk).status, attachment, Fate::kThere);
    case 4:
      return Note(api_.Detach(controller, disk), attachment, Fate::kGone);
    default:
      if (random_.Chance(1, 2)) return Note(api_.DeleteDisk(disk), "disks/" + disk, Fate::kGone);
      return Note(api_.DeleteController(controller), "controllers/" + controller, Fate::kGone);
  }
}

void Client::CheckAgainst(const Model& model) const {
  // Deleted but still held by the engine is deleted.
  std::set<std::string> there;
  for (const auto& [name, disk] : model.disks) {
    if (disk.status().state() != v1::DISK_STATE_DELETING) there.insert(name);
  }
  for (const auto& [name, controller] : model.controllers) {
    if (controller.status().state() != v1::CONTROLLER_STATE_DELETING) there.insert(name);
  }
  for (const auto& [name, attachment] : model.attachments) {
    if (attachment.status().state() != v1::ATTACHMENT_STATE_DETACHING) there.insert(name);
  }
  for (const auto& [name, fate] : record_) {
    if (fate == Fate::kUnknown) continue;
    EXPECT_EQ(there.contains(name), fate == Fate::kThere) << name << " is not as it was acknowledged";
  }
  for (const std::string& name : there) EXPECT_TRUE(record_.contains(name)) << name << " was never made";
}

TEST(CleatdRestart, WhatWasAcknowledgedSurvivesKills) {
  Host host;
  ASSERT_TRUE(host.ok());
  Client client(host, 45);
  Random random(46);
  for (int kill = 0; kill < kKills; ++kill) {
    std::atomic<uint64_t> progress = 0;
    std::thread thread([&] { client.Run(&progress); });
    const uint64_t goal = random.Between(20, 300);
    for (uint64_t seen = progress; seen < goal; seen = progress) progress.wait(seen);
    host.KillCleatd();
    thread.join();
    host.StartCleatd();
    ASSERT_TRUE(host.WaitEngine());
    const auto listed = host.api().List();
    ASSERT_OK(listed);
    client.CheckAgainst(listed.value);
    if (HasFailure()) return;
  }
}

// The content of memory disks outlives one process at a time.
TEST(MemoryDisk, ContentOutlivesEitherProcess) {
  Host host;
  ASSERT_TRUE(host.ok() && host.AttachNew("a", MemoryDisk(kDiskBytes)));
  auto peer = Peer::Start(host.SocketPath("a"));
  ASSERT_OK(peer);
  perf::StampedBlocks blocks(kDiskBytes, 512, 1);
  {
    IoLoad load((*peer)->driver(), blocks);
    EXPECT_OK(load.Run(1000));
    EXPECT_OK(load.Verify());
  }
  for (const bool engine : {true, false, true}) {
    if (engine) {
      host.RestartEngine();
      EXPECT_OK((*peer)->WaitCut());
      ASSERT_OK((*peer)->Boot());
    } else {
      host.RestartCleatd();
    }
    IoLoad load((*peer)->driver(), blocks);
    EXPECT_OK(load.Verify());
    EXPECT_OK(load.Run(300));
  }
  // Both at once: the content is lost, and it says so.
  host.KillEngine();
  host.KillCleatd();
  host.StartCleatd();
  host.StartEngine();
  ASSERT_TRUE(host.WaitEngine());
  Model last;
  EXPECT_TRUE(host.api().WaitUntil(
      [](const Model& model) { return model.disks.at("disks/a").status().state() == v1::DISK_STATE_LOST; },
      &last))
      << last.ToString();
  EXPECT_FALSE(last.disks.at("disks/a").status().message().empty());
}

}  // namespace
}  // namespace cleat::system_test::restart_test
