// SPDX-License-Identifier: Apache-2.0
// Disks in a real Ceph cluster from the API to a guest: what the guest wrote is what rbd export gives, what can't be is said
// clearly, an image that grows is larger for the guest. (rbd_host_outage_test.cc: clusters that hang, engines that die.)
#include <thread>

#include "base/clock.h"
#include "tests/ceph/rbd_host_rig.h"
#include "tests/system/http_get.h"
#include "tests/system/io_load.h"
#include "tests/unit/modules/xts_reference.h"

namespace cleat::system_test::rbd_host_test {
namespace {

constexpr uint64_t kRequests = kSanitized ? 300 : 2000;

std::string Key() {
  std::string key;
  for (int i = 0; i < 64; ++i) key += static_cast<char>(7 + i * 3);
  return key;
}

TEST_F(RbdHostTest, WhatTheGuestWroteIsWhatRbdExports) {
  ceph_.CreateImage("plain", kDiskBytes);
  ASSERT_TRUE(host_.AttachNew("plain", Rbd("plain")));
  std::vector<uint8_t> seen;
  {
    auto peer = Peer::Start(host_.SocketPath("plain"));
    ASSERT_OK(peer);
    perf::StampedBlocks blocks(kDiskBytes, 512, 1);
    IoLoad load((*peer)->driver(), blocks);
    ASSERT_OK(load.Run(kRequests));
    ASSERT_OK(load.Verify());
    seen = ReadAll(**peer, kDiskBytes);
    ASSERT_OK((*peer)->driver().FlushSync());
    ASSERT_OK((*peer)->ShutDown());
  }
  // The engine's connections are in its status.
  v1::GetEngineRequest get;
  get.set_name(kEngineName);
  v1::Engine engine;
  EXPECT_TRUE(host_.api().WaitUntil([&](const Model& model) {
    engine = model.engines.at(kEngineName);
    return engine.status().ceph().clients_total() == 1 && engine.status().ceph().threads() > 0;
  }));
  ASSERT_EQ(engine.status().ceph().clients_size(), 1) << engine.ShortDebugString();
  EXPECT_EQ(engine.status().ceph().clients(0).cluster(), "clusters/ceph");
  EXPECT_EQ(engine.status().ceph().clients(0).images(), 1U);
  EXPECT_TRUE(engine.status().ceph().clients(0).id().starts_with("client."));
  const std::string metrics = HttpGet(MetricsPort(host_), "/metrics").body;
  for (const std::string& line : {
           std::string(R"(cleat_ceph_clients{engine="engine-0",cluster="ceph"} 1)"),
           std::string(R"(cleat_ceph_images{engine="engine-0",cluster="ceph"} 1)"),
           std::string(R"(cleat_ceph_clients_blocklisted{engine="engine-0",cluster="ceph"} 0)"),
           fmt::format(R"(cleat_ceph_threads{{engine="engine-0"}} {})", engine.status().ceph().threads()),
       }) {
    EXPECT_NE(metrics.find(line + "\n"), std::string::npos) << line << "\nis not in\n" << metrics;
  }
  ASSERT_TRUE(host_.Remove("plain"));
  EXPECT_EQ(Export("plain"), std::string(seen.begin(), seen.end()));
  EXPECT_TRUE(host_.api().WaitUntil(
      [&](const Model& model) { return !model.engines.at(kEngineName).status().has_ceph(); }));
}

TEST_F(RbdHostTest, AnEncryptedAndLimitedDiskIsCipherTextInTheCluster) {
  ceph_.CreateImage("secret", kDiskBytes);
  v1::DiskSpec spec = Rbd("secret");
  *spec.mutable_limits() = Iops(4000);
  spec.mutable_encryption()->set_plain_key(Key());
  ASSERT_TRUE(host_.AttachNew("secret", spec));
  std::vector<uint8_t> plain;
  {
    auto peer = Peer::Start(host_.SocketPath("secret"));
    ASSERT_OK(peer);
    perf::StampedBlocks blocks(kDiskBytes, 512, 1, false);
    IoLoad load((*peer)->driver(), blocks);
    ASSERT_OK(load.Run(kRequests));
    ASSERT_OK(load.Verify());
    plain = ReadAll(**peer, kDiskBytes);
    ASSERT_OK((*peer)->driver().FlushSync());
    ASSERT_OK((*peer)->ShutDown());
  }
  ASSERT_TRUE(host_.Remove("secret"));
  const std::string key = Key();
  const test::XtsReference reference({reinterpret_cast<const uint8_t*>(key.data()), key.size()}, 512);
  const std::vector<uint8_t> stored = reference.Encrypt(plain, 0);
  EXPECT_EQ(Export("secret"), std::string(stored.begin(), stored.end()));
}

TEST_F(RbdHostTest, ASnapshotIsForReadersAlone) {
  constexpr uint64_t kBytes = uint64_t{4} << 20;
  ceph_.CreateImage("photo", kBytes);
  std::vector<uint8_t> first(4096, 0x11);
  std::vector<uint8_t> second(4096, 0x22);
  ASSERT_TRUE(host_.AttachNew("photo", Rbd("photo", kBytes)));
  auto peer = Peer::Start(host_.SocketPath("photo"));
  ASSERT_OK(peer);
  ASSERT_OK((*peer)->driver().WriteSync(0, first));
  ASSERT_OK((*peer)->driver().FlushSync());
  ceph_.Snapshot("photo", "then");
  ASSERT_OK((*peer)->driver().WriteSync(0, second));

  v1::DiskSpec spec = Rbd("photo", kBytes);
  spec.mutable_rbd()->set_snapshot("then");
  ASSERT_OK(host_.api().CreateDisk("then", spec));
  ASSERT_OK(host_.api().CreateController("then", BlkController(host_.SocketPath("then"))));
  const auto refused = host_.api().Attach("then", "then", false);
  EXPECT_EQ(refused.code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(refused.message().find("snapshot 'then' of image 'photo'"), std::string::npos)
      << refused.message();
  ASSERT_OK(host_.api().Attach("then", "then", true));
  WaitState(host_, "then", v1::ATTACHMENT_STATE_READY);
  auto reader = Peer::Start(host_.SocketPath("then"));
  ASSERT_OK(reader);
  std::vector<uint8_t> seen(4096);
  ASSERT_OK((*reader)->driver().ReadSync(0, seen));
  EXPECT_EQ(seen, first);
  ASSERT_OK((*peer)->driver().ReadSync(0, seen));
  EXPECT_EQ(seen, second);
  // The image itself has a disk already.
  const auto again = host_.api().CreateDisk("again", Rbd("photo", kBytes));
  EXPECT_NE(again.message().find("is used by disks/photo"), std::string::npos) << again.message();
  ASSERT_OK((*reader)->ShutDown());
  ASSERT_OK((*peer)->ShutDown());
  ASSERT_TRUE(host_.Remove("then"));
  ASSERT_TRUE(host_.Remove("photo"));
}

TEST_F(RbdHostTest, WhatIsWrongIsSaid) {
  ceph_.CreateImage("small", kDiskBytes / 2);
  ceph_.CreateImage("locked-out", kDiskBytes);
  const auto nowhere = host_.api().CreateDisk("nowhere", Rbd("plain", kDiskBytes, "clusters/none"));
  EXPECT_EQ(nowhere.code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_NE(nowhere.message().find("clusters/none does not exist"), std::string::npos) << nowhere.message();
  EXPECT_EQ(CreateCluster("typo", "no key at all").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ASSERT_OK(CreateCluster("wrong", ceph_.Key("admin")));  // another user's

  v1::DiskSpec no_pool = Rbd("locked-out");
  no_pool.mutable_rbd()->set_pool("pond");
  const struct {
    const char* id;
    v1::DiskSpec spec;
    const char* message;
  } cases[] = {
      {"no-image", Rbd("missing"), "No such file or directory"},
      {"no-pool", no_pool, "pool pond"},
      {"too-small", Rbd("small"), "has 16777216 bytes, the disk has 33554432"},
      {"wrong-key", Rbd("locked-out", kDiskBytes, "clusters/wrong"), "client.cleat can't connect"},
  };
  for (const auto& one : cases) AttachAnyhow(host_, one.id, one.spec);
  for (const auto& one : cases) {
    const v1::Attachment failed = WaitState(host_, one.id, v1::ATTACHMENT_STATE_FAILED, one.message);
    EXPECT_EQ(failed.status().message().find(ceph_.Key("admin")), std::string::npos);
    EXPECT_GE(failed.status().failures(), 1U);
  }
  // With the right key, and an image that has grown, they come by themselves.
  v1::UpdateClusterRequest update;
  update.mutable_cluster()->set_name("clusters/wrong");
  v1::ClusterSpec& spec = *update.mutable_cluster()->mutable_spec();
  spec.set_monitors(ceph_.Monitors());
  spec.set_user("cleat");
  spec.set_plain_key(ceph_.Key("cleat"));
  update.mutable_update_mask()->add_paths("spec");
  grpc::ClientContext context;
  v1::Cluster cluster;
  ASSERT_OK(host_.api().stub().UpdateCluster(&context, update, &cluster));
  ASSERT_EQ(ceph_.Resize("small", kDiskBytes), 0);
  WaitState(host_, "wrong-key", v1::ATTACHMENT_STATE_READY);
  WaitState(host_, "too-small", v1::ATTACHMENT_STATE_READY);
  v1::DeleteClusterRequest remove;
  remove.set_name("clusters/wrong");
  v1::DeleteClusterResponse gone;
  grpc::ClientContext refused_context;
  const grpc::Status refused = host_.api().stub().DeleteCluster(&refused_context, remove, &gone);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  for (const auto& one : cases) ASSERT_TRUE(host_.Remove(one.id));
  grpc::ClientContext context_again;
  ASSERT_OK(host_.api().stub().DeleteCluster(&context_again, remove, &gone));
  // No key is in what either process wrote.
  for (const char* user : {"cleat", "admin"}) {
    const std::string key = ceph_.Key(user);
    for (const char* file : {"cleatd.log", "cleat-engine.log", "state/cleat.db", "state/cleat.db-wal"}) {
      EXPECT_EQ(ReadTextFile(host_.Path(file)).find(key), std::string::npos) << user << " in " << file;
    }
  }
}

TEST_F(RbdHostTest, AnImageThatGrowsIsLargerForTheGuest) {
  ceph_.CreateImage("grows", kDiskBytes);
  ASSERT_TRUE(host_.AttachNew("grows", Rbd("grows")));
  auto peer = Peer::Start(host_.SocketPath("grows"));
  ASSERT_OK(peer);
  const auto wait_size = [&](uint64_t bytes) {
    const bool known = host_.api().WaitUntil([&](const Model& model) {
      const v1::Disk& disk = model.disks.at("disks/grows");
      return disk.spec().size_bytes() == bytes && disk.status().size_bytes() == bytes;
    });
    EXPECT_TRUE(known) << bytes;
    ASSERT_OK((*peer)->driver().RefreshConfig());
    EXPECT_EQ((*peer)->driver().capacity_bytes(), bytes);
  };
  ASSERT_EQ(ceph_.Resize("grows", 2 * kDiskBytes), 0);  // rbd resize
  wait_size(2 * kDiskBytes);
  ASSERT_OK(host_.api().ResizeDisk("grows", 3 * kDiskBytes));  // and by the API
  wait_size(3 * kDiskBytes);
  EXPECT_EQ(ceph_.ReadAll("grows").size(), 3 * kDiskBytes);
  std::vector<uint8_t> block(4096, 0x33);
  ASSERT_OK((*peer)->driver().WriteSync(3 * kDiskBytes - 4096, block));
  ASSERT_OK((*peer)->ShutDown());
  ASSERT_TRUE(host_.Remove("grows"));
}

// Nobody has to run `rbd resize`: who has the image next makes it larger, before a guest sees it.
TEST_F(RbdHostTest, ADiskThatGrewWithoutItsEngineIsMadeLargerByTheNext) {
  ceph_.CreateImage("later", kDiskBytes);
  ASSERT_OK(host_.api().CreateDisk("later", Rbd("later")));
  ASSERT_OK(host_.api().ResizeDisk("later", 2 * kDiskBytes));
  EXPECT_EQ(ceph_.ReadAll("later").size(), kDiskBytes);
  ASSERT_OK(host_.api().CreateController("later", BlkController(host_.SocketPath("later"))));
  ASSERT_OK(host_.api().Attach("later", "later", false));
  WaitState(host_, "later", v1::ATTACHMENT_STATE_READY);
  EXPECT_EQ(ceph_.ReadAll("later").size(), 2 * kDiskBytes);

  host_.KillEngine();
  ASSERT_OK(host_.api().ResizeDisk("later", 3 * kDiskBytes));
  host_.StartEngine();
  ASSERT_TRUE(host_.WaitEngine());
  auto peer = Peer::Start(host_.SocketPath("later"));
  ASSERT_OK(peer);
  EXPECT_EQ((*peer)->driver().capacity_bytes(), 3 * kDiskBytes);
  std::vector<uint8_t> block(4096, 0x44);
  ASSERT_OK((*peer)->driver().WriteSync(3 * kDiskBytes - 4096, block));
  WaitState(host_, "later", v1::ATTACHMENT_STATE_READY);
  ASSERT_OK((*peer)->ShutDown());

  // What somebody cut off is another matter.
  ASSERT_OK(host_.api().Detach("later", "later"));
  ASSERT_TRUE(host_.api().WaitUntil([](const Model& model) { return model.attachments.empty(); }));
  ASSERT_EQ(ceph_.Resize("later", kDiskBytes), 0);
  ASSERT_OK(host_.api().ResizeDisk("later", 4 * kDiskBytes));
  ASSERT_OK(host_.api().Attach("later", "later", false));
  WaitState(host_, "later", v1::ATTACHMENT_STATE_FAILED, "has 33554432 bytes, the disk has 100663296");
  ASSERT_EQ(ceph_.Resize("later", 3 * kDiskBytes), 0);
  WaitState(host_, "later", v1::ATTACHMENT_STATE_READY);
  ASSERT_TRUE(host_.Remove("later"));
}

TEST_F(RbdHostTest, AnImageInANamespaceIsAnotherOne) {
  ceph_.CreateNamespace("tenant");
  ceph_.CreateImage("named", kDiskBytes);
  ceph_.CreateImage("named", kDiskBytes, "tenant");
  v1::DiskSpec inside = Rbd("named");
  inside.mutable_rbd()->set_name_space("tenant");
  ASSERT_TRUE(host_.AttachNew("outside", Rbd("named")));
  ASSERT_TRUE(host_.AttachNew("inside", inside));
  auto peer = Peer::Start(host_.SocketPath("inside"));
  ASSERT_OK(peer);
  std::vector<uint8_t> block(4096, 0x55);
  ASSERT_OK((*peer)->driver().WriteSync(0, block));
  ASSERT_OK((*peer)->ShutDown());
  ASSERT_TRUE(host_.Remove("inside"));
  ASSERT_TRUE(host_.Remove("outside"));
  EXPECT_EQ(Export("named")[0], '\0');
  EXPECT_EQ(Export("tenant/named")[0], '\x55');
}

TEST(RbdPlacement, CephsThreadsStayOffTheReactorsCores) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core: nowhere else to go";
  MiniCeph& ceph = MiniCeph::Shared();
  ceph.CreateImage("placed", kDiskBytes);
  Host host({.with_keys = true, .engine_arguments = {"--cpus", "0"}});
  ASSERT_TRUE(host.ok());
  v1::CreateClusterRequest request;
  request.set_cluster_id("ceph");
  request.mutable_cluster()->mutable_spec()->set_conf_file(ceph.conf());  // whose keyring has the key
  request.mutable_cluster()->mutable_spec()->set_user("cleat");
  grpc::ClientContext context;
  v1::Cluster cluster;
  ASSERT_OK(host.api().stub().CreateCluster(&context, request, &cluster));
  ASSERT_TRUE(host.AttachNew("placed", Rbd("placed")));
  uint32_t threads = 0;
  ASSERT_TRUE(host.api().WaitUntil([&](const Model& model) {
    threads = model.engines.at(kEngineName).status().ceph().threads();
    return threads > 0;
  }));
  EXPECT_EQ(ThreadsOnFirstCpu(host.engine().pid()), std::vector<std::string>{"reactor-0"});
  ASSERT_TRUE(host.Remove("placed"));
}

}  // namespace
}  // namespace cleat::system_test::rbd_host_test
