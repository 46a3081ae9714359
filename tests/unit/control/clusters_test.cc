// SPDX-License-Identifier: Apache-2.0
// Ceph clusters and their disks: what the API takes, how keys are kept, what engines are told, and what they tell.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "control/model/reasons.h"
#include "keys/ceph_key.h"
#include "reconciler_rig.h"
#include "requests.h"

namespace cleat::control::clusters_test {
namespace {

// Keys made by nobody; the second differs in one byte of the secret.
constexpr char kKey[] = "AQAAAQIDBAUGBxAAQEFCQ0RFRkdISUpLTE1OTw==";
constexpr char kOtherKey[] = "AQAAAQIDBAUGBxAAQEFCQ0RFRkdISUpLTE1OUA==";

v1::CreateClusterRequest NewCluster(const std::string& id, const std::string& key = kKey) {
  v1::CreateClusterRequest request;
  request.set_cluster_id(id);
  v1::ClusterSpec& spec = *request.mutable_cluster()->mutable_spec();
  spec.set_monitors("10.0.0.1");
  spec.set_user("cleat");
  if (!key.empty()) spec.set_plain_key(key);
  return request;
}

v1::CreateDiskRequest RbdDisk(const std::string& id, const std::string& image,
                              const std::string& snapshot = {}) {
  v1::CreateDiskRequest request = NullDisk(id);
  v1::RbdBackend& rbd = *request.mutable_disk()->mutable_spec()->mutable_rbd();
  rbd.set_cluster("clusters/ceph");
  rbd.set_pool("vms");
  rbd.set_image(image);
  rbd.set_snapshot(snapshot);
  return request;
}

v1::UpdateClusterRequest Update(const v1::CreateClusterRequest& wanted) {
  v1::UpdateClusterRequest request;
  request.mutable_cluster()->set_name(ClusterName(wanted.cluster_id()));
  *request.mutable_cluster()->mutable_spec() = wanted.cluster().spec();
  request.mutable_update_mask()->add_paths("spec");
  return request;
}

v1::DeleteClusterRequest DeleteCluster(const std::string& id) {
  v1::DeleteClusterRequest request;
  request.set_name(ClusterName(id));
  return request;
}

class ClustersTest : public ReconcilerRig {
 protected:
  ClustersTest() {
    WriteKek("kek", '1');
    Restart();
  }

  void WriteKek(const std::string& name, char digit) {
    std::filesystem::remove(dir_ / name);
    std::ofstream(dir_ / name) << std::string(64, digit) << "\n";
    std::filesystem::permissions(dir_ / name, std::filesystem::perms::owner_read);
  }

  void Restart(std::vector<std::string> keks = {"kek"}) {
    for (std::string& path : keks) path = dir_ / path;
    auto keyring = std::make_unique<keys::Keyring>();
    ASSERT_TRUE(keyring->SetFiles(keks).ok());
    engine_.Disconnect();
    Stop();
    Start(std::move(keyring));
  }

  Result<v1::WaitResponse> WaitFor(const std::string& name) {
    v1::WaitRequest request;
    request.set_name(name);
    request.mutable_timeout()->set_seconds(60);
    return state_->waits().Wait(request, [] { return false; });
  }

  // Until `done` is true of it.
  template <typename Done>
  v1::Attachment Await(const std::string& controller, const std::string& id, Done done) {
    for (;;) {
      const uint64_t revision = state_->NewestRevision();
      const auto attachment = state_->attachments().Get(GetAttachment(controller, id));
      if (attachment.ok() && done(*attachment)) return *attachment;
      state_->waits().AwaitChange(revision, std::chrono::steady_clock::now() + std::chrono::seconds(1));
    }
  }

  void AttachOne(const std::string& disk, const std::string& controller) {
    ASSERT_TRUE(state_->disks().Create(RbdDisk(disk, disk)).ok());
    ASSERT_TRUE(state_->controllers().Create(NewController(controller)).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach(disk, controller)).ok());
  }

  // Until `done` is true of the cluster.
  template <typename Done>
  v1::ClusterStatus AwaitCluster(Done done) {
    v1::GetClusterRequest get;
    get.set_name("clusters/ceph");
    for (;;) {
      const uint64_t revision = state_->NewestRevision();
      const auto cluster = state_->clusters().Get(get);
      if (cluster.ok() && done(cluster->status())) return cluster->status();
      state_->waits().AwaitChange(revision, std::chrono::steady_clock::now() + std::chrono::seconds(1));
    }
  }
  v1::ClusterStatus AwaitCluster(v1::ClusterState state) {
    return AwaitCluster([state](const v1::ClusterStatus& status) { return status.state() == state; });
  }

  // The engine says of the cluster what `change` does to it.
  template <typename Change>
  void ReportCluster(Change change) {
    ReportClusterOf(engine_, change);
  }
  template <typename Change>
  static void ReportClusterOf(FakeEngine& engine, Change change) {
    engine::v1::CephStatus status;
    status.set_clients_total(1);
    engine::v1::CephCluster& cluster = *status.add_clusters();
    cluster.set_name("clusters/ceph");
    change(cluster);
    engine.ReportCeph(status);
  }
  void ReportWell() {
    ReportCluster([](engine::v1::CephCluster&) {});
  }

  // The binary key that the engine was given.
  std::string KeyAtEngine(const std::string& cluster) {
    const engine::v1::Cluster told = engine_.Clusters().at(cluster);
    const std::string& data = told.wrapped_key();
    const auto key = keyring_->Unwrap(told.key_encryption_key(),
                                      {reinterpret_cast<const uint8_t*>(data.data()), data.size()}, cluster,
                                      keys::Wrapping::kPadded);
    if (!key.ok()) return key.error().message;
    const keys::Secret text = keys::EncodeCephKey(*key);
    return {reinterpret_cast<const char*>(text.bytes().data()), text.size()};
  }
};

// ---- What it may say ----

TEST_F(ClustersTest, WhatCantBeIsRefusedWithItsField) {
  const auto refused = [&](auto change, std::string_view says) {
    v1::CreateClusterRequest request = NewCluster("ceph");
    change(*request.mutable_cluster()->mutable_spec());
    const auto made = state_->clusters().Create(request);
    ASSERT_FALSE(made.ok()) << says;
    EXPECT_NE(made.error().message.find(says), std::string::npos) << made.error().message;
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  };
  refused([](auto& spec) { spec.clear_monitors(); }, "monitors and conf_file are missing");
  refused([](auto& spec) { spec.set_conf_file("ceph.conf"); }, "conf_file is 'ceph.conf'");
  refused([](auto& spec) { spec.clear_user(); }, "user is missing");
  refused([](auto& spec) { spec.set_user("client.cleat"); }, "leave 'client.' out");
  refused([](auto& spec) { spec.clear_key(); }, "neither a key nor a conf_file");
  refused([](auto& spec) { spec.set_plain_key("nonsense"); }, "no key of a Ceph user");
  refused([](auto& spec) { spec.set_images_per_client(65); }, "images_per_client is 65");
  refused([](auto& spec) { spec.mutable_connect_timeout()->set_nanos(500); }, "connect_timeout must be");
  refused([](auto& spec) { spec.mutable_connect_timeout()->set_seconds(301); }, "connect_timeout must be");

  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  const auto no_cluster = [&](auto change, v1::Reason reason) {
    v1::CreateDiskRequest request = RbdDisk("d", "image");
    change(*request.mutable_disk()->mutable_spec()->mutable_rbd());
    const auto made = state_->disks().Create(request);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(ReasonOf(made.error()), reason) << made.error().message;
  };
  no_cluster([](auto& rbd) { rbd.set_cluster("clusters/other"); }, v1::REASON_RESOURCE_NOT_FOUND);
  no_cluster([](auto& rbd) { rbd.set_cluster("ceph"); }, v1::REASON_INVALID_FIELD);
  no_cluster([](auto& rbd) { rbd.clear_image(); }, v1::REASON_INVALID_FIELD);
  no_cluster([](auto& rbd) { rbd.set_pool("a/b"); }, v1::REASON_INVALID_FIELD);
}

TEST_F(ClustersTest, TheKeyIsKeptWrappedAndNeverShown) {
  const auto made = state_->clusters().Create(NewCluster("ceph"));
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_FALSE(made->spec().has_plain_key());
  EXPECT_EQ(made->spec().wrapped_key().key_encryption_key(), keyring_->current_id());
  EXPECT_TRUE(made->spec().wrapped_key().data().empty());
  EXPECT_EQ(made->spec().images_per_client(), 16U);
  EXPECT_EQ(made->spec().connect_timeout().seconds(), 30);
  // The same again is the same, another key is not.
  EXPECT_EQ(state_->clusters().Create(NewCluster("ceph"))->revision(), made->revision());
  EXPECT_EQ(ReasonOf(state_->clusters().Create(NewCluster("ceph", kOtherKey)).error()),
            v1::REASON_CONTENT_DIFFERS);
  EXPECT_TRUE(state_->clusters().Create(NewCluster("ceph", "")).ok()) << "without a key: the present one";
  Restart();
  const std::string raw = [&] {
    std::string all;
    for (const auto& file : std::filesystem::directory_iterator(dir_.path())) {
      if (!file.is_regular_file()) continue;
      std::ifstream in(file.path(), std::ios::binary);
      all.append(std::istreambuf_iterator<char>(in), {});
    }
    return all;
  }();
  EXPECT_EQ(raw.find(std::string("@ABCDEFGHIJKLMNO")), std::string::npos) << "the secret is in the store";
  EXPECT_EQ(raw.find("QEFCQ0RFRkdI"), std::string::npos);
  v1::GetClusterRequest get;
  get.set_name("clusters/ceph");
  const auto again = state_->clusters().Get(get);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->etag(), made->etag());
  EXPECT_TRUE(again->spec().wrapped_key().data().empty());
}

TEST_F(ClustersTest, AnImageIsOneDisksUnlessBothOnlyRead) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(state_->disks().Create(RbdDisk("a", "image")).ok());
  const auto second = state_->disks().Create(RbdDisk("b", "image"));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(ReasonOf(second.error()), v1::REASON_IMAGE_TAKEN) << second.error().message;
  EXPECT_TRUE(state_->disks().Create(RbdDisk("b", "image", "then")).ok()) << "its snapshot is another thing";
  v1::CreateDiskRequest reader = RbdDisk("c", "shared");
  reader.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  ASSERT_TRUE(state_->disks().Create(reader).ok());
  reader.set_disk_id("d");
  EXPECT_TRUE(state_->disks().Create(reader).ok());

  ASSERT_TRUE(state_->controllers().Create(NewController("vm")).ok());
  EXPECT_EQ(ReasonOf(state_->attachments().Attach(Attach("b", "vm")).error()), v1::REASON_READ_ONLY_REQUIRED);
  EXPECT_TRUE(state_->attachments().Attach(Attach("b", "vm", true)).ok());

  const auto refused = state_->clusters().Delete(DeleteCluster("ceph"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_CLUSTER_IN_USE);
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("a")).ok());
  EXPECT_TRUE(state_->disks().Create(RbdDisk("e", "image")).ok()) << "the image is free again";
}

TEST_F(ClustersTest, AKeyIsSparedWhereTheRequestSaysSo) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  v1::DeleteClusterRequest sparing = DeleteCluster("ceph");
  sparing.set_spare_key(true);
  const auto refused = state_->clusters().Delete(sparing);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_KEY_NOT_KEPT);
  EXPECT_TRUE(state_->clusters().Delete(DeleteCluster("ceph")).ok());
}

// ---- What engines are told ----

TEST_F(ClustersTest, TheClusterComesBeforeItsFirstDiskAndGoesWhenItIsDeleted) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  AttachOne("a", "vm1");
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  Requests told = engine_.TakeRequests();
  std::sort(told.begin(),
            told.begin() + std::min<ptrdiff_t>(2, std::ssize(told)));  // in any order, but before the third
  EXPECT_EQ(told, (Requests{"PutCluster clusters/ceph", "PutController controllers/vm1",
                            "Attach controllers/vm1 0 disks/a"}));
  EXPECT_EQ(KeyAtEngine("clusters/ceph"), kKey);
  EXPECT_EQ(engine_.DiskAt("controllers/vm1", 0).rbd().pool(), "vms");
  AttachOne("b", "vm2");
  ASSERT_TRUE(WaitFor("controllers/vm2/attachments/b").ok());
  EXPECT_EQ(engine_.TakeRequests(),
            (Requests{"PutController controllers/vm2", "Attach controllers/vm2 0 disks/b"}));

  // Who has it all is asked for nothing.
  Restart();
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  ASSERT_TRUE(WaitFor("clusters/ceph").ok());
  EXPECT_EQ(engine_.TakeRequests(), Requests{});

  ASSERT_TRUE(state_->clusters().Update(Update(NewCluster("ceph", kOtherKey))).ok());
  ASSERT_TRUE(WaitFor("clusters/ceph").ok());
  EXPECT_EQ(engine_.TakeRequests(), Requests{"PutCluster clusters/ceph"});
  EXPECT_EQ(KeyAtEngine("clusters/ceph"), kOtherKey);

  for (const auto& [disk, controller] : {std::pair("a", "vm1"), std::pair("b", "vm2")}) {
    ASSERT_TRUE(state_->attachments().Detach(Detach(controller, disk)).ok());
    engine_.WaitForRequest("Detach controllers/" + std::string(controller) + " 0");
    while (!state_->disks().Delete(DeleteDisk(disk)).ok()) {
      state_->waits().AwaitChange(state_->NewestRevision(),
                                  std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
    }
  }
  ASSERT_TRUE(state_->clusters().Delete(DeleteCluster("ceph")).ok());
  engine_.WaitForRequest("DropCluster clusters/ceph");
}

TEST_F(ClustersTest, AnEngineThatKnowsNoClustersFailsTheirDisksAlone) {
  ASSERT_TRUE(engine_.Connect());
  engine_.FailClusters(1000000);
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  AttachOne("a", "vm1");
  const v1::Attachment failed = Await("vm1", "a", [](const v1::Attachment& one) {
    return one.status().state() == v1::ATTACHMENT_STATE_FAILED && one.status().failures() > 1;
  });
  EXPECT_NE(failed.status().message().find("does not know such a message"), std::string::npos);
  ASSERT_TRUE(state_->disks().Create(NullDisk("n")).ok());
  ASSERT_TRUE(state_->controllers().Create(NewController("vm2")).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("n", "vm2")).ok());
  ASSERT_TRUE(WaitFor("controllers/vm2/attachments/n").ok());
  engine_.FailClusters(0);
  EXPECT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
}

TEST_F(ClustersTest, ANewKeyEncryptionKeyReachesTheEngineBeforeTheOldOneIsGone) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  AttachOne("a", "vm1");
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  const std::string before = engine_.Clusters().at("clusters/ceph").key_encryption_key();
  WriteKek("new", '2');
  Restart({"new", "kek"});
  v1::GetClusterRequest get;
  get.set_name("clusters/ceph");
  const std::string etag = state_->clusters().Get(get)->etag();
  ASSERT_TRUE(state_->RewrapKeys().ok());
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("clusters/ceph").ok());
  EXPECT_NE(engine_.Clusters().at("clusters/ceph").key_encryption_key(), before);
  EXPECT_EQ(KeyAtEngine("clusters/ceph"), kKey);
  EXPECT_EQ(state_->clusters().Get(get)->etag(), etag) << "the intent is the same";
  Restart({"new"});
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("clusters/ceph").ok());
  EXPECT_EQ(KeyAtEngine("clusters/ceph"), kKey);
}

// ---- What engines tell ----

TEST_F(ClustersTest, AnImageThatGrewIsTheDisksSizeForGood) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  AttachOne("a", "vm1");
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  engine_.GrowDisk("controllers/vm1", 0, 3 * kMiB);
  Await("vm1", "a", [](const v1::Attachment& one) { return one.status().size_bytes() == 3 * kMiB; });
  EXPECT_EQ(state_->disks().Get(GetDisk("a"))->spec().size_bytes(), 3 * kMiB);
  Restart();
  EXPECT_EQ(state_->disks().Get(GetDisk("a"))->spec().size_bytes(), 3 * kMiB);
}

// Whoever opens the disk is told how large its image was for certain, until somebody has it as large as the disk.
TEST_F(ClustersTest, WhatAnImageHadIsToldUntilItHasGrown) {
  const auto resize = [this](uint64_t bytes) {
    v1::UpdateDiskRequest request;
    request.mutable_disk()->set_name("disks/a");
    request.mutable_disk()->mutable_spec()->set_size_bytes(bytes);
    request.mutable_update_mask()->add_paths("spec.size_bytes");
    return state_->disks().Update(request).ok();
  };
  const auto told = [this] { return engine_.DiskAt("controllers/vm1", 0).rbd(); };
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  AttachOne("a", "vm1");
  const uint64_t before = state_->disks().Get(GetDisk("a"))->spec().size_bytes();
  ASSERT_TRUE(resize(before + kMiB));
  ASSERT_TRUE(resize(before + 2 * kMiB));
  Restart();
  engine_.FailAttaches(1, "unavailable", "gone");  // it died, say, with the image as it was
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  EXPECT_EQ(engine_.DiskAt("controllers/vm1", 0).size_bytes(), before + 2 * kMiB);
  EXPECT_EQ(told().image_bytes(), before);

  // It has the size now; for an engine that comes next, too.
  const auto attach_anew = [this] {
    engine_.Die();
    Restart();
    ASSERT_TRUE(engine_.Connect());
    ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  };
  attach_anew();
  EXPECT_FALSE(told().has_image_bytes());

  // While it is attached: the engine makes it larger at once, and says so.
  ASSERT_TRUE(resize(before + 3 * kMiB));
  ASSERT_TRUE(WaitFor("disks/a").ok());
  attach_anew();
  EXPECT_EQ(engine_.DiskAt("controllers/vm1", 0).size_bytes(), before + 3 * kMiB);
  EXPECT_FALSE(told().has_image_bytes());
}

TEST_F(ClustersTest, AFencedDiskIsTouchedByNobodyButWhoDetachesIt) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  AttachOne("a", "vm1");
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  engine_.TakeRequests();
  engine_.FenceAttachment("controllers/vm1", 0, "shut out");
  const auto fenced = [](const v1::Attachment& one) {
    return one.status().state() == v1::ATTACHMENT_STATE_FAILED && one.status().message() == "shut out" &&
           one.status().failures() == 1;
  };
  Await("vm1", "a", fenced);
  Restart();
  ASSERT_TRUE(engine_.Connect());
  Await("vm1", "a", fenced);
  // Whatever is looked at meanwhile.
  AttachOne("b", "vm2");
  ASSERT_TRUE(WaitFor("controllers/vm2/attachments/b").ok());
  const Requests requests = engine_.TakeRequests();
  EXPECT_EQ(std::count(requests.begin(), requests.end(), "Detach controllers/vm1 0"), 0);
  ASSERT_TRUE(state_->attachments().Detach(Detach("vm1", "a")).ok());
  engine_.WaitForRequest("Detach controllers/vm1 0");
  v1::WaitRequest gone;
  gone.set_name("controllers/vm1/attachments/a");
  gone.set_condition(v1::WAIT_CONDITION_GONE);
  ASSERT_TRUE(state_->waits().Wait(gone, [] { return false; }).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm1")).ok());
  EXPECT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
}

constexpr uint64_t kSinceS = 1'800'000'000;  // 2027-01-15T08:00:00Z

void IsSilent(engine::v1::CephCluster& cluster) {
  cluster.set_silent_since_s(kSinceS);
}

TEST_F(ClustersTest, AClusterSaysWhatIsWrongWithItUntilThatIsOver) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  AttachOne("a", "vm1");
  ASSERT_TRUE(WaitFor("controllers/vm1/attachments/a").ok());
  EXPECT_EQ(AwaitCluster(v1::CLUSTER_STATE_UNSPECIFIED).message(), "");
  ReportWell();
  EXPECT_EQ(AwaitCluster(v1::CLUSTER_STATE_OK).message(), "");
  struct Case {
    std::function<void(engine::v1::CephCluster&)> change;
    v1::ClusterState state;
    std::string message;
  };
  const std::vector<Case> cases = {
      {IsSilent, v1::CLUSTER_STATE_NOT_ANSWERING,
       "clusters/ceph: its monitors do not answer engines/engine-0 since 2027-01-15T08:00:00Z: see that they "
       "run, "
       "have a quorum and can be reached from this host (ceph -s)"},
      {[](auto& cluster) {
         cluster.set_full_since_s(kSinceS);
         cluster.set_full("pool 'vms' (no space)");
       },
       v1::CLUSTER_STATE_FULL,
       "clusters/ceph: it is full, and writes wait: pool 'vms' (no space) since 2027-01-15T08:00:00Z: make "
       "room, or "
       "raise the pool's quota (ceph df, ceph health detail)"},
      {[](auto& cluster) { cluster.set_paused_since_s(kSinceS); }, v1::CLUSTER_STATE_NOT_ANSWERING,
       "clusters/ceph: its reads or writes are paused since 2027-01-15T08:00:00Z: 'ceph osd unpause' lets "
       "them go "
       "on"},
  };
  for (const Case& one : cases) {
    ReportCluster(one.change);
    const v1::ClusterStatus bad = AwaitCluster(one.state);
    EXPECT_EQ(bad.message(), one.message);
    EXPECT_EQ(bad.since().seconds(), kSinceS);
    EXPECT_TRUE(WaitFor("clusters/ceph").ok()) << "its settings are where they belong all the same";
    ReportWell();
    const v1::ClusterStatus well = AwaitCluster(v1::CLUSTER_STATE_OK);
    EXPECT_EQ(well.message(), "");
    EXPECT_FALSE(well.has_since());
  }
  // An engine that is gone knows nothing any more.
  ReportCluster(IsSilent);
  AwaitCluster(v1::CLUSTER_STATE_NOT_ANSWERING);
  engine_.Disconnect();
  EXPECT_EQ(AwaitCluster(v1::CLUSTER_STATE_UNSPECIFIED).message(), "");
}

// Each engine tells of the pools that its own disks are in.
TEST_F(ClustersTest, FullPoolsOfAllEnginesAreNamedAndThoseOfNoneAnyMoreAreNot) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  FakeEngine other(socket_, "engine-1");
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(other.Connect());
  const auto is_full = [](FakeEngine& engine, const std::string& pools, uint64_t since_s) {
    ReportClusterOf(engine, [&](engine::v1::CephCluster& cluster) {
      cluster.set_full_since_s(since_s);
      cluster.set_full(pools);
    });
  };
  const auto await_said = [this](const std::string& pools, const char* since) {
    const std::string message = fmt::format(
        "clusters/ceph: it is full, and writes wait: {} since 2027-01-15T08:00:{}Z: make room, or "
        "raise the pool's quota (ceph df, ceph health detail)",
        pools, since);
    std::string last;
    ReconcilerRig::Await(message, [&] {
      v1::GetClusterRequest get;
      get.set_name("clusters/ceph");
      last = state_->clusters().Get(get)->status().message();
      return last == message;
    });
    EXPECT_EQ(last, message);
  };
  is_full(engine_, "pool 'a' (no space)", kSinceS + 7);
  await_said("pool 'a' (no space)", "07");
  is_full(other, "pool 'b' (running out of quota)", kSinceS);
  await_said("pool 'a' (no space); pool 'b' (running out of quota)", "00");
  is_full(engine_, "pool 'a' (no space), pool 'b' (running out of quota)", kSinceS + 7);
  await_said("pool 'a' (no space), pool 'b' (running out of quota)", "00");
  is_full(engine_, "pool 'b' (running out of quota)", kSinceS + 7);
  await_said("pool 'b' (running out of quota)", "00");
  is_full(engine_, "pool 'a' (no space)", kSinceS + 7);
  await_said("pool 'a' (no space); pool 'b' (running out of quota)", "00");
  ReportClusterOf(other, [](engine::v1::CephCluster&) {});
  await_said("pool 'a' (no space)", "07");
  ReportWell();
  EXPECT_EQ(AwaitCluster(v1::CLUSTER_STATE_OK).message(), "");
}

TEST_F(ClustersTest, WhatIsWrongIsToldToWatchersOnceAnEpisode) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("engines/engine-0").ok());
  ReportWell();
  AwaitCluster(v1::CLUSTER_STATE_OK);
  const auto watcher = state_->Watch(state_->NewestRevision());
  ASSERT_TRUE(watcher.ok());
  for (int i = 0; i < 3; ++i) {  // it is busy for longer and longer, say
    engine::v1::CephStatus status;
    status.set_clients_total(1);
    status.set_threads(static_cast<uint32_t>(i));
    status.add_clusters()->set_name("clusters/ceph");
    IsSilent(*status.mutable_clusters(0));
    engine_.ReportCeph(status);
  }
  AwaitCluster(v1::CLUSTER_STATE_NOT_ANSWERING);
  ReportWell();
  AwaitCluster(v1::CLUSTER_STATE_OK);
  std::vector<v1::ClusterState> seen;
  while (seen.empty() || seen.back() != v1::CLUSTER_STATE_OK) {
    const auto event = (*watcher)->Next(std::chrono::seconds(60));
    ASSERT_TRUE(event.ok() && *event != nullptr);
    if ((*event)->has_cluster()) seen.push_back((*event)->cluster().status().state());
  }
  EXPECT_EQ(seen, (std::vector{v1::CLUSTER_STATE_NOT_ANSWERING, v1::CLUSTER_STATE_OK}));
}

// Its disks tell of their storage one by one; the cluster of all of them.
TEST_F(ClustersTest, AClusterSaysThatItsDisksWaitOrFail) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  for (const auto& [disk, controller] : {std::pair("a", "vm1"), std::pair("b", "vm2")}) {
    AttachOne(disk, controller);
    ASSERT_TRUE(WaitFor(fmt::format("controllers/{}/attachments/{}", controller, disk)).ok());
  }
  engine_.SetStorage("controllers/vm1", 0, engine::v1::STORAGE_STATE_NOT_ANSWERING);
  engine_.SetStorage("controllers/vm2", 0, engine::v1::STORAGE_STATE_FAILING);
  const v1::ClusterStatus both = AwaitCluster([](const v1::ClusterStatus& status) {
    return status.message().find(
               "its storage fails requests of 1 attachment(s): controllers/vm2/attachments/b") !=
           std::string::npos;
  });
  EXPECT_EQ(both.state(), v1::CLUSTER_STATE_NOT_ANSWERING);
  EXPECT_NE(
      both.message().find("its storage does not answer 1 attachment(s): controllers/vm1/attachments/a since"),
      std::string::npos)
      << both.message();
  engine_.SetStorage("controllers/vm1", 0, engine::v1::STORAGE_STATE_OK);
  AwaitCluster(v1::CLUSTER_STATE_FAILING);
  // A disk that is detached says nothing any more.
  ASSERT_TRUE(state_->attachments().Detach(Detach("vm2", "b")).ok());
  EXPECT_EQ(AwaitCluster(v1::CLUSTER_STATE_UNSPECIFIED).message(), "");
}

TEST_F(ClustersTest, WhatWaitsForAClusterSaysWhy) {
  ASSERT_TRUE(state_->clusters().Create(NewCluster("ceph")).ok());
  ASSERT_TRUE(engine_.Connect());
  for (const auto& [disk, controller] :
       {std::pair("a", "vm1"), std::pair("b", "vm2"), std::pair("c", "vm3")}) {
    AttachOne(disk, controller);
    ASSERT_TRUE(WaitFor(fmt::format("controllers/{}/attachments/{}", controller, disk)).ok());
  }
  const std::string waits = "waits for clusters/ceph: its monitors do not answer";
  const auto says = [&waits](const v1::Attachment& one) { return one.status().message().starts_with(waits); };
  const auto adds = [&waits](const v1::Attachment& one) {
    return one.status().message().starts_with("as its storage does; " + waits);
  };
  // Before it is known, and afterwards.
  engine_.SetStorage("controllers/vm1", 0, engine::v1::STORAGE_STATE_NOT_ANSWERING,
                     engine::v1::ATTACHMENT_STATE_OPENING);
  ReportCluster(IsSilent);
  Await("vm1", "a", says);
  engine_.SetStorage("controllers/vm2", 0, engine::v1::STORAGE_STATE_NOT_ANSWERING);
  Await("vm2", "b", adds);
  const auto disk_says = [&](const std::string& id) {
    return state_->disks().Get(GetDisk(id))->status().message().starts_with(waits);
  };
  EXPECT_TRUE(disk_says("a"));
  EXPECT_TRUE(disk_says("b"));
  EXPECT_FALSE(disk_says("c")) << "it needs nothing of the monitors";
  const auto other = state_->attachments().Get(GetAttachment("vm3", "c"));
  EXPECT_EQ(other->status().message(), "");
  ReportWell();
  const auto says_nothing_of_it = [](const v1::Attachment& one) {
    return one.status().message().find("clusters/ceph") == std::string::npos;
  };
  Await("vm1", "a", says_nothing_of_it);
  Await("vm2", "b", says_nothing_of_it);
  EXPECT_FALSE(disk_says("a"));
}

TEST_F(ClustersTest, ConnectionsAreInTheEnginesStatusWhileItIsConnected) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("engines/engine-0").ok());
  engine::v1::CephStatus status;
  status.set_threads(14);
  status.set_clients_total(1);
  engine::v1::CephClient& client = *status.add_clients();
  client.set_cluster("clusters/ceph");
  client.set_id("client.7");
  client.set_images(3);
  client.set_busy_ns(2'500'000'000);
  engine_.ReportCeph(status);
  v1::GetEngineRequest get;
  get.set_name("engines/engine-0");
  v1::EngineStatus shown;
  while (!shown.has_ceph()) {
    const uint64_t revision = state_->NewestRevision();
    shown = state_->engines().Get(get)->status();
    if (!shown.has_ceph()) {
      state_->waits().AwaitChange(revision, std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
    }
  }
  EXPECT_EQ(shown.ceph().threads(), 14U);
  EXPECT_EQ(shown.ceph().clients(0).busy().seconds(), 2);
  EXPECT_EQ(shown.ceph().clients(0).images(), 3U);
  engine_.Disconnect();
  while (state_->engines().Get(get)->status().connected()) {
    state_->waits().AwaitChange(state_->NewestRevision(),
                                std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
  }
  EXPECT_FALSE(state_->engines().Get(get)->status().has_ceph());
}

}  // namespace
}  // namespace cleat::control::clusters_test
