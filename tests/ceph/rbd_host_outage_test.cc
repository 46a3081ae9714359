// SPDX-License-Identifier: Apache-2.0
// Disks in a real Ceph cluster when something is wrong with it or with their engine: a cluster that hangs holds up nobody who
// asks and no other disk; an engine that is killed loses nothing, one that stands still keeps its images; who was shut out
// stays out until somebody decides.
#include <algorithm>
#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/ceph/rbd_host_rig.h"
#include "tests/system/crash_rig.h"
#include "tests/system/http_get.h"
#include "tests/system/io_load.h"

namespace cleat::system_test::rbd_host_outage_test {
namespace {

class RbdOutageTest : public RbdHostTest {
 protected:
  v1::Cluster WaitCluster(v1::ClusterState state, const std::string& message = {}) {
    v1::Cluster seen;
    EXPECT_TRUE(host_.api().WaitUntil([&](const Model& model) {
      seen = model.clusters.at("clusters/ceph");
      return seen.status().state() == state && seen.status().message().find(message) != std::string::npos;
    })) << seen.status().ShortDebugString()
        << ", waited for " << message;
    return seen;
  }
};

size_t CountIn(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// ---- A cluster that hangs

// -1: there is no such metric.
double Metric(const Host& host, const std::string& sample) {
  const HttpReply reply = HttpGet(MetricsPort(host), "/metrics");
  EXPECT_EQ(reply.status, 200);
  const size_t at = reply.body.find(sample);
  return at == std::string::npos ? -1 : std::atof(reply.body.c_str() + at + sample.size());
}

// A metric of the cluster that all disks are in.
double CephMetric(const Host& host, const std::string& name) {
  return Metric(host, name + R"({engine="engine-0",cluster="ceph"} )");
}
double ClusterMetric(const Host& host, const std::string& name) {
  return Metric(host, name + R"({cluster="ceph"} )");
}

// How long calls took, by what they asked for.
class Stopwatch {
 public:
  template <typename Call>
  void Time(const std::string& what, Call call) {
    const uint64_t before_ns = clock_.NowNs();
    EXPECT_OK(call()) << what;
    times_ns_[what].push_back(clock_.NowNs() - before_ns);
  }
  uint64_t MedianNs(const std::string& what) {
    std::vector<uint64_t>& times_ns = times_ns_.at(what);
    const auto middle = times_ns.begin() + times_ns.size() / 2;
    std::nth_element(times_ns.begin(), middle, times_ns.end());
    return *middle;
  }

 private:
  const MonotonicClock clock_;
  std::map<std::string, std::vector<uint64_t>> times_ns_;
};

// What a call may take of a disk whose cluster hangs: so many times as of a disk in memory, which has nobody to wait for.
constexpr uint64_t kSlowerMax = 20;

TEST_F(RbdOutageTest, NoCallWaitsForAMonitorThatHangs) {
  constexpr int kDisks = 6;
  const auto name = [](const std::string& kind, int i) { return fmt::format("{}{}", kind, i); };
  const std::string on_ceph = "ceph-";
  const std::string in_memory = "memory-";
  for (int i = 0; i < kDisks; ++i) {
    for (const char* kind : {"come", "stay", "go"}) ceph_.CreateImage(name(kind, i), kDiskBytes);
    for (const std::string& where : {on_ceph, in_memory}) {
      const auto spec = [&](const char* kind) {
        return where == on_ceph ? Rbd(name(kind, i)) : MemoryDisk(kDiskBytes);
      };
      ASSERT_TRUE(host_.AttachNew(name(where + "stay", i), spec("stay")));
      ASSERT_TRUE(host_.AttachNew(name(where + "go", i), spec("go")));
      const std::string come = name(where + "come", i);
      ASSERT_OK(host_.api().CreateDisk(come, spec("come")));
      ASSERT_OK(host_.api().CreateController(come, BlkController(host_.SocketPath(come))));
    }
  }
  ASSERT_TRUE(host_.AttachNew("memory", MemoryDisk(kDiskBytes)));
  // Behind one controller: a disk that hangs and one that does not.
  ASSERT_OK(host_.api().CreateController("both", ScsiController(host_.SocketPath("both"))));
  ceph_.CreateImage("hangs", kDiskBytes);
  ASSERT_OK(host_.api().CreateDisk("hangs", Rbd("hangs")));
  ASSERT_OK(host_.api().CreateDisk("neighbour", MemoryDisk(kDiskBytes)));
  ASSERT_OK(host_.api().Attach("both", "neighbour", false, 1));
  ASSERT_OK(host_.api().WaitReady("controllers/both/attachments/neighbour"));
  Stopwatch watch;
  const MonotonicClock clock;
  uint64_t hung_ns = 0;
  {
    const Stopped stopped(ceph_, "mon.a");
    // Disks that are open need nothing of the monitors, and no call would find out.
    const v1::Cluster silent = WaitCluster(
        v1::CLUSTER_STATE_NOT_ANSWERING, "clusters/ceph: its monitors do not answer engines/engine-0 since ");
    EXPECT_NE(silent.status().since().seconds(), 0);
    EXPECT_EQ(ClusterMetric(host_, "cleat_cluster_not_answering"), 1);
    const std::string served = name(on_ceph + "stay", 0);
    EXPECT_EQ(WaitState(host_, served, v1::ATTACHMENT_STATE_READY).status().message(), "");
    const Stopped stopped_osd(ceph_, "osd.0");
    const uint64_t began_ns = clock.NowNs();
    for (int i = 0; i < kDisks; ++i) {
      for (const std::string& where : {on_ceph, in_memory}) {
        const std::string come = name(where + "come", i);
        const std::string stay = name(where + "stay", i);
        const std::string go = name(where + "go", i);
        watch.Time(where + "attach", [&] { return host_.api().Attach(come, come).status; });
        watch.Time(where + "detach", [&] { return host_.api().Detach(go, go); });
        watch.Time(where + "resize", [&] { return host_.api().ResizeDisk(stay, 2 * kDiskBytes).status; });
        watch.Time(where + "get", [&] { return host_.api().GetAttachment(stay, stay).status; });
      }
    }
    EXPECT_OK(host_.api().List().status);
    ASSERT_OK(host_.api().Attach("both", "hangs", false, 0));
    ASSERT_OK(host_.api().ResizeDisk("neighbour", 2 * kDiskBytes));
    ASSERT_OK(host_.api().WaitReady("disks/neighbour"));
    // It did not wait for the other one, which hangs on.
    EXPECT_EQ(host_.api().GetAttachment("both", "hangs").value.status().state(),
              v1::ATTACHMENT_STATE_OPENING);
    // Another disk is attached, grows and goes meanwhile, beside the engine's operations that wait.
    ASSERT_OK(host_.api().ResizeDisk("memory", 2 * kDiskBytes));
    ASSERT_OK(host_.api().WaitReady("disks/memory"));
    ASSERT_TRUE(host_.AttachNew("beside", MemoryDisk(kDiskBytes)));
    ASSERT_TRUE(host_.Remove("beside"));
    WaitState(host_, name(on_ceph + "come", 0), v1::ATTACHMENT_STATE_OPENING);
    WaitState(host_, name(on_ceph + "go", 0), v1::ATTACHMENT_STATE_DETACHING);
    // How long it has been hanging shows.
    EXPECT_TRUE(host_.api().WaitUntil([&](const Model& model) {
      const auto& clients = model.engines.at(kEngineName).status().ceph().clients();
      return std::any_of(clients.begin(), clients.end(),
                         [](const auto& c) { return c.busy().seconds() >= 2; });
    }));
    EXPECT_GE(CephMetric(host_, "cleat_ceph_busy_seconds"), 2);
    EXPECT_GE(CephMetric(host_, "cleat_ceph_clients_busy"), 1);
    // What waits for the cluster says so.
    WaitState(host_, name(on_ceph + "come", 0), v1::ATTACHMENT_STATE_OPENING,
              "waits for clusters/ceph: its monitors do not answer");
    WaitState(host_, name(on_ceph + "go", 0), v1::ATTACHMENT_STATE_DETACHING,
              "waits for clusters/ceph: its monitors do not answer");
    hung_ns = clock.NowNs() - began_ns;
  }
  // The cluster stood still until all of them were answered, and none had given up waiting for it.
  EXPECT_EQ(WaitCluster(v1::CLUSTER_STATE_OK).status().message(), "");
  EXPECT_EQ(ClusterMetric(host_, "cleat_cluster_not_answering"), 0);
  EXPECT_TRUE(host_.WaitCleatdLog("clusters/ceph: monitors answer again: "));
  EXPECT_EQ(CountIn(host_.cleatd_log(), "clusters/ceph: monitors silent: "), 1U);
  for (const std::string what : {"attach", "detach", "resize", "get"}) {
    const uint64_t here_ns = watch.MedianNs(on_ceph + what);
    const uint64_t in_memory_ns = watch.MedianNs(in_memory + what);
    fmt::print("{}: {} us with the cluster stopped, {} us of memory\n", what, here_ns / kNsPerUs,
               in_memory_ns / kNsPerUs);
    EXPECT_LE(here_ns, kSlowerMax * in_memory_ns) << what;
    EXPECT_LT(kSlowerMax * in_memory_ns, hung_ns)
        << what << ": a call that waits for the cluster would not be noticed";
  }
  for (int i = 0; i < kDisks; ++i) {
    WaitState(host_, name(on_ceph + "come", i), v1::ATTACHMENT_STATE_READY);
    ASSERT_OK(host_.api().WaitReady("disks/" + name(on_ceph + "stay", i)));
    EXPECT_TRUE(host_.api().WaitUntil([&](const Model& model) {
      const std::string go = name(on_ceph + "go", i);
      return model.AttachmentStateOf(go, go) == v1::ATTACHMENT_STATE_UNSPECIFIED;
    }));
  }
  for (int i = 0; i < kDisks; ++i) {
    for (const char* kind : {"come", "stay", "go"}) {
      for (const std::string& where : {on_ceph, in_memory}) ASSERT_TRUE(host_.Remove(name(where + kind, i)));
    }
  }
  ASSERT_TRUE(host_.Remove("memory"));
  ASSERT_OK(host_.api().WaitReady("controllers/both/attachments/hangs"));
  for (const char* disk : {"hangs", "neighbour"}) ASSERT_OK(host_.api().Detach("both", disk));
  ASSERT_TRUE(host_.api().WaitUntil([](const Model& model) { return model.attachments.empty(); }));
}

TEST_F(RbdOutageTest, AnOsdThatHangsHoldsUpItsOwnDisksAlone) {
  ceph_.CreateImage("waits", kDiskBytes);
  ASSERT_TRUE(host_.AttachNew("waits", Rbd("waits")));
  ASSERT_TRUE(host_.AttachNew("beside", MemoryDisk(kDiskBytes)));
  auto waiting = Peer::Start(host_.SocketPath("waits"));
  ASSERT_OK(waiting);
  auto beside = Peer::Start(host_.SocketPath("beside"));
  ASSERT_OK(beside);
  perf::StampedBlocks waiting_blocks(kDiskBytes, 512, 1);
  perf::StampedBlocks beside_blocks(kDiskBytes, 512, 2);
  IoLoad waiting_load((*waiting)->driver(), waiting_blocks);
  IoLoad beside_load((*beside)->driver(), beside_blocks);
  waiting_load.Start();
  beside_load.Start();
  ASSERT_TRUE(waiting_load.WaitProgress(100));
  {
    const Stopped stopped(ceph_, "osd.0");
    // What the OSD had answered already is on its way for a while.
    constexpr int kRoundsMax = 100;
    uint64_t before = ~uint64_t{0};
    for (int round = 0; round < kRoundsMax && waiting_load.completed() != before; ++round) {
      before = waiting_load.completed();
      ASSERT_TRUE(beside_load.WaitProgress(1000));
    }
    ASSERT_TRUE(beside_load.WaitProgress(10'000));
    EXPECT_EQ(waiting_load.completed(), before) << "the OSD does not stand still";
  }
  EXPECT_TRUE(waiting_load.WaitProgress(100));
  EXPECT_OK(waiting_load.Stop());
  EXPECT_OK(beside_load.Stop());
  EXPECT_OK(waiting_load.Verify());
  EXPECT_OK(beside_load.Verify());
  ASSERT_OK((*waiting)->ShutDown());
  ASSERT_OK((*beside)->ShutDown());
  ASSERT_TRUE(host_.Remove("waits"));
  ASSERT_TRUE(host_.Remove("beside"));
}

TEST_F(RbdOutageTest, AFullPoolIsToldAndWhatWaitsForItSaysSo) {
  ceph_.CreateImage("late", kDiskBytes);
  ceph_.SetFull(true);
  AttachAnyhow(host_, "late", Rbd("late"));  // its lock can't be taken
  const std::string full = "clusters/ceph: it is full, and writes wait: pool 'rbd' (no space) since ";
  WaitCluster(v1::CLUSTER_STATE_FULL, full);
  EXPECT_EQ(ClusterMetric(host_, "cleat_cluster_full"), 1);
  WaitState(host_, "late", v1::ATTACHMENT_STATE_OPENING, "waits for " + full);
  EXPECT_NE(host_.api().GetDisk("late").value.status().message().find("waits for " + full),
            std::string::npos);
  ceph_.SetFull(false);
  WaitState(host_, "late", v1::ATTACHMENT_STATE_READY);
  EXPECT_EQ(WaitCluster(v1::CLUSTER_STATE_OK).status().message(), "");
  EXPECT_EQ(ClusterMetric(host_, "cleat_cluster_full"), 0);
  EXPECT_EQ(host_.api().GetDisk("late").value.status().message(), "");
  EXPECT_TRUE(host_.WaitCleatdLog("clusters/ceph: full no more: "));
  EXPECT_EQ(CountIn(host_.cleatd_log(), "clusters/ceph: full: "), 1U);
  ASSERT_TRUE(host_.Remove("late"));
}

// ---- Owners

TEST_F(RbdOutageTest, AnEngineKilledUnderLoadLosesNothing) {
  CrashRig rig(host_, 1);
  for (const bool scsi : {false, true}) {
    const CrashCase what{.scsi = scsi, .packed = !scsi, .queues = 2};
    const std::string image = "crash-" + what.Id();
    ceph_.CreateImage(image, CrashRig::kDiskBytes);
    CrashCase in_ceph = what;
    in_ceph.spec = Rbd(image, CrashRig::kDiskBytes);
    ASSERT_OK(rig.Add(in_ceph));
  }
  ASSERT_OK(rig.Start());
  for (int i = 0; i < (kSanitized ? 2 : 6); ++i) {
    if (!rig.Do(CrashEvent::kEngine)) break;
  }
  rig.Stop();
  fmt::print("rbd: {}\n", rig.Summary());
  EXPECT_EQ(rig.findings(), 0U) << rig.FindingsText();
}

TEST_F(RbdOutageTest, AnEngineThatStandsStillKeepsItsDisksUntilItIsDead) {
  ceph_.CreateImage("owned", kDiskBytes);
  ASSERT_TRUE(host_.AttachNew("owned", Rbd("owned")));
  const pid_t first = host_.engine().pid();
  ASSERT_EQ(kill(first, SIGSTOP), 0);
  {
    Host other({.with_keys = true});
    ASSERT_TRUE(other.ok());
    ASSERT_OK(CreateCluster("ceph", ceph_.Key("cleat"), &other));
    AttachAnyhow(other, "owned", Rbd("owned"));
    WaitState(other, "owned", v1::ATTACHMENT_STATE_FAILED,
              fmt::format("is locked by process {} (engine {}) on this machine", first, kEngineId));
    const uint32_t before = ceph_.BlocklistedCount();
    host_.KillEngine();
    WaitState(other, "owned", v1::ATTACHMENT_STATE_READY);
    EXPECT_EQ(ceph_.BlocklistedCount(), before + 1);
    ASSERT_TRUE(other.Remove("owned"));
  }
  host_.StartEngine();
  ASSERT_TRUE(host_.WaitEngine());
  WaitState(host_, "owned", v1::ATTACHMENT_STATE_READY);
  ASSERT_TRUE(host_.Remove("owned"));
}

// A client of ours that was shut out: its disk says so, and is nobody's to repair but the operator's.
TEST_F(RbdOutageTest, ADiskThatWasShutOutFailsUntilItIsAttachedAgain) {
  ceph_.CreateImage("fenced", kDiskBytes);
  ASSERT_TRUE(host_.AttachNew("fenced", Rbd("fenced")));
  auto peer = Peer::Start(host_.SocketPath("fenced"));
  ASSERT_OK(peer);
  std::vector<uint8_t> block(4096, 0x44);
  ASSERT_OK((*peer)->driver().WriteSync(0, block));
  ceph_.BlocklistOwnerOf("fenced");
  Status written;
  for (int i = 0; i < 2000 && written; ++i) written = (*peer)->driver().WriteSync(0, block);
  EXPECT_FALSE(written);
  WaitState(host_, "fenced", v1::ATTACHMENT_STATE_FAILED, "was blocklisted by clusters/ceph");
  EXPECT_TRUE(host_.api().WaitUntil([&](const Model& model) {
    const v1::CephStatus& ceph = model.engines.at(kEngineName).status().ceph();
    return ceph.clients_size() == 1 && ceph.clients(0).blocklisted();
  }));
  EXPECT_EQ(CephMetric(host_, "cleat_ceph_clients_blocklisted"), 1);
  // It stays so over a restart of cleatd, which takes it for what it is.
  host_.RestartCleatd();
  WaitState(host_, "fenced", v1::ATTACHMENT_STATE_FAILED, "was blocklisted by clusters/ceph");
  ASSERT_OK(host_.api().Detach("fenced", "fenced"));
  ASSERT_TRUE(host_.api().WaitUntil([&](const Model& model) { return model.attachments.empty(); }));
  (*peer)->Cut();
  ASSERT_OK(host_.api().Attach("fenced", "fenced"));
  WaitState(host_, "fenced", v1::ATTACHMENT_STATE_READY);
  ASSERT_OK((*peer)->Boot());
  ASSERT_OK((*peer)->driver().WriteSync(0, block));
  ASSERT_OK((*peer)->ShutDown());
  ASSERT_TRUE(host_.Remove("fenced"));
}

}  // namespace
}  // namespace cleat::system_test::rbd_host_outage_test
